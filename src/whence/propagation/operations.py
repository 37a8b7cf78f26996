"""The operations that transformers are made of, grouped as rules need them; norms and activations as linear maps."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whence.model.rules import Rules, is_bare

_NEAR = 1e-6  # an activation's input of at most this size counts as 0

ADD = {torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__, Tensor.add_, Tensor.__iadd__}
SUBTRACT = {torch.sub, Tensor.sub, Tensor.__sub__}
MULTIPLY = {torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__}
MATRIX_PRODUCT = {torch.matmul, Tensor.matmul, Tensor.__matmul__}
PRODUCT = {*MATRIX_PRODUCT, torch.bmm, Tensor.bmm, torch.einsum}
LINEAR = {F.linear, torch.addmm}  # `is_linear` knows further ones
# x (row, in) times one matrix of (matrix, in, out) for every group of rows; torch has had it under both names
GROUPED_PRODUCT = {getattr(at, name) for at, name in ((F, "grouped_mm"), (torch, "_grouped_mm")) if hasattr(at, name)}
INDEX_ADD = {torch.index_add, Tensor.index_add, Tensor.index_add_}
CONVOLUTION = {torch.conv1d, torch.conv2d, torch.conv3d}
JOIN = {torch.cat, torch.concat, torch.stack}
NORM = {F.layer_norm, torch.layer_norm, F.rms_norm}
ACTIVATION = {
    F.gelu, F.relu, torch.relu, Tensor.relu, F.silu, F.tanh, torch.tanh, Tensor.tanh, F.leaky_relu, F.elu, F.selu,
    F.mish, F.hardswish, F.softplus, F.relu6, torch.sigmoid, Tensor.sigmoid, F.sigmoid,
}  # fmt: skip
VIEW = {
    Tensor.view, Tensor.reshape, torch.reshape, Tensor.transpose, torch.transpose, Tensor.permute, torch.permute,
    Tensor.contiguous, Tensor.flatten, torch.flatten, Tensor.unsqueeze, torch.unsqueeze, Tensor.squeeze, torch.squeeze,
    Tensor.expand, Tensor.expand_as, Tensor.broadcast_to, torch.broadcast_to,
    Tensor.clone, torch.clone, Tensor.to, Tensor.float, Tensor.type, Tensor.type_as, F.dropout,
    torch.dropout, Tensor.__getitem__, Tensor.split, torch.split, Tensor.chunk, torch.chunk, Tensor.unbind,
    torch.unbind, torch.movedim, Tensor.movedim,
    torch.repeat_interleave, Tensor.repeat_interleave, torch.index_select, Tensor.index_select, torch.gather,
    Tensor.gather, torch.roll, Tensor.unflatten, Tensor.flip, torch.flip, Tensor.select, Tensor.narrow,
}  # fmt: skip
CAST = {Tensor.to, Tensor.float, Tensor.type, Tensor.type_as, Tensor.contiguous, Tensor.clone, torch.clone}
DIVIDE = {torch.div, Tensor.div, Tensor.__truediv__}
HOMOGENEOUS = {
    *VIEW, *DIVIDE, torch.mean, Tensor.mean, torch.sum, Tensor.sum, torch.neg,
    Tensor.neg, Tensor.__neg__,
}  # fmt: skip


def is_activation(module: nn.Module) -> bool:
    """Whether a module is one elementwise nonlinearity, whatever operations its forward uses."""
    if isinstance(module, (nn.MultiheadAttention, nn.Softmax, nn.LogSoftmax, nn.Softmin, nn.Softmax2d)):
        return False
    return type(module).__module__ in ("torch.nn.modules.activation", "transformers.activations")


def is_elementwise(function: Callable[[Tensor], Any], x: Tensor) -> bool:
    """Whether a function of tensors like `x` is a nonlinearity with f(0) = 0 that takes every entry by itself."""
    whole = torch.linspace(-4, 3, x.numel(), device=x.device).view(x.shape).to(x.dtype)
    every_other = (torch.arange(x.numel(), device=x.device) % 2 == 0).view(x.shape)
    mixed = torch.where(every_other, whole, whole / 2)
    given = whole.clone()
    try:
        of_whole = function(given)
    except Exception:  # it may refuse numbers that no model has
        return False
    alike = isinstance(of_whole, Tensor) and of_whole.shape == x.shape and of_whole.dtype == x.dtype
    if not alike or not given.equal(whole):  # it works in place
        return False
    close = partial(torch.allclose, rtol=1e-3, atol=1e-5)
    of_half, of_mixed, of_zero = function(whole / 2), function(mixed), function(torch.zeros_like(x))
    linear = close(of_half, of_whole / 2) and close(function(-whole), -of_whole)
    return close(of_mixed, torch.where(every_other, of_whole, of_half)) and not of_zero.any() and not linear


def norm_of(func: Any, args: Any, kwargs: Any) -> tuple[Tensor, Tensor, tuple[int, ...], Tensor | None]:
    """Input of a norm, weight / deviation, the axes over which the mean is subtracted (none in an RMS norm), bias."""
    layered = func is not F.rms_norm
    names = ("input", "normalized_shape", "weight", "bias", "eps") if layered else ("input", "shape", "weight", "eps")
    given = dict(zip(names, args, strict=False)) | kwargs
    weight, eps = given.get("weight"), given.get("eps", 1e-5 if layered else None)
    axes = tuple(range(-len(given[names[1]]), 0))
    x = given["input"].detach()
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    centred = x - x.mean(axes, keepdim=True) if layered else x
    scale = (centred.square().mean(axes, keepdim=True) + eps).rsqrt()
    return given["input"], scale if weight is None else scale * weight, axes if layered else (), given.get("bias")


def slope(function: Callable[[Tensor], Tensor], x: Tensor, y: Tensor | None = None) -> Tensor:
    """f(x) / x of an activation; where x is 0, the limit from above. `y` is f(x), where it is known."""
    y = function(x) if y is None else y
    if not x.numel():
        return x
    near = torch.full_like(x[:1], _NEAR)
    limit = (function(near) / near).nan_to_num_().flatten()[0].item()
    return (y / F.hardshrink(x, _NEAR)).nan_to_num_(limit, limit, limit)  # where x is 0 the quotient is NaN or infinite


def is_linear(func: Any, args: Any) -> bool:
    """Whether an operation is a linear layer, be it written as a product with a weight, `x @ weight.T`."""
    if func not in MATRIX_PRODUCT:
        return func in LINEAR
    matrix = args[1]
    return matrix.ndim == 2 and isinstance(matrix if matrix._base is None else matrix._base, nn.Parameter)


def linear_of(func: Any, args: Any, kwargs: Any) -> tuple[Tensor, Tensor, Tensor | None]:
    """Input, weight (out, in) and bias of a linear layer."""
    if func in MATRIX_PRODUCT:
        return args[0], args[1].T, None
    if func is F.linear:
        given = dict(zip(("input", "weight", "bias"), args, strict=False)) | kwargs
        return given["input"], given["weight"], given.get("bias")
    return args[1], args[2].T, args[0]  # addmm(bias, input, weight)


def convolution_of(args: Any, kwargs: Any) -> tuple[Tensor, Tensor, Tensor | None, dict[str, Any]]:
    """Input, weight and bias of a convolution, and its other arguments."""
    names = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
    given = dict(zip(names, args, strict=False)) | kwargs
    return given.pop("input"), given.pop("weight"), given.pop("bias", None), given


class ByActivation(Rules):
    """Rules that take every activation module as one operation, whatever operations its forward uses.

    A module that a model wrote for itself is an activation if it behaves as one. While such a module runs, `inside` is
    above 0, and its single operations have no rules.
    """

    def __init__(self) -> None:
        super().__init__()
        self.inside = 0  # number of activation modules under way
        self._behaves: dict[int, bool] = {}  # id of a module that may be an activation -> whether it is one

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        self.inside, self._behaves = 0, {}

    def covers(self, module: nn.Module) -> bool:
        return is_activation(module) or is_bare(module)

    def concerns(self, x: Tensor) -> bool:
        """Whether the rules apply to an activation of this input."""
        raise NotImplementedError

    def activated(self, x: Tensor, y: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        """The output y = function(x) of an activation, under its rule."""
        raise NotImplementedError

    def entering(self, name: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        self.inside += self._is_one(module, args, kwargs)

    def leaving(self, name: str, module: nn.Module, args: Any, kwargs: Any, output: Tensor) -> Tensor:
        if not self._is_one(module, args, kwargs):
            return output
        self.inside -= 1
        if self.inside or not self.concerns(args[0]):
            return output
        with torch._C.DisableTorchFunction():
            return self.activated(args[0], output, type(module).forward.__get__(module))

    def _is_one(self, module: nn.Module, args: Any, kwargs: Any) -> bool:
        """Whether a module that is called is an activation; one that may be is tried out at its first call."""
        if is_activation(module):
            return True
        if len(args) != 1 or kwargs or not isinstance(args[0], Tensor) or not args[0].is_floating_point():
            return False
        if id(module) not in self._behaves:
            with torch._C.DisableTorchFunction(), torch.no_grad(), torch.random.fork_rng(devices=[]):
                self._behaves[id(module)] = is_elementwise(type(module).forward.__get__(module), args[0].detach())
        return self._behaves[id(module)]


def through(y: Tensor, s: Tensor) -> Tensor:
    """A tensor with the value of `y`, exactly, and the gradient of `s`."""
    return _Through.apply(y.detach(), s)


class _Through(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, s: Tensor) -> Tensor:
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return None, gradients[0]
