"""Backward rules: function modes under which the model computes its usual values, and gradients carry relevance.

`Conserving` makes gradient x input the relevance of Ali et al. and of AttnLRP. `Positive` makes the gradient itself the
relevance of Transformer Attribution. Every operation keeps its value, bit for bit; only its gradient is changed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from whence.model.tap import AttentionRecord
from whence.propagation.fused_attention import Attended, Masks
from whence.propagation.operations import (
    ACTIVATION,
    ADD,
    CONVOLUTION,
    DIVIDE,
    JOIN,
    MULTIPLY,
    NORM,
    PRODUCT,
    SUBTRACT,
    VIEW,
    ByActivation,
    convolution_of,
    is_linear,
    linear_of,
    norm_of,
    slope,
    through,
)

_RELU = {F.relu, torch.relu, Tensor.relu, F.relu_, torch.relu_, Tensor.relu_}
_ROOT = {
    torch.rsqrt, Tensor.rsqrt, torch.sqrt, Tensor.sqrt, torch.std, Tensor.std, torch.norm, Tensor.norm,
    torch.linalg.vector_norm, torch.linalg.norm,
}  # fmt: skip
_POWER = {torch.pow, Tensor.pow, Tensor.__pow__}
_SOFTMAX = {torch.softmax, Tensor.softmax, F.softmax, torch.special.softmax}
_CLAMP = {torch.clamp, Tensor.clamp, torch.clip, Tensor.clip}
_CHOICE = {torch.topk, Tensor.topk}
_GATHER = {torch.gather, Tensor.gather}
_MEAN = {torch.mean, Tensor.mean, torch.sum, Tensor.sum}
_NEGATE = {torch.neg, Tensor.neg, Tensor.__neg__}
_MASK = {Tensor.masked_fill, torch.masked_fill, torch.where, Tensor.where}


class _Ruled(ByActivation):
    """Rules for every operation on a tensor that requires a gradient: the target may depend on such tensors alone."""

    def __torch_function__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        ruled = (
            not self.inside and torch.is_grad_enabled() and any(_tracked(value) for value in (*args, *kwargs.values()))
        )
        return self.ruled(func, args, kwargs) if ruled else func(*args, **kwargs)

    def concerns(self, x: Tensor) -> bool:
        return x.requires_grad

    def ruled(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The result of an operation, with the gradient that its rule gives it."""
        raise NotImplementedError


