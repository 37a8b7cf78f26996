"""Slow twins of the attention methods: the papers' formulas, one example, one layer and one head at a time.

Attention A and its gradient G come from what the model itself returns on its eager path, without padding and without
whence; whence explains a padded batch. A twin can be told to make one mistake; then it must be far off.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from itertools import groupby
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from torch import Tensor

import whence
from families import fresh, plain_inputs
from whence.attention import Record
from whence.batching import Batch
from whence.methods import attention as plain_methods
from whence.methods import attention_gradient as gradient_methods
from whence.subject import Trace

# name -> the token of each stream that the output reads; "*": text and regions in one sequence
DECIDING = {
    "bert": {"text": 0},
    "vit": {"image": 0},
    "gpt2": {"text": -1},
    "llama": {"text": -1},
    "t5": {"target": -1},
    "bart": {"target": -1},
    "clip": {"text": -1, "image": 0},
    "lxmert": {"text": 0},
    "visual-bert": {"*": 0},  # in truth the last word of the text, which depends on the input
}
SINGLE = torch.float32
# In float64 only models that stay in it: ViT, Llama and CLIP take the softmax in float32, T5 its norms.
CASES = [(name, SINGLE) for name in DECIDING] + [(n, torch.float64) for n in ("bert", "gpt2", "bart", "lxmert")]
CLOSE = {SINGLE: 1e-5, torch.float64: 1e-10}  # of the largest score
FAR = 1e-3


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

    def last(self) -> list[Block]:
        """The last block of every connection."""
        return [b for n, b in enumerate(self.blocks) if (b.query, b.key) not in [(x.query, x.key) for x in self.blocks[n + 1 :]]]

    def read(self, matrix: np.ndarray, wrong: str = "") -> np.ndarray:
        """The rows of the deciding tokens."""
        rows = matrix.T if wrong == "columns" else matrix
        return sum(rows[self.span(stream)][token] for stream, token in self.deciding.items())


Found = tuple[Tensor, list[tuple[str, str, int, Tensor]], dict[str, Any]]  # logits, (query, key, step, A), states


def run(name: str, model: Any, tensors: dict[str, Tensor]) -> Found:
    """The logits (class,), attention in the order of the model, and the states that enter its layers."""
    if name == "lxmert":
        return run_lxmert(model, tensors)
    model.set_attn_implementation("eager")
    out = model(**tensors, output_attentions=True, output_hidden_states=True)
    if name == "clip":
        text, image = out.text_model_output, out.vision_model_output
        maps = [("text", "text", a) for a in text.attentions] + [("image", "image", a) for a in image.attentions]
        states = {"text": text.hidden_states[:-1], "image": image.hidden_states[:-1]}
        logits = out.logits_per_image[0]
    elif "decoder_input_ids" in tensors:
        maps = [("source", "source", a) for a in out.encoder_attentions]
        for own, cross in zip(out.decoder_attentions, out.cross_attentions, strict=True):
            maps += [("target", "target", own), ("target", "source", cross)]
        states = {"source": out.encoder_hidden_states[:-1], "target": out.decoder_hidden_states[:-1]}
        logits = out.logits[0, -1]
    else:
        stream = next(iter(DECIDING[name]))
        maps = [(stream, stream, a) for a in out.attentions]
        states = {stream: out.hidden_states[:-1]}
        logits = out.logits[0] if out.logits.ndim == 2 else out.logits[0, -1]
    return logits, [(q, k, step, a) for step, (q, k, a) in enumerate(maps)], states


def run_lxmert(model: Any, tensors: dict[str, Tensor]) -> Found:
    """LXMERT returns only some of its attention, so every attention module is asked for its own."""
    maps: list[tuple[str, str, int, Tensor]] = []
    states: dict[str, Any] = {"text": [], "image": []}
    streams = {"layer": ("text",), "r_layers": ("image",), "x_layers": ("text", "image")}
    modules: list[Any] = []
    handles = []

    def ask(module: Any, args: Any, kwargs: Any) -> Any:
        return args, {**kwargs, "output_attentions": True}

    def note(query_key: dict[int, tuple[str, str]], module: Any, args: Any, out: Any) -> None:
        second = bool(modules) and modules[-1] is module  # the co-attention module looks one way, then the other
        modules.append(module)
        maps.append((*query_key[second], len(maps) - second, out[1]))

    def enter(names: tuple[str, ...], module: Any, args: Any) -> None:
        for place, stream in enumerate(names):
            states[stream].append(args[2 * place])

    for path, module in model.named_modules():
        kind = path.split(".")[2] if path.startswith("lxmert.encoder.") else ""
        if kind in streams and path.count(".") == 3:
            handles.append(module.register_forward_pre_hook(partial(enter, streams[kind])))
        if type(module).__name__ == "LxmertAttention":
            own = "image" if kind == "r_layers" or "visn_self" in path else "text"
            both = "visual_attention" in path
            query_key = {0: ("text", "image"), 1: ("image", "text")} if both else {0: (own, own)}
            handles.append(module.register_forward_pre_hook(ask, with_kwargs=True))
            handles.append(module.register_forward_hook(partial(note, query_key)))
    logits = model(**tensors).question_answering_score[0]
    for handle in handles:
        handle.remove()
    return logits, maps, states


def plain(name: str, model: Any, tensors: dict[str, Tensor], token: int | None = None) -> Plain:
    """A, G and the states of one example; the target is `token`, or what the model predicts."""
    tensors = {key: t.to(model.dtype) if t.is_floating_point() else t for key, t in tensors.items()}
    logits, maps, states = run(name, model, tensors)
    asked = [a for *_, a in maps] + [h for hs in states.values() for h in hs]
    grads = torch.autograd.grad(logits[logits.argmax() if token is None else token], asked, allow_unused=True)
    numbers = [
        (t[0].detach().double().numpy(), np.zeros(t.shape[1:]) if g is None else g[0].double().numpy())
        for t, g in zip(asked, grads, strict=True)
    ]
    blocks: list[Block] = []
    for (query, key, step, _), (A, G) in zip(maps, numbers, strict=False):
        layer = sum((b.query, b.key) == (query, key) for b in blocks)
        blocks.append(Block(query, key, layer, step, A, G))
    rest = iter(numbers[len(maps) :])
    by_stream = {stream: [next(rest) for _ in hs] for stream, hs in states.items()}
    deciding = {"*": int(tensors["input_ids"].shape[1]) - 2} if name == "visual-bert" else DECIDING[name]
    return Plain({s: len(hs[0][0]) for s, hs in by_stream.items()}, blocks, by_stream, deciding)


@cache
def sides(name: str, dtype: torch.dtype) -> list[list[Plain]]:
    """For each of three inputs the rows that are explained: one, or one per generated token."""
    made = fresh(name)
    model: Any = made.model.to(dtype)
    found = []
    for raw in made.inputs[:3]:
        tensors = plain_inputs(made, raw)
        if "decoder_input_ids" not in tensors:
            found.append([plain(name, model, tensors)])
            continue
        source = {key: t for key, t in tensors.items() if not key.startswith("decoder")}
        ids = model.generate(**source, do_sample=False, num_beams=1)[0].tolist()
        end = made.processor.eos_token_id
        ids = ids[: ids.index(end, 1) + 1] if end in ids[1:] else ids
        seen = [torch.tensor([ids[:count]]) for count in range(1, len(ids))]
        found.append([plain(name, model, {**source, "decoder_input_ids": s}, ids[s.shape[1]]) for s in seen])
    return found


@cache
def subject(name: str, dtype: torch.dtype) -> Any:
    made = fresh(name)
    return whence.wrap(made.model.to(dtype), made.processor, **made.kwargs)


@cache
def compared(name: str, dtype: torch.dtype) -> list[Any]:
    return whence.compare(subject(name, dtype), fresh(name).inputs[:3], methods=list(TWINS))


def pairs(name: str, dtype: torch.dtype, attributions: list[Any]) -> list[tuple[np.ndarray, Plain]]:
    """Scores, with the streams in the order of the twin, beside the plain side; one pair per explained row."""
    found = []
    for a, rows in zip(attributions, sides(name, dtype), strict=True):
        assert a.scores.dtype == (np.float64 if dtype == torch.float64 else np.float32)
        scores = a.scores if a.scores.ndim == 2 else a.scores[None]
        assert len(scores) == len(rows)
        for row, side in zip(scores, rows, strict=True):
            streams = np.array(a.input.streams)[: side.total]
            assert not row[side.total :].any()  # what was generated later
            row = row[: side.total]
            found.append((row if "*" in side.sizes else np.concatenate([row[streams == s] for s in side.sizes]), side))
    return found


def distance(found: np.ndarray, right: np.ndarray) -> float:
    """The largest difference, relative to the largest score."""
    return float(np.abs(found - right).max() / (np.abs(right).max() or 1.0))


# ---- the twins -------------------------------------------------------------------------------------------------------


def chosen(side: Plain, wrong: str) -> list[Block]:
    return side.last() if wrong == "last layer only" else side.blocks


def step_matrix(side: Plain, block: Block, A: np.ndarray, residual: float = 0.5) -> np.ndarray:
    """Tokens of the block's query stream: w I + (1 - w) A towards its key stream; all others keep the identity."""
    step = np.eye(side.total)
    step[side.span(block.query)] *= residual
    step[side.span(block.query), side.span(block.key)] += (1 - residual) * A
    return step


