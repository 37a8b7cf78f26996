"""`arbitrate`: the grid beside a plain loop over the model's attention, choices beside brute force, views, refusals."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from typer.testing import CliRunner

import whence
from families import bert_tokenizer, family, fresh, plain_inputs, subject_of
from whence import cli, zoo
from whence.core import registry
from whence.measure import arbitration
from whence.measure.arbitration import grid
from whence.model.masked_runs import MaskedRuns

SHORT = ["random", "attention(heads=2, read='column')", "gradient_x_input", "gae"]
TEXTS = ["a masterful film", "the actors were wonderful ,"]
READS = ("row", "column", "received", "received_max")


@pytest.fixture(scope="module")
def planted() -> whence.Subject:
    return whence.load("planted")


def first(subject: whence.Subject, raw: Any) -> whence.Input:
    """An input, or what the first of its generated tokens could see."""
    item = subject.encode(raw)
    return next((row for row, _ in subject.rows(item)), item)


# ---- the grid --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "layers", "sizes"), [("Bert", 12, (728, 676)), ("DistilBert", 6, (416, 364))])
def test_the_sizes_of_the_paper(kind: str, layers: int, sizes: tuple[int, int]) -> None:
    tokenizer = bert_tokenizer()
    size = {"hidden_size": 24, "num_hidden_layers": layers, "num_attention_heads": 12, "max_position_embeddings": 64}
    hidden = {"hidden_dim": 8} if kind == "DistilBert" else {"intermediate_size": 8}
    config = getattr(transformers, f"{kind}Config")(vocab_size=len(tokenizer), **size, **hidden)
    model = getattr(transformers, f"{kind}ForSequenceClassification")(config).eval()
    subject = whence.wrap(model, tokenizer)
    for scores, count in zip((False, True), sizes, strict=True):
        specs = grid(subject, first(subject, "a masterful film"), scores=scores)
        assert len(specs) == len(set(specs)) == count
        for spec in specs:
            record, options = registry.resolve("method", spec)
            assert record.spec(options) == spec and options.get("scores", False) == scores


@pytest.mark.parametrize(
    ("name", "layers", "heads", "reads"),
    [
        ("vit", [0, 1], 4, 4),
        ("gpt2", [0, 1], 4, 4),
        ("llama", [0, 1], 4, 4),
        ("t5", [0, 1], 4, 3),  # cross-attention has no column that belongs to a deciding token
        ("clip", [0, 1], 4, 4),
        ("visual-bert", [0, 1], 4, 4),
        ("lxmert", [-2, -1], 4, 3),  # four layers look at the text, two at the picture
        ("from-scratch", [0, 1], 4, 4),
    ],
)
def test_other_models(name: str, layers: list[int], heads: int, reads: int) -> None:
    subject, example = subject_of(name), family(name).inputs[0]
    item = first(subject, example)
    specs = grid(subject, item)
    assert len(set(specs)) == len(specs) == (1 + heads) * (2 + len(layers)) * reads
    assert specs[0] == f"attention(layer={layers})"
    found = whence.compare(subject, example, [*specs, *grid(subject, item, scores=True)])
    distinct = {a.scores.tobytes() for a in found}
    assert len(distinct) > len(specs)
    assert all(a.scores.any() for a in found)


def test_windows_are_refused() -> None:
    with pytest.raises(ValueError, match="no attention over whole sequences to read; name other candidates"):
        whence.arbitrate(subject_of("swin"), family("swin").inputs[0])
    found = whence.arbitrate(subject_of("swin"), family("swin").inputs[0], ["gradient_x_input", "random"])
    assert found.spec in ("gradient_x_input", "random")


def attentions(raw: Any) -> np.ndarray:
    """What the model itself returns: (layer, head, query, key)."""
    made = fresh("bert")
    made.model.set_attn_implementation("eager")
    with torch.no_grad():
        out = made.model(**plain_inputs(made, raw), output_attentions=True)
    return torch.cat(out.attentions).numpy()


def products(raw: Any) -> np.ndarray:
    """Q K^T / sqrt(d) from what the layers of queries and keys give: (layer, head, query, key)."""
    made = fresh("bert")
    heads, size = made.model.config.num_attention_heads, made.model.config.hidden_size
    given: dict[str, list[np.ndarray]] = {"query": [], "key": []}
    for name, module in made.model.named_modules():
        part = name.split(".")[-1]
        if part in given:
            module.register_forward_hook(lambda _, args, out, part=part: given[part].append(out[0].detach().numpy()))
    with torch.no_grad():
        made.model(**plain_inputs(made, raw))
    found = []
    for Q, K in zip(*given.values(), strict=True):
        own = [slice(h * size // heads, (h + 1) * size // heads) for h in range(heads)]
        found.append([Q[:, columns] @ K[:, columns].T / np.sqrt(size / heads) for columns in own])
    return np.array(found)


def slow_grid(maps: np.ndarray, *, multiplied: bool, wrong: str = "") -> list[np.ndarray]:
    """The paper's loops: heads, then layers, then a read-out of the matrix."""
    found = []
    layer_ways = ["mean", *(["product"] if multiplied else []), *range(len(maps))]
    for head, layer, way in product(["mean", *range(maps.shape[1])], layer_ways, READS):
        by_layer = maps.mean(1) if head == "mean" else maps[:, head]
        if layer == "mean":
            M = by_layer.mean(0)
        elif layer == "product":
            M = np.eye(maps.shape[-1])
            for A in by_layer:
                M = M @ A if wrong == "reversed" else A @ M
        else:
            M = by_layer[layer]
        M = M.T if wrong == "transposed" else M
        found.append({"row": M[0], "column": M[:, 0], "received": M.mean(0), "received_max": M.max(0)}[way])
    return found


