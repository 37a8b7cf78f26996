"""One example of a zoo model: what goes in, what should come out, and which features decide."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Example:
    """`truth` marks the features that decide: (feature,), or (generated, feature); None where it is not known."""

    input: Any  # what `whence.explain` takes
    label: str | None
    truth: np.ndarray | None = None