def rolled(side: Plain, wrong: str = "", residual: float = 0.5, heads: Callable[..., Any] = np.mean) -> np.ndarray:
    product = np.eye(side.total)
    for block in chosen(side, wrong):
        step = step_matrix(side, block, heads(block.A, axis=0), 0.0 if wrong == "no residual" else residual)
        product = product @ step if wrong == "reversed layers" else step @ product
    return product


def rollout(side: Plain, wrong: str = "", **options: Any) -> np.ndarray:
    return side.read(rolled(side, wrong, **options), wrong)


def grad_sam(side: Plain, wrong: str = "", *, read: str) -> np.ndarray:
    """r_i = 1/(LHN) sum_lhj A_ij ReLU(G_ij); received: r_j, the mean over queries. L counts the blocks."""
    scores = np.zeros(side.total)
    blocks = chosen(side, wrong)
    for block in blocks:
        A, G = block.A, block.G
        if wrong == "clamp after the heads":
            A, G = np.ones((1, *A.shape[1:])), (A * G).mean(0, keepdims=True)
        by_query, by_key = scores[side.span(block.query)], scores[side.span(block.key)]
        for (h, i, j), a in np.ndenumerate(A):
            value = a * max(G[h, i, j], 0.0) / (len(blocks) * len(A))
            if (read == "query") != (wrong == "columns"):
                by_query[i] += value / A.shape[2]
            else:
                by_key[j] += value / A.shape[1]
    return scores


