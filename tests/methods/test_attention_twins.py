"""Slow twins of the attention methods: the papers' formulas, one example, one layer and one head at a time.

Attention A and its gradient G come from what the model itself returns on its eager path, without padding and without
whence; whence explains a padded batch. A twin can be told to make one mistake; then it must be far off.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import groupby
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from torch import Tensor

import whence
from families import fresh, kept_in, plain_inputs
from whence.core.registry import Explained, resolve
from whence.model.batching import Batch
from whence.model.discovery import Structure
from whence.model.passes import Trace
from whence.model.tap import AttentionRecord

# name -> the token of each stream that the output reads; "*" is text and regions in one sequence, read at the last word
DECIDING = {
    **{"bert": {"text": 0}, "vit": {"image": 0}, "gpt2": {"text": -1}, "llama": {"text": -1}},
    **{"t5": {"target": -1}, "bart": {"target": -1}},
    **{"clip": {"text": -1, "image": 0}, "lxmert": {"text": 0}, "visual-bert": {"*": 0}},
}
SINGLE, DOUBLE = torch.float32, torch.float64
CASES = [(name, dtype) for name in DECIDING for dtype in (SINGLE, DOUBLE)]
FAR = 1e-3
CLAMPED = "clamp after the heads"


# ---- what the model itself says --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Block:
    """One attention block: A and G are (head, query, key); co-attention blocks that run side by side share a step."""

    query: str
    key: str
    layer: int  # among the blocks that connect the same streams
    step: int
    A: np.ndarray
    G: np.ndarray


@dataclass(frozen=True)
class Plain:
    """One example, or one generated token of one: its blocks in the order of the model."""

    sizes: dict[str, int]  # stream -> tokens
    blocks: list[Block]
    states: dict[str, list[tuple[np.ndarray, np.ndarray]]]  # stream -> (h, dS/dh) where each layer begins
    deciding: dict[str, int]

    @property
    def total(self) -> int:
        return sum(self.sizes.values())

    def span(self, stream: str) -> slice:
        names = list(self.sizes)
        start = sum(self.sizes[name] for name in names[: names.index(stream)])
        return slice(start, start + self.sizes[stream])

    def depth(self, query: str, key: str) -> int:
        """How many blocks connect these streams."""
        return sum((block.query, block.key) == (query, key) for block in self.blocks)

    def chosen(self, wrong: str) -> list[Block]:
        last = [b for b in self.blocks if b.layer == self.depth(b.query, b.key) - 1]
        return last if wrong == "last layer only" else self.blocks

    def read(self, matrix: np.ndarray, wrong: str = "") -> np.ndarray:
        """The rows of the deciding tokens."""
        rows = matrix.T if wrong == "columns" else matrix
        return sum(rows[self.span(stream)][token] for stream, token in self.deciding.items())


Found = tuple[Tensor, list[list[tuple[str, str, Tensor]]], dict[str, Any]]  # logits, steps of (query, key, A), states


def run(name: str, model: Any, tensors: dict[str, Tensor]) -> Found:
    """The logits (class,), attention in the order of the model, and the states that enter its layers."""
    if name == "lxmert":
        return run_lxmert(model, tensors)
    model.set_attn_implementation("eager")
    out = model(**tensors, output_attentions=True, output_hidden_states=True)
    if name == "clip":
        towers = {"text": out.text_model_output, "image": out.vision_model_output}
        maps = [(stream, stream, A) for stream, tower in towers.items() for A in tower.attentions]
        states = {stream: tower.hidden_states[:-1] for stream, tower in towers.items()}
        logits = out.logits_per_image[0]
    elif "decoder_input_ids" in tensors:
        maps = [("source", "source", A) for A in out.encoder_attentions]
        for own, cross in zip(out.decoder_attentions, out.cross_attentions, strict=True):
            maps += [("target", "target", own), ("target", "source", cross)]
        states = {"source": out.encoder_hidden_states[:-1], "target": out.decoder_hidden_states[:-1]}
        logits = out.logits[0, -1]
    else:
        stream = next(iter(DECIDING[name]))
        maps, states = [(stream, stream, A) for A in out.attentions], {stream: out.hidden_states[:-1]}
        logits = out.logits[0] if out.logits.ndim == 2 else out.logits[0, -1]
    return logits, [[block] for block in maps], states


def run_lxmert(model: Any, tensors: dict[str, Tensor]) -> Found:
    """LXMERT returns only some of its attention, so its layers are called one by one."""
    encoder, ask = model.lxmert.encoder, {"output_attentions": True}
    h = {
        "text": model.lxmert.embeddings(tensors["input_ids"], tensors["token_type_ids"]),
        "image": encoder.visn_fc(tensors["visual_feats"], tensors["visual_pos"]),
    }
    steps: list[list[tuple[str, str, Tensor]]] = []
    states: dict[str, list[Tensor]] = {"text": [], "image": []}
    for stream, layers in (("text", encoder.layer), ("image", encoder.r_layers)):
        for layer in layers:
            states[stream].append(h[stream])
            h[stream], A = layer(h[stream], **ask)
            steps.append([(stream, stream, A)])
    for layer in encoder.x_layers:
        states["text"].append(h["text"])
        states["image"].append(h["image"])
        (t, A), (i, B) = (layer.visual_attention(h[s], h[q], **ask) for s, q in (("text", "image"), ("image", "text")))
        steps.append([("text", "image", A), ("image", "text", B)])
        (t, A), (i, B) = layer.lang_self_att(t, None, **ask), layer.visn_self_att(i, None, **ask)
        steps += [[("text", "text", A)], [("image", "image", B)]]
        h["text"], h["image"] = layer.output_fc(t, i)
    logits = model.answer_head(model.lxmert.pooler(h["text"]))[0]
    torch.testing.assert_close(logits, model(**tensors).question_answering_score[0])
    return logits, steps, states


def plain(name: str, model: Any, tensors: dict[str, Tensor], token: int | None = None) -> Plain:
    """A, G and the states of one example; the target is `token`, or what the model predicts."""
    tensors = {key: t.to(model.dtype) if t.is_floating_point() else t for key, t in tensors.items()}
    logits, steps, states = run(name, model, tensors)
    target = logits[logits.argmax() if token is None else token]

    def with_gradient(x: Tensor) -> tuple[np.ndarray, np.ndarray]:
        (g,) = torch.autograd.grad(target, x, retain_graph=True, allow_unused=True)
        return x[0].detach().double().numpy(), (torch.zeros_like(x) if g is None else g)[0].double().numpy()

    sizes = {stream: hs[0].shape[1] for stream, hs in states.items()}
    deciding = {"*": tensors["input_ids"].shape[1] - 2} if name == "visual-bert" else DECIDING[name]
    side = Plain(sizes, [], {stream: [with_gradient(h) for h in hs] for stream, hs in states.items()}, deciding)
    for step, maps in enumerate(steps):
        for query, key, A in maps:
            side.blocks.append(Block(query, key, side.depth(query, key), step, *with_gradient(A)))
    return side


@cache
def sides(name: str, dtype: torch.dtype) -> list[list[Plain]]:
    """For each of three inputs the rows that are explained: one, or one per generated token."""
    made = fresh(name)
    model: Any = made.model.to(dtype)
    with kept_in(dtype):
        return [rows(name, made, model, plain_inputs(made, raw)) for raw in made.inputs[:3]]


def rows(name: str, made: Any, model: Any, tensors: dict[str, Tensor]) -> list[Plain]:
    if "decoder_input_ids" not in tensors:
        return [plain(name, model, tensors)]
    source = {key: t for key, t in tensors.items() if not key.startswith("decoder")}
    ids = model.generate(**source, do_sample=False, num_beams=1)[0].tolist()
    end = made.processor.eos_token_id
    ids = ids[: ids.index(end, 1) + 1] if end in ids[1:] else ids
    seen = [torch.tensor([ids[:count]]) for count in range(1, len(ids))]
    return [plain(name, model, {**source, "decoder_input_ids": s}, ids[s.shape[1]]) for s in seen]


@cache
def subject(name: str, dtype: torch.dtype) -> Any:
    made = fresh(name)
    return whence.wrap(made.model.to(dtype), made.processor, **made.kwargs)


@cache
def compared(name: str, dtype: torch.dtype) -> list[Any]:
    # Padded, T5 in float32 moves by 3e-5: no more than its own distance to float64, where it is compared padded.
    size = 1 if (name, dtype) == ("t5", SINGLE) else None
    of, inputs = subject(name, dtype), fresh(name).inputs[:3]
    with kept_in(dtype):
        return whence.compare(of, inputs, methods=list(TWINS), batch_size=size)


def pairs(name: str, dtype: torch.dtype, attributions: list[Any]) -> list[tuple[np.ndarray, Plain]]:
    """Scores, with the streams in the order of the twin, beside the plain side; one pair per explained row."""
    found = []
    for a, rows in zip(attributions, sides(name, dtype), strict=True):
        assert a.scores.dtype == (np.float64 if dtype == DOUBLE else np.float32)
        for row, side in zip(np.atleast_2d(a.scores), rows, strict=True):
            now, later = row[: side.total], row[side.total :]
            streams = np.array(a.input.streams)[: side.total]
            assert not later.any()
            found.append((now if "*" in side.sizes else np.concatenate([now[streams == s] for s in side.sizes]), side))
    return found


def distance(found: np.ndarray, right: np.ndarray) -> float:
    """The largest difference, relative to the largest score."""
    return float(np.abs(found - right).max() / (np.abs(right).max() or 1.0))


# ---- the twins -------------------------------------------------------------------------------------------------------


def step_matrix(side: Plain, block: Block, A: np.ndarray, residual: float = 0.5) -> np.ndarray:
    """Tokens of the block's query stream: w I + (1 - w) A towards its key stream; all others keep the identity."""
    step = np.eye(side.total)
    step[side.span(block.query)] *= residual
    step[side.span(block.query), side.span(block.key)] += (1 - residual) * A
    return step


