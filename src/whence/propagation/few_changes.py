"""Running a layer on many copies whose attention products differ in a few directions: linear maps take only these.

Without the values of one token, an attention product changes by one vector for every head, times a factor for every
query. This form of the state (`Changed`) is known up to the first linear maps after the output projection, the residual
and the norm, so none of these maps multiplies the states of all copies. Rows that the change does not reach are taken
from a run without the change.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from whence.model.rules import Rules
from whence.model.tap import Align, AttentionRecord
from whence.propagation.operations import ADD, MULTIPLY, NORM
from whence.propagation.products import linear

_SAME = {F.dropout, torch.dropout, Tensor.contiguous, Tensor.to, Tensor.float, Tensor.type_as, Tensor.clone}
_SUMS_AND_PRODUCTS = (ADD | MULTIPLY) - {Tensor.add_, Tensor.__iadd__}  # in place, they overwrite an operand
WORTH = 0.8  # the share of changed rows up to which the unchanged rows are taken from the run without a change


@dataclass(frozen=True, eq=False)
class Changed:
    """States scale * (fixed + factors @ vectors) + shift, whose copies differ in a few directions."""

    fixed: Tensor  # (example, token, width)
    factors: Tensor  # (copy * example, token, direction)
    vectors: Tensor  # (copy * example, direction, width)
    scale: Tensor | None = None  # (copy * example, token, 1)
    shift: Tensor | None = None  # (width,); only where there is a scale

    def value(self) -> Tensor:
        """The states themselves: (copy * example, token, width)."""
        whole = self.fixed.repeat(len(self.factors) // len(self.fixed), 1, 1)
        whole.baddbmm_(self.factors, self.vectors)
        if self.scale is not None:
            whole.mul_(self.scale)
        return whole if self.shift is None else whole.add_(self.shift)

    def linear(self, weight: Tensor, bias: Tensor | None) -> Changed:
        """The output of a linear layer for these states."""
        fixed, vectors = linear(self.fixed, weight), linear(self.vectors, weight)
        shift = bias if self.shift is None else F.linear(self.shift, weight, bias)
        if self.scale is None and shift is not None:
            fixed, shift = fixed + shift, None
        return Changed(fixed, self.factors, vectors, self.scale, shift)

    def times(self, other: Tensor) -> Changed | None:
        """These states times a number for every row or column; None where the result has no form `Changed`."""
        if other.ndim == 1:
            shift = None if self.shift is None else self.shift * other
            return replace(self, fixed=self.fixed * other, vectors=self.vectors * other, shift=shift)
        if other.shape != (*self.factors.shape[:2], 1) or self.shift is not None:
            return None
        return replace(self, scale=other if self.scale is None else self.scale * other)

    def plus(self, other: Tensor) -> Changed | None:
        """These states plus `other`, equal in all copies; None where it is not, or where these states have a scale."""
        size = len(self.fixed)
        if self.scale is not None or other.shape != (len(self.factors), *self.fixed.shape[1:]):
            return None
        by_copy = other.unflatten(0, (-1, size))
        equal = by_copy.stride(0) == 0 or bool((by_copy == by_copy[0]).all())
        return replace(self, fixed=self.fixed + other[:size]) if equal else None

    def normed(
        self, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, centred: bool
    ) -> Changed | None:
        """The output of a norm over the width; `x` is the value of these states. None where they have a scale."""
        if self.scale is not None:
            return None
        fixed, vectors = self.fixed, self.vectors
        if centred:
            fixed, vectors = (part - part.mean(-1, keepdim=True) for part in (fixed, vectors))
            scale = torch.native_layer_norm(x, x.shape[-1:], None, None, eps)[2]
        else:
            scale = (x.square().mean(-1, keepdim=True) + eps).rsqrt()
        out = Changed(fixed, self.factors, vectors, scale, bias)
        return out if weight is None else replace(out, fixed=fixed * weight, vectors=vectors * weight)


class FewChanges(Rules):
    """Rules for runs of one layer on copies of `size` examples: `next_run` gives the product of attention `order`.

    The first run has one copy of every example and no change. Later runs take from it the rows that they do not change,
    where `reached`, the share of rows that a change reaches, is small enough to make that worth while.
    """

    def __init__(self, order: int, size: int, reached: float) -> None:
        super().__init__()
        self._order, self._size, self._reuses_rows = order, size, reached < WORTH
        self._plain: list[tuple[Tensor, Tensor]] = []  # input and output of every linear layer in the first run
        self._first = True
        self._begin(None)

    def _begin(self, product: Changed | None) -> None:
        self._product = product
        self._made: Tensor | None = None  # the model's tensor of the product: (copy * example, token, width)
        self._known: Any = WeakIdKeyDictionary()  # tensor -> Changed
        self._call = 0  # linear layers so far in this run

    def next_run(self, product: Changed) -> FewChanges:
        """Begin a run in which the attention product is `product`."""
        self._begin(product)
        return self

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        self._first = False
        self._begin(None)

    def seen(self, record: AttentionRecord, weights: Tensor, values: Tensor, product: Tensor, align: Align) -> None:
        if record.order == self._order:
            with torch._C.DisableTorchFunction():
                self._made = align(product).transpose(1, 2).flatten(2)

    def __torch_function__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.linear:
            return self._linear(*args, **kwargs)
        known = [one for one in args if isinstance(one, Tensor) and one in self._known]
        before = [tensor._version for tensor in known]
        out = func(*args, **kwargs)
        if known:
            form = self._after(func, args, kwargs, known)
            for tensor, version in zip(known, before, strict=True):
                if tensor._version != version:  # the operation was in place
                    self._known.pop(tensor, None)
            if form is not None:
                self._known[out] = form
        return out

    def _after(self, func: Any, args: Any, kwargs: Any, known: list[Tensor]) -> Changed | None:
        """The result of an operation in the form `Changed`; None where it is not known in this form."""
        x = known[0]
        form: Changed = self._known[x]
        if func in NORM:
            return self._normed(func, args, kwargs, form)
        if func in _SAME:
            return form if kwargs.get("dtype", x.dtype) is x.dtype and self._stays(func, args, x) else None
        if func not in _SUMS_AND_PRODUCTS or kwargs or len(known) > 1:
            return None
        other = args[1] if args[0] is x else args[0]
        if not isinstance(other, Tensor) or other.dtype != x.dtype:
            return None
        return form.plus(other) if func in ADD else form.times(other)

    def _stays(self, func: Any, args: Any, x: Tensor) -> bool:
        """Whether an operation of `_SAME` keeps the dtype of x."""
        return func not in (Tensor.to, Tensor.float, Tensor.type_as) or func(*args).dtype == x.dtype

    def _normed(self, func: Any, args: Any, kwargs: Any, form: Changed) -> Changed | None:
        centred = func is not F.rms_norm
        names = ("input", "shape", "weight", "bias", "eps") if centred else ("input", "shape", "weight", "eps")
        given = dict(zip(names, args, strict=False)) | kwargs
        x, eps = given["input"], given.get("eps", 1e-5 if centred else None)
        if len(given.get("shape", given.get("normalized_shape"))) > 1:
            return None
        eps = torch.finfo(x.dtype).eps if eps is None else eps
        return form.normed(x, given.get("weight"), given.get("bias"), eps, centred)

    def _linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        form = self._known.get(x)
        if form is None and self._product is not None and self._made is not None and x.shape == self._made.shape:
            form = self._product if torch.equal(x, self._made) else None
        if form is not None:
            form = form.linear(weight, bias)
            out = form.value()
            self._known[out] = form
        else:
            out = self._by_rows(x, weight, bias)
        if self._first:
            self._plain.append((x, out))
        self._call += 1
        return out

    def _by_rows(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The output of a linear layer; rows with the same input as in the first run get the output of that run."""
        if x.stride(0) == 0:  # all copies share memory: the function mode of `Layer.run` multiplies only one
            return F.linear(x, weight, bias)
        known = self._plain[self._call] if self._reuses_rows and self._call < len(self._plain) else None
        if known is None or self._product is None:
            return linear(x, weight, bias)
        shapes = (len(self._product.factors), *known[0].shape[1:]), (self._size, *x.shape[1:])
        if x.ndim != 3 or (x.shape, known[0].shape) != shapes:  # not (copy * example, token, width)
            return linear(x, weight, bias)
        changed = (x.unflatten(0, (-1, self._size)) != known[0]).any(-1).flatten(0, 1)
        if float(changed.float().mean()) > WORTH:
            return linear(x, weight, bias)
        out = known[1].repeat(len(x) // self._size, *[1] * (x.ndim - 1))
        out[changed] = linear(x[changed], weight, bias)
        return out
