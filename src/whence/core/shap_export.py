"""Results in the form of other packages. Numpy only; no model, no torch."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import numpy as np

from whence.core.inputs import Input
from whence.core.results import Attribution


def shap_package() -> Any:
    """The shap package, or an error that says how to get it."""
    try:
        with warnings.catch_warnings():  # it calls what matplotlib is about to deprecate
            warnings.simplefilter("ignore", DeprecationWarning)
            warnings.simplefilter("ignore", PendingDeprecationWarning)
            return importlib.import_module("shap")
    except ImportError as error:
        raise ImportError("this needs the shap package; install it with pip install 'whence[shap]'") from error


def explanation(a: Attribution) -> Any:
    """A `shap.Explanation`: one instance, or one per generated token."""
    rows = a.scores.shape[:-1]
    base = np.zeros(rows) if a.base is None else np.asarray(a.base, dtype=float)
    data = np.empty((*rows, len(a.features)), dtype=object)
    data[...] = _as_written(a.input)
    return shap_package().Explanation(
        values=np.array(a.scores, dtype=float),
        base_values=base if rows else float(base),
        data=data,
        feature_names=list(a.features),
    )


def _as_written(x: Input) -> list[str]:
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
