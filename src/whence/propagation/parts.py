"""Parts of states: the contribution of each source to every tensor of a pass, carried along while the model runs.

A state is a sum of parts, one per source, and a rest (biases). Parts go through views, sums, linear maps and norms as
the state itself does, with attention weights and norms' deviations held at their true values. So the parts of a state
always add up to it, in any architecture whose operations are known here; where they do not, an error says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from whence.model.tap import Align, AttentionRecord
from whence.propagation.operations import (
    ACTIVATION,
    ADD,
    DIVIDE,
    HOMOGENEOUS,
    JOIN,
    LINEAR,
    MULTIPLY,
    NORM,
    PRODUCT,
    SUBTRACT,
    VIEW,
    ByActivation,
    frozen_norm,
    linear_of,
    slope,
)
from whence.propagation.put_off import Before, Later, PartsOf, entry
from whence.propagation.sums_of_parts import add_rest, check_sum, diagonal, fits, linear_map, with_rest

Split = Literal["absdot", "norm", "equal", "none"]


class Parts(ByActivation):
    """The parts of every state computed from a state with parts: (source, *state); the last entry is the rest."""

    puts_off = False  # whether linear operations are carried out only where their parts are read

    def __init__(self) -> None:
        super().__init__()
        self._parts = PartsOf()
        self._gates: Any = WeakIdKeyDictionary()  # outputs of activations

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        self._parts, self._gates = PartsOf(), WeakIdKeyDictionary()

    def __torch_function__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        known = [] if self.inside else [tensor for tensor in _flat(args, kwargs) if tensor in self._parts]
        if not known:
            return func(*args, **kwargs)
        before = Before({id(tensor): self._parts.raw(tensor) for tensor in known})  # the operation may be in place
        out = func(*args, **kwargs)
        with torch.no_grad():
            self._carry(func, args, kwargs, known, before, out)
        return out

    # ---- decisions of subclasses -------------------------------------------------------------------------------------

    def settled(self, parts: Tensor, own: bool = False) -> Tensor:
        """Parts before an operation that is not linear, or after a layer: a subclass may divide the rest here.

        `own` says that nothing else refers to these parts, which may then be changed in place.
        """
        return parts

    def scaled(self, parts: Tensor, by: Tensor) -> Tensor:
        """Settled parts times a tensor of their state's shape: in place where settling made new ones."""
        ready = self.settled(parts)
        return ready.mul_(by) if ready is not parts and fits(by, ready[0]) else ready * by

    def projected(self, x: Tensor, parts: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor | None:
        """The parts of a linear layer's output; the bias is added to the rest."""
        return add_rest(linear_map(parts, weight), bias)

    def joined(self, a: Tensor, first: Tensor, b: Tensor, second: Tensor, out: Tensor) -> Tensor:
        """The parts of the sum of two tensors with parts."""
        return first + second

    def added(self, a: Tensor, parts: Tensor, other: Any, out: Tensor) -> Tensor | None:
        """The parts of the sum of `a`, which has parts, and `other`, which has none and is added to the rest."""
        return with_rest(parts.expand(-1, *out.shape), other)

    def normed(self, x: Tensor, out: Tensor, parts: Tensor) -> None:
        """Told that a norm turned `x` into `out`, which has these parts."""

    # ---- one operation -----------------------------------------------------------------------------------------------

    def _carry(self, func: Any, args: Any, kwargs: Any, known: list[Tensor], parts: Before, out: Any) -> None:
        """Give the result of one operation its parts; none where the operation is not known."""
        out_parts: Any = None
        if func in LINEAR:
            x, weight, bias = linear_of(func, args, kwargs)
            if id(x) in parts:
                out_parts = self._later(lambda: self.projected(x, parts[id(x)], weight, bias))
        elif func in NORM:
            x, apply, bias = frozen_norm(func, args, kwargs)
            ready = self.settled(parts[id(x)])
            normed = torch.empty_like(ready) if ready is parts[id(x)] else ready
            for part, place in zip(ready, normed, strict=True):  # one by one, so that intermediate tensors stay small
                place.copy_(apply(part))
            out_parts = self.settled(add_rest(normed, bias), own=True)
            self.normed(x, out, out_parts)
        elif func in ACTIVATION:
            out_parts = self.scaled(parts[id(args[0])], slope(lambda x: func(x, *args[1:], **kwargs), args[0]))
            self._gates[out] = True
        elif func in ADD or func in SUBTRACT:
            out_parts = self._sum(func in SUBTRACT, args, parts, out)
        elif func in MULTIPLY and len(known) == 2:
            gate, other = (args[0], args[1]) if args[0] in self._gates else (args[1], args[0])
            out_parts = self.scaled(parts[id(other)], gate) if gate in self._gates else None
        elif func in JOIN:
            lost = any(t.requires_grad and id(t) not in parts for t in args[0])
            out_parts = None if lost else self._later(lambda: _side_by_side(func, args, kwargs, parts))
        elif func is Tensor.type_as:
            out_parts = parts[id(args[0])].to(out.dtype) if id(args[0]) in parts else None
        elif out is known[0]:  # as `contiguous` of what is so already
            out_parts = parts.raw(id(out))
        elif len(known) == 1 and _linear(func, args, known[0]):
            out_parts = self._later(lambda: _mapped(func, args, kwargs, known[0], parts[id(known[0])]))
        pairs: Any = ((out, out_parts),)
        if isinstance(out, (tuple, list)) and out_parts is not None:
            pairs = [(tensor, self._later(partial(entry, out_parts, n))) for n, tensor in enumerate(out)]
        for tensor, tensor_parts in pairs:
            if isinstance(tensor, Tensor):
                self._parts.pop(tensor, None)
                if tensor_parts is not None:
                    self._parts[tensor] = tensor_parts

    def _later(self, make: Callable[[], Any]) -> Any:
        """What `make` gives: now, or when it is read."""
        return Later(make) if self.puts_off else make()

    def _sum(self, minus: bool, args: Any, parts: Before, out: Tensor) -> Any:
        a, b = args[0], args[1]
        first, second = parts.get(id(a)), parts.get(id(b))
        if second is not None and minus:
            second = -second
        if first is not None and second is not None:
            return self.joined(a, first, b, second, out)
        if first is not None:
            return self.added(a, first, -b if minus else b, out)
        return None if second is None else self.added(b, second, a, out)

    def concerns(self, x: Tensor) -> bool:
        return x in self._parts

    def activated(self, x: Tensor, y: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        number, parts = id(x), Before({id(x): self._parts.raw(x)})
        with torch.no_grad():  # a gate is held, so that its own parts are often not read
            slopes = slope(function, x)
            self._parts[y] = self._later(lambda: self.scaled(parts[number], slopes))
        self._gates[y] = True
        return y


@dataclass
class _Product:
    """An attention product: weights and values, and the row (batch, token) and column (head, width) of each entry."""

    weights: Tensor  # (batch, head, query, key)
    values: Tensor  # (batch, head, key, width)
    rows: Tensor
    columns: Tensor


class Layers(Parts):
    """Parts within each layer: every token's state is a source where it enters the layer.

    `reduce(parts, whole)` is called once a layer with (source and rest, batch, token, width) and (batch, token, width),
    at a stage: "attention" (after the output projection), "residual" (after the residual is added, and after the norm
    where one follows) or "block" (the layer's output; the feed-forward part is added to the rest). `maps` collects the
    results.
    """

    shares = True

    def __init__(
        self,
        subject: str,
        stage: str,
        reduce: Callable[[Tensor, Tensor], Any],
        *,
        tokens_first: bool = False,
    ) -> None:
        super().__init__()
        self._tokens_first = tokens_first  # the model keeps its states as (token, batch, width)
        self.maps: list[Any] = []
        self._subject, self._stage, self._reduce = subject, stage, reduce
        self._products: Any = WeakIdKeyDictionary()  # attention products before the output projection
        self._ends_in_norm = False  # a layer without a feed-forward part returns the norm of its sum
        self._new_layer()

    def _new_layer(self) -> None:
        self._attended = False
        self._residual_sum: Tensor | None = None  # the sum of residual and attention
        self._sum_with_parts: tuple[Tensor, Tensor] | None = None  # the same sum, and its parts
        self._sum_norm: tuple[Tensor, Tensor] | None = None  # the norm of that sum, and its parts
        self._layer_sum: Tensor | None = None  # the sum to which the feed-forward part was added too
        self._post = False  # norms follow the sums (post-LN)
        self._done = False  # this layer's parts were reduced

    def state(self, at: str | int, stream: str, tensor: Tensor) -> Tensor:
        self._begin_layer(tensor)
        if self._stage != "attention":
            with torch._C.DisableTorchFunction(), torch.no_grad():
                self._parts[tensor] = diagonal(tensor)
        return tensor

    def decided(self, logits: Tensor) -> None:
        self._begin_layer(None)

    def seen(self, record: AttentionRecord, weights: Tensor, values: Tensor, product: Tensor, align: Align) -> None:
        with torch._C.DisableTorchFunction(), torch.no_grad():
            rows, columns = torch.empty_like(product, dtype=torch.long), torch.empty_like(product, dtype=torch.long)
            batch, heads, queries, width = align(rows).shape
            place = torch.arange(batch * queries, device=product.device).view(batch, 1, queries, 1)
            align(rows).copy_(place.expand(batch, heads, queries, width))
            place = torch.arange(heads * width, device=product.device).view(1, heads, 1, width)
            align(columns).copy_(place.expand(batch, heads, queries, width))
            self._products[product] = _Product(weights.detach(), values.detach(), rows, columns)

    def __torch_function__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._done:  # the remainder of the layer need not be followed
            return func(*args, **kwargs)
        products = [tensor for tensor in _flat(args, kwargs) if tensor in self._products]
        if not products:
            return super().__torch_function__(func, kinds, args, kwargs)
        out = func(*args, **kwargs)
        with torch.no_grad():
            first = self._products[products[0]]
            if func in LINEAR:
                self._project(first, *linear_of(func, args, kwargs)[1:], out)
            elif func in JOIN:  # heads that came apart
                self._products[out] = self._together([self._products[p] for p in products], func, args, kwargs)
            elif func in VIEW and isinstance(out, Tensor) and out.numel() == products[0].numel():
                if func not in (Tensor.to, Tensor.float, Tensor.type_as, nn.functional.dropout, torch.dropout):
                    rows, columns = (
                        func(*_swapped(args, products[0], codes), **kwargs) for codes in (first.rows, first.columns)
                    )
                    first = _Product(first.weights, first.values, rows, columns)
                self._products[out] = first
        return out

    def _together(self, products: list[_Product], func: Any, args: Any, kwargs: Any) -> _Product:
        """The products of single heads as one product."""
        widths = [p.values.shape[1] * p.values.shape[3] for p in products]
        columns = [p.columns + sum(widths[:n]) for n, p in enumerate(products)]
        return _Product(
            torch.cat([p.weights for p in products], 1),
            torch.cat([p.values for p in products], 1),
            func([p.rows for p in products], *args[1:], **kwargs),
            func(columns, *args[1:], **kwargs),
        )

    def _project(self, product: _Product, weight: Tensor, bias: Tensor | None, out: Tensor) -> None:
        """Parts of the projected product: sum_h A_ij W_O^h v_j for every i and j, laid out as the model's states."""
        heads, width = product.values.shape[1], product.values.shape[3]
        columns = product.columns.reshape(-1, product.columns.shape[-1])[0]
        by_head = torch.empty_like(weight)
        by_head[:, columns] = weight
        moved = torch.einsum("bhjd,ohd->bhjo", product.values, by_head.view(-1, heads, width))
        batch, _, tokens, sources = product.weights.shape
        self._rows = (batch, tokens)
        parts = moved.new_zeros(sources + 1, batch, tokens, len(weight))
        parts[:-1] = torch.einsum("bhij,bhjo->jbio", product.weights, moved)
        add_rest(parts, bias)
        rows = product.rows[..., 0]  # row (batch, token) of each place in the model's layout
        self._attended = True
        if self._stage == "attention":
            whole = torch.empty_like(parts[0])
            whole.flatten(0, 1)[rows] = out
            self._finish_layer(whole, parts)
        else:
            self._parts[out] = parts.flatten(1, 2)[:, rows]

    # ---- the end of a stage ------------------------------------------------------------------------------------------

    def projected(self, x: Tensor, parts: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor | None:
        return None  # queries, keys, values and the feed-forward part are not followed

    def joined(self, a: Tensor, first: Tensor, b: Tensor, second: Tensor, out: Tensor) -> Tensor:
        made = first + second
        if self._attended and self._residual_sum is None:
            self._residual_sum, self._sum_with_parts = out, (out, made)
        return made

    def added(self, a: Tensor, parts: Tensor, other: Any, out: Tensor) -> Tensor | None:
        made = with_rest(parts.expand(-1, *out.shape), other)
        if self._residual_sum is not None and self._layer_sum is None:  # `other` is the feed-forward part
            self._post, self._layer_sum = a is not self._residual_sum, out
            if self._stage == "residual":
                self._finish_layer(a, parts)
            elif self._stage == "block" and not self._post:
                self._finish_layer(out, made)
        return made

    def normed(self, x: Tensor, out: Tensor, parts: Tensor) -> None:
        if self._sum_with_parts is not None and x is self._sum_with_parts[0]:
            self._sum_norm = (out, parts)
        if self._stage == "block" and self._post and x is self._layer_sum:
            self._finish_layer(out, parts)

    def _begin_layer(self, entering: Tensor | None) -> None:
        """A layer begins, or the model ends: finish the layer before, if it had no feed-forward part to end it."""
        if self._attended and not self._done and self._stage != "attention":
            if entering is not None:
                parts = self._parts.get(entering)
                end = None if parts is None else (entering, parts)
                self._ends_in_norm = self._sum_norm is not None and entering is self._sum_norm[0]
            else:  # the last layer ends as the layers before it
                end = self._sum_norm if self._ends_in_norm else self._sum_with_parts
            if end is None:
                raise ValueError(f"the layers of {self._subject} could not be followed to their end; {_ELSEWHERE}")
            self._finish_layer(*end)
        self._new_layer()

    def _finish_layer(self, whole: Any, parts: Tensor) -> None:
        """Reduce the parts of this layer, once."""
        if self._done:
            return
        self._done = True
        if self._stage != "attention" and self._residual_sum is None:
            raise ValueError(f"no residual was seen around the attention of {self._subject}; {_ELSEWHERE}")
        if whole.ndim == 2:  # OPT lays the tokens of all examples in one row before its feed-forward part
            parts, whole = parts.unflatten(1, self._rows), whole.unflatten(0, self._rows)
        elif self._tokens_first and self._stage != "attention":
            parts, whole = parts.transpose(1, 2), whole.transpose(0, 1)
        check_sum(parts.sum(0), whole, self._subject)
        self.maps.append(self._reduce(parts, whole))


class Sources(Parts):
    """Parts through the whole model, from the states that enter its first layer to the logits: `logits` in the end.

    The rest is divided among the sources by `split`: in proportion to |<part, rest>|, to |part|, or equally among the
    parts that are not zero; with "none" it stays. Biases of values and output projection are divided together, after
    the residual is added; other biases right away. A graph is made only to know which tensors depend on the sources.
    """

    graph = True
    shares = True
    puts_off = True

    def __init__(self, subject: str, split: Split) -> None:
        super().__init__()
        self.logits: Tensor | None = None  # (source and rest, batch, class)
        self._subject, self._split = subject, split
        self._attended: Any = WeakIdKeyDictionary()  # outputs of attention before the residual is added
        self._words: Any = WeakIdKeyDictionary()  # logits over a vocabulary -> input, weight and bias of their layer

    def state(self, at: str | int, stream: str, tensor: Tensor) -> Tensor:
        tensor = tensor.detach().requires_grad_()
        with torch._C.DisableTorchFunction(), torch.no_grad():
            self._parts[tensor] = diagonal(tensor)
        return tensor

    def added(self, a: Tensor, parts: Tensor, other: Any, out: Tensor) -> Tensor | None:
        lost = isinstance(other, Tensor) and other.requires_grad  # it has parts, and they are not known
        return None if lost else super().added(a, parts, other, out)

    def decided(self, logits: Tensor) -> None:
        parts = self._parts.get(logits)
        if parts is None:
            raise ValueError(f"the states of {self._subject} could not be followed to its logits; {_ELSEWHERE}")
        with torch._C.DisableTorchFunction(), torch.no_grad():
            check_sum(parts.sum(0), logits, self._subject)
            self.logits = self.settled(parts)

    def seen(self, record: AttentionRecord, weights: Tensor, values: Tensor, product: Tensor, align: Align) -> None:
        self._attended[product] = True

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

    def projected(self, x: Tensor, parts: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor | None:
        return super().projected(x, parts if x in self._attended else self.settled(parts), weight, bias)

    def _sum(self, minus: bool, args: Any, parts: Before, out: Tensor) -> Any:
        a, b = id(args[0]), id(args[1])
        if a not in parts or b not in parts:
            return super()._sum(minus, args, parts, out)
        attended, sign = args[0] in self._attended or args[1] in self._attended, -1 if minus else 1

        def make() -> Tensor:
            if attended:
                return self.settled(parts[a].add(parts[b], alpha=sign), own=True)
            first, second = self.settled(parts[a]), self.settled(parts[b])
            own = first is not parts[a] and fits(second, first)
            return first.add_(second, alpha=sign) if own else first.add(second, alpha=sign)

        return self._later(make)

    def __torch_function__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in LINEAR and self._writes_words(*linear_of(func, args, kwargs)):
            out = func(*args, **kwargs)
            self._words[out] = linear_of(func, args, kwargs)
            return out
        given = _flat(args, kwargs)
        for words in [tensor for tensor in given if tensor in self._words]:
            x, weight, bias = self._words[words]
            out = func(*args, **kwargs) if func is Tensor.__getitem__ else None
            if out is not None and out.shape[-1] == words.shape[-1]:
                # The output reads only these token positions, so parts of the logits are made for them alone.
                with torch.no_grad():
                    parts = _mapped(func, (x, *args[1:]), kwargs, x, self._parts[x])
                    self._parts[out] = self.projected(x, parts, weight, bias)
                return out
            self._parts[words] = self.projected(x, self._parts[x], weight, bias)
        out = super().__torch_function__(func, kinds, args, kwargs)
        if (func in VIEW or func in LINEAR) and any(tensor in self._attended for tensor in given):
            for tensor in out if isinstance(out, (tuple, list)) else (out,):
                self._attended[tensor] = True
        return out

    def _writes_words(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
        """Whether a linear layer writes logits over a vocabulary: its output is much wider than its input."""
        return x in self._parts and weight.shape[0] >= 8 * weight.shape[1]


_ELSEWHERE = "decompositions need self-attention with a residual; use value_zeroing, lrp or a gradient method"


def _linear(func: Any, args: Any, tensor: Tensor) -> bool:
    """Whether an operation is linear in one of its operands; division is not, in the divisor."""
    return func in HOMOGENEOUS - DIVIDE or func in MULTIPLY or func in PRODUCT or (func in DIVIDE and args[0] is tensor)


def _mapped(func: Any, args: Any, kwargs: Any, tensor: Tensor, parts: Tensor) -> Any:
    """An operation that is linear in one tensor, applied to each part of the tensor."""
    func = Tensor.reshape if func is Tensor.view else func
    return torch.func.vmap(lambda part: func(*_swapped(args, tensor, part), **_swapped(kwargs, tensor, part)))(parts)


def _side_by_side(func: Any, args: Any, kwargs: Any, parts: Before) -> Tensor:
    """The parts of concatenated or stacked tensors; a tensor without parts is all rest."""
    like = parts[next(iter(parts))]
    each = []
    for tensor in args[0]:
        none = tensor.new_zeros(len(like), *tensor.shape)
        each.append(parts[id(tensor)] if id(tensor) in parts else with_rest(none, tensor))
    return torch.func.vmap(lambda *pieces: func(pieces, *args[1:], **kwargs))(*each)


def _flat(args: Any, kwargs: Any) -> list[Tensor]:
    """The tensors among arguments, those in lists too."""
    found: list[Tensor] = []
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (tuple, list)):
            found += [part for part in value if isinstance(part, Tensor)]
    return found


def _swapped(given: Any, old: Tensor, new: Tensor) -> Any:
    """The arguments with one tensor replaced."""
    if isinstance(given, dict):
        return {key: new if value is old else value for key, value in given.items()}
    return tuple(new if value is old else value for value in given)
