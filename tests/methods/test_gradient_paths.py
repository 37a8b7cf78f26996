"""Clouds and paths of gradients: slow twins by plain loops, the same numbers as captum's, and softened rectifiers.

The plain side takes from whence only what enters the model and the random generator of an example; it runs one example
and one point at a time. Twins with one deliberate mistake must differ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from captum.attr import InputXGradient, IntegratedGradients, NoiseTunnel, Saliency
from captum.log import log_usage
from torch import Tensor, nn

import whence
from families import Family, fresh, subject_of
from whence.core.inputs import Input
from whence.model.subject import Subject

CLOSE = {torch.float32: 1e-5, torch.float64: 1e-10}
FAR = 1e-4  # ten times what rounding may do in float32
DTYPES = [torch.float32, torch.float64]
States = dict[str, Tensor]  # stream -> (token, width), or (colour, height, width)

# name -> site -> stream -> the module whose output is the state, or the argument that is; noise is drawn in this order
SITES: dict[str, dict[str, dict[str, str]]] = {
    "bert": {"word": {"text": "bert.embeddings.word_embeddings"}, "embeddings": {"text": "bert.embeddings"}},
    "vit": {"word": {"image": "pixel_values"}, "embeddings": {"image": "vit.embeddings"}},
    "gpt2": {"word": {"text": "transformer.wte"}, "embeddings": {"text": "transformer.drop"}},
    "bart": {
        "word": {"source": "model.encoder.embed_tokens", "target": "model.decoder.embed_tokens"},
        "embeddings": {"source": "model.encoder.layernorm_embedding", "target": "model.decoder.layernorm_embedding"},
    },
    "gemma3": {"word": {"text": "model.embed_tokens"}},
    "clip": {
        "word": {"text": "text_model.embeddings.token_embedding", "image": "pixel_values"},
        "embeddings": {"image": "vision_model.pre_layrnorm", "text": "text_model.embeddings"},
    },
    "lxmert": {
        "word": {"text": "lxmert.embeddings.word_embeddings", "image": "visual_feats"},
        "embeddings": {"text": "lxmert.embeddings", "image": "lxmert.encoder.visn_fc"},
    },
}
SHORTER = [1]  # the input that is padded in a batch with the other, where one is enough
NAMES = ["bert", "vit", "gpt2", "bart", "clip", "lxmert"]
IDS = {"text": "input_ids", "source": "input_ids", "target": "decoder_input_ids"}
OUTPUTS = [{"source": "the old film", "output": "it"}, {"source": "a book", "output": "a"}]


# ---- the plain side --------------------------------------------------------------------------------------------------


@cache
def made(name: str, dtype: torch.dtype) -> Family:
    """The plain side's own copy."""
    family = fresh(name)
    family.model.to(dtype)
    return family


@cache
def subject(name: str, dtype: torch.dtype) -> Subject:
    family = fresh(name)
    return whence.wrap(family.model.to(dtype), family.processor, **family.kwargs)


def raws(name: str) -> list[Any]:
    """Two examples of different lengths."""
    return OUTPUTS if name == "bart" else fresh(name).inputs[:2]


