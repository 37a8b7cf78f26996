"""The one loading point: importing these packages fills the registry and the generic functions of `display`.

Nothing else in `core` reaches upwards. The packages are named as text, because `core` may not import them: a program
that only reads saved results loads the views and never the methods, which need torch.
"""

from __future__ import annotations

import importlib

PACKAGES = {
    "method": "whence.methods",
    "metric": "whence.measure.metrics",
    "experiment": "whence.debate.experiments",
    "loss": "whence.guidance.losses",
    "view": "whence.views",
}


def load(kind: str) -> None:
    """Register everything of a kind: "method", "metric", "experiment", "loss" or "view"."""
    importlib.import_module(PACKAGES[kind])
