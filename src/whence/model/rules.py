"""Rules that a pass may run under: they see every operation, every requested state and every attention product."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from whence.model.tap import Align, AttentionRecord
from whence.model.watching import hooked


class Rules(TorchFunctionMode):
    """A torch function mode that is also told of modules, states and attention.

    A subclass changes gradients, or carries something along with the states.
    """

    attention_path: str | None = "eager"  # "eager" has products to see; "sdpa" is fused; None is the model's own
    graph = False  # whether a graph is made even where no gradient is requested
    shares = False  # whether one pass over a sequence under these rules serves all of its beginnings

    @contextlib.contextmanager
    def on(self, model: nn.Module) -> Iterator[None]:
        """Run the model under these rules, with hooks on the modules that they cover."""
        covered = [(name, module) for name, module in model.named_modules() if self.covers(module)]
        with hooked(covered, self.entering, self.leaving), self:
            yield

    def covers(self, module: nn.Module) -> bool:
        """Whether the rules want to be told of every call of this module."""
        return False

    def entering(self, name: str, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """A covered module is called."""

    def leaving(self, name: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        """A covered module returns; an output that is returned here is used instead."""

    def state(self, at: str | int, stream: str, tensor: Tensor) -> Tensor:
        """A state that the trace needs is reached; the state that is returned is used from here on."""
        return tensor

    def edit(self, record: AttentionRecord, weights: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Attention weights and values are about to be multiplied; those that are returned are used instead."""
        return weights, values

    def seen(self, record: AttentionRecord, weights: Tensor, values: Tensor, product: Tensor, align: Align) -> None:
        """Weights and values were multiplied; `align` brings the product's axes to (batch, head, query, width)."""

    def turn(self, rows: list[int]) -> None:
        """The backward pass of these examples begins, of several through the graph of one forward pass."""

    def decided(self, logits: Tensor) -> None:
        """The decision logits, (batch, class), were made."""


def is_bare(module: nn.Module) -> bool:
    """Whether a module holds no tensors and no modules, and is not torch's: it may be one function written by hand."""
    held = (module.parameters(), module.buffers(), module.children())
    return not type(module).__module__.startswith("torch.nn.") and not any(True for own in held for _ in own)


def when_known(tensor: Tensor, told: Callable[[Tensor], None]) -> None:
    """Call a function with the gradient of a tensor of this pass, once a backward pass knows it."""
    tensor.register_hook(told)