@dataclass(frozen=True)
class Row:
    """One example, or what one generated token could see, on a plain model."""

    name: str
    item: Input
    dtype: torch.dtype
    target: int

    @property
    def model(self) -> Any:
        return made(self.name, self.dtype).model

    def run(self, at: str, states: States, ids: dict[str, Tensor] | None = None) -> tuple[Tensor, States]:
        """The logits and the states at a site, with those given instead of the model's own."""
        tensors = {key: torch.from_numpy(array)[None] for key, array in self.item.tensors.items()}
        tensors = {key: t.to(self.dtype) if t.is_floating_point() else t for key, t in tensors.items()}
        tensors |= ids or {}
        seen: States = {}
        handles = []
        for stream, place in SITES[self.name][at].items():
            if place in tensors:
                tensors[place] = states[stream][None] if stream in states else tensors[place]
                seen[stream] = tensors[place][0]
                continue

            def hook(module: nn.Module, args: Any, out: Tensor, stream: str = stream) -> Tensor:
                out = states[stream][None] if stream in states else out
                seen[stream] = out[0]
                return out

            handles.append(self.model.get_submodule(place).register_forward_hook(hook))
        outputs = self.model(**tensors)
        for handle in handles:
            handle.remove()
        names = ("logits", "question_answering_score", "logits_per_image")
        logits = next(outputs[name] for name in names if name in outputs)
        return (logits[0] if logits.ndim == 2 else logits[0, -1]), {s: seen[s].detach() for s in SITES[self.name][at]}

    def states(self, at: str) -> States:
        return self.run(at, {})[1]

    def f(self, at: str, states: States) -> Tensor:
        return self.run(at, states)[0][self.target]

    def gradient(self, at: str, states: States) -> States:
        leaves = {s: x.detach().clone().requires_grad_() for s, x in states.items()}
        found = torch.autograd.grad(self.f(at, leaves), list(leaves.values()), materialize_grads=True)
        return dict(zip(leaves, found, strict=True))

    def special(self, stream: str) -> Tensor:
        return torch.tensor([s for s, own in zip(self.item.special, self.item.streams, strict=True) if own == stream])

    def baseline(self, at: str, x: States, new: str = "") -> States:
        """The padding token (gpt2: the unknown one), zero where there is none; special tokens as in x."""
        tokenizer = getattr(made(self.name, self.dtype).processor, "tokenizer", made(self.name, self.dtype).processor)
        pad = None if new == "zero" else getattr(tokenizer, f"{new or 'pad'}_token_id", None)
        pad = tokenizer.unk_token_id if self.name == "gpt2" and not new else pad
        zero = {s: torch.zeros_like(state) for s, state in x.items()}
        if pad is not None:
            ids = {s: torch.from_numpy(self.item.tensors[IDS[s]]) for s in x if s in IDS}
            changed = {IDS[s]: torch.where(self.special(s), own, pad)[None] for s, own in ids.items()}
            carried = self.run(at, {}, changed)[1]
            zero |= {s: carried[s] for s in ids}
        return {s: z if z.ndim == 3 else torch.where(self.special(s)[:, None], x[s], z) for s, z in zero.items()}

    def integrated(self, at: str, x0: States, x: States, steps: int) -> States:
        """(x - x0) times the mean gradient on the straight line, by Gauss-Legendre."""
        total = {s: torch.zeros_like(state) for s, state in x.items()}
        for node, weight in zip(*np.polynomial.legendre.leggauss(steps), strict=True):
            point = {s: x0[s] + (node + 1) / 2 * (x[s] - x0[s]) for s in x}
            for s, g in self.gradient(at, point).items():
                total[s] += weight / 2 * g
        return {s: (x[s] - x0[s]) * total[s] for s in x}

    def placed(self, by_stream: States) -> Tensor:
        """(feature,) of scores per token or per pixel; pixels are summed over patches of 8 x 8, after [CLS]."""
        parts = []
        for stream in dict.fromkeys(self.item.streams):
            own = by_stream[stream]
            if len(own) == 32:  # (height, width)
                patches = [
                    own[8 * r : 8 * r + 8, 8 * c : 8 * c + 8].sum().reshape(1) for r in range(4) for c in range(4)
                ]
                own = torch.cat([own.new_zeros(1), *patches])
            parts.append(own)
        return torch.cat(parts)


@cache
def rows(name: str, number: int, dtype: torch.dtype) -> list[Row]:
    """What one input comes to: itself, or a row per generated token."""
    made_by = subject(name, dtype)
    item = made_by.encode(raws(name)[number])
    if item.generated:
        return [Row(name, row, dtype, token) for row, token in made_by.rows(item)]
    row = Row(name, item, dtype, 0)
    return [Row(name, item, dtype, int(row.run("word", {})[0].argmax()))]


def width(stream_state: Tensor) -> int:
    return 0 if stream_state.ndim == 3 else -1


def summed(entries: States) -> States:
    return {s: e.sum(width(e)) for s, e in entries.items()}


def explained(name: str, dtype: torch.dtype, method: str, **options: Any) -> list[list[np.ndarray]]:
    """Scores by input and row: both inputs in one batch."""
    found = whence.explain(subject(name, dtype), raws(name), method=method, **options)
    by_row = []
    for a in found:
        scores = np.atleast_2d(a.scores)
        seen = a.visible if a.scores.ndim == 2 else [a.visible]
        by_row.append([own[np.asarray(mask)] for own, mask in zip(scores, seen, strict=True)])
    return by_row


def compare(
    found: np.ndarray, right: Tensor, dtype: torch.dtype, broken: dict[str, Tensor], close: float | None = None
) -> None:
    """Close to the right twin, far from every broken one."""
    assert found.dtype == right.numpy().dtype and found.shape == right.shape
    assert np.abs(found - right.numpy()).max() <= (close or CLOSE[dtype]) * max(1.0, right.abs().max().item())
    for mistake, scores in broken.items():
        assert np.abs(found - scores.numpy()).max() > FAR * min(1.0, right.abs().max().item()), mistake


# ---- smoothgrad ------------------------------------------------------------------------------------------------------

SAMPLES, SHARE = 2, 0.2


def clouds(row: Row, at: str, seed: int = 0, ranges: bool = True) -> list[States]:
    """The noisy states; the draws are those of the example's own generator, spawned once per sample."""
    generator = subject(row.name, row.dtype).batch([row.item], seed).generators()[0]
    x = row.states(at)
    found = []
    for own in generator.spawn(SAMPLES):
        point = {}
        for s, state in x.items():
            deviation = SHARE * (state.max() - state.min()) if ranges else torch.tensor(SHARE)
            point[s] = state + deviation * torch.from_numpy(own.standard_normal(state.shape)).to(row.dtype)
        found.append(point)
    return found


