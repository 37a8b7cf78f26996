"""Parts of states: the contribution of each source to every tensor of a pass, carried along while the model runs.

A state is a sum of parts, one per source, and a rest (biases). Parts go through views, sums, linear maps and norms as
the state itself does, with attention weights and norms' deviations held at their true values. So the parts of a state
always add up to it, in any architecture whose operations are known here; where they do not, an error says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from whence.propagation.operations import (
    ACTIVATION,
    ADD,
    CAST,
    DIVIDE,
    GROUPED_PRODUCT,
    HOMOGENEOUS,
    INDEX_ADD,
    JOIN,
    MULTIPLY,
    NORM,
    PRODUCT,
    SUBTRACT,
    ByActivation,
    is_linear,
    linear_of,
    norm_of,
    slope,
)
from whence.propagation.sums_of_parts import add_rest, fits, linear_map, with_rest

ELSEWHERE = "decompositions need self-attention with a residual; use value_zeroing, lrp or a gradient method"

Operand = tuple[Tensor, Any]  # a state and its parts, in the form in which the class holds parts


class Parts(ByActivation):
    """The parts of every state computed from a state with parts: (source, *state); the last entry is the rest.

    An operation is applied to parts by `by_rows` if it keeps the rows of a state apart, else by `whole`. Both apply it
    at once; a subclass may apply it later, and may hold parts in a form of its own.
    """

    def __init__(self) -> None:
        super().__init__()
        self._parts: Any = WeakIdKeyDictionary()  # tensor -> its parts, as long as the model keeps the tensor
        self._gates: Any = WeakIdKeyDictionary()  # outputs of activations

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        self._parts, self._gates = WeakIdKeyDictionary(), WeakIdKeyDictionary()

    def __torch_function__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        known = [] if self.inside else [tensor for tensor in tensors_in(args, kwargs) if tensor in self._parts]
        if not known:
            return func(*args, **kwargs)
        before = {id(tensor): self._parts[tensor] for tensor in known}  # the operation may be in place
        out = func(*args, **kwargs)
        with torch.no_grad():
            self._carry(func, args, kwargs, known, before, out)
        return out

    # ---- decisions of subclasses -------------------------------------------------------------------------------------

    def by_rows(
        self, operation: Callable[..., Tensor], operands: Sequence[Operand], fixed: Sequence[Any], out: Tensor
    ) -> Any:
        """The parts of `out`: the result of an operation along the last axis on the parts of some states.

        The operation takes the parts of every operand, and then the `fixed` operands, which have no parts.
        """
        return operation(*[parts for _, parts in operands], *fixed)

    def whole(self, operation: Callable[..., Any], *parts: Any) -> Any:
        """The result of an operation that may mix all rows of the parts."""
        return operation(*parts)

    def settled(self, parts: Tensor, own: bool = False) -> Tensor:
        """The same parts; a subclass may divide the rest among them.

        Called before operations that are not linear, and after norms.

        `own` says that nothing else refers to these parts, which may then be changed in place.
        """
        return parts

    def projected(self, x: Tensor, linear: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor] | None:
        """What is done to the parts of a linear layer's input `x`: `linear`, perhaps more; None to go no further."""
        raise NotImplementedError

    def summed(self, minus: bool, args: Any, parts: dict[int, Any], out: Tensor) -> Any:
        """The parts of a sum or a difference of two operands, of which one or both have parts."""
        raise NotImplementedError

    def normed(self, x: Tensor, out: Tensor, parts: Any) -> None:
        """Told that a norm turned the state `x` into `out`, which has these parts."""

    # ---- one operation -----------------------------------------------------------------------------------------------

    def _carry(self, func: Any, args: Any, kwargs: Any, known: list[Tensor], parts: dict[int, Any], out: Any) -> None:
        """Give the result of one operation its parts; none where the operation is not known."""
        out_parts = self._after(func, args, kwargs, known, parts, out)
        pairs: Any = ((out, out_parts),)
        if isinstance(out, (tuple, list)) and out_parts is not None:
            pairs = [(tensor, self.whole(itemgetter(n), out_parts)) for n, tensor in enumerate(out)]
        for tensor, tensor_parts in pairs:
            if isinstance(tensor, Tensor):
                self._parts.pop(tensor, None)
                if tensor_parts is not None:
                    self._parts[tensor] = tensor_parts

    def _after(self, func: Any, args: Any, kwargs: Any, known: list[Tensor], parts: dict[int, Any], out: Any) -> Any:
        """The parts of an operation's result; `parts` are those that its operands had before, by `id`."""
        if is_linear(func, args):
            x, weight, bias = linear_of(func, args, kwargs)
            linear = self.projected(x, partial(through_linear, weight=weight, bias=bias)) if id(x) in parts else None
            return linear and self.by_rows(linear, [(x, parts[id(x)])], [], out)
        if func in GROUPED_PRODUCT:
            grouped = self.projected(args[0], partial(_in_groups, func, args[1], kwargs)) if len(args) == 2 else None
            return grouped and self.whole(grouped, parts[id(args[0])])
        if func in INDEX_ADD:
            return self._index_added(args, kwargs, parts, out)
        if func in NORM:
            return self._normed(func, args, kwargs, parts, out)
        if func in ACTIVATION:
            slopes = slope(lambda x: func(x, *args[1:], **kwargs), args[0])
            self._gates[out] = True
            return self.by_rows(self._scaled, [(args[0], parts[id(args[0])])], [slopes], out)
        if func in ADD or func in SUBTRACT:
            return self.summed(func in SUBTRACT, args, parts, out)
        if func in MULTIPLY and len(known) == 2:
            gate, other = (args[0], args[1]) if args[0] in self._gates else (args[1], args[0])
            held = gate in self._gates
            return self.by_rows(self._scaled, [(other, parts[id(other)])], [gate.detach()], out) if held else None
        if func in JOIN:
            lost = any(tensor.requires_grad and id(tensor) not in parts for tensor in args[0])
            joined = partial(_side_by_side, func, args, kwargs, list(parts))
            return None if lost else self.whole(joined, *parts.values())
        if func is Tensor.type_as:
            return self._cast(args[0], parts[id(args[0])], out) if id(args[0]) in parts else None
        if out is known[0]:  # such as `contiguous` of a tensor that is contiguous
            return parts[id(out)]
        if len(known) == 1 and _linear(func, args, known[0]):
            return self.mapped(func, args, kwargs, known[0], parts[id(known[0])], out)
        return None

    def _normed(self, func: Any, args: Any, kwargs: Any, parts: dict[int, Any], out: Tensor) -> Any:
        """The parts of a norm's output, with its deviation held."""
        x, scale, axes, bias = norm_of(func, args, kwargs)

        def norm(parts: Tensor, scale: Tensor) -> Tensor:
            ready = self.settled(parts)
            centred = ready - ready.mean(axes, keepdim=True) if axes else ready
            scaled = centred * scale if centred is parts else centred.mul_(scale)
            return self.settled(add_rest(scaled, bias), own=True)

        if len(axes) < 2:
            out_parts = self.by_rows(norm, [(x, parts[id(x)])], [scale], out)
        else:
            out_parts = self.whole(partial(norm, scale=scale), parts[id(x)])
        self.normed(x, out, out_parts)
        return out_parts

    def _index_added(self, args: Any, kwargs: Any, parts: dict[int, Any], out: Tensor) -> Any:
        """The parts of a state to which some rows were added; before the first are added, it is zero."""
        if kwargs or len(args) != 4 or id(args[3]) not in parts:
            return None
        state, axis, index, rows = args
        add = partial(_with_rows, out.shape, axis % out.ndim, index)
        if id(state) in parts:
            return self.whole(add, parts[id(rows)], parts[id(state)])
        empty = not (out - torch.zeros_like(out).index_add(axis, index, rows)).any()
        return self.whole(add, parts[id(rows)]) if empty else None

    def _scaled(self, parts: Tensor, by: Tensor) -> Tensor:
        """Settled parts times a tensor of their state's shape: in place where settling made new ones."""
        ready = self.settled(parts)
        return ready.mul_(by) if ready is not parts and fits(by, ready[0]) else ready * by

    def _cast(self, x: Tensor, parts: Any, out: Tensor) -> Any:
        dtype = out.dtype
        return self.by_rows(lambda one: one.to(dtype), [(x, parts)], [], out)

    def mapped(self, func: Any, args: Any, kwargs: Any, x: Tensor, parts: Any, out: Any) -> Any:
        """The parts of the result of an operation that is linear in `x`."""
        if isinstance(out, Tensor) and out.shape == x.shape and not kwargs:
            if func in CAST:
                return self._cast(x, parts, out)
            if func in MULTIPLY or func in DIVIDE:
                by = args[1] if args[0] is x else args[0]
                return self.by_rows(torch.div if func in DIVIDE else torch.mul, [(x, parts)], [by], out)
        return self.whole(partial(_each_part, func, args, kwargs, x), parts)

    # ---- activation modules ------------------------------------------------------------------------------------------

    def concerns(self, x: Tensor) -> bool:
        return x in self._parts

    def activated(self, x: Tensor, y: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        with torch.no_grad():
            parts, slopes = self._parts[x], slope(function, x)
            self._parts[y] = self.by_rows(self._scaled, [(x, parts)], [slopes], y)
        self._gates[y] = True
        return y


def through_linear(parts: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The parts of a linear layer's output; the bias is added to the rest."""
    return add_rest(linear_map(parts, weight), bias)


def _in_groups(func: Any, weight: Tensor, kwargs: Any, parts: Tensor) -> Tensor:
    """The parts of a product with another matrix for every group of rows: all parts of a row stay in its group."""
    rows = parts.transpose(0, 1)  # (row, source and rest, width)
    moved = func(rows.flatten(0, 1), weight, **kwargs | {"offs": kwargs["offs"] * len(parts)})
    return moved.unflatten(0, rows.shape[:2]).transpose(0, 1)


def _with_rows(shape: Sequence[int], axis: int, index: Tensor, rows: Tensor, state: Tensor | None = None) -> Tensor:
    """The parts of a state of this shape, by default zero, to which rows are added."""
    state = rows.new_zeros(len(rows), *shape) if state is None else state
    return state.index_add(axis + 1, index, rows)


def _linear(func: Any, args: Any, tensor: Tensor) -> bool:
    """Whether an operation is linear in one of its operands; division is not, in the divisor."""
    return func in HOMOGENEOUS - DIVIDE or func in MULTIPLY or func in PRODUCT or (func in DIVIDE and args[0] is tensor)


def _each_part(func: Any, args: Any, kwargs: Any, tensor: Tensor, parts: Tensor) -> Any:
    """An operation that is linear in one tensor, applied to each part of the tensor."""
    func = Tensor.reshape if func is Tensor.view else func
    at_once = 1 if func in PRODUCT else None  # a product of all parts at once would copy the other factor for each
    each = torch.func.vmap(
        lambda part: func(*swapped(args, tensor, part), **swapped(kwargs, tensor, part)), chunk_size=at_once
    )
    return each(parts)


def _side_by_side(func: Any, args: Any, kwargs: Any, numbers: list[int], *parts: Tensor) -> Tensor:
    """The parts of concatenated or stacked tensors: `parts` of those with the ids `numbers`; others are all rest."""
    by_id = dict(zip(numbers, parts, strict=True))
    each = []
    for tensor in args[0]:
        none = tensor.new_zeros(len(parts[0]), *tensor.shape)
        each.append(by_id[id(tensor)] if id(tensor) in by_id else with_rest(none, tensor))
    return torch.func.vmap(lambda *pieces: func(pieces, *args[1:], **kwargs))(*each)


def tensors_in(args: Any, kwargs: Any) -> list[Tensor]:
    """The tensors among arguments, those in lists too."""
    found: list[Tensor] = []
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (tuple, list)):
            found += [part for part in value if isinstance(part, Tensor)]
    return found


def swapped(given: Any, old: Tensor, new: Tensor) -> Any:
    """The arguments with one tensor replaced."""
    if isinstance(given, dict):
        return {key: new if value is old else value for key, value in given.items()}
    return tuple(new if value is old else value for value in given)
