"""Shared by experiments that retrain: examples to learn from, attention as they read it, and the trained models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from whence.core.audits import CrossTable
from whence.core.inputs import Input
from whence.core.specs import Between
from whence.core.wording import counted
from whence.debate.distances import jensen_shannon, total_variation
from whence.debate.places import Heads, Layers
from whence.debate.scenes import Undefined, Values
from whence.measure.datasets import as_target, read
from whence.measure.plans import encode_examples
from whence.model.batching import Batch
from whence.model.retraining import Learner, TrainingPass, edited_logits, seen_by
from whence.model.subject import Subject
from whence.model.tap import AttentionRecord, Edit
from whence.model.target_specs import resolve

FEWEST = 20  # examples to learn from
TOGETHER = 64  # examples that are read in one pass
Steps = Annotated[int, Between(1, 10**6)]
Rate = Annotated[float, Between(0, 1, without_least=True)]
Seeds = Annotated[int, Between(1, 100)]
Fresh = Annotated[int, Between(1, 1000)] | None


@dataclass(frozen=True)
class Course:
    """How a model is trained again, and which attention is read."""

    layers: Layers = "last"
    heads: Heads = "together"
    fresh: Fresh = 1  # blocks, the last ones, that start anew with what follows them; None: all weights
    steps: int = 250
    rate: float = 1e-3
    batch: int = 32  # examples of a step


@dataclass(frozen=True, eq=False)
class Example:
    """An input that is learned from, or audited."""

    item: Input
    label: int | None


@dataclass(frozen=True, eq=False)
class Seen:
    """A model on one example: (place, feature) shares of attention over words, and (class,) probabilities."""

    attention: Tensor
    output: Tensor


@dataclass(frozen=True, eq=False)
class Lesson:
    """The results of an experiment that retrains: numbers of every audited example, and tables over all examples."""

    values: list[Values]
    tables: tuple[CrossTable, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(eq=False)
class Retraining:
    """Trained models, each trained once, and their attention and outputs on examples."""

    subject: Subject
    lessons: list[Example]  # learned from
    audited: list[Example]
    seed: int = 0
    _known: dict[Any, Any] = field(default_factory=dict)

    # ---- models ------------------------------------------------------------------------------------------------------

    def again(self, course: Course, seed: int) -> Subject:
        """The model with its last part trained again on labels, from another seed."""

        def loss(learner: Subject, batch: Batch, numbers: list[int]) -> Tensor:
            return F.cross_entropy(
                seen_by(learner, batch, graph=True).logits, self._labels(learner, numbers), reduction="none"
            )

        return self._once(("again", course, seed), lambda: self._learned(course, seed, loss))

    def uniform(self, course: Course, seed: int) -> Subject:
        """The model with its last part trained again on labels while its attention is held equal over all words."""

        def loss(learner: Subject, batch: Batch, numbers: list[int]) -> Tensor:
            logits = edited_logits(learner, batch, equal_weights(learner, batch, course))
            return F.cross_entropy(logits, self._labels(learner, numbers), reduction="none")

        return self._once(("uniform", course, seed), lambda: self._learned(course, seed, loss))

    def adversary(self, course: Course, pull: float, divergence: str, seed: int) -> Subject:
        """The model with its last part trained to give the model's own outputs with attention far from its own.

        The loss of an instance is TVD(y, y_own) - pull * D(a, a_own), D the Jensen-Shannon divergence or KL(a | a_own).
        """
        own = self.seen(self.subject, course, self.lessons)

        def loss(learner: Subject, batch: Batch, numbers: list[int]) -> Tensor:
            seen = seen_by(learner, batch, graph=True)
            before = torch.stack([own[n].output for n in numbers])
            change = total_variation(seen.logits.double().softmax(-1)[:, None], before[:, None])
            attention = attention_of(seen, course)
            target = torch.zeros_like(attention)
            for row, number in enumerate(numbers):
                target[row][:, batch.mask[row]] = own[number].attention
            return change - pull * apart(attention, target, divergence)

        return self._once(("adversary", course, pull, divergence, seed), lambda: self._learned(course, seed, loss))

    def _learned(self, course: Course, seed: int, loss: Callable[[Subject, Batch, list[int]], Tensor]) -> Subject:
        """A copy whose last part starts anew and learns by `loss`: (learner, batch, numbers) -> (batch,)."""
        learner = Learner(self.subject, self.lessons[0].item, course.fresh, seed + 1)
        rng = np.random.default_rng([self.seed, seed, 19])

        def step_loss(step: int) -> Tensor:
            drawn = [int(n) for n in rng.integers(len(self.lessons), size=course.batch)]
            total = torch.zeros((), dtype=torch.double, device=learner.subject.device)
            # one batch, or several where the model cannot be padded
            for places, batch in learner.subject.batches([self.lessons[n].item for n in drawn], course.batch):
                total = total + loss(learner.subject, batch, [drawn[place] for place in places]).double().sum()
            return total / len(drawn)

        learner.learn(step_loss, course.steps, course.rate)
        return learner.subject

    def _labels(self, subject: Subject, numbers: list[int]) -> Tensor:
        return torch.tensor([self.lessons[n].label for n in numbers], device=subject.device)

    def _once(self, key: Any, make: Callable[[], Any]) -> Any:
        """The object that was made before under an equal key, else a new one; keys are equal if their `repr` is."""
        name = repr(key)
        if name not in self._known:
            self._known[name] = make()
        return self._known[name]

    # ---- models on examples ------------------------------------------------------------------------------------------

    def seen(
        self, subject: Subject, course: Course, examples: Sequence[Example], *, uniform: bool = False
    ) -> list[Seen]:
        """Attention and outputs of a model on examples; with equal weights in place of its own if `uniform`."""

        def make() -> list[Seen]:
            found: dict[int, Seen] = {}
            for numbers, batch in subject.batches([example.item for example in examples], TOGETHER):
                seen = seen_by(subject, batch)
                logits = seen.logits
                if uniform:
                    with torch.no_grad():
                        logits = edited_logits(subject, batch, equal_weights(subject, batch, course))
                outputs = logits.double().softmax(-1)
                for row, shares in enumerate(attention_of(seen, course)):
                    found[numbers[row]] = Seen(shares[:, batch.mask[row]], outputs[row])
            return [found[number] for number in range(len(examples))]

        where = (course.layers, course.heads, id(subject), id(examples), uniform)
        return self._once(("seen", where), make)


def retraining(
    subject: Subject, train: Any, items: Sequence[Input], targets: Sequence[Any], seed: int, truncate: bool
) -> Retraining:
    """Read the examples to learn from, and refuse what cannot be learned."""
    if (subject.task != "text-classification" and subject.processor) or subject.generates or subject.reads:
        raise ValueError(
            f"train= is for models that give a text one class, and {subject.name} is a {subject.task} model"
        )
    if subject.regression or subject.multi_label:
        raise ValueError(f"train= is for models that give one class, and {subject.name} does not; leave train= out")
    raws, labels, _ = read(train)
    if any(label is None for label in labels):
        missing = sum(label is None for label in labels)
        raise ValueError(
            f"every example of train= needs a label to learn from, and {missing} of {len(labels)} have none"
        )
    if len(raws) < FEWEST:
        raise ValueError(f"train= needs {FEWEST} examples or more to learn from, and has {len(raws)}")
    _, encoded = encode_examples(
        subject, raws, [[as_target(subject, label)] for label in labels], [None] * len(raws), truncate
    )
    inputs = [encoded.items.get(n) or subject.encode(raw, truncate=truncate) for n, raw in enumerate(raws)]
    lessons = [Example(item, class_of(subject, label, item)) for item, label in zip(inputs, labels, strict=True)]
    if len({lesson.label for lesson in lessons}) < 2:
        raise ValueError(
            f"train= needs examples of two classes or more, and all {counted(len(raws), 'example')} are of one"
        )
    audited = [Example(item, target) for item, target in zip(items, targets, strict=True)]
    return Retraining(subject, lessons, audited, seed)


def class_of(subject: Subject, label: Any, item: Input) -> int:
    """The number of the class that a label names."""
    known = resolve(as_target(subject, label), subject, item)
    index = getattr(known, "index", None)
    if index is None:
        raise ValueError(f"a label of train= must name a class, and {label!r} does not")
    return int(index)


# ---- attention as a distribution over words --------------------------------------------------------------------------


def attention_of(seen: TrainingPass, course: Course) -> Tensor:
    """Shares of attention over words, (batch, place, feature): rows of the tokens that the output reads.

    A place is a layer, as the mean over its heads, or a head of it where heads are read one by one. Special tokens are
    left out, and the words' weights divided by their sum.
    """
    free = ~seen.batch.special
    places = []
    for record in chosen_records(seen.attention, course.layers):
        if record.query not in seen.deciding:
            raise Undefined("the output does not read the rows of this attention")
        read = seen.deciding[record.query].to(record.weights.dtype)  # (batch, query)
        rows = torch.einsum("bhqk,bq->bhk", record.weights, read) / read.sum(-1).clamp(min=1)[:, None, None]
        span = seen.batch.span(record.key)
        wide = F.pad(rows.double(), (span.start, free.shape[1] - span.stop))  # (batch, head, feature)
        places.append(chosen_heads(wide, course.heads))
    weights = torch.cat(places, 1) * free[:, None]
    return weights / weights.sum(-1, keepdim=True).clamp(min=1e-30)


def chosen_records(records: Sequence[AttentionRecord], layers: Layers) -> list[AttentionRecord]:
    """The attention blocks that `layers` names, in order; "each" and "all" are all of them."""
    inside = [record for record in records if record.query]
    if not inside:
        raise Undefined("no attention of the model spans its inputs")
    depth = 1 + max(record.layer for record in inside)
    if isinstance(layers, str):
        wanted = {depth - 1} if layers == "last" else set(range(depth))
    else:
        numbers = layers if isinstance(layers, list) else [layers]
        if not all(-depth <= number < depth for number in numbers):
            raise ValueError(f"layers={layers} is out of range: the model has {depth} layers, from 0")
        wanted = {number % depth for number in numbers}
    return [record for record in inside if record.layer in wanted]


def chosen_heads(weights: Tensor, heads: Heads) -> Tensor:
    """(batch, head, feature) as places: the mean over heads, each head, or the heads of these numbers."""
    if heads == "together":
        return weights.mean(1, keepdim=True)
    if heads == "each":
        return weights
    numbers = heads if isinstance(heads, list) else [heads]
    if not all(-weights.shape[1] <= int(number) < weights.shape[1] for number in numbers):
        raise ValueError(f"heads={heads} is out of range: the layer has {weights.shape[1]} heads, from 0")
    return weights[:, [int(number) for number in numbers]].mean(1, keepdim=True)


def equal_weights(subject: Subject, batch: Batch, course: Course) -> Edit:
    """An edit that gives every word that a row can see the same weight, and special tokens none, in chosen layers."""
    free = ~batch.special  # (batch, feature)
    chosen = {record.order for record in chosen_records(_blocks_of(subject, batch), course.layers)}

    def edit(record: AttentionRecord, weights: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        if record.order not in chosen:
            return weights, values
        keys = (weights.detach() != 0).any(1, keepdim=True) & free[:, batch.span(record.key)][:, None, None]
        count = keys.sum(-1, keepdim=True)
        equal = keys / count.clamp(min=1)  # (batch, 1, query, key)
        return torch.where(count > 0, equal.to(weights.dtype), weights), values

    return edit


def _blocks_of(subject: Subject, batch: Batch) -> list[AttentionRecord]:
    """The attention blocks of a model without their weights: numbers, layers and streams."""
    connections = subject.structure(batch).connections
    return [
        AttentionRecord(order, "", layer=connections[:order].count(pair), query=pair[0], key=pair[1])
        for order, pair in enumerate(connections)
    ]


# ---- distances -------------------------------------------------------------------------------------------------------


def padded(attentions: Sequence[Tensor], length: int) -> Tensor:
    """Attention of several examples, (place, feature) each, as one tensor (example, place, feature)."""
    return torch.stack([F.pad(own, (0, length - own.shape[-1])) for own in attentions])


def apart(new: Tensor, own: Tensor, divergence: str = "jsd") -> Tensor:
    """How far attention is from other attention, (..., place, feature): the mean over places, in nats."""
    if divergence == "jsd":
        return jensen_shannon(new, own).mean(-1)
    logs = torch.log(new.clamp(min=1e-12)) - torch.log(own.clamp(min=1e-12))
    return (new * logs).sum(-1).mean(-1)


def right(seen: Sequence[Seen], examples: Sequence[Example]) -> np.ndarray:
    """Whether decisions are right, (example,): 1, 0, or NaN without a label."""
    return np.array(
        [
            float("nan") if example.label is None else float(int(own.output.argmax()) == example.label)
            for own, example in zip(seen, examples, strict=True)
        ]
    )


def f1(decided: Sequence[int], labels: Sequence[int]) -> float:
    """The F1 score of the second of two classes; of more, the mean over classes (macro)."""
    given, wanted = np.array(decided), np.array(labels)
    classes = sorted({*labels, *decided})
    chosen = classes[-1:] if len(classes) <= 2 else classes
    scores = []
    for one in chosen:
        hits = int(((given == one) & (wanted == one)).sum())
        scores.append(2 * hits / max(int((given == one).sum() + (wanted == one).sum()), 1))
    return float(np.mean(scores))
