"""The verb that trains: a classifier fine-tuned with losses on its attention."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from whence.api.checks import check_call
from whence.api.provenance import stamped
from whence.core.guidances import Guidance
from whence.core.specs import Between, checked
from whence.core.wording import shown
from whence.guidance.guiding import Settings, guided
from whence.guidance.training import Schedule
from whence.measure.call_types import Data
from whence.model.subject import Subject

_SHARE = Annotated[float, Between(0, 1, without_least=True, without_most=True)]
_SEED = Annotated[int, Between(0, 2**32 - 1)]  # seeds that NumPy's generators take


@stamped
def guide(
    subject: Subject,
    data: Data,
    losses: Sequence[str],
    *,
    held_out: Data | float = 0.2,
    folder: str | Path | None = None,
    seeds: Sequence[int] = (0, 1, 2),
    epochs: float = 2,
    rate: float = 5e-5,
    batch_size: int = 32,
    patience: int | None = None,
    methods: Sequence[str] = ("attention", "gae"),
    control: bool = True,
    limit: int | None = None,
    truncate: bool = False,
    progress: bool = False,
) -> Guidance:
    """Fine-tune a classifier on labels and by losses on what it attends to; what that changes, over seeds: a Guidance.

    `data` has a label for every example and, for losses that compare with rationales, what people marked as `truth`, in
    any form that `evaluate` takes. `losses` are specs with weights, as "rationale(layers=[-1], weight=0.5)";
    `list_losses` has them. Copies of the model are trained, one per seed; the one that was lent stays as it is. With
    `control`, further copies are trained on labels alone, and the guided ones are compared with these. `held_out` is
    the share of the data, or other data, that all are measured on: accuracy, calibration, faithfulness and plausibility
    of `methods`, redundancy of heads, and how much attention differs between seeds. `folder` keeps the guided models,
    as folders that `load` reads. With `patience`, a tenth of the training data is set aside and checked twice in an
    epoch; training stops after that many checks without a gain, and the best weights are kept.
    """
    check_call(subject, limit=limit, truncate=truncate, progress=progress)
    if isinstance(held_out, (bool, int, float)):
        checked("held_out", held_out, _SHARE)
    if isinstance(methods, str) or not methods:
        raise ValueError(f"methods is a list of at least one, such as ['attention'], not {shown(methods)}")
    schedule = Schedule(epochs=float(epochs), rate=rate, batch_size=batch_size, patience=patience)
    settings: dict[str, Any] = {"control": bool(control), "limit": limit, "truncate": truncate, "progress": progress}
    settings["seeds"] = tuple(checked("seeds", list(seeds), list[_SEED]))
    settings["folder"] = None if folder is None else Path(folder)
    return guided(subject, data, losses, held_out, Settings(schedule, methods=tuple(methods), **settings))