def distance(found: list[np.ndarray], right: list[np.ndarray]) -> float:
    """The largest difference, relative to the largest score of its entry."""
    assert len(found) == len(right)
    return max(float(np.abs(f - r).max() / np.abs(r).max()) for f, r in zip(found, right, strict=True))


@pytest.mark.parametrize(
    ("scores", "size"),
    [(False, 3), (True, 1), (True, 3)],
)
def test_every_entry_of_the_grid(scores: bool, size: int) -> None:
    subject, texts = subject_of("bert"), family("bert").inputs[:3]
    specs = grid(subject, first(subject, texts[0]), scores=scores)
    assert len(specs) == 5 * (3 if scores else 4) * 4
    compared = whence.compare(subject, texts, specs, batch_size=size)
    for raw, found in zip(texts, compared, strict=True):
        own = [a.scores for a in found]
        maps = products(raw) if scores else attentions(raw)
        assert distance(own, slow_grid(maps, multiplied=not scores)) < 1e-5
        assert distance(own, slow_grid(maps, multiplied=not scores, wrong="transposed")) > 0.01
        if scores:
            assert maps.min() < 0 < maps.max()
        else:
            assert distance(own, slow_grid(maps, multiplied=True, wrong="reversed")) > 0.01


MASKED = ["bert", "gpt2", "llama", "mistral", "gemma2", "gpt-oss", "xlnet", "deberta-v2", "t5", "torch-encoder"]


@pytest.mark.parametrize("name", [*MASKED, "torch-sdpa", "from-scratch", "vit"])
def test_the_softmax_of_what_was_recorded_gives_the_weights(name: str) -> None:
    subject = subject_of(name)
    items = [subject.encode(raw) for raw in family(name).inputs[:3]]
    items = [row for item in items for row, _ in subject.rows(item)[-1:]] or items
    hidden = 0
    for _, batch in subject.batches(items):
        trace = subject.trace(batch, subject.aim([None] * len(batch)), ("attention", "scores"))
        for record in trace.attention:
            weights, scores = record.weights.double(), record.scores.double()
            assert torch.isfinite(scores).all() and weights.shape == scores.shape
            seen = weights > 0
            raised = torch.where(seen, (scores - scores.amax(-1, keepdim=True)).exp(), 0.0)
            total = raised.sum(-1, keepdim=True).clamp(min=1e-30)
            torch.testing.assert_close(raised / total * weights.sum(-1, keepdim=True), weights, atol=1e-5, rtol=1e-4)
            assert (scores[~seen] == 0).all()
            hidden += int((~seen).sum())
    assert (hidden > 0) == (name in MASKED or name in ("torch-sdpa", "from-scratch"))


@pytest.mark.parametrize("name", ["bert", "vit", "gpt2", "llama", "bart"])
def test_scores_of_one_head_under_a_softmax(name: str) -> None:
    pair = ["attention(layer=0, heads=1, scores=True)", "attention(layer=0, heads=1)"]
    for given, made in whence.compare(subject_of(name), family(name).inputs[:3], pair):
        assert (given.scores < 0).any()
        streams = np.array(made.input.streams)
        for row, weights, seen in zip(*map(np.atleast_2d, (given.scores, made.scores, made.visible)), strict=True):
            for stream in set(streams[seen]) if name == "bart" else {""}:
                own = seen & ((streams == stream) | (stream == ""))
                np.testing.assert_allclose(np.exp(row[own]) / np.exp(row[own]).sum(), weights[own], atol=1e-5)