def attention_x_gradient(
    side: Plain, wrong: str = "", *, layer: int | None = None, positive: bool = False, read: str = "received"
) -> np.ndarray:
    """sum over layers, heads and queries of A G; positive: of ReLU(A G)."""
    scores = np.zeros(side.total)
    for block in chosen(side, wrong):
        depth = sum((b.query, b.key) == (block.query, block.key) for b in side.blocks)
        if layer is not None and block.layer != layer % depth:
            continue
        product = block.A * block.G
        if wrong == "clamp after the heads":
            product = product.sum(0, keepdims=True)
        by_query, by_key = scores[side.span(block.query)], scores[side.span(block.key)]
        for (_, i, j), value in np.ndenumerate(product):
            value = max(value, 0.0) if positive else value
            if (read == "query") != (wrong == "columns"):
                by_query[i] += value
            else:
                by_key[j] += value
    return scores


def attcat(side: Plain, wrong: str = "") -> np.ndarray:
    """sum_l alpha_li sum_d h_lid dS/dh_lid; alpha: self-attention that i receives, mean over heads and queries."""
    scores = np.zeros(side.total)
    for block in chosen(side, wrong):
        if block.query == block.key:
            states = side.states[block.key]
            h, g = states[-1 - block.layer if wrong == "reversed layers" else block.layer]
            for i in range(len(h)):
                alpha = block.A[:, i, :].mean() if wrong == "columns" else block.A[:, :, i].mean()
                scores[side.span(block.key)][i] += alpha * sum(h[i, d] * g[i, d] for d in range(h.shape[1]))
    return scores


