"""A scene: one input of the model, and all that experiments compute from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whence.core import registry
from whence.core.inputs import Input
from whence.debate.places import Heads, Layers, Place, Rows, places_of
from whence.methods.explaining import Settings, explained
from whence.methods.gradient import placed, width_axis
from whence.model.attention_runs import AttentionRuns, cannot_edit
from whence.model.masked_inputs import Way
from whence.model.masked_runs import Ask, MaskedRuns
from whence.model.passes import Request
from whence.model.precision import wide
from whence.model.subject import Subject
from whence.model.targets import classes_of

Values = dict[str, dict[str, float]]  # place -> name -> number


class Undefined(ValueError):
    """Raised where an experiment needs something that the model does not have; the finding then says so."""


class Scene:
    """One input, with the model's decision about it; `generator` draws for one experiment on one example."""

    def __init__(
        self, subject: Subject, item: Input, engine: MaskedRuns, seed: Sequence[int] = (0,), label: int | None = None
    ) -> None:
        self.subject, self.item, self.engine, self.seed = subject, item, engine, seed
        reason = cannot_edit(subject, subject.batch([item]))
        if reason is not None:
            raise Undefined(reason)
        if subject.regression:
            raise Undefined(f"{subject.name} gives a number, and the experiments compare decisions among classes")
        self.label = label  # the right class, where it is known
        self.runs = AttentionRuns(subject, item)
        if not self.runs.trace.deciding:
            raise Undefined(f"the output of {subject.name} does not change with its attention, to first order")

    def generator(self, name: str) -> np.random.Generator:
        """A generator of random numbers: seed, example and experiment determine it."""
        return np.random.default_rng([*self.seed, *name.encode()])

    # ---- the decision ------------------------------------------------------------------------------------------------

    def outputs(self, logits: Tensor) -> Tensor:
        """Logits (variant, class) as probabilities, (variant, question, outcome).

        A classifier asks one question with an outcome per class; a model with several labels, or with one output, asks
        of each label whether it holds.
        """
        logits = classes_of(logits.double(), self.runs.aim.targets[0].of)
        if self.subject.multi_label or logits.shape[-1] == 1:
            holds = logits.sigmoid()
            return torch.stack([holds, 1 - holds], -1)
        return logits.softmax(-1)[:, None]

    @cached_property
    def own(self) -> Tensor:
        """The model's own output: (question, outcome)."""
        return self.outputs(self.runs.trace.logits)[0]

    @cached_property
    def decision(self) -> Tensor:
        """The likeliest outcome of every question: (question,)."""
        return self.own.argmax(-1)

    @property
    def predicted(self) -> str:
        """The name of the predicted class or token."""
        return self.runs.aim.targets[0].name

    def flipped(self, outputs: Tensor) -> Tensor:
        """Whether outputs (variant, question, outcome) decide otherwise than the model's own: (variant,) bool."""
        return (outputs.argmax(-1) != self.decision).any(-1)

    def decides(self, outputs: Tensor, label: int) -> Tensor:
        """Whether outputs (variant, question, outcome) decide for a class, by its number: (variant,) bool."""
        if outputs.shape[1] == 1:
            return outputs[:, 0].argmax(-1) == label
        return outputs[:, label].argmax(-1) == 0  # of several labels: this one holds

    def confidence(self, outputs: Tensor) -> Tensor:
        """p of what the model decides, the mean over questions: (variant,)."""
        return outputs.gather(-1, self.decision.expand(len(outputs), -1)[..., None])[..., 0].mean(-1)

    # ---- attention ---------------------------------------------------------------------------------------------------

    def at_places(
        self,
        layers: Layers,
        heads: Heads,
        rows: Rows,
        special: bool,
        measure: Callable[[Place], dict[str, float]],
        least: int = 2,
    ) -> Values:
        """Measure at every place that the options name; heads that are edited one by one are averaged.

        A place with fewer than `least` features whose weights may be edited has no numbers.
        """
        found: Values = {}
        for name, places in places_of(self.runs, layers, heads, rows, special).items():
            own = [measure(place) if place.free.sum() >= least else {} for place in places]
            names = dict.fromkeys(number for values in own for number in values)
            found[name] = {n: _mean([values[n] for values in own if n in values]) for n in names}
        return found

    def answered(self, place: Place, new: list[Tensor], **options: Any) -> Tensor:
        """The outputs with other attention at a place: (variant, question, outcome)."""
        return self.outputs(place.logits(new, **options))

    def attention_gradient(self, place: Place) -> tuple[np.ndarray, np.ndarray]:
        """d p / d a of what the model decides, and a times that, summed over heads and rows: two arrays (feature,)."""
        leaves = [block.weights[None].clone().requires_grad_() for block in place.blocks]
        with torch.enable_grad():
            value = self.confidence(self.answered(place, leaves, graph=True)).sum()
            gradients = torch.autograd.grad(value, leaves)
        products = [g[0] * block.weights for g, block in zip(gradients, place.blocks, strict=True)]
        return place.on_features([g[0] for g in gradients]), place.on_features(products)

    # ---- other explanations ------------------------------------------------------------------------------------------

    @cached_property
    def gradient(self) -> np.ndarray:
        """sum over width of x dp/dx with all attention held as it is, (feature,): x are word embeddings, or pixels."""
        aim = self.runs.aim.of_probabilities()
        aim.fix(self.runs.trace.logits, self.runs.batch)
        held = Request(frozenset({"gradient:word"}), edit=lambda record, weights, values: (weights.detach(), values))
        trace = self.subject.run(self.runs.batch, aim, held)
        products = {s: wide(trace.states["word"][s]) * wide(g) for s, g in trace.gradients["word"].items()}
        scores = placed(self.subject, self.runs.batch, {s: p.sum(width_axis(p)) for s, p in products.items()}).scores
        return np.asarray(self.runs.batch.unpadded(scores)[0], float)

    def left_out(self, mask: Way | None) -> Tensor:
        """The outputs without each of the features that are not special, in order: (variant, question, outcome).

        Without a `mask`, tokens of a text are deleted, as in the paper, where the decision is about the whole text.
        """
        free = np.flatnonzero(~self.item.special)
        keep = np.ones((len(free), len(self.item.features)), bool)
        keep[np.arange(len(free)), free] = False
        text = set(self.item.streams) == {"text"} and not self.subject.reads and not self.subject.generates
        ask = Ask(keep, mask or ("delete" if text and len(free) > 1 else "auto"))
        answers = self.engine.answers([self.item], [ask], self.runs.aim)[0]
        return self.outputs(torch.from_numpy(np.stack(answers.rows)))

    def explained(self, method: str) -> np.ndarray:
        """The scores of a method for what the model predicts, (feature,)."""
        spec = registry.resolve("method", method)
        settings = Settings(masked_runs=self.engine)
        return np.asarray(explained(self.subject, [self.item], [spec], [None], settings)[0][0].scores, float)


def _mean(values: list[float]) -> float:
    known = [value for value in values if not np.isnan(value)]
    return float(np.mean(known)) if known else float("nan")
