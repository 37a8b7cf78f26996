"""Scores of features as a `shap.Explanation`, for shap's own plots. Numpy only; no model, no torch."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import numpy as np

from whence.core.inputs import Input


def shap_package() -> Any:
    """The shap package, or an error that says how to get it."""
    try:
        with warnings.catch_warnings():  # its import calls functions that matplotlib deprecates
            warnings.simplefilter("ignore", DeprecationWarning)
            warnings.simplefilter("ignore", PendingDeprecationWarning)
            return importlib.import_module("shap")
    except ImportError as error:
        raise ImportError("this needs the shap package; install it with pip install 'whence[shap]'") from error


def explanation(scores: np.ndarray, base: Any, x: Input) -> Any:
    """A `shap.Explanation` of the scores of an input's features: one instance, or one per generated token."""
    rows = scores.shape[:-1]
    base = np.zeros(rows) if base is None else np.asarray(base, dtype=float)
    data = np.empty((*rows, len(x.features)), dtype=object)
    data[...] = as_written(x)
    return shap_package().Explanation(
        values=np.array(scores, dtype=float),
        base_values=base if rows else float(base),
        data=data,
        feature_names=list(x.features),
    )


def as_written(x: Input) -> list[str]:
    """The text of each feature up to where the next one starts, so that together they read as they were written."""
    shown = []
    for i, (name, part, (start, end)) in enumerate(zip(x.features, x.parts, x.offsets, strict=True)):
        if start < 0 or part not in x.texts:
            shown.append(f"{name} ")
            continue
        following = x.offsets[i + 1, 0] if x.parts[i + 1 : i + 2] == (part,) else -1
        text = x.texts[part]
        shown.append(text[start : max(end, following)] if following >= 0 else f"{text[start:end]} ")
    return shown
