"""whence: where a transformer's prediction came from, and how far that answer can be trusted."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# public name -> module; resolved on first use, so that `import whence` loads neither torch nor transformers
_PUBLIC = {
    "load": "loading",
    "wrap": "loading",
    "Subject": "subject",
    "explain": "api",
    "compare": "api",
    "attention_maps": "api",
    "score": "api",
    "list_methods": "api",
    "list_metrics": "api",
    "list_models": "api",
    "method": "registry",
    "metric": "registry",
    "Explained": "registry",
    "AttentionMaps": "types",
    "Attribution": "types",
    "Comparison": "types",
    "Input": "types",
    "Score": "types",
    "Target": "types",
}

if TYPE_CHECKING:
    from whence.api import attention_maps, compare, explain, list_methods, list_metrics, list_models, score
    from whence.loading import load, wrap
    from whence.registry import Explained, method, metric
    from whence.subject import Subject
    from whence.types import AttentionMaps, Attribution, Comparison, Input, Score, Target

__all__ = [
    "AttentionMaps",
    "Attribution",
    "Comparison",
    "Explained",
    "Input",
    "Score",
    "Subject",
    "Target",
    "attention_maps",
    "compare",
    "explain",
    "list_methods",
    "list_metrics",
    "list_models",
    "load",
    "method",
    "metric",
    "score",
    "wrap",
]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(f"whence.{_PUBLIC[name]}"), name)
    if name == "zoo":
        return importlib.import_module("whence.zoo")
    raise AttributeError(f"module 'whence' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
