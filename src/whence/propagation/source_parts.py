"""Parts through the whole model: what each token contributed to the logits (DecompX)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from whence.model.tap import Align, AttentionRecord
from whence.propagation.deferred import ChosenRows, Deferred, DeferredRows, DeferredWhole
from whence.propagation.operations import VIEW, is_linear, linear_of
from whence.propagation.parts import ELSEWHERE, Operand, Parts, swapped, tensors_in, through_linear
from whence.propagation.sums_of_parts import check_sum, diagonal, fits, with_rest

Split = Literal["absdot", "norm", "equal", "none"]


class Sources(Parts):
    """Parts carried from the states that enter the first layer to the logits; `logits` holds the parts of the logits.

    The rest is divided among the sources by `split`: in proportion to |<part, rest>|, to |part|, or equally among the
    parts that are not zero; with "none" it stays as it is. Biases of values and output projection are divided together,
    after the residual is added; other biases right away. A graph is made only to know which tensors depend on the
    sources. All parts are `Deferred`. They must not refer to the tensor that they belong to, because then neither would
    ever be freed.
    """

    graph = True
    shares = True

    def __init__(self, subject: str, split: Split) -> None:
        super().__init__()
        self.logits: Tensor | None = None  # (source and rest, batch, class)
        self._subject, self._split = subject, split
        self._attended: Any = WeakIdKeyDictionary()  # outputs of attention before the residual is added
        self._words: Any = WeakIdKeyDictionary()  # logits over a vocabulary -> input, weight and bias of their layer

    @contextlib.contextmanager
    def on(self, model: nn.Module) -> Iterator[None]:
        # No backward pass follows. A graph that kept tensors would keep their parts, too, which are far larger.
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: None, self._asked_for), super().on(model):
            yield

    def _asked_for(self, _: None) -> Tensor:
        raise ValueError(
            f"{self._subject} takes gradients while it runs, which decompositions do not follow; use leave_one_out"
        )

    def state(self, at: str | int, stream: str, tensor: Tensor) -> Tensor:
        tensor = tensor.detach().requires_grad_()
        with torch._C.DisableTorchFunction(), torch.no_grad():
            parts = diagonal(tensor)
            self._parts[tensor] = DeferredWhole(lambda: parts)
        return tensor

    def seen(self, record: AttentionRecord, weights: Tensor, values: Tensor, product: Tensor, align: Align) -> None:
        self._attended[product] = True
        if product in self._parts:  # attention mixes all rows, so its parts are computed here
            with torch._C.DisableTorchFunction():
                self._parts[product]()

    def decided(self, logits: Tensor) -> None:
        if logits not in self._parts:
            raise ValueError(f"the states of {self._subject} could not be followed to its logits; {ELSEWHERE}")
        with torch._C.DisableTorchFunction(), torch.no_grad():
            parts = self._parts[logits]()
            check_sum(parts.sum(0), logits, self._subject)
            self.logits = self.settled(parts)

    # ---- what operations do to parts ---------------------------------------------------------------------------------

    def by_rows(
        self, operation: Callable[..., Tensor], operands: Sequence[Operand], fixed: Sequence[Any], out: Tensor
    ) -> Deferred:
        if out.ndim < 2 or any(state.shape[:-1] != out.shape[:-1] for state, _ in operands):
            return DeferredWhole(lambda: operation(*[parts() for _, parts in operands], *fixed))
        rows = [_as_rows(one, out) if isinstance(one, Tensor) and one.ndim > 1 else one for one in fixed]
        return DeferredRows(operation, [parts for _, parts in operands], rows, out.shape[:-1], self._still_read)

    def whole(self, operation: Callable[..., Any], *parts: Deferred) -> Deferred:
        return DeferredWhole(lambda: operation(*[one() for one in parts]))

    def mapped(self, func: Any, args: Any, kwargs: Any, x: Tensor, parts: Any, out: Any) -> Any:
        numbers = _chosen_rows(func, args, x, out) if func in VIEW and not kwargs else None
        if numbers is None:
            return super().mapped(func, args, kwargs, x, parts, out)
        return ChosenRows(parts, numbers, out.shape[:-1], self._still_read)

    def settled(self, parts: Tensor, own: bool = False) -> Tensor:
        sources, rest = parts[:-1], parts[-1]
        if self._split == "none" or not rest.any():
            return parts
        if self._split == "absdot":
            share = torch.einsum("s...w,...w->s...", sources, rest).abs()
        else:
            share = sources.norm(dim=-1)
            share = share if self._split == "norm" else (share > 0).to(parts.dtype)
        total = share.sum(0, keepdim=True)
        share = torch.where(total > 0, share / total.clamp(min=torch.finfo(parts.dtype).tiny), 0.0)
        if own:
            sources.addcmul_(share[..., None], rest)
            rest.masked_fill_((total[0] > 0)[..., None], 0.0)
            return parts
        share = torch.cat([share, -(total > 0).to(share.dtype)])  # subtract from the rest what the sources got
        return torch.addcmul(parts, share[..., None], rest)

    def projected(self, x: Tensor, linear: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        return linear if x in self._attended else lambda parts: linear(self.settled(parts))

    def summed(self, minus: bool, args: Any, parts: dict[int, Any], out: Tensor) -> Deferred | None:
        a, b = args[0], args[1]
        sign = -1 if minus else 1
        if id(a) in parts and id(b) in parts:
            attended = a in self._attended or b in self._attended
            add = partial(self._added, sign=sign, attended=attended)
            return self.by_rows(add, [(a, parts[id(a)]), (b, parts[id(b)])], [], out)
        x, other = (a, b) if id(a) in parts else (b, a)
        if isinstance(other, Tensor) and other.requires_grad:  # it depends on the sources, and its parts are not known
            return None
        if x in self._attended:  # a bias of the output projection that is added by itself
            self._attended[out] = True
        signs = (1, sign) if x is a else (sign, 1)
        return self.by_rows(partial(_with_constant, signs=signs), [(x, parts[id(x)])], [other], out)

    def _added(self, first: Tensor, second: Tensor, sign: int, attended: bool) -> Tensor:
        """The parts of a sum or difference; the residual and what attention adds to it are settled as one."""
        if attended:
            return self.settled(first.add(second, alpha=sign), own=True)
        one, other = self.settled(first), self.settled(second)
        own = one is not first and fits(other, one)
        return one.add_(other, alpha=sign) if own else one.add(other, alpha=sign)

    def _still_read(self, parts: Deferred) -> bool:
        """Whether the model holds a tensor with these parts."""
        return any(one is parts for one in self._parts.values())

    # ---- logits over a vocabulary, outputs of attention --------------------------------------------------------------

    def __torch_function__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if is_linear(func, args) and self._writes_words(*linear_of(func, args, kwargs)):
            out = func(*args, **kwargs)
            self._words[out] = linear_of(func, args, kwargs)
            return out
        given = tensors_in(args, kwargs)
        for words in [tensor for tensor in given if tensor in self._words]:
            x, weight, bias = self._words[words]
            linear = self.projected(x, partial(through_linear, weight=weight, bias=bias))
            parts = self._parts[x]
            out = func(*args, **kwargs) if func is Tensor.__getitem__ else None
            if out is not None and out.shape[-1] == words.shape[-1]:
                # The model reads only these tokens' logits, so parts of logits are made for these tokens alone.
                with torch.no_grad():
                    read = func(x, *args[1:], **kwargs)
                    parts = self.mapped(func, (x, *args[1:]), kwargs, x, parts, read)
                    self._parts[out] = self.by_rows(linear, [(read, parts)], [], out)
                return out
            self._parts[words] = self.by_rows(linear, [(x, parts)], [], words)
        out = super().__torch_function__(func, kinds, args, kwargs)
        if (func in VIEW or is_linear(func, args)) and any(tensor in self._attended for tensor in given):
            for tensor in out if isinstance(out, (tuple, list)) else (out,):
                self._attended[tensor] = True
        return out

    def _writes_words(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
        """Whether a linear layer writes logits over a vocabulary: its output is much wider than its input."""
        return x in self._parts and weight.shape[0] >= 8 * weight.shape[1]


def _with_constant(parts: Tensor, other: Any, signs: tuple[int, int]) -> Tensor:
    """The parts of a sum with a tensor that has no parts and may have more rows; `signs` are those of both operands."""
    shape = torch.broadcast_shapes(parts.shape[1:], other.shape if isinstance(other, Tensor) else ())
    return with_rest((parts if signs[0] > 0 else -parts).expand(-1, *shape), other if signs[1] > 0 else -other)


def _chosen_rows(func: Any, args: Any, x: Tensor, out: Any) -> Tensor | None:
    """The numbers of the rows of `x` that a view consists of; None where it has all of `x`, or not whole rows."""
    width = x.shape[-1]
    if x.ndim < 2 or not isinstance(out, Tensor) or out.shape[-1:] != (width,) or out.numel() >= x.numel():
        return None
    places = torch.arange(x.numel(), device=x.device).view(x.shape)  # each entry holds its own place
    places = func(*swapped(args, x, places))
    rows = places.div(width, rounding_mode="floor")
    whole = bool((places == rows[..., :1] * width + torch.arange(width, device=x.device)).all())
    return rows[..., 0].flatten() if whole else None


def _as_rows(tensor: Tensor, like: Tensor) -> Tensor:
    """A tensor with the rows of the state `like`, to which it is broadcast: (row, width)."""
    return tensor.detach().expand(*like.shape[:-1], tensor.shape[-1]).reshape(-1, tensor.shape[-1])