def rollout(side: Plain, wrong: str = "", residual: float = 0.5, heads: Callable[..., Any] = np.mean) -> np.ndarray:
    product = np.eye(side.total)
    for block in side.chosen(wrong):
        step = step_matrix(side, block, heads(block.A, axis=0), 0.0 if wrong == "no residual" else residual)
        product = product @ step if wrong == "reversed layers" else step @ product
    return side.read(product, wrong)


def placed(side: Plain, block: Block, cells: np.ndarray, at: str, wrong: str) -> np.ndarray:
    """The sum of the cells (head, query, key) of every query or of every key."""
    at_query = (at == "query") != (wrong == "columns")
    scores = np.zeros(side.total)
    part = scores[side.span(block.query if at_query else block.key)]
    for (_, i, j), value in np.ndenumerate(cells):
        part[i if at_query else j] += value
    return scores


def grad_sam(side: Plain, wrong: str = "", *, read: str) -> np.ndarray:
    """r_i = 1/(LHN) sum_lhj A_ij ReLU(G_ij), L blocks, N keys; received: r_j, with N queries."""
    scores = np.zeros(side.total)
    for block in side.chosen(wrong):
        H, queries, keys = block.A.shape
        cells = block.A * np.maximum(block.G, 0) / H
        if wrong == CLAMPED:
            cells = np.maximum((block.A * block.G).mean(0, keepdims=True), 0)
        scores += placed(side, block, cells, read, wrong) / (keys if read == "query" else queries)
    return scores / len(side.chosen(wrong))


