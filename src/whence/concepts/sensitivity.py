"""TCAV: does a target grow along a concept, more than along random ones?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np

from whence.concepts import sets, significance
from whence.concepts.activations import Reading, activations, gradients, layers_of
from whence.concepts.probes import ProbeKind, fitted
from whence.core.inputs import Input
from whence.core.sensitivities import Sensitivity
from whence.core.specs import Between, check_fields
from whence.core.statistics import holm
from whence.core.wording import counted, shown
from whence.methods.explaining import tracked
from whence.model.subject import Subject

Test = Literal["rank", "t"]
THUMBNAIL = 96  # pixels of the longer side of a picture that a result keeps


@dataclass(frozen=True)
class Settings:
    """How concepts are probed."""

    at: Reading = "deciding"
    probe: ProbeKind = "difference"
    relative: bool = False  # concepts against each other instead of against random examples
    counter_sets: Annotated[int, Between(1, 1000)] = 10
    random_concepts: Annotated[int, Between(19, 100_000)] | None = None  # None: as many as the correction needs
    size: Annotated[int, Between(6, 10_000)] = 50  # examples of a concept that the zoo draws
    test: Test = "rank"
    level: Annotated[float, Between(0, 1, without_least=True, without_most=True)] = 0.05
    seed: Annotated[int, Between(0, 2**63 - 1)] = 0
    batch_size: Annotated[int, Between(1, 10**9)] | None = None
    truncate: bool = False
    progress: bool = False

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class Trial:
    """A concept, or a random one, and the sets that its probes tell it from, as rows of a table of states."""

    concept: np.ndarray  # (example,)
    others: tuple[np.ndarray, ...]  # of each probe


def sensitivity(
    subject: Subject, concepts: Any, target: Any, data: Any, random: Any, layers: Any, settings: Settings
) -> Sensitivity:
    """Probe every concept at every layer, and set the target's derivatives along them beside random ones."""
    named = sets.named_sets(concepts, settings.size, settings.seed)
    if settings.relative and len(named) < 2:
        raise ValueError("relative=True sets concepts against each other, and one was given; give two or more")
    label = _label(subject, target)
    of_class = sets.encoded(subject, sets.of_class(subject, data, label, settings.seed), "data", settings.truncate)
    own = {n: sets.encoded(subject, s, f"the concept {n!r}", settings.truncate) for n, s in named.items()}
    sets.check_sizes(own)
    size = min(len(items) for items in own.values())
    notes = [f"every concept is cut to {size} examples"] if any(len(i) > size for i in own.values()) else []
    own = {name: items[:size] for name, items in own.items()}
    others = [] if settings.relative else _random_items(subject, random, concepts, own, size, settings)
    with subject.lent():
        places = layers_of(subject, of_class[0], layers)
        everything = [item for items in own.values() for item in items] + others
        seen = activations(subject, everything, places, settings.at, settings.batch_size, settings.progress)
        states, pulls, aimed = gradients(subject, of_class, target, places, settings.at, settings.batch_size)
    tests = len(own) * len(places)
    rounds = settings.random_concepts or max(199, round(1.2 * tests / settings.level))
    trials, pool = _trials(len(own), size, len(others), rounds, settings)
    at_layers = [Layer(seen[place], states[place], pulls[place]) for place in places]
    measured = _measured(at_layers, trials, pool, settings)
    if settings.test == "rank" and 1 / (rounds + 1) * tests > settings.level:
        notes.append(
            f"{counted(rounds, 'random concept')} cannot make {counted(tests, 'test')} significant at {settings.level}"
        )
    return Sensitivity(
        concepts=tuple(own),
        layers=tuple(str(place).removeprefix("module:") for place in places),
        target=aimed,
        examples=tuple(thumbnail(item) for item in of_class),
        labels=tuple(_labels(list(own), settings.relative)),
        at=settings.at,
        probe=settings.probe,
        test=settings.test,
        level=settings.level,
        model=subject.name,
        notes=(*notes, f"{counted(settings.counter_sets, 'probe')} of each concept, {rounds} random concepts"),
        **measured,
    )


def _label(subject: Subject, target: Any) -> str:
    """The name of the target's class, by which its examples are found among labelled ones."""
    if target is None:
        raise ValueError("concept explains one class or token; name it as the target, such as a label")
    aimed = subject.aim([target]).targets[0]
    if aimed.open:
        raise ValueError(f"the target {shown(target)} names no class or token; write one, as {aimed.kind}('LABEL')")
    return aimed.name


def _random_items(
    subject: Subject, random: Any, concepts: Any, own: dict[str, list[Input]], size: int, settings: Settings
) -> list[Input]:
    """Random examples, encoded: enough for the counter-sets and for random concepts."""
    raws = sets.random_examples(subject, random, concepts, size * (settings.counter_sets + 10), settings.seed)
    items = sets.encoded(subject, raws, "random", settings.truncate)
    if len(items) < 4 * size:
        raise ValueError(
            f"random examples make counter-sets and random concepts of {size} examples each: at least {4 * size} are "
            f"needed, and {len(items)} came; give more, or smaller concepts"
        )
    for name, one in own.items():
        sets.check_random(name, one, items)
    return items