def attributed(row: Row, at: str, of: str, x: States) -> States:
    if of == "integrated_gradients":
        return row.integrated(at, row.baseline(at, x), x, 16)
    g = row.gradient(at, x)
    return g if of == "gradient" else {s: x[s] * g[s] for s in x}


FORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda all: all.mean(0),
    "square": lambda all: all.square().mean(0),
    "variance": lambda all: (all - all.mean(0)).square().mean(0),
}
REDUCED: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda e: e.sum(width(e)),
    "l1": lambda e: e.abs().sum(width(e)),
    "l2": lambda e: e.square().sum(width(e)).sqrt(),
}
OWN = {"gradient": "l2", "gradient_x_input": "sum", "integrated_gradients": "sum"}


def smooth(row: Row, all: list[States], form: Callable[[Tensor], Tensor], reduce: str) -> Tensor:
    return row.placed({s: REDUCED[reduce](form(torch.stack([e[s] for e in all]))) for s in all[0]})


CASES = [(name, of, torch.float64) for name in NAMES for of in OWN]
CASES += [(name, of, torch.float32) for name in NAMES for of in ("gradient", "gradient_x_input")]
CASES += [(name, "integrated_gradients", torch.float32) for name in ("bert", "clip")]  # the others take long by hand


@pytest.mark.parametrize(("name", "of", "dtype"), CASES, ids=str)
def test_smoothgrad(name: str, of: str, dtype: torch.dtype) -> None:
    found = {f: explained(name, dtype, f"smoothgrad(of={of!r}, form={f!r}, samples=2, noise=0.2)") for f in FORMS}
    for number in SHORTER if of == "integrated_gradients" else [0, 1]:
        row = rows(name, number, dtype)[-1]
        all = [attributed(row, "embeddings", of, point) for point in clouds(row, "embeddings")]
        twins = {form: smooth(row, all, function, OWN[of]) for form, function in FORMS.items()}
        for form in FORMS:
            broken = {other: twins[other] for other in FORMS if other != form}
            broken["a sample less"] = smooth(row, all[:-1], FORMS[form], OWN[of])
            compare(found[form][number][-1], twins[form], dtype, broken)


@pytest.mark.parametrize("name", ["bert", "vit", "clip", "lxmert"])
def test_smoothgrad_where_the_inputs_enter(name: str) -> None:
    dtype = torch.float64
    (row,) = rows(name, 1, dtype)
    all = [attributed(row, "word", "gradient", point) for point in clouds(row, "word")]
    other_seed = [attributed(row, "word", "gradient", point) for point in clouds(row, "word", seed=1)]
    absolute = [attributed(row, "word", "gradient", point) for point in clouds(row, "word", ranges=False)]
    twins = {reduce: smooth(row, all, FORMS["mean"], reduce) for reduce in REDUCED}
    for reduce in REDUCED:
        spec = f"smoothgrad(of='gradient', samples=2, noise=0.2, at='word', reduce={reduce!r})"
        broken = {other: twins[other] for other in REDUCED if other != reduce}
        broken["noise not in shares of the range"] = smooth(row, absolute, FORMS["mean"], reduce)
        broken["another seed"] = smooth(row, other_seed, FORMS["mean"], reduce)
        broken["reduced before the mean"] = torch.stack([smooth(row, [e], FORMS["mean"], reduce) for e in all]).mean(0)
        if reduce == "sum":
            del broken["reduced before the mean"]
        compare(explained(name, dtype, spec)[1][0], twins[reduce], dtype, broken)
    spec = "smoothgrad(of='gradient', samples=2, noise=0.2, at='word', reduce='l1')"
    seeded = explained(name, dtype, spec, seed=1)[1][0]
    compare(seeded, smooth(row, other_seed, FORMS["mean"], "l1"), dtype, {"seed 0": twins["l1"]})


@pytest.mark.parametrize("of", OWN)
def test_without_noise_smoothgrad_is_the_method_itself(of: str) -> None:
    steps = ", steps=16" if of == "integrated_gradients" else ""
    for name in ("bert", "clip"):
        plain = explained(name, torch.float64, f"{of}(at='word'{steps})")
        smoothed = explained(name, torch.float64, f"smoothgrad(of={of!r}, at='word', noise=0, samples=2)")
        varied = explained(
            name, torch.float64, f"smoothgrad(of={of!r}, at='word', noise=0, samples=2, form='variance')"
        )
        for number in (0, 1):
            np.testing.assert_allclose(smoothed[number][0], plain[number][0], atol=1e-10)
            assert np.abs(varied[number][0]).max() < 1e-6  # an l2 norm takes the root of what rounding leaves


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "spec", ["smoothgrad(samples=2)", "path_gradients(points=2, steps=2)", "integrated_gradients(steps=2)"]
)
def test_padding_and_company_change_nothing(name: str, spec: str) -> None:
    options: dict[str, Any] = {"baseline": ["zero", torch.ones_like]} if spec.startswith("integrated") else {}
    together = explained(name, torch.float64, spec, **options)
    for raw, own in zip(raws(name), together, strict=True):
        alone = whence.explain(subject(name, torch.float64), raw, method=spec, batch_size=1, **options)
        scores, seen = np.atleast_2d(alone.scores), np.atleast_2d(alone.visible)
        for found, expected, mask in zip(own, scores, seen, strict=True):
            np.testing.assert_allclose(found, expected[mask], atol=1e-9 * max(1, np.abs(expected).max()))