def product(side: Plain, wrong: str = "", layer: Any = None, positive: bool = False, read: str = "key") -> np.ndarray:
    """sum over layers, heads and queries of A G; positive: of ReLU(A G)."""
    scores = np.zeros(side.total)
    for block in side.chosen(wrong):
        if layer is None or block.layer == layer % side.depth(block.query, block.key):
            cells = block.A * block.G
            cells = cells.sum(0, keepdims=True) if wrong == CLAMPED else cells
            scores += placed(side, block, np.maximum(cells, 0) if positive else cells, read, wrong)
    return scores


def attcat(side: Plain, wrong: str = "") -> np.ndarray:
    """sum_l alpha_li sum_d h_lid dS/dh_lid; alpha: self-attention that i receives, mean over heads and queries."""
    scores = np.zeros(side.total)
    for block in side.chosen(wrong):
        if block.query == block.key:
            states = side.states[block.key]
            h, g = states[-1 - block.layer if wrong == "reversed layers" else block.layer]
            for i in range(len(h)):
                alpha = block.A[:, i, :].mean() if wrong == "columns" else block.A[:, :, i].mean()
                scores[side.span(block.key)][i] += alpha * sum(h[i, d] * g[i, d] for d in range(h.shape[1]))
    return scores


def abar(block: Block, wrong: str = "") -> np.ndarray:
    """Rule 5."""
    if wrong == CLAMPED:
        return np.maximum((block.G * block.A).mean(0), 0)
    return sum(np.maximum(G * A, 0) for G, A in zip(block.G, block.A, strict=True)) / len(block.A)


