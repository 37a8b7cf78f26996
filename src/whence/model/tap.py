"""The attention tap: sees every attention product of any model while it runs; records it, or edits it.

A model on its eager path, a plain torch module or a caller of `scaled_dot_product_attention` all end in the same two
steps: a softmax, and the product of its weights with the values. The tap is a torch function mode that follows the
weights from the softmax to that product. So weights are recorded as the model used them (after soft caps, sinks,
biases, masks), and an eager model's outputs are the same, bit for bit, as without the tap.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from whence.model.closing import Change, Softmax

_SOFTMAX = {torch.softmax, Tensor.softmax, F.softmax, torch._C._nn.__dict__.get("softmax"), torch.special.softmax}
_DROPOUT = {F.dropout, torch.dropout}
_PRODUCT = {torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm}

HIDDEN = -1e4  # a score below this whose weight is 0 was masked

Edit = Callable[["AttentionRecord", Tensor, Tensor], tuple[Tensor, Tensor]]
Align = Callable[[Tensor], Tensor]  # to (batch, head, query, width)
Seen = Callable[["AttentionRecord", Tensor, Tensor, Tensor, Align], None]


@dataclass(eq=False)
class AttentionRecord:
    """One attention block of one pass: its weights, as they were used, and on demand gradients and values."""

    order: int  # number of the block in the pass
    module: str  # name of the module that computed it
    parts: list[Tensor] = field(default_factory=list)  # weights, (batch, head, query, key) each; heads may come apart
    value_parts: list[Tensor] = field(default_factory=list)  # (batch, head, key, width)
    gradient_parts: list[Tensor] = field(default_factory=list)
    outputs: list[tuple[Tensor, Align]] = field(default_factory=list)  # the products, and how to align their axes
    layer: int = -1  # number among the blocks that connect the same two streams
    query: str = ""  # stream of the queries; "" when the block does not span a whole stream
    key: str = ""
    mixed: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # products, gradients: (batch, head, query, width)
    score_parts: list[Tensor] = field(default_factory=list)  # inputs of the softmax, 0 where a mask hides the key
    before_dropout: list[Tensor] = field(default_factory=list)  # of training: the tensors that dropout was given

    @property
    def weights(self) -> Tensor:
        """(batch, head, query, key)"""
        return _joined(self.parts)

    @property
    def scores(self) -> Tensor:
        """(batch, head, query, key)"""
        return _joined(self.score_parts)

    @property
    def gradient(self) -> Tensor:
        """Gradient of the target with respect to `weights`: (batch, head, query, key)."""
        return _joined(self.gradient_parts)

    @property
    def values(self) -> Tensor:
        """(batch, head, key, width)"""
        return _joined(self.value_parts)

    def read(self, scalar: Tensor) -> Tensor | None:
        """The queries whose product the scalar depends on: (batch, query) bool; None when it depends on none."""
        tensors = [out for out, _ in self.outputs]
        grads = torch.autograd.grad(scalar, tensors, allow_unused=True, retain_graph=True)
        parts = [
            (align(g) != 0).any(-1).any(1) for g, (_, align) in zip(grads, self.outputs, strict=True) if g is not None
        ]
        rows = torch.stack(parts).any(0) if parts else None
        return rows if rows is not None and bool(rows.any()) else None

    @property
    def sink(self) -> Tensor:
        """The share of each row that a learned sink took: (batch, head, query)."""
        return 1 - self.weights.float().sum(-1)


class Tap(TorchFunctionMode):
    """While active in this thread, every attention block is recorded in `records`, after `edit` if there is one.

    `edit(record, weights, values)` returns the weights and values to use instead; `seen(record, weights, values,
    product, align)` is told of their product. The products of the blocks numbered in `outputs` are kept, as leaves of
    the graph where no graph leads to them. A `change` of all attention comes before `edit`. `connections` are the
    streams of queries and keys of each block, in the order of the blocks, where they are known. Modules named in
    `apart` attend within something that is no stream, and are not recorded. In training,
    `undropped` records weights as they were before dropout; the tensors themselves, from which the model went on, are
    kept in `before_dropout` of a record.
    """

    def __init__(
        self,
        model: nn.Module,
        batch_size: int,
        *,
        values: bool = False,
        scores: bool = False,
        edit: Edit | None = None,
        seen: Seen | None = None,
        outputs: Container[int] = (),
        connections: Sequence[tuple[str, str]] = (),
        change: Change | None = None,
        undropped: bool = False,
        apart: Container[str] = (),
    ) -> None:
        super().__init__()
        self._apart = apart
        self._change = change
        self._softmax: Softmax | None = None  # the last one, where attention is changed
        self.records: list[AttentionRecord] = []
        self._names = {id(module): name for name, module in model.named_modules()}
        self._batch = batch_size
        self._values, self._scores, self._edit, self._seen = values, scores, edit, seen
        self._softmax_input: Tensor | None = None  # the input of the last softmax, where scores are wanted
        self._outputs, self._connections = outputs, connections
        self._undropped = undropped
        self._dropping: Tensor | None = None  # the followed weights that dropout was given
        self._followed: dict[int, tuple[Tensor, Tensor]] = {}  # id -> (tensor, its last form with four axes, or itself)
        self._last_head: tuple[Any, Any, Any, Any] | None = None  # shape, call, caller, input of the last head

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        self._last_head, self._followed, self._softmax = None, {}, None

    def __torch_function__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            return self._written_out(*args, **kwargs)
        if func is F.multi_head_attention_forward:
            return self._open_multi_head(func, args, kwargs)
        if func in _SOFTMAX:
            out = func(*args, **kwargs)
            self._followed = {id(out): (out, out)} if out.ndim in (3, 4) else {}
            self._dropping = None
            self._softmax_input = (args[0] if args else kwargs["input"]).detach() if self._scores else None
            self._softmax = Softmax(func, args, kwargs, out) if self._change is not None else None
            return out
        if not self._followed:
            return func(*args, **kwargs)
        if func in _PRODUCT and id(args[0]) in self._followed:
            return self._product(args[0], args[1], func)
        if func is torch.einsum and len(args) == 3 and id(args[1]) in self._followed:
            return self._einsum(*args)
        out = func(*args, **kwargs)
        if args and id(args[0]) in self._followed and isinstance(out, Tensor):
            self._dropping = args[0] if func in _DROPOUT and out is not args[0] else self._dropping
            self._follow(args[0], out)
        return out

    def _follow(self, source: Tensor, out: Tensor) -> None:
        """Follow the result of dropout, a cast, a view or the cutting off of a sink: it still holds the weights."""
        last = self._followed[id(source)][1]
        reshaped = out.numel() == source.numel()
        cut = out.ndim == source.ndim == 4 and out.shape[:-1] == source.shape[:-1] and out.is_floating_point()
        if out.is_floating_point() and (reshaped or cut):
            self._followed[id(out)] = (out, out if out.ndim == 4 else last if last.numel() == out.numel() else out)

    def _product(self, weights: Tensor, values: Tensor, func: Any = torch.matmul) -> Tensor:
        """A matrix product of followed weights, of any shape, with values."""
        four = self._followed[id(weights)][1] if id(weights) in self._followed else weights
        if four.ndim == 3:  # (batch * head, query, key)
            four = four.view(-1, max(1, four.shape[0] // self._batch), *four.shape[1:])
        heads = values.reshape(four.shape[0], -1, *values.shape[-2:]) if values.ndim == 3 else values
        return self._multiply(
            four,
            heads,
            lambda w, v: func(_shaped(w, weights, four.shape), _shaped(v, values, heads.shape)),
            lambda out: out.reshape(four.shape[0], -1, *out.shape[-2:]),
        )

    def _einsum(self, equation: str, weights: Tensor, values: Tensor) -> Any:
        """An einsum of followed weights with values; its axes are aligned by their letters."""
        operands, result = equation.replace(" ", "").split("->")
        left, right = operands.split(",")
        order = sorted(range(len(right)), key=lambda i: left.find(right[i]) if right[i] in left else len(left))
        if len(left) != 4 or len(right) != 4 or right[order[2]] != left[3]:
            self._followed = {}
            return torch.einsum(equation, weights, values)
        back = sorted(range(4), key=order.__getitem__)
        aligned = sorted(range(len(result)), key=lambda i: left.find(result[i]) if result[i] in left else len(left))
        return self._multiply(
            weights,
            values.permute(order),
            lambda w, v: torch.einsum(equation, w, v.permute(back)),
            lambda out: out.permute(aligned),
        )

    def _multiply(
        self, weights: Tensor, values: Tensor, product: Callable[[Tensor, Tensor], Tensor], align: Align
    ) -> Tensor:
        """Note weights (batch, head, query, key) and values (batch, head, key, width); return their product."""
        self._followed = {}
        if self._apart and self._running_module() in self._apart:
            return product(weights, values)
        record = self._record(weights)
        if self._change is not None:
            weights = self._change.changed(record, weights, self._softmax)
        if self._edit is not None:
            weights, values = self._edit(record, weights, values)
            weights = weights if self._change is None else self._change.closed_again(record, weights)
        if self._undropped:
            before = weights if self._dropping is None else self._dropping
            record.before_dropout.append(before)
            record.parts.append(_cut_like(before, weights))
            self._dropping = None
        else:
            record.parts.append(weights)
        if self._values:
            record.value_parts.append(values)
        if self._softmax_input is not None:  # a learned sink has a column of its own, which is cut off
            scores = self._softmax_input[..., : weights.shape[-1]].reshape(weights.shape)
            closed = None if self._change is None else self._change.keys(record)
            hidden = scores < HIDDEN if closed is None else (scores < HIDDEN) | closed
            record.score_parts.append(scores.masked_fill((weights == 0) & hidden, 0.0))
        out = product(weights, values)
        kept = record.order in self._outputs
        if kept:
            out = out if out.requires_grad else out.detach().requires_grad_()
            record.outputs.append((out, align))
        if self._seen is not None:
            self._seen(record, weights, values, out, align)
        return out.clone() if kept else out  # some models go on to change the product in place (Nystromformer)

    def _record(self, weights: Tensor) -> AttentionRecord:
        """A new record, or the last one when this is a further head of the same block."""
        running, caller, argument = self._running_forwards()
        head = (weights.shape, running, caller, argument)
        if weights.shape[1] == 1 and self._last_head is not None and self._last_head[0] == weights.shape:
            looped = running is not None and running is self._last_head[1]  # one forward that loops over its heads
            # a module per head
            siblings = caller is not None and caller is self._last_head[2] and argument is self._last_head[3]
            if looped or siblings:
                self._last_head = head
                return self.records[-1]
        self._last_head = head if weights.shape[1] == 1 else None
        record = AttentionRecord(len(self.records), self._names[id(running.f_locals["self"])] if running else "")
        if record.order < len(self._connections):
            record.query, record.key = self._connections[record.order]
            record.layer = self._connections[: record.order].count((record.query, record.key))
        self.records.append(record)
        return record

    def _running_module(self) -> str:
        running = self._running_forwards()[0]
        return self._names[id(running.f_locals["self"])] if running else ""

    def _running_forwards(self) -> tuple[Any, Any, Any]:
        """Frames of the running module's forward and of the forward that called it, and the running module's input."""
        forwards: list[Any] = []
        frame: Any = sys._getframe(1)
        while frame is not None and len(forwards) < 2:
            owner = frame.f_locals.get("self") if frame.f_code.co_name == "forward" else None
            if id(owner) in self._names:
                forwards.append(frame)
            frame = frame.f_back
        if not forwards:
            return None, None, None
        running = forwards[0]
        argument = running.f_locals.get(running.f_code.co_varnames[1]) if running.f_code.co_argcount > 1 else None
        return running, forwards[1] if len(forwards) > 1 else None, argument

    def _open_multi_head(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run the body of `multi_head_attention_forward` with the tap on, by switching off its own override check."""
        scope = {**func.__globals__, "has_torch_function": lambda tensors: False}
        body = types.FunctionType(func.__code__, scope, func.__name__, func.__defaults__, func.__closure__)
        body.__kwdefaults__ = func.__kwdefaults__
        wanted = kwargs.get("need_weights", True)
        with self:
            out, weights = body(*args, **{**kwargs, "need_weights": True})
        return out, weights if wanted else None

    def _written_out(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        """`scaled_dot_product_attention` written out, so that there are weights to see."""
        if enable_gqa:
            key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
            value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
        scores = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
        if is_causal:
            seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
            scores = scores.masked_fill(~seen, float("-inf"))
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attn_mask, float("-inf"))
        elif attn_mask is not None:
            scores = scores + attn_mask
        weights = torch.softmax(scores, -1)
        weights = weights.masked_fill((scores == float("-inf")).all(-1, keepdim=True), 0.0)  # a row that sees nothing
        self._softmax_input = scores.detach() if self._scores else None
        self._dropping = weights if dropout_p else None
        self._softmax = Softmax(torch.softmax, (scores, -1), {}, weights) if self._change is not None else None
        return self._product(F.dropout(weights, dropout_p), value)


def _shaped(new: Tensor, used: Tensor, four: torch.Size) -> Tensor:
    """New weights or values with the axes of those that the model uses, whose form with four axes was `four`.

    An edit may have other numbers of queries or keys; their heads then stay apart, or with their examples.
    """
    if new.shape == four:
        return new.reshape(used.shape)
    return new if used.ndim == 4 else new.flatten(0, 1)


def _cut_like(before: Tensor, weights: Tensor) -> Tensor:
    """Weights before dropout in the shape of those that were used: (batch, head, query, key), without a sink."""
    if before.numel() == weights.numel():
        return before.reshape(weights.shape)
    return before[..., : weights.shape[-1]]


def _joined(parts: list[Tensor]) -> Tensor:
    if not parts:
        raise ValueError("this pass did not record that; ask the trace for it")
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)