def test_tokens_receive_scores_from_the_queries_that_may_see_them() -> None:
    """The causal mask hides a late token from most queries: its mean and maximum are of the others."""
    subject, made, raw = subject_of("gpt2"), fresh("gpt2"), {"prompt": "the old man was", "continuation": " singing"}
    item = first(subject, raw)
    heads, given = made.model.config.n_head, []
    made.model.transformer.h[0].attn.c_attn.register_forward_hook(lambda _, args, out: given.append(out[0].detach()))
    with torch.no_grad():
        made.model(torch.from_numpy(item.tensors["input_ids"])[None])
    Q, K, _ = given[0].chunk(3, -1)
    Q, K = (X.unflatten(-1, (heads, -1)).transpose(0, 1) for X in (Q, K))
    S = (Q @ K.mT / Q.shape[-1] ** 0.5).mean(0).numpy()
    columns = [S[place:, place] for place in range(len(S))]
    for read, reduce in (("received", np.mean), ("received_sum", np.sum), ("received_max", np.max)):
        a = whence.explain(subject, raw, f"attention(layer=0, scores=True, read={read!r})")
        np.testing.assert_allclose(a.scores[0, : len(S)], [reduce(c) for c in columns], atol=1e-5)


# ---- choices ---------------------------------------------------------------------------------------------------------


@cache
def brute(metric: str) -> np.ndarray:
    """(candidate, example, label): every candidate explained and scored on its own."""
    subject = subject_of("bert")
    values = np.empty((len(SHORT), len(TEXTS), 3))
    for (c, spec), label in product(enumerate(SHORT), range(3)):
        values[c, :, label] = whence.score(subject, whence.explain(subject, TEXTS, spec, label), metric).values
    return values


@cache
def chosen_by(by: str, metric: str = "rft") -> whence.Arbitration:
    return whence.arbitrate(subject_of("bert"), TEXTS, SHORT, metric, by=by, labels="all", held_out="auac")  # type: ignore[arg-type]


@pytest.mark.parametrize("metric", ["rft", "sufficiency"])
@pytest.mark.parametrize("by", ["instance", "label", "set"])
def test_the_choice_is_that_of_brute_force(by: str, metric: str) -> None:
    found, values = chosen_by(by, metric), brute(metric)
    np.testing.assert_allclose(found.values, values, atol=1e-5)
    worth = values if metric == "rft" else -values
    best = {
        "label": worth.argmax(0),
        "instance": np.repeat(worth.mean(2).argmax(0)[:, None], 3, 1),
        "set": np.full((2, 3), worth.mean((1, 2)).argmax()),
    }[by]
    assert found.chosen.tolist() == best.tolist()
    assert found.spec == SHORT[worth.mean((1, 2)).argmax()]
    assert [a.method for a in found.explanations] == [SHORT[number] for number in best.ravel()]
    assert [a.target.index for a in found.explanations] == [0, 1, 2] * 2
    assert [a.input.raw for a in found.explanations] == [text for text in TEXTS for _ in range(3)]
    own = np.take_along_axis(values, best[None], 0)[0].mean(1)
    row = found.board.methods.index(found.spec if by == "set" else f"chosen by {by}")
    np.testing.assert_allclose(found.board.values[row, 0], own, atol=1e-5)


def test_the_finer_the_choice_the_better() -> None:
    label, instance, whole = (chosen_by(by).board.values[0, 0].mean() for by in ("label", "instance", "set"))
    assert label >= instance >= whole and label > whole + 1e-3
    assert whole >= chosen_by("set").values.mean((1, 2)).max() - 1e-6


def test_ranking_and_board() -> None:
    found, values = chosen_by("instance"), brute("rft")
    ranking = found.ranking()
    assert [value for _, value in ranking] == sorted((v for _, v in ranking), reverse=True)
    assert {name: pytest.approx(value, abs=1e-5) for name, value in ranking} == dict(
        zip(SHORT, values.mean((1, 2)), strict=True)
    )
    assert found.ranking(1)[0][0] == SHORT[values[:, 1].mean(1).argmax()]
    low = chosen_by("set", "sufficiency")
    assert low.better == "lower" and low.ranking()[0][1] == min(value for _, value in low.ranking())
    board = found.board
    assert board.metrics == ("rft", "auac") and set(board.methods) == {"chosen by instance", *SHORT}
    alone = brute("auac")[SHORT.index("gae")].mean(1)
    np.testing.assert_allclose(board.values[board.methods.index("gae"), 1], alone, atol=1e-5)