def normalised(R: np.ndarray, wrong: str = "") -> np.ndarray:
    """Rules 8 and 9; a row of zeros has nothing to divide."""
    rest = R - np.eye(len(R))
    total = rest.sum(0 if wrong == "column sums" else 1, keepdims=True)
    return np.divide(rest, total, out=np.zeros_like(rest), where=total != 0) + np.eye(len(R))


def relevance(side: Plain, wrong: str = "", normalise: bool = True) -> dict[tuple[str, str], np.ndarray]:
    """Rules 6 to 11. Co-attention in both directions is computed from the old matrices and applied together."""
    R = {(s, q): np.eye(n, m) * (s == q) for s, n in side.sizes.items() for q, m in side.sizes.items()}
    bar = partial(normalised, wrong=wrong) if normalise and wrong != "not normalised" else np.asarray
    blocks = side.chosen(wrong)[:: -1 if wrong == "reversed layers" else 1]
    keep = 0 if wrong == "no residual" else 1
    for _, step in groupby(blocks, key=lambda block: block.step):
        new = dict(R)
        for block in step:
            old = new if wrong == "one after the other" else R
            s, q, A = block.query, block.key, abar(block, wrong)
            if s == q:
                for other in side.sizes if wrong != "rule 7 left out" else [s]:
                    new[s, other] = keep * R[s, other] + A @ R[s, other]
            else:
                left = bar(old[s, s]) if wrong == "not transposed" else bar(old[s, s]).T
                both = left @ A @ bar(old[q, q]), 0 if wrong == "rule 11 left out" else A @ old[q, s]
                new[s, q], new[s, s] = keep * old[s, q] + both[0], old[s, s] + both[1]
        R = new
    return R


def gae(side: Plain, wrong: str = "", normalise: bool = True) -> np.ndarray:
    """The deciding row of R, without the identity R begins with."""
    R = relevance(side, wrong, normalise)
    whole = np.block([[R[s, q] for q in side.sizes] for s in side.sizes])
    return side.read(whole - np.eye(side.total), wrong)


SUMMED = ["last layer only", "columns"]
FOLDED = [*SUMMED, "reversed layers", "no residual"]
TWINS: dict[str, tuple[Callable[..., np.ndarray], list[str]]] = {
    "rollout": (rollout, FOLDED),
    "grad_sam": (partial(grad_sam, read="query"), [*SUMMED, CLAMPED]),
    "grad_sam(read='received')": (partial(grad_sam, read="key"), [*SUMMED, CLAMPED]),
    "attention_x_gradient": (product, SUMMED),
    "attention_x_gradient(positive=True)": (partial(product, positive=True), [*SUMMED, CLAMPED]),
    "attention_x_gradient(layer=0)": (partial(product, layer=0), ["columns"]),
    "attention_x_gradient(layer=-1, read='query')": (partial(product, layer=-1, read="query"), ["columns"]),
    "attcat": (attcat, [*SUMMED, "reversed layers"]),
    "gae": (gae, [*FOLDED, CLAMPED]),
    "gae(normalise=False)": (partial(gae, normalise=False), [*FOLDED, CLAMPED]),
}
# What can only go wrong where streams look at each other.
CROSS = ["not normalised", "column sums", "not transposed", "rule 7 left out"]
MORE = {"t5": CROSS, "bart": CROSS, "lxmert": [*CROSS, "one after the other", "rule 11 left out"]}


