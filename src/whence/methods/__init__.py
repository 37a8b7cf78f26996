"""The methods. Importing this package registers them all."""

from whence.methods import (
    attention,
    attention_gradient,
    baseline,
    decomposition,
    gradient,
    path,
    perturbation,
    regression,
    relevance,
    shapley,
    vision,
    zeroing,
)

__all__ = [
    "attention",
    "attention_gradient",
    "baseline",
    "decomposition",
    "gradient",
    "path",
    "perturbation",
    "regression",
    "relevance",
    "shapley",
    "vision",
    "zeroing",
]
