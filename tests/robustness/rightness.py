"""What a right attribution is: finite, f(x) is the plain model's, the residual adds up, complete if promised."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from outcomes import Wrong
from whence.core import registry
from whence.core.inputs import Input
from whence.core.results import Attribution
from whence.model.subject import Subject

OUTPUT = 1e-4  # of the logits' scale: batches of other sizes and fused attention add up in another order
COMPLETE = 1e-3  # of the sum of absolute scores, where a method has no tolerance of its own
BALANCE = 1e-5  # of the sum of absolute scores: the same numbers added up in another order


def check_attribution(subject: Subject, a: Attribution, target: Any = None) -> None:
    """Raise `Wrong` unless an attribution is right; `target` is what was asked for."""
    name, _, options = a.method.partition("(")  # options that are arrays or functions cannot be read back
    record = registry.find("method", name)
    rows = len(a.input.generated) if a.axes[0] == "generated" else 1
    if np.atleast_2d(a.scores).shape != (rows, len(a.features)):
        raise Wrong(f"scores have the shape {a.scores.shape}, for {rows} rows and {len(a.features)} features")
    if not np.isfinite(a.scores).all() or not np.isfinite(np.asarray(a.output)).all():
        raise Wrong("scores or f(x) are not finite")
    _check_output(subject, a, target)
    if not record.signed and (a.residual is not None or a.base is not None):
        raise Wrong("an unsigned method has a base or residual")
    if a.base is None:
        if a.residual is not None or (record.signed and not options):  # with options the scores may have no signs
            raise Wrong(f"a method that promises signs has the base None and the residual {a.residual}")
        return
    scores = np.atleast_2d(a.scores).astype(np.float64)
    sizes, outputs = np.abs(scores).sum(-1), np.atleast_1d(a.output)
    expected = outputs - np.atleast_1d(a.base) - scores.sum(-1)
    gaps = np.abs(np.atleast_1d(a.residual) - expected)
    if not (gaps <= BALANCE * (sizes + np.abs(outputs) + np.abs(np.atleast_1d(a.base)))).all():
        raise Wrong(f"the residual is {a.residual}, and output - base - sum of scores is {expected}")
    if record.complete and not options:
        _check_complete(a, record, sizes)


def check_same(first: Attribution, second: Attribution, what: str, tolerance: float = 0.0) -> None:
    """Raise `Wrong` unless two attributions have the same scores, up to a share of the largest one."""
    gap = np.abs(np.asarray(first.scores) - np.asarray(second.scores)).max(initial=0.0)
    if not gap <= tolerance * np.abs(second.scores).max(initial=0.0):
        raise Wrong(f"{what} gives other scores, up to {gap:.3g} apart")


def _check_output(subject: Subject, a: Attribution, target: Any) -> None:
    """f(x) is the target's value on the plain model, and a target left open is what the model predicts."""
    own: list[Input] = [row for row, _ in subject.rows(a.input)] or [a.input]
    targets = a.target if isinstance(a.target, tuple) else (a.target,)
    for row, named, value in zip(own, targets, np.atleast_1d(a.output), strict=True):
        batch, wanted = subject.batch([row]), target if named.kind == "function" else named
        aim = subject.aim([wanted])
        logits, states = subject.decision(batch, aim.states)
        with torch.no_grad():
            plain = float(aim(logits, batch, states))
        scale = max(1.0, float(logits.abs().max()), abs(plain))
        if not abs(plain - value) <= OUTPUT * scale:
            raise Wrong(f"{value:.7g} is stored as the {named}, which is {plain:.7g} on the plain model")
        best = int(aim.classes(0, logits[0]).argmax())
        if named.predicted and named.index != best:
            raise Wrong(f"the {named} is explained, but class {best} is predicted")


def _check_complete(a: Attribution, record: registry.Record, sizes: np.ndarray) -> None:
    defaults: Mapping[str, Any] = {name: option.default for name, option in record.options.items()}
    tolerance = defaults.get("tolerance", COMPLETE)
    least = 0.1 if "tolerance" in defaults else 1e-3  # the least scale of the tolerance
    scale = np.maximum(np.maximum(sizes, np.abs(np.atleast_1d(a.output) - np.atleast_1d(a.base))), least)
    if not (np.abs(np.atleast_1d(a.residual)) <= tolerance * scale).all():
        raise Wrong(f"{a.method} promises completeness, and leaves {a.residual} of {a.output} to nobody")


def check_list(subject: Subject, found: Sequence[Attribution], raws: Sequence[Any], targets: Sequence[Any]) -> None:
    """Raise `Wrong` unless every attribution of a list is right, and there is one per input."""
    if len(found) != len(raws):
        raise Wrong(f"{len(raws)} inputs came to {len(found)} attributions")
    for a, target in zip(found, targets, strict=True):
        check_attribution(subject, a, target)