@pytest.mark.parametrize("spec", TWINS)
@pytest.mark.parametrize(("name", "dtype"), CASES, ids=str)
def test_twin(name: str, dtype: torch.dtype, spec: str) -> None:
    twin, mistakes = TWINS[spec]
    found = pairs(name, dtype, [c[list(TWINS).index(spec)] for c in compared(name, dtype)])
    close = 1e-10 if dtype == DOUBLE else 1e-5
    assert max(distance(scores, twin(side)) for scores, side in found) <= close
    for mistake in mistakes + (MORE.get(name, []) if spec == "gae" else []):
        assert max(distance(scores, twin(side, mistake)) for scores, side in found) > FAR, mistake


@pytest.mark.parametrize("name", [name for name in DECIDING if name != "vit"])
def test_the_batch_is_padded(name: str) -> None:
    made = subject(name, SINGLE)
    items = [made.encode(raw) for raw in fresh(name).inputs[:3]]
    rows = [row for item in items for row, _ in made.rows(item)] or items
    assert any(not batch.mask.all() for _, batch in made.batches(rows))


def test_relevance_of_every_pair_of_streams_is_in_the_details() -> None:
    found = whence.explain(subject("lxmert", SINGLE), fresh("lxmert").inputs[:3], "gae")
    for a, (side,) in zip(found, sides("lxmert", SINGLE), strict=True):
        assert [b.G.any() for b in side.blocks[-4:]] == [True, False, True, False]  # at the end only text counts
        for (s, q), right in relevance(side).items():
            matrix = a.details[f"R {s} {q}"]
            assert matrix.shape == right.shape
            assert distance(matrix, right) <= 1e-5


@pytest.mark.parametrize("name", ["bert", "lxmert"])
def test_options_of_rollout(name: str) -> None:
    def discarded(A: np.ndarray, axis: int) -> np.ndarray:
        """Without the 40 % smallest entries of the mean map; rows sum to 1 again."""
        mean = A.mean(axis)
        kept = np.where(mean > np.sort(mean, axis=None)[int(0.4 * mean.size) - 1], mean, 0)
        return np.where(kept.any(1, keepdims=True), kept / (kept.sum(1, keepdims=True) + 1e-300), mean)

    twins = {
        "residual=0.2": partial(rollout, residual=0.2),
        "heads='max'": partial(rollout, heads=np.max),
        "discard=0.4": partial(rollout, heads=discarded),
        "read='column'": lambda side: rollout(side, "columns"),
        "start_layer=1": lambda side: rollout(replace(side, blocks=[b for b in side.blocks if b.layer])),
    }
    raws = fresh(name).inputs[:3]
    for option, twin in twins.items():
        for scores, side in pairs(name, SINGLE, whence.explain(subject(name, SINGLE), raws, f"rollout({option})")):
            assert distance(scores, twin(side)) <= 1e-5, option
            assert distance(scores, rollout(side)) > FAR, option


# ---- flow ------------------------------------------------------------------------------------------------------------


def max_flow(steps: list[np.ndarray], source: int, sink: int) -> float:
    """By linear programming: what arrives at the sink, when each token of a layer passes on what it receives."""
    top = len(steps)
    edges = [
        (level, i, j, capacity)
        for level, step in enumerate(steps, 1)
        for (i, j), capacity in np.ndenumerate(step)
        if capacity > 0 and (level < top or i == source) and (level > 1 or j == sink)
    ]
    if not edges:
        return 0.0
    balance = np.zeros(((top - 1) * len(steps[0]) or 1, len(edges)))  # what enters a token between minus what leaves
    for number, (level, i, j, _) in enumerate(edges):
        if level > 1:
            balance[(level - 2) * len(steps[0]) + j, number] += 1
        if level < top:
            balance[(level - 1) * len(steps[0]) + i, number] -= 1
    arriving = [-1.0 if level == 1 else 0.0 for level, *_ in edges]
    solved = linprog(arriving, A_eq=balance, b_eq=np.zeros(len(balance)), bounds=[(0, c) for *_, c in edges])
    assert solved.success
    return -solved.fun


