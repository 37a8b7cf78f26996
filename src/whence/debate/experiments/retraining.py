"""Experiments that train the model again: other seeds, equal weights, an adversary, and a guide without context."""

from __future__ import annotations

import math
from itertools import combinations
from typing import Annotated, Any, Literal

import numpy as np

from whence.core.audits import CrossTable
from whence.core.registry import experiment
from whence.core.specs import Between
from whence.debate.distances import total_variation
from whence.debate.guides import guided
from whence.debate.places import Heads, Layers
from whence.debate.retraining import (
    Course,
    Fresh,
    Lesson,
    Rate,
    Retraining,
    Seeds,
    Seen,
    Steps,
    apart,
    f1,
    right,
)
from whence.debate.scenes import Undefined
from whence.debate.verdicts import Conclusion, Evidence, graded, too_few

PAPER = "arXiv:1908.04626"
NEAR, FAR = 0.15, 0.5  # divergence as a share of ln 2; up to NEAR, and from FAR on, the grade is clear
COPIED = 0.1  # a model that only copies has learned to if its outputs change by at most this
LITTLE, MUCH = 0.02, 0.1  # share of right decisions that is lost; thresholds of the grade
ROOM = 0.05  # if the model's attention adds less accuracy to equal weights, guides show nothing
FROZEN = (
    "Only the last blocks and what follows them start anew, unless fresh=None: what earlier layers put into the tokens "
    "stays.",
)
Pull = Annotated[float, Between(0, 10**6)]


def _distances(first: list[Seen], second: list[Seen]) -> tuple[np.ndarray, np.ndarray]:
    """Divergence of attention and total variation of outputs of two models, (example,) each."""
    pairs = list(zip(first, second, strict=True))
    divergence = [float(apart(a.attention, b.attention)) for a, b in pairs]
    change = [float(total_variation(a.output[None], b.output[None])) for a, b in pairs]
    return np.array(divergence), np.array(change)


def _values(numbers: dict[str, np.ndarray]) -> list[dict[str, dict[str, float]]]:
    """Numbers (example,) by name as values of every example; undefined numbers are left out."""
    kept = {name: own for name, own in numbers.items() if not np.isnan(own).all()}
    count = len(next(iter(numbers.values())))
    return [{"": {name: float(own[n]) for name, own in kept.items()}} for n in range(count)]


# ---- other seeds -----------------------------------------------------------------------------------------------------


def _varied(evidence: Evidence, options: dict[str, Any]) -> Conclusion:
    share = evidence.quantity("share of ln 2")
    few = too_few(share)
    if few is not None:
        return few
    return Conclusion(
        graded(share.mean, share.interval, FAR, NEAR),
        f"Trained again from {options['seeds']} seeds, attention diverges from the model's by "
        f"{evidence.said('divergence')} (at most {math.log(2):.2f}) while the output changes by "
        f"{evidence.said('change')} (total variation, 1 at most) and {evidence.mean('same decision'):.0%} of the "
        "decisions stay.",
    )


@experiment(
    question="Would the model attend to the same tokens, had it been trained from another seed?",
    conclude=_varied,
    family="training",
    paper=PAPER,
    limits=(*FROZEN, "Attention that varies with the seed may still be what each of the models goes by."),
)
def seed_variance(
    training: Retraining,
    *,
    seeds: Seeds = 3,
    layers: Layers = "last",
    heads: Heads = "together",
    fresh: Fresh = 1,
    steps: Steps = 250,
    rate: Rate = 1e-3,
    batch: Annotated[int, Between(1, 10**5)] = 32,
) -> Lesson:
    """Train the last part again from other seeds: divergence of attention beside the change of outputs.

    Attention is the row of the tokens that the output reads, the mean over heads unless `heads` says otherwise, over
    words. Of several layers or heads, divergences are averaged.
    """
    course = Course(layers, heads, fresh, steps, rate, batch)
    own = training.seen(training.subject, course, training.audited)
    again = [training.seen(training.again(course, seed), course, training.audited) for seed in range(1, seeds + 1)]
    pairs = [_distances(own, one) for one in again]
    among = [_distances(a, b) for a, b in combinations(again, 2)]
    same = [[a.output.argmax() == b.output.argmax() for a, b in zip(own, one, strict=True)] for one in again]
    divergence = np.mean([d for d, _ in pairs], 0)
    numbers = {
        "divergence": divergence,
        "share of ln 2": divergence / math.log(2),
        "change": np.mean([c for _, c in pairs], 0),
        "same decision": np.mean(np.array(same, float), 0),
        "right": right(own, training.audited),
        "right, trained again": np.mean([right(one, training.audited) for one in again], 0),
    }
    if among:
        numbers["divergence among seeds"] = np.mean([d for d, _ in among], 0)
        numbers["change among seeds"] = np.mean([c for _, c in among], 0)
    return Lesson(_values(numbers))