class Conserving(_Ruled):
    """Gradients under which x * gradient is conserved: from the target down to any layer, up to biases.

    `heads`: attention weights are constants ("hold"), or get half of the relevance of their product with the values
    ("half"), or keep their gradient (None). `norms`: the deviations in norms are constants; the means are not.
    `epsilon` and `gamma` are those of the LRP rules of linear layers. Activations are differentiated as x times the
    constant act(x)/x. The two factors of a product of states get half of its relevance each if both `heads` and `norms`
    have rules; otherwise a product keeps its gradient. But where one factor is the output of an activation, the other
    gets all of the relevance, unless `heads` is "half". Where attention weights are constants, so are the weights by
    which experts are mixed. `fused` runs the model on its fused path, which keeps no attention weights.
    """

    shares = True

    def __init__(
        self,
        *,
        heads: str | None = "hold",
        norms: bool = True,
        epsilon: float = 0.0,
        gamma: float = 0.0,
        fused: bool = False,
    ) -> None:
        super().__init__()
        self.attention_path = "sdpa" if fused else "eager"
        self._masks: Masks = {}
        self._heads, self._norms, self._epsilon, self._gamma = heads, norms, epsilon, gamma
        self._halves = heads is not None and norms  # a norm that is not held may be written as a product of two states
        self._gates: Any = WeakIdKeyDictionary()  # outputs of activations
        self._choices: Any = WeakIdKeyDictionary()  # numbers of the experts that were chosen

    def edit(self, record: AttentionRecord, weights: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        return weights.detach() if self._heads == "hold" else weights, values

    def ruled(self, func: Any, args: Any, kwargs: Any) -> Any:
        if func is F.scaled_dot_product_attention:
            return self._attended(Attended.of(args, kwargs, self._masks))
        if func in NORM and self._norms:
            x, scale, centred, _ = norm_of(func, args, kwargs)
            return _Scaled.apply(func(*args, **kwargs).detach(), x, scale, centred)
        if func is F.normalize and self._norms:
            return _normalized(*args, **kwargs)
        if self._norms and (func in _ROOT or (func in _POWER and args[1] < 1)):
            return func(*args, **kwargs).detach()  # the deviation of a norm that is written in single operations
        if func in ACTIVATION:
            return self.activated(args[0], func(*args, **kwargs), lambda x: func(x, *args[1:], **kwargs))
        if func in _CLAMP:  # clamp is an activation too, but its output is no gate
            return _sloped(args[0], func(*args, **kwargs), lambda x: func(x, *args[1:], **kwargs))
        if func in _CHOICE and self._heads == "hold":
            chosen = func(*args, **kwargs)
            self._choices[chosen.indices] = True
            return type(chosen)((chosen.values.detach(), chosen.indices))
        if func in _GATHER and args[-1] in self._choices:
            return func(*args, **kwargs).detach()
        if func in MULTIPLY and _tracked(args[0]) and _tracked(args[1]):
            return self._gated(func, args)
        if (func in PRODUCT or func is torch.baddbmm) and self._halves and sum(map(_tracked, args)) == 2:
            return func(*(_half(a) if _tracked(a) else a for a in args), **kwargs)
        if (is_linear(func, args) or func in CONVOLUTION) and (self._epsilon or self._gamma):
            return self._linear(func, args, kwargs)
        return func(*args, **kwargs)

    def _attended(self, block: Attended) -> Tensor:
        """The output of fused attention, under the rules of its two products in attention that is written out."""
        if self._heads == "hold":
            block.query, block.key = block.query.detach(), block.key.detach()
            return _Held.apply(block.value, block)
        if self._heads == "half" and self._halves:  # queries and keys are factors of both products
            block.query, block.key, block.value = _half(_half(block.query)), _half(_half(block.key)), _half(block.value)
        return block.output()

    def activated(self, x: Tensor, y: Tensor, function: Any) -> Tensor:
        out = _sloped(x, y, function)
        self._gates[out] = True
        return out

    def _gated(self, func: Any, args: Any) -> Tensor:
        """A product of two states, one of which may be a gate."""
        a, b = args
        if self._heads != "half" and (a in self._gates) != (b in self._gates):
            return func(a.detach(), b) if a in self._gates else func(a, b.detach())
        return func(_half(a), _half(b)) if self._halves else func(a, b)

    def _linear(self, func: Any, args: Any, kwargs: Any) -> Tensor:
        """R_i = sum_j x_i w_ij / (z_j + e) R_j with w + gamma w^+ for w, as a gradient: dz is scaled by z / (z + e)."""
        y = func(*args, **kwargs)
        if func in CONVOLUTION:
            x, weight, bias, options = convolution_of(args, kwargs)
            sharper = func(x, self._sharper(weight), self._sharper(bias), **options)
        else:
            x, weight, bias = linear_of(func, args, kwargs)
            sharper = F.linear(x, self._sharper(weight), self._sharper(bias))
        z = sharper.detach()
        share = y.detach() / (z + self._epsilon * torch.where(z >= 0, 1.0, -1.0))
        return through(y, sharper * torch.where(z == 0, 0.0, share))  # an output of 0 has no relevance to pass on

    def _sharper(self, weight: Any) -> Any:
        """w + gamma w^+"""
        return None if weight is None else weight + self._gamma * weight.clamp(min=0)


class Softened(_Ruled):
    """ReLUs are differentiated as softplus: log(1 + exp(b x)) / b, smooth where the ReLU has its kink."""

    attention_path = None
    shares = True

    def __init__(self, sharpness: float) -> None:
        super().__init__()
        self._sharpness = sharpness

    def covers(self, module: nn.Module) -> bool:
        return False  # a module's ReLU is seen as the function that it calls

    def ruled(self, func: Any, args: Any, kwargs: Any) -> Any:
        if func not in _RELU:
            return func(*args, **kwargs)
        x = args[0] if args else kwargs["input"]
        return self.activated(x, torch.relu(x), None)  # not in place: x is needed

    def activated(self, x: Tensor, y: Tensor, function: Any) -> Tensor:
        return through(y, F.softplus(x, beta=self._sharpness))


class Positive(_Ruled):
    """The relevance of Transformer Attribution, carried by the gradient: z^+ rule, halves at products, shares at sums.

    Norms, activations, softmax, scaling and masking pass relevance on as it is. `unknown` collects the names of
    operations that have no rule.
    """

    def __init__(self) -> None:
        super().__init__()
        self.unknown: set[str] = set()
        self._batch = 0  # the number of examples; known from the first attention on, and relevance is not needed before

    def seen(self, record: AttentionRecord, weights: Tensor, values: Tensor, product: Tensor, align: Any) -> None:
        self._batch = len(weights)

    def ruled(self, func: Any, args: Any, kwargs: Any) -> Any:
        if is_linear(func, args):
            x, weight, _ = linear_of(func, args, kwargs)
            return _Excited.apply(func(*args, **kwargs).detach(), x, weight)
        if func in PRODUCT or func in _MEAN:
            return _Shared.apply(lambda *given: func(*given, **kwargs), *args)
        if func in ADD or func in SUBTRACT:
            return self._sum(func, args, kwargs)
        if func in MULTIPLY and _tracked(args[0]) and _tracked(args[1]):
            return _Shared.apply(func, *args)
        if any(func in kind for kind in (MULTIPLY, DIVIDE, NORM, ACTIVATION, _SOFTMAX, _MASK, _NEGATE)):
            out = func(*args, **kwargs)
            source = next(value for value in (*args, *kwargs.values()) if _tracked(value))
            if out.shape == source.shape:
                return through(out, source)
        out = func(*args, **kwargs)
        if self._batch and func not in VIEW and func not in JOIN and _tracked(out):
            self.unknown.add(getattr(func, "__name__", str(func)))
        return out

    def activated(self, x: Tensor, y: Tensor, function: Any) -> Tensor:
        return through(y, x)

    def _sum(self, func: Any, args: Any, kwargs: Any) -> Tensor:
        # not in place, because the output of a rule must not change
        func = torch.add if func in (Tensor.add_, Tensor.__iadd__) else func
        out = func(*args, **kwargs)
        if not (_tracked(args[0]) and _tracked(args[1])):
            source = args[0] if _tracked(args[0]) else args[1]
            return through(out, source.expand_as(out))
        examples = self._batch or len(out)
        tokens_first = out.ndim == 3 and out.shape[0] != examples == out.shape[1]
        if tokens_first or len(out) % examples:  # totals are taken by the first axis: examples, or heads of examples
            self.unknown.add("states with tokens first")
            return out
        return _Added.apply(out.detach(), args[0], -args[1] if func in SUBTRACT else args[1], examples)


class _Scaled(torch.autograd.Function):
    """The value of y; the gradient of x * scale, or of x * scale with x centred over some axes."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, x: Tensor, scale: Tensor | float, centred: tuple[int, ...]) -> Tensor:
        ctx.scale, ctx.centred = scale, centred
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        gradient = gradients[0] * ctx.scale
        if ctx.centred:
            gradient -= gradient.mean(ctx.centred, keepdim=True)
        return None, gradient, None, None


class _Held(torch.autograd.Function):
    """Attention with weights A that are held: the gradient of the values is A^T times that of the output."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, block: Attended) -> Tensor:
        block.value = value.detach()
        out = block.output()
        ctx.save_for_backward(value, block.query, block.key)
        block.value = block.query = block.key = value[..., :0]  # torch has saved them, and frees them with the graph
        ctx.block = block
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        value, query, key = ctx.saved_tensors
        return replace(ctx.block, query=query, key=key, value=value).to_values(gradients[0]).to(value.dtype), None


class _Excited(torch.autograd.Function):
    """R_j = sum_i (x_j w_ij)^+ / sum_j' (x_j' w_ij')^+ R_i; the bias takes no part."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, *relevance: Any) -> Any:
        x, weight = ctx.saved_tensors
        x_positive, x_negative = x.clamp(min=0), x.clamp(max=0)
        w_positive, w_negative = weight.clamp(min=0), weight.clamp(max=0)
        share = _ratio(relevance[0], F.linear(x_positive, w_positive) + F.linear(x_negative, w_negative))
        return None, x_positive * (share @ w_positive) + x_negative * (share @ w_negative), None


class _Shared(torch.autograd.Function):
    """Relevance of each operand of a product (or a mean): X * dZ/dX (R / Z), divided by their number."""

    @staticmethod
    def forward(ctx: Any, func: Any, *operands: Any) -> Tensor:
        ctx.func, ctx.operands = func, operands
        return func(*operands)

    @staticmethod
    def backward(ctx: Any, *relevance: Any) -> Any:
        with torch.enable_grad():
            leaves = [o.detach().requires_grad_(o.requires_grad) if isinstance(o, Tensor) else o for o in ctx.operands]
            out = ctx.func(*leaves)
            tracked = [leaf for leaf in leaves if _tracked(leaf)]
            grads = iter(torch.autograd.grad(out, tracked, _ratio(relevance[0], out.detach())))
        shares = [leaf.detach() * next(grads) / len(tracked) if _tracked(leaf) else None for leaf in leaves]
        return None, *shares


class _Added(torch.autograd.Function):
    """Relevance of a sum, divided by each operand's share of it and then rescaled.

    For each example, the totals of both operands are set in proportion to their sizes and add up to the sum's total.
    """

    @staticmethod
    def forward(ctx: Any, out: Tensor, u: Tensor, v: Tensor, examples: int) -> Tensor:
        ctx.save_for_backward(u, v)
        ctx.examples = examples
        return out.view_as(out)

    @staticmethod
    def backward(ctx: Any, *relevance: Any) -> Any:
        u, v = ctx.saved_tensors
        share = _ratio(relevance[0], u + v)
        a, b = u * share, v * share
        total, first, second = (t.reshape(ctx.examples, -1).sum(1) for t in (relevance[0], a, b))
        both = first.abs() + second.abs()
        return None, _rescaled(a, first, total, both), _rescaled(b, second, total, both), None


def _rescaled(part: Tensor, part_total: Tensor, total: Tensor, both: Tensor) -> Tensor:
    """The part, rescaled so that its total for each example is its share |part_total| / both of the whole total."""
    scale = _ratio(_ratio(part_total.abs(), both) * total, part_total)
    return (part.reshape(len(scale), -1) * scale[:, None]).view_as(part)


def _ratio(a: Tensor, b: Tensor) -> Tensor:
    """a / b, and 0 where b is 0."""
    return torch.where(b != 0, a / (b + torch.where(b >= 0, 1e-9, -1e-9)), 0.0)


def _half(tensor: Tensor) -> Tensor:
    """The tensor, with half of its gradient."""
    return _Scaled.apply(tensor.detach(), tensor, 0.5, ())


def _normalized(input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: None = None) -> Tensor:
    """`torch.nn.functional.normalize` with the norm as a constant."""
    return input / input.detach().norm(p, dim, keepdim=True).clamp_min(eps)


def _sloped(x: Tensor, y: Tensor, function: Any) -> Tensor:
    """y = f(x), differentiated as x * (f(x) / x)."""
    y = y.detach()
    return _Scaled.apply(y, x, slope(function, x.detach(), y), ())


def _tracked(value: Any) -> bool:
    """Whether a tensor, or one in a list, requires a gradient."""
    if isinstance(value, (tuple, list)):
        return any(map(_tracked, value))
    return isinstance(value, Tensor) and value.requires_grad
