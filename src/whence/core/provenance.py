"""Where a result came from: the versions of everything that its numbers depend on."""

from __future__ import annotations

import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version

LIBRARIES = ("whence", "torch", "transformers", "tokenizers", "numpy", "scipy", "shap", "scikit-learn")


@cache
def versions() -> dict[str, str]:
    """The version of Python and of every library that is installed."""
    found = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