def test_smoothgrad_takes_only_sound_numbers() -> None:
    for options in ({"samples": 0}, {"noise": -0.1}):
        with pytest.raises(ValueError, match=f"the option {next(iter(options))!r} takes a .*number from [01] to"):
            whence.explain(subject("bert", torch.float32), raws("bert")[0], method="smoothgrad", **options)


# ---- paths -----------------------------------------------------------------------------------------------------------


def followed(row: Row, at: str, places: list[States], steps: int) -> Tensor:
    """The sum of integrated gradients from place to place."""
    parts = [summed(row.integrated(at, a, b, steps)) for a, b in pairwise(places)]
    return sum((row.placed(part) for part in parts[1:]), row.placed(parts[0]))


def bent(x0: Tensor, x: Tensor, share: float) -> Tensor:
    """A curve: some coordinates go first, others last."""
    early = torch.linspace(0.3, 3.0, x.shape[-1], dtype=x.dtype)
    return x0 + share**early * (x - x0)


def straight(x0: Tensor, x: Tensor, share: float) -> Tensor:
    return x0 + share * (x - x0)


def along(path: Callable[..., Tensor], x0: States, x: States, points: int) -> list[States]:
    return [{s: path(x0[s], x[s], n / points) for s in x} for n in range(points + 1)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_paths(name: str, dtype: torch.dtype) -> None:
    found = {
        "straight": explained(name, dtype, "path_gradients(points=3, steps=2)"),
        "bent": explained(name, dtype, "path_gradients(points=3, steps=2)", path=bent),
    }
    for number in SHORTER if dtype == torch.float32 else [0, 1]:
        row = rows(name, number, dtype)[-1]
        x = row.states("word")
        x0 = row.baseline("word", x)
        twins = {
            "straight": followed(row, "word", along(straight, x0, x, 3), 2),
            "bent": followed(row, "word", along(bent, x0, x, 3), 2),
        }
        backwards = followed(row, "word", along(bent, x0, x, 3)[::-1], 2)
        coarse = followed(row, "word", along(bent, x0, x, 2), 2)
        compare(found["straight"][number][-1], twins["straight"], dtype, {"bent": twins["bent"]})
        broken = {"straight": twins["straight"], "backwards": backwards, "fewer points": coarse}
        compare(found["bent"][number][-1], twins["bent"], dtype, broken)


def nearest_words(points: Tensor, x: Tensor, table: Tensor) -> Tensor:
    """The row of the table nearest to each point; a draw, as there is half way as a rule, goes to the input's own."""
    words = []
    for point, own in zip(points, x, strict=True):
        distances = (table - point).norm(dim=-1)
        draw = (own - point).norm() <= distances.min() * (1 + 1e-4)
        words.append(own if draw else table[distances.argmin()])
    return torch.stack(words)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["bert", "gpt2", "bart", "gemma3"])
def test_a_path_through_words(name: str, dtype: torch.dtype) -> None:
    found = explained(name, dtype, "path_gradients(path='words', points=4, steps=2)")
    for number in SHORTER:
        row = rows(name, number, dtype)[-1]
        x = row.states("word")
        x0 = row.baseline("word", x)
        line = along(straight, x0, x, 4)

        def twin(table_of: Callable[[Any], Tensor], row: Row = row, x: States = x, line: Any = line) -> Tensor:
            places = []
            for point in line[1:-1]:
                place = {}
                for s, states in point.items():
                    table = table_of(row.model.get_submodule(SITES[name]["word"][s])).detach()
                    near = nearest_words(states, x[s], table)
                    place[s] = torch.where(row.special(s)[:, None], x[s], near)
                places.append(place)
            return followed(row, "word", [line[0], *places, line[-1]], 2)

        broken = {"straight": followed(row, "word", line, 2)}
        if name == "gemma3":  # scales what it looks up
            broken["the table as it is stored"] = twin(lambda lookup: lookup.weight)
        compare(found[number][-1], twin(lambda lookup: lookup(torch.arange(len(lookup.weight)))), dtype, broken)


