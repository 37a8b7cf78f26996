"""The types of what callers give to the verbs: inputs, targets, truths, data sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
from PIL.Image import Image
from torch import Tensor

from whence.core.inputs import Target
from whence.model.targets import Function


class Column(Protocol):
    """A column of a table, such as a pandas Series or a polars Series: a list of inputs."""

    def to_list(self) -> list[Any]: ...


class Frame(Protocol):
    """A data frame with a column per part of an input."""

    @property
    def columns(self) -> Any: ...
    def to_dict(self, orient: Any) -> Any: ...


# One input as it is given: a text, a picture (PIL, array, tensor, file), a dict with named parts such as
# {"text": ..., "pair": ...}, or a tuple that is short for such a dict.
RawInput: TypeAlias = str | Path | Image | npt.NDArray[np.number[Any]] | Tensor | Mapping[str, Any] | tuple[Any, ...]
Raw = TypeVar("Raw", bound=RawInput)
# Several inputs: a list, a column of a table, an array of texts.
RawInputs: TypeAlias = list[Raw] | Column | npt.NDArray[np.str_]
# What is explained: a label, kind(...) or token's text, an index, a Target, a function; None for the prediction.
TargetLike: TypeAlias = str | int | Target | Function | None
TargetLikes: TypeAlias = TargetLike | Sequence[TargetLike]  # one for all inputs, or a list with one per input
# What is known to decide: phrases, pairs of characters, marks of scores, words or pixels, or the file of a mask.
Truth: TypeAlias = str | Path | Sequence[Any] | npt.NDArray[Any] | Mapping[str, Any] | None
# What must not count: words or phrases, numbers of features, pairs of characters, {"word": ..., "occurrence": n}.
Ignore: TypeAlias = str | Mapping[str, Any] | list[Any] | None
# Examples for `evaluate` and `arbitrate`: inputs, records or Examples in a list; a data frame; a file or folder.
Data: TypeAlias = str | Path | Sequence[Any] | Column | npt.NDArray[Any] | Frame