def test_a_choice_by_label_asks_for_all_labels() -> None:
    found = whence.arbitrate(subject_of("bert"), TEXTS[1], SHORT[:2], by="label")
    assert found.values.shape == (2, 1, 3) and len(found.explanations) == 3


@pytest.fixture
def partial_metric() -> Iterator[str]:
    @whence.metric(better="higher")
    def sometimes(subject: Any, case: Any, *, of: str = "gae", longest: int = 4) -> float:
        """Low, and defined for one method only, on short texts."""
        return -5.0 if case.method == of and len(case.free) <= longest else float("nan")

    yield "sometimes"
    registry.unregister("metric", "sometimes")


@pytest.mark.parametrize("by", ["instance", "set"])
def test_what_is_not_defined_never_wins(by: Any, partial_metric: str) -> None:
    subject = subject_of("bert")
    found = whence.arbitrate(subject, TEXTS, SHORT, "sometimes(longest=99)", by=by)
    assert set(found.chosen.ravel()) == {SHORT.index("gae")} and found.spec == "gae"
    assert np.isnan(found.ranking()[1][1])
    some = whence.arbitrate(subject, TEXTS, SHORT, "sometimes", by=by)
    assert some.spec == "gae" and any("not defined for 1 of 2" in note for note in some.notes)
    assert "sometimes" in str(some)
    with pytest.raises(ValueError, match="defined for no candidate"):
        whence.arbitrate(subject, TEXTS, SHORT, "sometimes(of='none')", by=by)


def test_masked_inputs_run_once_for_all_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    engines: list[MaskedRuns] = []
    monkeypatch.setattr(arbitration, "MaskedRuns", lambda *a, **k: engines.append(MaskedRuns(*a, **k)) or engines[-1])
    made, calls = fresh("bert"), [0]
    subject = whence.wrap(made.model, made.processor)
    whence.compare(subject, TEXTS, ["attention", "gae"])  # the model is known from here on
    made.model.register_forward_pre_hook(lambda *_: calls.append(calls.pop() + 1))
    for reads in (("row",), READS):
        monkeypatch.setattr(arbitration, "READS", reads)
        whence.arbitrate(subject, TEXTS, held_out=[])
        calls.append(0)
    few, many = engines
    masked = sum(1 + int((~subject.encode(text).special).sum()) for text in TEXTS)
    assert few.run == many.run <= masked
    assert many.asked > 3 * few.asked
    assert calls[1] <= calls[0] + 1  # the best may be explained beside the usual


def test_a_frozen_choice(planted: whence.Subject) -> None:
    examples = zoo.examples("planted", 8, 5)
    others = zoo.examples("planted", 8, 77)[4:]
    a, b = (
        whence.arbitrate(planted, [*examples[:4], *rest], SHORT, by="set", fit=4) for rest in (examples[4:], others)
    )
    assert a.values.shape == (len(SHORT), 4, 1) and a.board.values.shape[-1] == len(a.explanations) == 4
    assert a.chosen.shape == (4, 1) and a.candidates[a.chosen[0, 0]] == a.spec == b.spec
    np.testing.assert_array_equal(a.values, b.values)
    assert not np.array_equal(a.board.values, b.board.values)
    again = whence.explain(planted, [e.input for e in others], a.spec, [e.label for e in others])
    assert [x.method for x in b.explanations] == [a.spec] * 4
    for x, y in zip(b.explanations, again, strict=True):
        np.testing.assert_allclose(x.scores, y.scores, atol=1e-6)
    assert "chose among 4 candidates on 4 examples; the others are shown" in a.notes[0]


@pytest.mark.parametrize(
    ("metric", "held_out", "said"),
    [
        ("rft", "comprehensiveness", []),
        ("rft", "rft", ["rft chose and judges"]),
        ("rft", ["auac", "rft(mask='mask')"], ["rft chose and judges"]),
        ("auac", [], ["nothing but what chose judges"]),
    ],
)
def test_notes(metric: str, held_out: Any, said: list[str]) -> None:
    found = whence.arbitrate(subject_of("bert"), TEXTS[0], SHORT[:2], metric, held_out=held_out)
    assert found.notes[0] == f"{metric} chose among 2 candidates on the examples shown; its own values are the best"
    assert [note.split(":")[0] for note in found.notes[1:]] == said
    assert found.board.metrics[0] == metric and len(set(found.board.metrics)) == len(found.board.metrics)