# ---- equal weights ---------------------------------------------------------------------------------------------------


def _learned_equal(evidence: Evidence, options: dict[str, Any]) -> Conclusion:
    loss = evidence.quantity("loss of right decisions")
    few = too_few(loss)
    if few is not None:
        return few
    return Conclusion(
        graded(loss.mean, loss.interval, LITTLE, MUCH),
        f"Trained again with equal weights for all words, {evidence.mean('right, uniform'):.0%} of the decisions are "
        f"right; trained again with attention of its own, {evidence.mean('right, trained again'):.0%} are, and "
        f"{evidence.mean('right'):.0%} of the model's.",
    )


@experiment(
    question="Would a model that was trained with equal weights do as well?",
    conclude=_learned_equal,
    family="training",
    paper=PAPER,
    limits=(*FROZEN, "A task that needs no attention in this layer says nothing about tasks that do."),
)
def trained_uniform(
    training: Retraining,
    *,
    seeds: Seeds = 1,
    layers: Layers = "last",
    fresh: Fresh = 1,
    steps: Steps = 250,
    rate: Rate = 1e-3,
    batch: Annotated[int, Between(1, 10**5)] = 32,
) -> Lesson:
    """Train the last part again while all words have the same weight: how many decisions are right.

    The comparison is a model trained again in the same way with attention of its own.
    """
    _need_labels(training)
    course = Course(layers, "together", fresh, steps, rate, batch)
    own = training.seen(training.subject, course, training.audited)
    free = [training.seen(training.again(course, seed), course, training.audited) for seed in range(1, seeds + 1)]
    held = [
        training.seen(training.uniform(course, seed), course, training.audited, uniform=True)
        for seed in range(1, seeds + 1)
    ]
    again, equal = (np.mean([right(one, training.audited) for one in group], 0) for group in (free, held))
    numbers = {
        "loss of right decisions": again - equal,
        "right": right(own, training.audited),
        "right, trained again": again,
        "right, uniform": equal,
    }
    rows = {"the model": [_decided(own)], "trained again": [*map(_decided, free)], "uniform": [*map(_decided, held)]}
    return Lesson(_values(numbers), (_scores_table(training, rows),))


# ---- an adversary ----------------------------------------------------------------------------------------------------


def _moved(evidence: Evidence, options: dict[str, Any]) -> Conclusion:
    share = evidence.quantity("share of ln 2")
    few = too_few(share)
    if few is not None:
        return few
    copied = evidence.quantity("change, lambda 0")
    if copied.mean > COPIED:
        return Conclusion(
            "cannot tell",
            "A model that was trained to copy the outputs, attention left free, came no nearer to them than "
            f"{evidence.said('change, lambda 0')}, so that nothing is known of the cost of other attention; take more "
            "steps.",
        )
    furthest = max(evidence.mean(f"divergence, lambda {pull:g}") for pull in options["pulls"])
    if furthest <= NEAR * math.log(2):  # no model moved its attention, so the cost of moving it is unknown
        return Conclusion(
            "cannot tell",
            f"No lambda moved attention further than {furthest:.2g} (at most {math.log(2):.2f}), whatever it cost the "
            "outputs, so that the adversary was too weak to tell; take more steps or greater pulls.",
        )
    return Conclusion(
        graded(share.mean, share.interval, FAR, NEAR),
        f"A model trained to copy the outputs and attend elsewhere changes them by {evidence.said('change')} (total "
        f"variation; {evidence.said('change, lambda 0')} where attention was left free) with attention that diverges "
        f"by {evidence.said('divergence')} (at most {math.log(2):.2f}).",
    )