def test_a_path_goes_by_the_words_on_its_way() -> None:
    """Words along a curve: from the first to the last, the others are passed one after the other."""
    module = drawn(Small).double()
    place = torch.linspace(-1, 1, 8, dtype=torch.float64)
    table = torch.stack([place, place.square(), place**3, torch.ones_like(place)], -1)
    with torch.no_grad():
        module.word.weight.copy_(table)
    x, x0 = table[[7, 6, 2]], table[[0, 0, 0]]
    stops = [nearest_words(straight(x0, x, n / 6), x, table) for n in range(1, 6)]
    assert len(torch.stack(stops)[:, 0].unique(dim=0)) >= 4
    right = torch.zeros(3, dtype=torch.float64)
    for a, b in pairwise([x0, *stops, x]):
        for node, weight in zip(*np.polynomial.legendre.leggauss(3), strict=True):
            point = (a + (node + 1) / 2 * (b - a)).requires_grad_()
            (g,) = torch.autograd.grad(module.answer(point[None])[0, 1], point)
            right += weight / 2 * ((b - a) * g).sum(-1)
    options = {"baseline": table[0].numpy(), "points": 6, "steps": 3}
    made_by = whence.wrap(module, encode=numbers)
    words = whence.explain(made_by, (7, 6, 2), "path_gradients(path='words')", 1, **options)
    line = whence.explain(made_by, (7, 6, 2), "path_gradients", 1, **options)
    np.testing.assert_allclose(words.scores, right, atol=1e-12)
    assert np.abs(words.scores - line.scores).max() > 1e-3
    assert words.scores.sum() == pytest.approx(line.scores.sum(), abs=1e-6)


@pytest.mark.parametrize("path", ["straight", "words"])
@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_a_path_takes_as_many_steps_as_it_needs(name: str, path: str) -> None:
    made_by, texts = subject(name, torch.float64), raws(name)[:2]
    spec = f"path_gradients(path='{path}', points=3"
    open_, close = (whence.explain(made_by, texts, f"{spec}, tolerance={t})") for t in (0.01, 1e-5))
    many, few = (whence.explain(made_by, texts, f"{spec}, steps={n})") for n in (64, 1))
    for a, b, right, wrong in zip(open_, close, many, few, strict=True):
        scale = max(abs(a.output - a.base), 0.1)
        assert abs(a.residual) <= 0.01 * scale and abs(b.residual) <= 1e-5 * scale and not a.notes[1:]
        assert np.abs(b.scores - right.scores).max() <= 1e-4 * np.abs(right.scores).sum()
        assert a.details["steps"] < b.details["steps"] and a.details["completeness_error"] <= 0.01
        assert any("take more steps, or leave steps open" in note for note in wrong.notes)
        assert abs(wrong.residual) > 0.01 * scale


@pytest.mark.parametrize("name", NAMES)
def test_the_straight_path_is_that_of_integrated_gradients(name: str) -> None:
    dtype = torch.float64
    paths = explained(name, dtype, "path_gradients(points=1, steps=5)")
    integrated = explained(name, dtype, "integrated_gradients(steps=5)")
    given = explained(name, dtype, "path_gradients(points=1, steps=5)", path=straight)
    for own, other, third in zip(paths, integrated, given, strict=True):
        for a, b, c in zip(own, other, third, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-10)
            np.testing.assert_allclose(c, b, atol=1e-10)


@pytest.mark.parametrize(("name", "at"), [("bert", "word"), ("bert", "embeddings"), ("clip", "word")])
def test_scores_of_any_path_sum_to_the_difference(name: str, at: str) -> None:
    made_by, raw = subject(name, torch.float64), raws(name)[1]
    for path in ("straight", bent):
        a = whence.explain(made_by, raw, method=f"path_gradients(points=16, steps=6, at={at!r})", path=path)
        assert abs(a.residual) < 1e-3 * np.abs(a.scores).sum()
        assert a.residual == pytest.approx(a.output - a.base - a.scores.sum())


def test_paths_that_cannot_be_followed_are_refused() -> None:
    def nowhere(x0: Tensor, x: Tensor, share: float) -> Tensor:
        return x0

    def shapeless(x0: Tensor, x: Tensor, share: float) -> Tensor:
        return torch.zeros(7)

    def silent(x0: Tensor, x: Tensor, share: float) -> None:
        return None

    bert, clip = subject("bert", torch.float32), subject("clip", torch.float32)
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (bert, {"path": nowhere}, "at 1 it is elsewhere"),
        (bert, {"path": shapeless}, r"returns states .* not shape \(7,\)"),
        (bert, {"path": silent}, "not NoneType"),
        (bert, {"path": "words", "at": "embeddings"}, "at must be 'word'"),
        (bert, {"path": "crooked"}, "takes 'straight' or 'words'"),
        (bert, {"points": 0}, "'points' takes a whole number from 1"),
        (bert, {"steps": 0}, "'steps' takes a whole number from 1"),
        (clip, {"path": "words"}, "the stream image has none; use 'straight'"),
    ]
    for made_by, options, message in cases:
        raw = raws("clip" if made_by is clip else "bert")[0]
        with pytest.raises(ValueError, match=message):
            whence.explain(made_by, raw, method="path_gradients", **options)