# ---- data ------------------------------------------------------------------------------------------------------------


def test_labels_and_truths_of_data(planted: whence.Subject) -> None:
    examples = zoo.examples("planted", 4, 5)
    turned = [zoo.Example(e.input, "negative", e.truth) for e in examples]
    found = whence.arbitrate(planted, turned, ["random", "gae"], held_out="plausibility")
    assert {a.target.name for a in found.explanations} == {"negative"}
    same = whence.evaluate(planted, turned, ["gae"], ["rft", "plausibility"])
    np.testing.assert_allclose(found.board.values[found.board.methods.index("gae")], same.values[0], atol=1e-5)
    chosen = whence.arbitrate(planted, examples, ["random", "gae"], "plausibility", by="set")
    assert chosen.spec == "gae" and chosen.board.metrics == ("plausibility", "comprehensiveness")


def test_generated_text() -> None:
    subject, raw = subject_of("gpt2"), {"prompt": "the old man", "continuation": " was singing"}
    specs = ["attention", "gradient_x_input", "random"]
    found = whence.arbitrate(subject, raw, specs)
    rows = [whence.score(subject, whence.explain(subject, raw, spec), "rft").values for spec in specs]
    assert all(own is not None and len(own) > 1 for own in rows)
    means = [float(np.mean(own)) for own in rows]  # type: ignore[arg-type]
    np.testing.assert_allclose(found.values[:, 0, 0], means, atol=1e-5)
    assert found.spec == specs[int(np.argmax(means))] == found.explanations[0].method
    assert found.explanations[0].axes == ("generated", "feature")
    assert len(whence.arbitrate(subject, raw, ["grid"]).candidates) == 80
    translated = whence.arbitrate(subject_of("t5"), family("t5").inputs[0], ["grid(scores=True)"])
    assert len(translated.candidates) == 5 * 3 * 3 and translated.explanations[0].axes == ("generated", "feature")


def test_one_input_of_every_kind(tmp_path: Path) -> None:
    Image.fromarray(np.asarray(family("vit").inputs[1])).save(tmp_path / "a.png")
    pictures = [tmp_path / "a.png", str(tmp_path / "a.png"), family("vit").inputs[1], family("vit").inputs[0]]
    found = [whence.arbitrate(subject_of("vit"), one, ["gae", "random"]) for one in pictures]
    assert found[0].metric == "rft(mask='auto')" and found[0].board.hidden == ("zero", "zero")
    assert {a.values.shape for a in found} == {(2, 1, 1)}
    np.testing.assert_allclose(found[0].values, found[1].values)
    np.testing.assert_allclose(found[0].values, found[2].values, atol=1e-6)
    assert not np.allclose(found[0].values, found[3].values)
    pair = ("two dogs are playing", "the animals are outside")
    for one in (TEXTS[0], pair, dict(zip(("text", "pair"), pair, strict=True)), zoo.Example(TEXTS[0], "neutral")):
        alone = whence.arbitrate(subject_of("bert"), one, ["gae", "random"])
        assert len(alone.explanations) == 1 and alone.board.methods[0] == alone.spec
    longer = whence.arbitrate(
        subject_of("bert"), "word " * 80, ["gae", "random"], truncate=True
    )  # too long for a file name
    assert len(longer.explanations[0].features) == 64
    (tmp_path / "data.csv").write_text("text,label\na masterful film,neutral\nnobody cared,positive\n")
    (tmp_path / "more").mkdir()
    (tmp_path / "a.png").rename(tmp_path / "more" / "a.png")
    table = whence.arbitrate(subject_of("bert"), str(tmp_path / "data.csv"), ["gae", "random"])
    assert [a.target.name for a in table.explanations] == ["neutral", "positive"]
    folder = whence.arbitrate(subject_of("vit"), tmp_path / "more", ["gae", "random"])
    np.testing.assert_allclose(folder.values, found[0].values)


# ---- views and refusals ----------------------------------------------------------------------------------------------