def abar(block: Block, wrong: str = "") -> np.ndarray:
    """Rule 5."""
    if wrong == "clamp after the heads":
        return np.maximum((block.G * block.A).mean(0), 0)
    return sum(np.maximum(G * A, 0) for G, A in zip(block.G, block.A, strict=True)) / len(block.A)


def normalised(R: np.ndarray, wrong: str = "") -> np.ndarray:
    """Rules 8 and 9; a row of zeros has nothing to divide."""
    rest = R - np.eye(len(R))
    total = rest.sum(0, keepdims=True) if wrong == "column sums" else rest.sum(1, keepdims=True)
    bar = np.divide(rest, total, out=np.zeros_like(rest), where=total != 0) + np.eye(len(R))
    assert wrong or all(np.isclose(row.sum(), 2 if any_ else 1) for row, any_ in zip(bar, total, strict=True))
    return bar


def relevance(side: Plain, wrong: str = "", normalise: bool = True) -> dict[tuple[str, str], np.ndarray]:
    """Rules 6 to 11. Co-attention in both directions is computed from the old matrices and applied together."""
    R = {(s, q): np.eye(n) if s == q else np.zeros((n, m)) for s, n in side.sizes.items() for q, m in side.sizes.items()}
    bar = partial(normalised, wrong=wrong) if normalise and wrong != "not normalised" else lambda matrix: matrix
    blocks = chosen(side, wrong)
    for _, step in groupby(reversed(blocks) if wrong == "reversed layers" else blocks, key=lambda block: block.step):
        new = dict(R)
        for block in step:
            old = new if wrong == "one after the other" else R
            s, q, A = block.query, block.key, abar(block, wrong)
            keep = 0 if wrong == "no residual" else 1
            if s == q:
                for other in side.sizes:
                    if other == s or wrong != "rule 7 left out":
                        new[s, other] = keep * new[s, other] + A @ old[s, other]
            else:
                left = bar(old[s, s]) if wrong == "not transposed" else bar(old[s, s]).T
                added = left @ A @ bar(old[q, q]), A @ old[q, s]
                new[s, q] = keep * new[s, q] + added[0]
                new[s, s] = new[s, s] + (0 if wrong == "rule 11 left out" else added[1])
        R = new
    return R


def gae(side: Plain, wrong: str = "", normalise: bool = True) -> np.ndarray:
    """The deciding row of R, without the identity R begins with."""
    R = relevance(side, wrong, normalise)
    whole = np.block([[R[s, q] for q in side.sizes] for s in side.sizes])
    return side.read(whole - np.eye(side.total), wrong)


SUMMED = ["last layer only", "columns"]
FOLDED = [*SUMMED, "reversed layers", "no residual"]
CLAMPED = "clamp after the heads"
TWINS: dict[str, tuple[Callable[..., np.ndarray], list[str]]] = {
    "rollout": (rollout, FOLDED),
    "grad_sam": (partial(grad_sam, read="query"), [*SUMMED, CLAMPED]),
    "grad_sam(read='received')": (partial(grad_sam, read="received"), [*SUMMED, CLAMPED]),
    "attention_x_gradient": (attention_x_gradient, SUMMED),
    "attention_x_gradient(positive=True)": (partial(attention_x_gradient, positive=True), [*SUMMED, CLAMPED]),
    "attention_x_gradient(layer=0)": (partial(attention_x_gradient, layer=0), ["columns"]),
    "attention_x_gradient(layer=-1, read='query')": (partial(attention_x_gradient, layer=-1, read="query"), ["columns"]),
    "attcat": (attcat, [*SUMMED, "reversed layers"]),
    "gae": (gae, [*FOLDED, CLAMPED]),
    "gae(normalise=False)": (partial(gae, normalise=False), [*FOLDED, CLAMPED]),
}
# What can only go wrong where streams look at each other.
CROSS = ["not normalised", "column sums", "not transposed", "rule 7 left out"]
MORE = {("t5", "gae"): CROSS, ("bart", "gae"): CROSS}
MORE["lxmert", "gae"] = [*CROSS, "one after the other", "rule 11 left out"]


