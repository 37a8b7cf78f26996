"""Shapley and Owen values, by the shap package."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Annotated, Any, Literal

import numpy as np
import torch

from whence.core.geometry import on_grid
from whence.core.inputs import Input
from whence.core.registry import Explained, method
from whence.core.shap_export import shap_package
from whence.core.specs import Between
from whence.methods.perturbation import placed
from whence.model.batching import Batch
from whence.model.masked_inputs import Way, expanded, shared, units, ways
from whence.model.masked_runs import Ask, MaskedRuns, engine_of
from whence.model.subject import Subject
from whence.model.targets import Aim

MAX_EXACT = 14  # players: 2^14 evaluations
Game = Callable[[np.ndarray], np.ndarray]  # coalitions (coalition, player) to values (coalition,)


@method(family="perturbation", complete=True, paper="arXiv:1705.07874")
def shap(
    subject: Subject,
    batch: Batch,
    target: Aim,
    *,
    algorithm: Literal["partition", "permutation", "exact"] = "partition",
    max_evals: Annotated[int, Between(2, 1_000_000)] = 200,
    fixed_context: Literal[0, 1] | None = None,
    mask: Way = "auto",
) -> Explained:
    """A feature's fair share of f(x) - f(everything hidden), by the shap package.

    "partition": Owen values on a tree of neighbouring pieces (shap's rules for text) or halved patch grids;
    `fixed_context` looks at a group only with all others hidden (0) or shown (1), which is faster. A group that is not
    split within `max_evals` shares its value equally. "permutation": Shapley values sampled by walking through random
    orders there and back; exact for interactions of two. "exact": Shapley values from all coalitions of up to 14
    players. The base is f with everything hidden. `mask` as in leave_one_out; `details` keep shap's values
    of inner nodes and its tree (`hierarchical_values`, `clustering`, over the players that `players` numbers), and how
    many `evaluations` there were.
    """
    package = shap_package()
    subject.values(batch, target)  # fixes a target left open
    engine = engine_of(subject, batch)
    scores, bases = [], []
    details: dict[str, list[Any]] = {"players": [], "evaluations": []}
    if algorithm == "partition":
        details |= {"hierarchical_values": [], "clustering": []}
    for row, item in enumerate(batch.inputs):
        numbers = units(item)
        count = int(numbers.max(initial=-1)) + 1
        _check(algorithm, count, max_evals)
        game, coalitions = _game(engine, item, target, row, numbers, mask)
        base, full = game(np.stack([np.zeros(count, bool), np.ones(count, bool)]))
        result: dict[str, Any] = {"values": np.full(count, full - base)}
        if count > 1:  # shap cannot build a tree of one player
            tree = _tree(package, item, numbers) if algorithm == "partition" else None
            options = {"max_evals": max_evals, "fixed_context": fixed_context}
            result = _explained(package, algorithm, game, _Coalitions(count, tree), batch.seed % 2**32, options)
        scores.append(shared(result["values"], numbers))
        bases.append(base)
        result |= {"players": numbers, "evaluations": len(coalitions)}
        for name, values in details.items():
            values.append(result.get(name))
    details["mask"] = [ways(subject, item, mask) for item in batch.inputs]
    return Explained(placed(subject, batch, scores), torch.tensor(bases, dtype=torch.float64), details)


def _check(algorithm: str, count: int, max_evals: int) -> None:
    if algorithm == "exact" and count > MAX_EXACT:
        raise ValueError(
            f"shap: algorithm='exact' takes up to {MAX_EXACT} players, and this input has {count}; "
            "use 'partition' or 'permutation', or fewer players by level='word' or level='sentence'"
        )
    least = 2 * count + 1 if algorithm == "permutation" else 2
    if max_evals < least and algorithm != "exact":
        raise ValueError(
            f"shap: algorithm={algorithm!r} needs max_evals of at least {least} for {count} players, not {max_evals}"
        )


def _game(
    engine: MaskedRuns, item: Input, aim: Aim, row: int, numbers: np.ndarray, mask: Way
) -> tuple[Game, set[bytes]]:
    """The value of coalitions of one example's players, and the set of coalitions that were asked for so far."""
    coalitions_so_far: set[bytes] = set()

    def game(coalitions: np.ndarray) -> np.ndarray:
        coalitions = np.asarray(coalitions, bool)
        coalitions_so_far.update(coalition.tobytes() for coalition in coalitions)
        return engine.values([item], [Ask(expanded(coalitions, numbers), mask)], aim, [row])[0]

    return game, coalitions_so_far


class _Coalitions:
    """shap's masker protocol: a masked input is the coalition itself, and the model function does the hiding."""

    immutable_outputs = True
    default_batch_size = 64  # coalitions in one call

    def __init__(self, count: int, tree: np.ndarray | None) -> None:
        self.shape = (1, count)
        self.clustering = tree

    def __call__(self, coalition: np.ndarray, players: np.ndarray) -> np.ndarray:
        return coalition[None]


def _explained(
    package: Any, algorithm: str, game: Game, masker: _Coalitions, seed: int, options: dict[str, Any]
) -> dict[str, Any]:
    """Shap's result for one example."""
    explainers, players = package.explainers, np.ones(masker.shape)
    np.random.seed(seed)  # shap draws from the global state, which `lent` puts back
    if algorithm == "partition":
        result = explainers.PartitionExplainer(game, masker)(players, silent=True, **options)
        return {
            "values": result.values[0],
            "hierarchical_values": result.hierarchical_values[0],
            "clustering": masker.clustering,
        }
    if algorithm == "permutation":
        explainer = explainers.PermutationExplainer(game, masker, seed=seed)
        return {"values": explainer(players, max_evals=options["max_evals"], silent=True).values[0]}
    return {"values": explainers.ExactExplainer(game, masker)(players, max_evals=2**MAX_EXACT, silent=True).values[0]}


# ---- trees -----------------------------------------------------------------------------------------------------------


def _tree(package: Any, item: Input, numbers: np.ndarray) -> np.ndarray:
    """The tree of the players as scipy writes clusterings, (players - 1, 4): every stream has its own, then joined."""
    total = int(numbers.max()) + 1
    rows: list[tuple[int, int]] = []
    roots = []
    for stream in dict.fromkeys(item.streams):
        grid = item.grid if on_grid(item, stream) else None
        starts = [i for i in np.flatnonzero(np.array(item.streams) == stream).tolist() if _starts(numbers, i)]
        nodes = [int(numbers[i]) for i in starts if not grid or numbers[i] >= 0]
        for left, right in _halved(*grid) if grid else _neighbours(package, item, numbers, starts):
            pair = nodes[left], nodes[right]
            if min(pair) >= 0:
                rows.append(pair)
            # a special token is no player and has the node -1
            nodes.append(total + len(rows) - 1 if min(pair) >= 0 else max(pair))
        roots += [node for node in nodes[-1:] if node >= 0]
    while len(roots) > 1:
        rows.append((roots.pop(0), roots.pop(0)))
        roots.insert(0, total + len(rows) - 1)
    sizes = [1] * total
    for left, right in rows:
        sizes.append(sizes[left] + sizes[right])
    return np.array([(*pair, size / total, size) for pair, size in zip(rows, sizes[total:], strict=True)], float)


def _starts(numbers: np.ndarray, i: int) -> bool:
    """Whether a feature is the first of a player, or special."""
    return i == 0 or numbers[i] < 0 or numbers[i] != numbers[i - 1]


def _neighbours(package: Any, item: Input, numbers: np.ndarray, starts: list[int]) -> list[tuple[int, int]]:
    """The pairs that shap's rules for text join one after the other; special tokens have a place in them, but no text.

    "##" marks a piece that continues a word; the rules join such pieces first.
    """
    names = []
    for i in starts:
        features = [i] if numbers[i] < 0 else np.flatnonzero(numbers == numbers[i])
        text = "" if item.special[i] else "".join(item.features[k] for k in features).strip()
        continues = i > 0 and item.words[i] >= 0 and item.words[i] == item.words[i - 1] and text[:1].isalpha()
        names.append(f"##{text}" if continues else text)
    rules = importlib.import_module(f"{package.__name__}.maskers._text")
    return [(int(left), int(right)) for left, right in rules.partition_tree(names, [])[:, :2]]


def _halved(rows: int, columns: int) -> list[tuple[int, int]]:
    """The pairs that build a grid up from its cells: the reverse of halving its longer side again and again."""
    links: list[tuple[int, int]] = []

    def root(top: int, bottom: int, left: int, right: int) -> int:
        height, width = bottom - top, right - left
        if height * width == 1:
            return top * columns + left
        middle = top + height // 2 if height >= width else left + width // 2
        halves = (
            (root(top, middle, left, right), root(middle, bottom, left, right))
            if height >= width
            else (root(top, bottom, left, middle), root(top, bottom, middle, right))
        )
        links.append(halves)
        return rows * columns + len(links) - 1

    root(0, rows, 0, columns)
    return links