@experiment(
    question="Could a model be trained that gives the same outputs with quite another attention?",
    conclude=_moved,
    family="training",
    paper=PAPER,
    limits=(*FROZEN, "That another attention could have been learned does not show that the model's own is arbitrary."),
)
def trained_adversary(
    training: Retraining,
    *,
    pulls: list[Pull] = [0.0, 0.03, 0.1, 0.3, 1.0],  # noqa: B006 - read only; its spec shows the default
    divergence: Literal["jsd", "kl"] = "jsd",
    epsilon: Annotated[float, Between(0, 1)] = 0.05,
    layers: Layers = "last",
    heads: Heads = "together",
    fresh: Fresh = 1,
    steps: Steps = 250,
    rate: Rate = 1e-3,
    batch: Annotated[int, Between(1, 10**5)] = 32,
) -> Lesson:
    """Train the last part to copy the outputs and attend elsewhere: the curve of change and divergence over `pulls`.

    The loss of an instance is TVD(y, y_own) - lambda * JSD(a, a_own), or KL(a | a_own) as in the paper, whose lambdas
    are then smaller, since KL has no bound. A model with lambda 0 is always trained: it only copies, and shows how well
    the outputs can be copied. The finding is about the furthest attention of those models whose outputs change by at
    most `epsilon` more than its outputs do, the mean total variation.
    """
    course = Course(layers, heads, fresh, steps, rate, batch)
    own = training.seen(training.subject, course, training.audited)
    curve: dict[float, tuple[np.ndarray, np.ndarray]] = {}
    hits: dict[float, np.ndarray] = {}
    for pull in dict.fromkeys((0.0, *pulls)):
        seen = training.seen(training.adversary(course, pull, divergence, 0), course, training.audited)
        curve[pull], hits[pull] = _distances(own, seen), right(seen, training.audited)
    near = [pull for pull in curve if curve[pull][1].mean() <= curve[0.0][1].mean() + epsilon]
    chosen = max(near, key=lambda pull: curve[pull][0].mean())
    numbers = {"divergence": curve[chosen][0], "share of ln 2": curve[chosen][0] / math.log(2)}
    numbers |= {"change": curve[chosen][1], "right": right(own, training.audited), "right, adversary": hits[chosen]}
    for pull, (apart_by, changed_by) in curve.items():
        numbers |= {f"change, lambda {pull:g}": changed_by, f"divergence, lambda {pull:g}": apart_by}
    cells = np.array([[c.mean(), d.mean() / math.log(2), hits[pull].mean()] for pull, (d, c) in curve.items()])
    columns = ("change (TVD)", "divergence (JSD / ln 2)", "right")
    keep = 3 if not np.isnan(cells[:, 2]).any() else 2
    table = CrossTable(
        "Adversaries by lambda", tuple(f"lambda {pull:g}" for pull in curve), columns[:keep], cells[:, :keep]
    )
    return Lesson(_values(numbers), (table,), (f"the adversary of the answer was trained with lambda {chosen:g}",))


# ---- a guide ---------------------------------------------------------------------------------------------------------


