"""How scores are drawn over a picture, as callers ask for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any

from whence.core.specs import Between, check_fields
from whence.core.wording import quoted


@dataclass(frozen=True)
class Look:
    """The options of pages and figures that show scores over a picture."""

    clip: Annotated[float, Between(50, 100)] = 100.0  # the percentile of |scores| from which colours are full
    contour: Annotated[float, Between(0, 1, without_least=True, without_most=True)] | None = None  # a share of the mass
    patches: bool = False  # every patch in one colour, instead of interpolated between the centres of patches

    def __post_init__(self) -> None:
        check_fields(self)


NAMES = tuple(item.name for item in fields(Look))


def look_of(options: Mapping[str, Any]) -> Look | None:
    """The look that options ask for, None where there are none."""
    unknown = [name for name in options if name not in NAMES]
    if unknown:
        raise ValueError(f"views of pictures take the options {quoted(NAMES)}, not {quoted(unknown)}")
    return Look(**options) if options else None