def _trials(
    concepts: int, size: int, others: int, rounds: int, settings: Settings
) -> tuple[list[tuple[Trial, list[Trial]]], int]:
    """For every concept, its trial and those of its random concepts; and the number of examples to draw these from.

    Rows are those of all concepts, one after the other, and then the random examples.
    """
    rng = np.random.default_rng([settings.seed, 7])
    rows = np.arange(concepts * size).reshape(concepts, size)
    if settings.relative:
        return [_relative(number, rows, rounds, settings.counter_sets, rng) for number in range(concepts)], 0
    shuffled = rows.size + rng.permutation(others)
    for_counters = min(settings.counter_sets * size, others // 2)
    counter_pool, pool = shuffled[:for_counters], shuffled[for_counters:]
    if for_counters == settings.counter_sets * size:  # enough for sets that share no example
        counters = tuple(counter_pool.reshape(settings.counter_sets, size))
    else:
        counters = tuple(rng.choice(counter_pool, size, replace=False) for _ in range(settings.counter_sets))
    random = [Trial(rng.choice(pool, size, replace=False), counters) for _ in range(rounds)]
    return [(Trial(own, counters), random) for own in rows], len(pool)


def _relative(
    number: int, rows: np.ndarray, rounds: int, probes: int, rng: np.random.Generator
) -> tuple[Trial, list[Trial]]:
    """A concept against all others; random concepts are drawn from the same examples, whatever they show."""
    size = rows.shape[1]
    rest = np.delete(rows, number, axis=0).ravel()

    def trial(concept: np.ndarray, others: np.ndarray) -> Trial:
        return Trial(concept, tuple(rng.choice(others, size, replace=False) for _ in range(probes)))

    mixed = [rng.permutation(rows.ravel()) for _ in range(rounds)]
    return trial(rows[number], rest), [trial(m[:size], m[size:]) for m in mixed]


@dataclass(frozen=True)
class Layer:
    """The states and gradients at one layer."""

    table: np.ndarray  # (row, width): states of all concepts, then of random examples
    states: np.ndarray  # (example of the class, width)
    gradients: np.ndarray  # (example of the class, width)

    def probed(self, trial: Trial, settings: Settings) -> tuple[np.ndarray, np.ndarray]:
        """Directions (probe, width) and held-out accuracies (probe,)."""
        found = [
            fitted(self.table[trial.concept], self.table[others], settings.probe, settings.seed + number)
            for number, others in enumerate(trial.others)
        ]
        return np.stack([direction for direction, _ in found]), np.array([accuracy for _, accuracy in found])

    def random(self, trials: Sequence[Trial], settings: Settings) -> dict[str, np.ndarray]:
        """Of every random concept: mean derivative, mean accuracy, and the score of one of its probes."""
        derivatives, accuracies, scores = [], [], []
        for number, trial in enumerate(trials):
            directions, accuracy = self.probed(trial, settings)
            derivatives.append(float(self.gradients.mean(0) @ directions.mean(0)))
            accuracies.append(float(accuracy.mean()))
            scores.append(float((self.gradients @ directions[number % len(directions)] > 0).mean()))
        return {"derivatives": np.array(derivatives), "accuracies": np.array(accuracies), "scores": np.array(scores)}


def _of_concept(
    layer: Layer, trial: Trial, random: dict[str, np.ndarray], pool: int, settings: Settings
) -> dict[str, Any]:
    """What a result holds of one concept at one layer."""
    directions, accuracies = layer.probed(trial, settings)
    along = layer.gradients @ directions.T  # (example, probe)
    spread = random["derivatives"]
    spread = significance.widened(spread, len(trial.concept), pool) if pool else spread
    scores = (along > 0).mean(0)
    if settings.test == "rank":
        p = significance.rank_p(float(along.mean()), spread)
    else:
        p = significance.t_test_p(scores, random["scores"][: max(2, len(scores))])
    mean = directions.mean(0)
    return {
        "scores": scores,
        "intervals": np.array(significance.mean_interval((along > 0).T.astype(float), settings.seed)),
        "derivatives": along.mean(1),
        "projections": layer.states @ mean,
        "accuracies": accuracies,
        "random_derivatives": spread,
        "random_accuracies": random["accuracies"],
        "p": np.array(p),
        "directions": mean,
    }


def _measured(
    layers: Sequence[Layer], trials: Sequence[tuple[Trial, list[Trial]]], pool: int, settings: Settings
) -> dict[str, Any]:
    """The arrays of a result, concepts first and layers second."""
    shared = {id(random): random for _, random in trials}  # unless `relative`, all concepts share their random concepts
    work = [(number, key) for number in range(len(layers)) for key in shared]
    null = {
        (n, key): layers[n].random(shared[key], settings)
        for n, key in tracked(work, settings.progress, "random concepts")
    }
    cells = [
        [_of_concept(layer, own, null[n, id(random)], pool, settings) for n, layer in enumerate(layers)]
        for own, random in trials
    ]
    names = [name for name in cells[0][0] if name != "directions"]
    found: dict[str, Any] = {name: np.array([[cell[name] for cell in row] for row in cells]) for name in names}
    found["corrected"] = holm(found["p"])
    found["directions"] = tuple(np.stack([row[n]["directions"] for row in cells]) for n in range(len(layers)))
    return found


def _labels(names: list[str], relative: bool) -> list[str]:
    """Names of concepts; where they were probed against each other, such as "striped, not dotted"."""
    return [f"{one}, not {' or '.join(n for n in names if n != one)}" for one in names] if relative else names


def thumbnail(item: Input) -> Any:
    """An example as a result keeps it: its text, or its picture, small."""
    if item.image is None:
        return " / ".join(item.texts.values())
    from PIL import Image

    picture = Image.fromarray(item.image)
    picture.thumbnail((THUMBNAIL, THUMBNAIL))
    return np.asarray(picture)
