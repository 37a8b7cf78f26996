"""Parts within each layer: what each token's state contributes to every token that leaves the layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

from whence.model.tap import Align, AttentionRecord
from whence.propagation.operations import JOIN, PRODUCT, VIEW, is_linear, linear_of
from whence.propagation.parts import ELSEWHERE, Parts, swapped, tensors_in
from whence.propagation.sums_of_parts import add_rest, check_sum, diagonal, with_rest


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
        self._sum_with_parts: tuple[Tensor, Tensor] | None = None  # the sum of residual and attention, and its parts
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
            values = values.detach().expand(-1, heads, -1, -1)  # all heads may read the same values
            self._products[product] = _Product(weights.detach(), values, rows, columns)

    def __torch_function__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._done:  # this layer's parts were reduced, so the rest of the layer is not followed
            return func(*args, **kwargs)
        products = [tensor for tensor in tensors_in(args, kwargs) if tensor in self._products]
        if not products:
            return super().__torch_function__(func, kinds, args, kwargs)
        out = func(*args, **kwargs)
        with torch.no_grad():
            first = self._products[products[0]]
            if is_linear(func, args):
                self._project(first, *linear_of(func, args, kwargs)[1:], out)
            elif func in JOIN:  # heads that the model computed one by one
                self._products[out] = self._joined_heads([self._products[p] for p in products], func, args, kwargs)
            elif func in VIEW and isinstance(out, Tensor) and out.numel() == products[0].numel():
                if func not in (Tensor.to, Tensor.float, Tensor.type_as, nn.functional.dropout, torch.dropout):
                    rows, columns = (
                        func(*swapped(args, products[0], codes), **kwargs) for codes in (first.rows, first.columns)
                    )
                    first = _Product(first.weights, first.values, rows, columns)
                self._products[out] = first
        return out

    def _joined_heads(self, products: list[_Product], func: Any, args: Any, kwargs: Any) -> _Product:
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

    def projected(self, x: Tensor, linear: Callable[[Tensor], Tensor]) -> None:
        return None  # queries, keys, values and the feed-forward part are not followed

    def mapped(self, func: Any, args: Any, kwargs: Any, x: Tensor, parts: Any, out: Any) -> Any:
        """As `projected`, where a linear layer is written as a product, as those of experts may be."""
        return None if func in PRODUCT else super().mapped(func, args, kwargs, x, parts, out)

    def summed(self, minus: bool, args: Any, parts: dict[int, Any], out: Tensor) -> Tensor | None:
        a, b = args[0], args[1]
        first, second = parts.get(id(a)), parts.get(id(b))
        if second is not None and minus:
            second = -second
        if first is not None and second is not None:
            return self._joined(first, second, out)
        if first is not None:
            return self._added(a, first, -b if minus else b, out)
        return None if second is None else self._added(b, second, a, out)

    def _joined(self, first: Tensor, second: Tensor, out: Tensor) -> Tensor:
        """The parts of the sum of two tensors with parts."""
        made = first + second
        if self._attended and self._residual_sum is None:
            self._residual_sum, self._sum_with_parts = out, (out, made)
        return made

    def _added(self, a: Tensor, parts: Tensor, other: Any, out: Tensor) -> Tensor:
        """The parts of the sum of `a`, which has parts, and `other`, which has none and is added to the rest."""
        if other is out:  # the sum has overwritten it
            other = out - a
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
            else:  # the last layer ends in the same way as the layers before it
                end = self._sum_norm if self._ends_in_norm else self._sum_with_parts
            if end is None:
                raise ValueError(f"the layers of {self._subject} could not be followed to their end; {ELSEWHERE}")
            self._finish_layer(*end)
        self._new_layer()

    def _finish_layer(self, whole: Any, parts: Tensor) -> None:
        """Reduce the parts of this layer, once."""
        if self._done:
            return
        self._done = True
        if self._stage != "attention" and self._residual_sum is None:
            raise ValueError(f"no residual was seen around the attention of {self._subject}; {ELSEWHERE}")
        if whole.ndim == 2:  # OPT lays the tokens of all examples in one row before its feed-forward part
            parts, whole = parts.unflatten(1, self._rows), whole.unflatten(0, self._rows)
        elif self._tokens_first and self._stage != "attention":
            parts, whole = parts.transpose(1, 2), whole.transpose(0, 1)
        check_sum(parts.sum(0), whole, self._subject)
        self.maps.append(self._reduce(parts, whole))