def flow(side: Plain, wrong: str = "") -> np.ndarray:
    steps = [step_matrix(side, b, b.A.mean(0), 0.0 if wrong == "no residual" else 0.5) for b in side.chosen(wrong)]
    steps = steps[::-1] if wrong == "reversed layers" else steps
    steps = [step.T for step in steps[::-1]] if wrong == "columns" else steps
    (source,) = side.read(np.diag(1 + np.arange(side.total))).nonzero()[0]
    return np.array([max_flow(steps, source, sink) for sink in range(side.total)])


@pytest.mark.parametrize("name", ["bert", "gpt2", "t5", "lxmert"])
def test_flow(name: str) -> None:
    number = min(range(3), key=lambda n: sides(name, SINGLE)[n][-1].total)
    side = sides(name, SINGLE)[number][-1]
    right = flow(side)
    for scale, close in ((10**6, 1e-5), (10**9, 1e-6)):
        a = whence.explain(subject(name, SINGLE), fresh(name).inputs[:3], f"flow(scale={scale})")[number]
        scores, raw = (a.scores[-1], a.details["flow"][-1]) if name == "t5" else (a.scores, a.details["flow"])
        assert distance(raw, right) <= close  # the streams of these models come in the order of the twin
        assert distance(scores[: side.total], right / right.sum()) <= close
    for mistake in FOLDED:
        assert distance(raw, flow(side, mistake)) > FAR, mistake


@pytest.mark.parametrize("options", ["", "(start_layer=1)"])
@pytest.mark.parametrize("name", ["bert", "vit", "llama", "clip", "lxmert"])
def test_rollout_is_a_flow(name: str, options: str) -> None:
    methods = ("rollout" + options, "flow" + options)
    walk, flowing = whence.compare(subject(name, SINGLE), fresh(name).inputs[1], methods)
    assert walk.scores.sum() == pytest.approx(len(DECIDING[name]), rel=1e-5)
    assert (walk.scores <= flowing.details["flow"] + 1e-4).all()
    assert (flowing.details["flow"] <= 1 + 1e-5).all()


# ---- identities ------------------------------------------------------------------------------------------------------


class Given:
    """A subject whose trace is given: A and G are (layer, head, query, key)."""

    name, accumulation, heads = "given", DOUBLE, 3

    def __init__(self, A: np.ndarray, G: np.ndarray, deciding: tuple[int, ...] = (0,)) -> None:
        maps = [(torch.tensor(a)[None], torch.tensor(g)[None]) for a, g in zip(A, G, strict=True)]
        records = [AttentionRecord(n, "", [a], [], [g], [], n, "text", "text") for n, (a, g) in enumerate(maps)]
        rows = torch.zeros(1, A.shape[-1], dtype=torch.bool)
        rows[:, list(deciding)] = True
        none: Any = None
        self.batch = Batch([none], {}, {"text": torch.ones_like(rows)})
        self.given = Trace(frozenset(), none, none, none, records, deciding={"text": rows})

    def trace(self, *asked: Any) -> Trace:
        return self.given

    def structure(self, batch: Batch) -> Structure:
        return Structure({}, {}, {}, {}, (("text", "text"),) * len(self.given.attention))

    def change(self, batch: Batch) -> None:
        """No intervention changes attention."""

    def __call__(self, spec: str) -> np.ndarray:
        record, options = resolve("method", spec)
        found = record.function(self, self.batch, None, **options)
        found = found if isinstance(found, Explained) else Explained(found)
        return np.asarray(found.details.get("flow", found.scores))[0]  # flows before they are divided by their sum