@pytest.mark.parametrize("spec", TWINS)
@pytest.mark.parametrize(("name", "dtype"), CASES, ids=str)
def test_twin(name: str, dtype: torch.dtype, spec: str) -> None:
    twin, mistakes = TWINS[spec]
    found = pairs(name, dtype, [c[list(TWINS).index(spec)] for c in compared(name, dtype)])
    assert max(distance(scores, twin(side)) for scores, side in found) <= CLOSE[dtype]
    for mistake in [*mistakes, *MORE.get((name, spec), [])]:
        assert max(distance(scores, twin(side, mistake)) for scores, side in found) > FAR, mistake


@pytest.mark.parametrize("name", [name for name in DECIDING if name != "vit"])
def test_the_batch_is_padded(name: str) -> None:
    made = subject(name, SINGLE)
    items = [made.encode(raw) for raw in fresh(name).inputs[:3]]
    rows = [row for item in items for row, _ in made.rows(item)] or items
    ((_, batch),) = made.batches(rows)
    assert not batch.mask.all()


def test_relevance_of_every_pair_of_streams_is_in_the_details() -> None:
    for a, (side,) in zip(whence.explain(subject("lxmert", SINGLE), fresh("lxmert").inputs[:3], "gae"), sides("lxmert", SINGLE), strict=True):
        for (s, q), right in relevance(side).items():
            found = a.details[f"R {s} {q}"]
            assert found.shape == right.shape
            assert distance(found, right) <= CLOSE[SINGLE]


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
        "start_layer=1": lambda side: rollout(Plain(side.sizes, [b for b in side.blocks if b.layer], {}, side.deciding)),
    }
    raws = fresh(name).inputs[:3]
    for option, twin in twins.items():
        for scores, side in pairs(name, SINGLE, whence.explain(subject(name, SINGLE), raws, f"rollout({option})")):
            assert distance(scores, twin(side)) <= CLOSE[SINGLE], option
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
    steps = [step_matrix(side, b, b.A.mean(0), 0.0 if wrong == "no residual" else 0.5) for b in chosen(side, wrong)]
    steps = steps[::-1] if wrong == "reversed layers" else steps
    steps = [step.T for step in steps[::-1]] if wrong == "columns" else steps
    ((stream, token),) = side.deciding.items()
    source = range(side.total)[side.span(stream)][token]
    return np.array([max_flow(steps, source, sink) for sink in range(side.total)])


@pytest.mark.parametrize("name", ["bert", "gpt2", "t5", "lxmert"])
def test_flow(name: str) -> None:
    number = min(range(3), key=lambda n: sides(name, SINGLE)[n][-1].total)
    side = sides(name, SINGLE)[number][-1]
    raws = fresh(name).inputs[:3]
    for scale, close in ((10**6, 1e-5), (10**9, 1e-6)):
        a = whence.explain(subject(name, SINGLE), raws, f"flow(scale={scale})")[number]
        raw = a.details["flow"] if a.scores.ndim == 1 else a.details["flow"][-1]
        scores = a.scores if a.scores.ndim == 1 else a.scores[-1, : side.total]
        assert distance(raw, flow(side)) <= close  # the streams of these models come in the order of the twin
        assert distance(scores, flow(side) / flow(side).sum()) <= close
        assert (rollout(side) <= raw + close).all()
        assert (raw <= 1 + close).all()
    for mistake in FOLDED:
        assert distance(raw, flow(side, mistake)) > FAR, mistake