def _guides(evidence: Evidence, options: dict[str, Any]) -> Conclusion:
    few = too_few(evidence.quantity("right, model's attention"))
    if few is not None:
        return few
    names = ("uniform", "own attention", "model's attention", "adversary's attention")
    told = ", ".join(f"{name} {evidence.said(f'right, {name}')}" for name in names)
    equal, own = evidence.values("right, uniform"), evidence.values("right")
    answer = f"Right decisions of a classifier that sees words without context, by its weights: {told}; the model "
    answer += f"{evidence.said('right')}."
    if np.nanmean(own - equal) < ROOM:
        return Conclusion("cannot tell", f"{answer} Equal weights do about as well as the model: nothing to guide.")
    ratio, ends = evidence.ratio(evidence.values("right, model's attention") - equal, own - equal)
    return Conclusion(graded(ratio, ends, 0.3, 0.8), answer)


@experiment(
    question="Does the attention help a classifier that knows nothing of context?",
    conclude=_guides,
    family="training",
    paper=PAPER,
    limits=(
        "The guide sees each word alone: what attention says about word order or combinations is lost on it.",
        "Where single words decide, weights that a guide learns itself may do as well as the model's.",
    ),
)
def guide(
    training: Retraining,
    *,
    seeds: Seeds = 3,
    pull: Pull = 0.3,
    guide_steps: Steps = 600,
    guide_rate: Rate = 3e-3,
    layers: Layers = "last",
    heads: Heads = "together",
    fresh: Fresh = 1,
    steps: Steps = 250,
    rate: Rate = 1e-3,
    batch: Annotated[int, Between(1, 10**5)] = 32,
) -> Lesson:
    """Words without context, weighted by frozen attention: uniform, learned by itself, the model's, an adversary's.

    softmax(V sum_t a_t relu(W e_t)), a_t frozen but for its own, softmax(v . tanh(U e_t)); embeddings e_t start as the
    model's and learn. The adversary is that of `trained_adversary` with lambda `pull`. Right decisions are means over
    `seeds` guides.
    """
    _need_labels(training)
    course = Course(layers, heads, fresh, steps, rate, batch)
    subject, both = training.subject, (training.lessons, training.audited)
    enemy = training.adversary(course, pull, "jsd", 0)
    weights: dict[str, Any] = {"uniform": "uniform", "own attention": None}
    for name, model in (("model's attention", subject), ("adversary's attention", enemy)):
        weights[name] = tuple(training.seen(model, course, examples) for examples in both)
    own = training.seen(subject, course, training.audited)
    numbers, rows = {"right": right(own, training.audited)}, {"the model itself": [_decided(own)]}
    labels = np.array([np.nan if example.label is None else example.label for example in training.audited])
    for name, given in weights.items():
        rows[name] = [
            guided(subject, *both, given, training.seed + seed, guide_steps, guide_rate) for seed in range(seeds)
        ]
        hits = [np.where(np.isnan(labels), np.nan, np.array(decided) == labels) for decided in rows[name]]
        numbers[f"right, {name}"] = np.mean(np.array(hits, float), 0)
    return Lesson(_values(numbers), (_scores_table(training, rows),))


# ---- shared ----------------------------------------------------------------------------------------------------------


def _need_labels(training: Retraining) -> None:
    if sum(example.label is not None for example in training.audited) < 5:
        raise Undefined("fewer than 5 of the audited examples have a label, and right decisions are counted")


def _decided(seen: list[Seen]) -> list[int]:
    return [int(one.output.argmax()) for one in seen]


def _scores_table(training: Retraining, rows: dict[str, list[list[int]]]) -> CrossTable:
    """Accuracy and F1 of decisions, means over seeds."""
    known = [n for n, example in enumerate(training.audited) if example.label is not None]
    labels = [int(training.audited[n].label) for n in known]  # type: ignore[arg-type]
    cells = []
    for decisions in rows.values():
        own = [[decided[n] for n in known] for decided in decisions]
        cells.append(
            [np.mean([np.mean(np.array(one) == labels) for one in own]), np.mean([f1(o, labels) for o in own])]
        )
    return CrossTable("Right decisions and F1", tuple(rows), ("right", "F1"), np.array(cells))
