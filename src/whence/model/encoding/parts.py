"""The named parts of a raw input, such as prompt and continuation, whichever form the input came in."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from whence.core.tasks import GENERATED_PARTS, TASKS
from whence.core.wording import quoted, shown


def named_parts(raw: Any, task: str) -> dict[str, Any]:
    """The parts of a raw input by name: a dict has them, a tuple lists them, anything else is the one required part."""
    allowed, required = TASKS[task].parts, TASKS[task].required
    if isinstance(raw, dict):
        known = (*allowed, *TASKS[task].further)
        if unknown := [key for key in raw if key not in known]:
            raise ValueError(f"{task} takes the keys {quoted(known)}, but {quoted(unknown)} came")
        parts = {key: raw[key] for key in known if raw.get(key) is not None}
        if "messages" in parts:
            if texts := [key for key in allowed if key in parts and key != "image"]:
                raise ValueError(f"messages take the place of {quoted(texts)}, and both came; leave one of them out")
            required = tuple(key for key in required if key == "image")
    elif isinstance(raw, tuple) and len(raw) == len(allowed) == 2:
        parts = dict(zip(allowed, _image_first(raw) if "image" in allowed else raw, strict=True))
    elif isinstance(raw, str | Path | Image.Image | np.ndarray) and len(required) == 1:
        parts = {allowed[0]: raw}
    else:
        raise TypeError(f"{task} takes {_forms(task)}, but a {type(raw).__name__} came")
    if missing := [key for key in required if key not in parts]:
        raise ValueError(f"{task} needs the key {quoted(missing)}, but only {quoted(parts) or 'none'} came")
    return parts


class Generation(NamedTuple):
    """How a model goes on with a text: the most tokens that it writes, and texts at which it stops."""

    most: int | None = None  # None: as many as the model's own settings say, or `MAX_ANSWER`
    stop: tuple[str, ...] = ()


def generation_of(raw: Any, generates: bool) -> Generation | None:
    """What an input says about generating; None where its text is not to be continued."""
    if not generates or not isinstance(raw, dict):
        return None
    most, stop = raw.get("max_tokens"), raw.get("stop")
    if isinstance(most, (str, float)) and str(most).removesuffix(".0").isdecimal():  # as tables have it
        most = int(float(most))
    if most is not None and (isinstance(most, bool) or not isinstance(most, (int, np.integer)) or most < 1):
        raise ValueError(f"max_tokens is a whole number of at least 1, not {shown(raw['max_tokens'])}")
    stops = (stop,) if isinstance(stop, str) else tuple(stop) if isinstance(stop, (list, tuple)) else ()
    if stop is not None and (not stops or not all(isinstance(one, str) and one for one in stops)):
        raise ValueError(f"stop is a text, or a list of texts, at which generating stops, not {shown(stop)}")
    if most is None and stop is None and "messages" not in raw:
        return None
    return Generation(None if most is None else int(most), stops)


def checked_text(part: str, text: Any) -> str:
    """The text of a part, refused where it is no string or empty.

    A text that the model itself could have written may be whitespace alone: a new line is a continuation.
    """
    if not isinstance(text, str):
        raise TypeError(f"the {part} must be a string, but a {type(text).__name__} came")
    empty = not text if part in GENERATED_PARTS else not text.strip()
    if empty:
        raise ValueError(f"the {part} is empty: give at least one word")
    return text


def _forms(task: str) -> str:
    """The forms in which a task takes its input, for an error."""
    allowed, required = TASKS[task].parts, TASKS[task].required
    forms = [] if len(required) > 1 else ["a picture" if allowed[0] == "image" else "a string"]
    forms += [f"a tuple ({', '.join(allowed)})"] if len(allowed) == 2 else []
    forms += [f"a dict with the keys {quoted(allowed)}"]
    return " or ".join(forms)


def _image_first(raw: tuple[Any, Any]) -> tuple[Any, Any]:
    """A picture and a text in the order (image, text), told apart by type: the text is the only string."""
    is_string = [isinstance(item, str) for item in raw]
    if sum(is_string) != 1:
        raise TypeError("which is the picture cannot be told: pass a dict with the keys 'image' and 'text'")
    return (raw[1], raw[0]) if is_string[0] else raw
