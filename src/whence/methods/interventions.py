"""What an intervention did: predictions without and with it, and whether an ignored word can still count."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from whence.core.inputs import Input
from whence.core.interventions import LIKELIEST, Intervention, Prediction, ignored_words
from whence.core.results import Attribution
from whence.model.batching import Batch
from whence.model.interventions import closed_tokens, described, without
from whence.model.subject import Subject
from whence.model.targets import Aim

REACHED = 1e-6  # of the largest gradient: less than this at an ignored token is rounding


def interventions(subject: Subject, batch: Batch, aim: Aim) -> list[Intervention | None]:
    """Of every example what its intervention did to the prediction; None for one without an intervention.

    The aim must be fixed, by a pass over the batch.
    """
    if subject.change(batch) is None:
        return [None] * len(batch)
    plain = replace(
        batch, inputs=[replace(item, ignored=()) for item in batch.inputs], needs=frozenset(), trace=None, known=None
    )
    logits, states = without(subject).decision(plain, aim.states)
    values = aim(logits, plain, states).tolist()
    under = subject.logits(batch)
    edit = described(subject).get("edit", "")
    return [
        Intervention(ignored_words(item), values[row], _predictions(subject, item, logits[row], under[row]), edit)
        if item.ignored or edit
        else None
        for row, item in enumerate(batch.inputs)
    ]


def set_against(one: Attribution, other: Attribution) -> Intervention | None:
    """The intervention of an answer that is set against another one: f(x) without it is the difference of both."""
    if one.intervention is None or other.intervention is None:
        return None
    return replace(one.intervention, without=one.intervention.without - other.intervention.without)


def _predictions(subject: Subject, item: Input, plain: Tensor, under: Tensor) -> tuple[tuple[Prediction, ...], ...]:
    """The likeliest classes or tokens of either decision; none where a decision is no choice between classes."""
    if subject.reads == "span" or subject.regression or item.answer or len(plain) < 2:
        return ()
    both = (plain.double(), under.double())
    shares = [one.sigmoid() if subject.multi_label else one.softmax(-1) for one in both]
    top = [index for one in shares for index in one.argsort(descending=True, stable=True)[:LIKELIEST].tolist()]
    found = (Prediction(subject.name_of(i), float(shares[0][i]), float(shares[1][i])) for i in dict.fromkeys(top))
    return (tuple(sorted(found, key=lambda one: -one.without)),)


def notes_of(subject: Subject, batch: Batch, aim: Aim) -> list[tuple[str, ...]]:
    """Of every example a note on ignored tokens that still reach the target, and on those that are special.

    With attention to a token closed, its state reaches nothing else through attention. The output may still read the
    token itself (a mean over tokens, the last token), and some models mix tokens by other means, as convolutions. The
    gradient of the target at the token's embedding tells.
    """
    if not any(item.ignored for item in batch.inputs):
        return [()] * len(batch)
    reached = _reached(subject, batch, aim)
    found: list[tuple[str, ...]] = []
    for row, item in enumerate(batch.inputs):
        places = batch.mask[row].nonzero()[:, 0].tolist()
        names = {number: repr(item.features[number].strip() or item.features[number]) for number in item.ignored}
        said = []
        if special := [name for number, name in names.items() if item.special[number]]:
            said.append(f"ignored tokens are special, and may carry more than themselves: {', '.join(special)}")
        if reached is None:
            said.append(f"whether ignored words still count was not checked: {subject.name} has no gradients")
        elif still := [name for number, name in names.items() if reached[row, places[number]]]:
            said.append(
                f"ignored, but still counted: {', '.join(still)}; the output is read at the token itself, or tokens "
                "are mixed by more than attention"
            )
        found.append(tuple(said))
    return found


def _reached(subject: Subject, batch: Batch, aim: Aim) -> Tensor | None:
    """(batch, feature) bool: ignored tokens at whose embedding the target has a gradient; None without gradients."""
    marked = closed_tokens(batch)["*"]
    try:
        _, gradients = subject.gradient(batch, aim, "word")
    except ValueError:  # a quantised model, or a target that no input reaches
        return None
    sizes: dict[str, Any] = {
        stream: gradient.abs().sum(1 if gradient.ndim == 4 else -1) for stream, gradient in gradients.items()
    }
    reach = subject.on_features(batch, sizes)
    return marked & (reach > REACHED * reach.amax(1, keepdim=True).clamp(min=torch.finfo(reach.dtype).tiny))