def drawn(layers: int, tokens: int = 5) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Random attention, gradient, and the head means of their positive products."""
    generator = np.random.default_rng(layers)
    A = np.exp(2 * generator.normal(size=(layers, 3, tokens, tokens)))
    A, G = A / A.sum(-1, keepdims=True), generator.normal(size=A.shape)
    np.testing.assert_array_equal(A * np.maximum(G, 0), np.maximum(A * G, 0))
    return A, G, np.maximum(A * G, 0).mean(1)


def test_attention_that_stays_where_it_is() -> None:
    A, G, _ = drawn(2)
    given = Given(np.broadcast_to(np.eye(5), A.shape).copy(), G, deciding=(2,))
    np.testing.assert_allclose(given("rollout"), np.eye(5)[2])
    np.testing.assert_allclose(given("flow"), np.eye(5)[2])


def test_one_layer() -> None:
    A, G, positive = drawn(1)
    row = 0.5 * A[0].mean(0)[2] + 0.5 * np.eye(5)[2]
    given = Given(A, G, deciding=(2,))
    np.testing.assert_allclose(given("rollout"), row)
    np.testing.assert_allclose(given("flow"), row, atol=1e-6)
    np.testing.assert_allclose(given("gae"), positive[0, 2])
    np.testing.assert_allclose(normalised(np.eye(5) + positive[0]).sum(1), 2)


@pytest.mark.parametrize("deciding", [(1,), (0, 1, 2, 3, 4)])
def test_several_layers(deciding: tuple[int, ...]) -> None:
    A, G, positive = drawn(3)
    given, rows = Given(A, G, deciding), list(deciding)
    R = np.linalg.multi_dot([np.eye(5) + step for step in positive[::-1]])
    assert ((R - np.eye(5)) >= 0).all()
    np.testing.assert_allclose(given("gae"), (R - np.eye(5))[rows].mean(0))
    np.testing.assert_allclose(given("grad_sam(read='received')"), positive.mean((0, 1)))
    walk, flowing = given("rollout"), given("flow")
    assert walk.sum() == pytest.approx(1)
    assert (walk <= flowing + 1e-5).all()
    assert (flowing <= 1).all()
    if len(deciding) == 1:
        steps = [0.5 * a.mean(0) + 0.5 * np.eye(5) for a in A]
        np.testing.assert_allclose(flowing, [max_flow(steps, *deciding, sink) for sink in range(5)], atol=1e-5)


def test_nothing_speaks_for_the_target() -> None:
    A, G, _ = drawn(2)
    given = Given(A, -np.abs(G))
    assert not given("gae").any()
    assert not given("grad_sam").any()
    assert not given("attention_x_gradient(positive=True)").any()
    assert (given("attention_x_gradient") < 0).all()


@pytest.mark.parametrize("name", ["bert", "vit"])
def test_in_the_last_layer_only_the_deciding_row_has_a_gradient(name: str) -> None:
    spec = "attention_x_gradient(layer=-1, read='query')"
    for scores, side in pairs(name, SINGLE, whence.explain(subject(name, SINGLE), fresh(name).inputs[:3], spec)):
        for seen in (side.blocks[-1].G.any((0, 2)), scores != 0):
            assert seen.tolist() == [True] + [False] * (side.total - 1)


def test_without_positions_the_order_of_words_does_not_matter() -> None:
    made = fresh("bert")
    made.model.bert.embeddings.position_embeddings.weight.data.zero_()
    words, order = ["film", "cold", "bright", "music", "dogs"], [3, 0, 4, 2, 1]
    texts = [" ".join(words), " ".join(words[number] for number in order)]
    here, there = whence.compare(whence.wrap(made.model, made.processor), texts, methods=[*TWINS, "flow"])
    places = [0, *(1 + number for number in order), 6]
    for a, b in zip(here, there, strict=True):
        assert b.features == tuple(a.features[place] for place in places)
        assert distance(b.scores, a.scores[places]) <= 1e-5, a.method


def test_the_whole_matrix_of_flows() -> None:
    A, G, _ = drawn(2)
    record, options = resolve("method", "flow(matrix=True)")
    given = Given(A, G, (1,))
    matrix = record.function(given, given.batch, None, **options).details["matrix"][0]
    rows = [Given(A, G, (token,))("flow") for token in range(5)]
    np.testing.assert_allclose(matrix, np.stack(rows), atol=1e-6)  # units of a millionth
    assert not np.allclose(matrix, matrix.T, atol=1e-3)


def test_flow_refuses_to_count_further_than_its_solver() -> None:
    """Summed heads reach 2.5 with a scale of 10^9: more than 32 bits hold, so that capacities would turn negative."""
    with pytest.raises(ValueError, match=r"weights here sum to 2\.5: take a scale of at most 858,993,\d+, not 1,000"):
        whence.explain(subject("bert", SINGLE), "a film", "flow(heads='sum', scale=1000000000)")