def test_views(tmp_path: Path) -> None:
    single = whence.arbitrate(subject_of("bert"), TEXTS[0])
    for name, found in {"one": single, "many": chosen_by("instance"), "set": chosen_by("set")}.items():
        text, page = str(found), found.to_html()
        assert found.spec in " ".join(text.split()) and found.spec.replace("'", "&#39;") in page
        assert f"{len(found.candidates)} candidates" in text and found.notes[0] in " ".join(text.split())
        assert ("masterful" in text) == ("masterful" in page) == (len(found.explanations) == 1)
        found.save(tmp_path / f"{name}.json")
        assert whence.Arbitration.load(tmp_path / f"{name}.json") == found
        assert found.spec in repr(found)
    assert single != chosen_by("set")


def run(*args: object) -> Any:
    return CliRunner(env={"COLUMNS": "200", "WHENCE_MODEL": None}).invoke(cli.app, ["arbitrate", *map(str, args)])


def test_the_command(tmp_path: Path, planted: whence.Subject) -> None:
    examples = zoo.examples("planted", 4, 5)
    data = tmp_path / "data.csv"
    data.write_text("text,label\n" + "".join(f"{e.input},{e.label}\n" for e in examples))
    files = {kind: tmp_path / f"out.{ending}" for kind, ending in (("save", "json"), ("csv", "csv"), ("html", "html"))}
    flags = [part for kind, file in files.items() for part in (f"--{kind}", file)]
    specs = ["--candidates", "gae,attention(layer=0)", "--candidates", "random"]
    choice = ["--by", "set", "--fit", 2, "--held-out", "auac,deletion"]
    result = run(data, "--model", "planted", *specs, *choice, *flags)
    assert (result.exit_code, result.exception) == (0, None), result.output
    right = whence.arbitrate(
        planted, examples, ["gae", "attention(layer=0)", "random"], by="set", fit=2, held_out=["auac", "deletion"]
    )
    saved = whence.Arbitration.load(files["save"])
    assert (saved.spec, saved.candidates, saved.notes) == (right.spec, right.candidates, right.notes)
    np.testing.assert_allclose(saved.board.values, right.board.values, atol=1e-6)
    assert f"rft chose {right.spec} of 3 candidates" in result.stdout
    assert files["csv"].read_text() == saved.board.to_csv() and files["html"].read_text() == saved.to_html()


@pytest.mark.parametrize("given", ["a masterful film", '{"text": "a masterful film"}', "word " * 80])
def test_the_command_on_a_text(given: str) -> None:
    result = run(given, "--model", "planted", "--candidates", "gae,random", "--truncate")
    assert result.exit_code == 0, result.output
    assert "rft chose" in result.stdout and "of 2 candidates" in result.stdout


def test_the_command_without_its_data() -> None:
    result = run("missing.csv", "--model", "planted")
    assert result.exit_code == 1 and "there is no file or folder 'missing.csv'" in result.stderr


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        ({"by": "word"}, "by is 'instance', 'label' or 'set', not 'word'"),
        ({"labels": "some"}, "labels is 'target' or 'all', not 'some'"),
        ({"candidates": []}, "candidates is a list of at least one"),
        ({"candidates": "gae"}, "candidates is a list of at least one"),
        ({"candidates": ["grid", "rolout"]}, "unknown method 'rolout'; did you mean 'rollout'"),
        ({"candidates": ["grid(heads=1)"]}, "grid takes one option, scores=True or scores=False"),
        ({"candidates": ["grid(scores=1)"]}, "grid takes one option, scores=True or scores=False"),
        ({"metric": "rtf"}, "unknown metric 'rtf'; did you mean 'rft'"),
        ({"held_out": "auuc"}, "unknown metric 'auuc'; did you mean"),
        ({"fit": 1}, "give by='set' with it"),
        ({"by": "set", "fit": 0}, "fit takes a whole number from 1 to 1,000,000,000 or None, not 0"),
        ({"by": "set", "fit": 2}, "above 0 and below 2 here, not 2"),
        ({"data": []}, "the data is empty"),
        ({"seed": -1}, "seed takes a whole number from 0 to"),
    ],
)
def test_bad_input(call: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError) as error:
        whence.arbitrate(subject_of("bert"), call.pop("data", TEXTS), **call)
    assert sentence in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("asked", [{"by": "label"}, {"by": "label", "labels": "all"}, {"labels": "all"}])
def test_a_language_model_has_no_labels(asked: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"labels='all' needs classes with names, and .* has none"):
        whence.arbitrate(subject_of("gpt2"), "the old man", SHORT[:2], **asked)


def test_a_model_that_was_not_wrapped() -> None:
    with pytest.raises(TypeError, match=r"make one with whence\.load or whence\.wrap"):
        whence.arbitrate(family("bert").model, "a masterful film")  # type: ignore[arg-type]