def test_a_path_may_write_on_what_it_is_given() -> None:
    def in_place(x0: Tensor, x: Tensor, share: float) -> Tensor:
        return x.sub_(x0).mul_(share).add_(x0)

    spec, raw, made_by = "path_gradients(points=3, steps=2)", raws("bert")[0], subject("bert", torch.float64)
    right = whence.explain(made_by, raw, method=spec, path=straight)
    np.testing.assert_allclose(whence.explain(made_by, raw, method=spec, path=in_place).scores, right.scores)


# ---- expected gradients ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_several_baselines_are_averaged(name: str, dtype: torch.dtype) -> None:
    def turned(states: Tensor) -> Tensor:
        return states.roll(1, -1)

    given: list[Any] = ["zero", turned, np.full(1, -0.5)]
    values: list[Callable[[Tensor], Tensor]] = [torch.zeros_like, turned, lambda x: torch.full_like(x, -0.5)]
    found = explained(name, dtype, "integrated_gradients(steps=3)", baseline=given)
    for number in (0, 1):
        row = rows(name, number, dtype)[-1]
        x = row.states("word")
        single = []
        for value in values:
            new = {s: value(state) for s, state in x.items()}
            x0 = {s: n if n.ndim == 3 else torch.where(row.special(s)[:, None], x[s], n) for s, n in new.items()}
            single.append(row.placed(summed(row.integrated("word", x0, x, 3))))
        broken = {"the sum": sum(single, torch.zeros_like(single[0])), "the first": single[0], "the second": single[1]}
        compare(found[number][-1], torch.stack(single).mean(0), dtype, broken)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_baseline_that_is_not_finite_is_refused(bad: float) -> None:
    subject = subject_of("bert")
    for baseline in (lambda x: torch.full_like(x, bad), np.full(32, bad)):
        with pytest.raises(ValueError, match="a baseline is made of finite numbers"):
            whence.explain(subject, "a masterful film", "integrated_gradients", baseline=baseline)


def test_what_comes_with_several_baselines() -> None:
    raw, made_by = raws("vit")[0], subject("vit", torch.float64)
    given: list[Any] = ["zero", torch.ones_like]
    options = {"method": "integrated_gradients(steps=4)", "target": 1}
    alone = [whence.explain(made_by, raw, baseline=b, **options) for b in given]
    both = whence.explain(made_by, raw, baseline=given, **options)
    one = whence.explain(made_by, raw, baseline=given[:1], **options)
    assert both.base == pytest.approx(np.mean([a.base for a in alone]))
    assert both.residual == pytest.approx(np.mean([a.residual for a in alone]))
    np.testing.assert_allclose(both.details["pixels"], np.mean([a.details["pixels"] for a in alone], 0), atol=1e-12)
    assert np.array_equal(one.scores, alone[0].scores)
    with pytest.raises(ValueError, match="a list of 1 to 1,000"):
        whence.explain(made_by, raw, baseline=[], **options)


# ---- captum ----------------------------------------------------------------------------------------------------------

TYPES = {"mean": "smoothgrad", "square": "smoothgrad_sq", "variance": "vargrad"}


class Small(nn.Module):
    """Word embeddings and a smooth network of all of them, three classes."""

    def __init__(self) -> None:
        super().__init__()
        self.word, self.inner, self.outer = nn.Embedding(8, 4), nn.Linear(12, 6), nn.Linear(6, 3)

    def answer(self, states: Tensor) -> Tensor:
        return self.outer(torch.tanh(self.inner(states.flatten(1))))

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.answer(self.word(input_ids))


def numbers(raw: tuple[int, ...]) -> dict[str, Any]:
    return {"tensors": {"input_ids": np.array(raw)}, "features": {"text": [str(number) for number in raw]}}


def drawn(build: Callable[[], nn.Module]) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return build().eval()


def captum_sides() -> dict[str, tuple[Subject, Any, Callable[[Tensor], Tensor], Tensor, Tensor, Tensor]]:
    """name -> subject, raw, logits of states, states, special tokens and the baseline of the others."""
    module = drawn(Small)
    word = module.word.weight.detach()
    none = torch.zeros(3, 1, dtype=torch.bool)
    small = (whence.wrap(module, encode=numbers), (1, 5, 2), module.answer, word[[1, 5, 2]], none, torch.zeros(4))
    row = rows("bert", 0, torch.float32)[0]
    tensors = {key: torch.from_numpy(array) for key, array in row.item.tensors.items() if key != "input_ids"}

    def bert(states: Tensor) -> Tensor:
        more = {key: tensor.expand(len(states), -1) for key, tensor in tensors.items()}
        return row.model(inputs_embeds=states, **more).logits

    pad = row.model.get_input_embeddings().weight[row.model.config.pad_token_id].detach()
    x, special = row.states("word")["text"], row.special("text")[:, None]
    return {"small": small, "bert": (subject("bert", torch.float32), raws("bert")[0], bert, x, special, pad)}


class FromSpecial(IntegratedGradients):
    """captum's integrated gradients from a baseline that keeps special tokens, noise included."""

    special: Tensor
    new: Tensor

    @log_usage()
    def attribute(self, inputs: Tensor, **options: Any) -> Any:
        baselines = torch.where(self.special, inputs.detach(), self.new)
        return IntegratedGradients.attribute.__wrapped__(self, inputs, baselines, n_steps=16, **options)  # type: ignore[attr-defined]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("of", OWN)
@pytest.mark.parametrize("name", ["small", "bert"])
def test_smoothgrad_is_captums_noise_tunnel(name: str, of: str, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made_by, raw, forward, x, special, new = captum_sides()[name]
    a = whence.explain(made_by, raw, f"smoothgrad(of={of!r}, form={form!r}, samples=4, at='word', reduce='l1')")
    generator = made_by.batch([a.input]).generators()[0]
    unit = torch.from_numpy(np.stack([own.standard_normal(x.shape) for own in generator.spawn(4)])).float()
    monkeypatch.setattr(torch, "normal", lambda mean, deviation: mean + deviation * unit)
    methods = {"gradient": Saliency, "gradient_x_input": InputXGradient, "integrated_gradients": FromSpecial}
    explainer = methods[of](forward)
    if isinstance(explainer, FromSpecial):
        explainer.special, explainer.new = special, new
    options = {"abs": False} if of == "gradient" else {}
    expected = NoiseTunnel(explainer).attribute(
        x[None],
        nt_type=TYPES[form],
        nt_samples=4,
        stdevs=0.1 * (x.max() - x.min()).item(),
        target=a.target.index,
        **options,
    )
    right = expected[0].abs().sum(-1).detach().numpy()  # before a norm, entries of a gradient sum to 0
    assert np.abs(a.scores - right).max() <= 1e-5 * max(1.0, np.abs(right).max())
    assert np.abs(right).max() > 1e-3


# ---- softplus --------------------------------------------------------------------------------------------------------


class SoftSlope(torch.autograd.Function):
    """A ReLU whose derivative is that of softplus: sigmoid(b x)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, sharpness: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.sharpness = sharpness
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (x,) = ctx.saved_tensors
        return gradients[0] / (1 + torch.exp(-ctx.sharpness * x)), None


class Act(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def with_activation(name: str, function: Callable[[Tensor], Tensor]) -> Any:
    """The family with another function in place of every ReLU."""
    model: Any = fresh(name).model.double()
    if name == "torch-encoder":
        for layer in model.encoder.layers:
            layer.activation, layer.activation_relu_or_gelu = function, 0
        return model
    replaced = 0
    for module in list(model.modules()):
        for key, child in module.named_children():
            if isinstance(child, nn.ReLU):
                setattr(module, key, Act(function))
                replaced += 1
    assert replaced
    return model


RECTIFIED = ["torch-encoder", "from-scratch", "t5"]
WORDS = {"torch-encoder": ["word"], "from-scratch": ["word"], "t5": ["encoder.embed_tokens", "decoder.embed_tokens"]}


def word_gradients(model: Any, name: str, item: Input, target: int) -> tuple[Tensor, Tensor, Tensor]:
    """The word embeddings, the target's gradient there and its value: one row per feature."""
    leaves = []

    def hook(module: nn.Module, args: Any, out: Tensor) -> Tensor:
        leaves.append(out.detach().requires_grad_())
        return leaves[-1]

    handles = [model.get_submodule(word).register_forward_hook(hook) for word in WORDS[name]]
    tensors = {key: torch.from_numpy(array)[None] for key, array in item.tensors.items()}
    positional = [tensors.pop("input")] if "input" in tensors else []
    outputs = model(*positional, **tensors)
    for handle in handles:
        handle.remove()
    logits = outputs if isinstance(outputs, Tensor) else outputs.logits[:, -1]
    found = torch.autograd.grad(logits[0, target], leaves)
    x = torch.cat([leaf[0] for leaf in leaves]).detach()
    return x, torch.cat([g[0] for g in found]), logits[0, target].detach()


@pytest.mark.parametrize("sharpness", [0.5, 5.0])
@pytest.mark.parametrize("name", RECTIFIED)
def test_softplus_is_in_what_is_differentiated(name: str, sharpness: float) -> None:
    family, dtype = fresh(name), torch.float64
    made_by = whence.wrap(family.model.double(), family.processor, **family.kwargs)
    raw = OUTPUTS[0] if name == "t5" else family.inputs[0]
    a = whence.explain(made_by, raw, "gradient(at='word')", softplus=sharpness)
    product = whence.explain(made_by, raw, "gradient_x_input(at='word')", softplus=sharpness)
    row, token = made_by.rows(a.input)[-1] if name == "t5" else (a.input, a.target.index)  # type: ignore[union-attr]
    model = with_activation(name, lambda x: SoftSlope.apply(x, sharpness))
    x, g, value = word_gradients(model, name, row, token)
    _, hard, plain = word_gradients(with_activation(name, torch.relu), name, row, token)
    _, other, _ = word_gradients(with_activation(name, lambda x: F.softplus(x, beta=sharpness)), name, row, token)
    assert value == plain
    last = (-1, slice(0, len(x))) if name == "t5" else slice(None)
    close = 1e-8 if name == "t5" else CLOSE[dtype]  # T5 takes its softmax in float32, whatever it is
    compare(
        a.scores[last], g.norm(dim=-1), dtype, {"ReLU": hard.norm(dim=-1), "softplus values": other.norm(dim=-1)}, close
    )
    compare(product.scores[last], (x * g).sum(-1), dtype, {"ReLU": (x * hard).sum(-1)}, close)
    assert np.atleast_1d(a.output)[-1] == pytest.approx(plain.item(), abs=1e-9)


@pytest.mark.parametrize("name", RECTIFIED)
def test_the_sharpest_softplus_is_the_relu(name: str) -> None:
    family = fresh(name)
    made_by = whence.wrap(family.model.double(), family.processor, **family.kwargs)
    raw = OUTPUTS[0] if name == "t5" else family.inputs[1]
    hard = whence.explain(made_by, raw, "gradient").scores
    gaps = [np.abs(whence.explain(made_by, raw, "gradient", softplus=b).scores - hard).max() for b in (1.0, 1e2, 1e7)]
    assert gaps[0] > 1e-2 and gaps[2] < 1e-6 and gaps[0] > gaps[1] > gaps[2]


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_softplus_changes_nothing_where_there_is_no_relu(name: str) -> None:
    made_by, raw = subject(name, torch.float64), raws(name)[0]
    for method in ("gradient", "gradient_x_input", "integrated_gradients(steps=3)"):
        plain = whence.explain(made_by, raw, method).scores
        np.testing.assert_allclose(whence.explain(made_by, raw, method, softplus=1.0).scores, plain, atol=1e-12)


class Rectified(nn.Module):
    """One hidden layer, whose activation is given."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.word, self.inner, self.outer = nn.Embedding(8, 4), nn.Linear(4, 6), nn.Linear(6, 1)
        self.function = function

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.outer(self.function(self.inner(self.word(input_ids)))).sum(1)


FUNCTIONS = {
    "nn.ReLU": nn.ReLU(),
    "F.relu": F.relu,
    "torch.relu": torch.relu,
    "x.relu()": lambda x: x.relu(),
    "nn.ReLU(inplace)": nn.ReLU(inplace=True),
    "F.relu(inplace)": lambda x: F.relu(x, inplace=True),
    "x.relu_()": lambda x: x.relu_(),
}


def rectified(function: Any) -> Subject:
    return whence.wrap(drawn(lambda: Rectified(function)).double(), encode=numbers)


@pytest.mark.parametrize("key", FUNCTIONS)
def test_every_spelling_of_relu_is_softened(key: str) -> None:
    """Where the target is linear in the ReLUs, softened gradients are those of the network of softplus."""
    raw, smooth_one = (1, 5, 2), rectified(nn.Softplus(beta=3.0))
    for method in ("gradient", "gradient_x_input", "integrated_gradients(steps=4)"):
        found = whence.explain(rectified(FUNCTIONS[key]), raw, method, softplus=3.0)
        np.testing.assert_allclose(found.scores, whence.explain(smooth_one, raw, method).scores, atol=1e-12)


def test_softplus_is_the_mean_over_logistic_noise() -> None:
    """sigmoid(b z) is the share of logistic noise of scale 1/b that puts z above 0."""
    module, sharpness, count = drawn(lambda: Rectified(torch.relu)).double(), 2.0, 20_000
    levels = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    noise = torch.logit(levels) / sharpness  # evenly spread over the distribution
    z = module.inner(module.word.weight[[1, 5, 2]]).detach()
    slopes = (z[..., None] + noise > 0).double().mean(-1)  # (token, unit)
    g = (slopes * module.outer.weight[0]) @ module.inner.weight
    found = whence.explain(whence.wrap(module, encode=numbers), (1, 5, 2), "gradient", softplus=sharpness)
    np.testing.assert_allclose(found.scores, g.detach().norm(dim=-1), atol=1e-3 / count * 100)


@pytest.mark.parametrize("sharpness", [0, -1.0])
def test_softplus_takes_a_sharpness_above_zero(sharpness: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        whence.explain(rectified(F.relu), (1, 5, 2), "gradient", softplus=sharpness)
