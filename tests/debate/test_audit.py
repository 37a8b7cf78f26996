"""The frame of an audit: every kind of model, options, files, resuming, views, and what callers get wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import whence
from families import LABELS, TEXTS, family, fresh, subject_of
from planted_attention import WORDS, Planted, encode, planted, texts
from whence.cli import app
from whence.core import registry
from whence.core.audits import GRADES, Audit, Quantity
from whence.debate import auditing
from whence.debate.places import Place, places_of
from whence.debate.verdicts import Conclusion, Evidence, graded
from whence.model.attention_runs import AttentionRuns

QUICK = ["agreement(top=2)", "permutation(permutations=5)", "uniform", "erasure", "removal(draws=1)", "signs"]
SEARCH = "adversary(steps=3, restarts=2)"


@cache
def small() -> Audit:
    """An audit of a small encoder on six texts, with labels."""
    rows = [{"text": text, "label": LABELS[n % 3]} for n, text in enumerate([*TEXTS, *TEXTS[:2]])]
    return whence.audit(subject_of("bert"), rows, [*QUICK, SEARCH])


KINDS = ["bert", "roberta", "vit", "dinov2", "llama", "t5", "bart", "clip", "lxmert", "bert-tagger"]
KINDS += ["distilbert-answerer", "albert-filler", "torch-multihead", "from-scratch", "torch-sdpa"]


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_model_is_audited(name: str) -> None:
    made = family(name)
    found = whence.audit(subject_of(name), made.inputs[:1], [*QUICK, SEARCH], seed=1)
    assert [finding.name for finding in found] == [spec.partition("(")[0] for spec in [*QUICK, SEARCH]]
    for finding in found:
        assert finding.quantities, finding.answer
        if len(found.examples) == 1:
            assert finding.grade == "cannot tell" and "an answer needs 5 or more" in finding.answer
    divergence = found["adversary"]["divergence"].values
    assert (divergence >= 0).all() and (divergence <= np.log(2)).all()
    assert (found["adversary"]["change"].values <= 0.01).all()


def test_a_pair_of_texts_is_audited() -> None:
    found = whence.audit(subject_of("bert"), [{"text": "two dogs", "pair": "the animals play"}], ["erasure"])
    assert found["erasure"]["effect of highest"].defined == 1


def test_the_same_call_gives_the_same_audit_and_leaves_the_model_alone() -> None:
    made = fresh("bert")
    subject = whence.wrap(made.model, made.processor, **made.kwargs)
    before = subject.fingerprint(full=True)
    first, again, other = (whence.audit(subject, TEXTS, [*QUICK, SEARCH], seed=seed) for seed in (3, 3, 4))
    assert first == again and first != other
    assert subject.fingerprint(full=True) == before


def test_an_example_has_its_numbers_whatever_stands_beside_it() -> None:
    alone, among = (whence.audit(subject_of("bert"), data, QUICK) for data in (TEXTS[:1], TEXTS))
    for finding in alone:
        for quantity in finding.quantities:
            other = among[finding.experiment][quantity.name, quantity.where].values[0]
            np.testing.assert_allclose(quantity.values[0], other, atol=1e-5)


# ---- what attention is -----------------------------------------------------------------------------------------------


def runs_of(name: str, raw: Any = None) -> AttentionRuns:
    subject = subject_of(name)
    item = subject.encode(family(name).inputs[0] if raw is None else raw)
    rows = subject.rows(item)
    return AttentionRuns(subject, rows[-1][0] if rows else item)


def only(places: dict[str, list[Place]]) -> Place:
    ((place,),) = places.values()
    return place


def test_layers_and_heads_are_those_that_were_named() -> None:
    runs = runs_of("bert")
    assert list(places_of(runs, "last", "together", "deciding", False)) == ["layer 1"]
    assert list(places_of(runs, "each", "together", "deciding", False)) == ["layer 0", "layer 1"]
    assert list(places_of(runs, [0, -1], "together", "deciding", False)) == ["layer 0", "layer 1"]
    together = only(places_of(runs, "all", "together", "all", False))
    assert [block.record.order for block in together.blocks] == [0, 1] and together.name == "all layers"
    assert together.blocks[0].weights.shape[1] == len(runs.batch.inputs[0].features)
    by_head = places_of(runs, 0, "each", "deciding", False)["layer 0"]
    assert [place.blocks[0].heads for place in by_head] == [[0], [1], [2], [3]]
    assert only(places_of(runs, "last", [1, -1], "deciding", False)).blocks[0].heads == [1, 3]


def test_the_own_attention_is_what_the_method_reads() -> None:
    for name in ("bert", "vit", "llama", "t5", "torch-multihead"):
        runs = runs_of(name)
        item = runs.batch.inputs[0]
        place = only(places_of(runs, "last", "together", "deciding", True))
        method = registry.resolve("method", "attention")
        from whence.methods.explaining import Settings, explained

        scores = explained(runs.subject, [item], [method], [None], Settings())[0][0].scores
        np.testing.assert_allclose(place.attention, scores, atol=1e-6)


@pytest.mark.parametrize("name", ["bert", "llama", "t5", "lxmert"])
@pytest.mark.parametrize("rows", ["deciding", "all"])
def test_other_attention_keeps_sums_special_tokens_and_what_is_hidden(name: str, rows: Any) -> None:
    runs = runs_of(name)
    place = only(places_of(runs, "last", "together", rows, False))
    gone = np.zeros((2, place.features), bool)
    gone[1, np.flatnonzero(place.free)[0]] = True
    variants = [place.permuted(3, np.random.default_rng(0)), place.uniform(), place.without(gone)]
    for new in variants:
        for block, weights in zip(place.blocks, new, strict=True):
            fixed = ~block.free.expand_as(weights)
            assert torch.equal(weights[fixed], block.weights.expand_as(weights)[fixed])
            alone = (block.free.sum(-1) == 1).expand_as(weights[..., 0])  # nothing is left to take the weight over
            sums, own = weights.sum(-1), block.weights.sum(-1).expand_as(weights[..., 0])
            assert torch.allclose(sums[~alone], own[~alone], atol=1e-6)
    permuted, own = variants[0][0], place.blocks[0].weights
    assert torch.allclose(permuted.sort(-1).values, own.expand_as(permuted).sort(-1).values)
    assert place.divergence(place.permuted(1, np.random.default_rng(1))).item() > 0
    assert place.divergence([block.weights[None] for block in place.blocks]).item() == 0


def test_what_was_edited_is_reported() -> None:
    found = whence.audit(
        subject_of("bert"),
        TEXTS,
        ["permutation(permutations=3, heads='together')", "uniform(layers=0)", "agreement(reading='rollout')"],
        layers="all",
        heads="each",
        special=True,
    )
    said = [finding.attention for finding in found]
    assert "all layers at once, its heads together" in said[0] and "special tokens among them" in said[0]
    assert "layers 0, its heads one by one, averaged" in said[1] and "read as rollout" in said[2]
    assert [finding.places for finding in found] == [("all layers",), ("layer 0",), ("rollout",)]


def test_layers_in_turn_have_numbers_and_grades_of_their_own_and_a_mean() -> None:
    finding = small()["uniform"]
    assert finding.places == ("", "layer 0", "layer 1") and list(finding.grades) == ["layer 0", "layer 1"]
    layers = [finding["change", f"layer {n}"].values for n in (0, 1)]
    np.testing.assert_allclose(finding["change"].values, np.mean(layers, 0))


# ---- results ---------------------------------------------------------------------------------------------------------


def test_an_audit_is_saved_and_loaded_exactly(tmp_path: Path) -> None:
    small().save(tmp_path / "a.json")
    assert Audit.load(tmp_path / "a.json") == small()


def test_an_audit_is_shown_and_written_in_every_form(tmp_path: Path) -> None:
    found = small()
    text = str(found)
    page = found.to_html()
    for finding in found:
        assert finding.experiment in text and finding.grade in text and finding.question in page
    assert "only" in page and "a random one: yes" in page
    for ending in (".json", ".html", ".png", ".csv"):
        found.write(tmp_path / f"a{ending}")
        assert (tmp_path / f"a{ending}").stat().st_size > 500
    lines = found.to_csv().splitlines()
    assert lines[0] == "experiment,grade,number,attention,example,predicted,label,length,value"
    assert len(lines) == 1 + sum(len(q.values) for f in found for q in f.quantities)


def test_numbers_have_means_intervals_and_groups() -> None:
    found = small()
    quantity = found["erasure"]["effect of highest"]
    assert quantity.mean == pytest.approx(quantity.values.mean()) and quantity.interval is not None
    assert quantity.interval[0] <= quantity.mean <= quantity.interval[1]
    for by in ("predicted", "length"):
        groups = found.groups(by)
        assert sorted(np.concatenate(list(groups.values())).tolist()) == list(range(6)) if groups else True
        for name, own in found.by_group("erasure", "effect of highest", by).items():
            assert own.mean == pytest.approx(quantity.values[groups[name]].mean())
    assert len(found.groups("length")) > 1
    table = found["erasure"].tables[0].cells
    assert table.sum() == pytest.approx(1)
    right = found["uniform"]["right"].values
    assert right.tolist() == [float(p == label) for p, label in zip(found.predicted, found.labels, strict=True)]


def test_grades_are_given_by_thresholds() -> None:
    assert graded(0.9, (0.8, 1.0), 0.3, 0.7) == "explains" and graded(0.5, (0.4, 0.6), 0.3, 0.7) == "partly"
    assert graded(0.1, (0.0, 0.2), 0.3, 0.7) == "does not" and graded(0.5, (0.1, 0.9), 0.3, 0.7) == "cannot tell"
    assert graded(0.1, (0.0, 0.2), 0.7, 0.3) == "explains" and graded(0.9, (0.8, 1.0), 0.7, 0.3) == "does not"
    assert graded(0.9, None, 0.3, 0.7) == "cannot tell" and graded(float("nan"), (0, 1), 0.3, 0.7) == "cannot tell"
    with pytest.raises(ValueError, match="a grade is one of"):
        whence.Finding("x", "?", "!", "maybe")
    assert set(GRADES) == {"explains", "partly", "does not", "cannot tell"}


def test_a_highest_weight_that_hardly_moves_the_output_explains_nothing() -> None:
    numbers = dict.fromkeys(("both flip", "only highest flips", "only random flips", "neither flips"), np.zeros(9))
    numbers |= {"highest has the greater effect": np.ones(9), "effect of random": np.full(9, 1e-9)}
    for effect, grade in ((1e-5, "does not"), (1e-2, "explains")):
        evidence = Evidence({**numbers, "effect of highest": np.full(9, effect)}, 9)
        conclude = registry.find("experiment", "erasure").conclude
        assert conclude is not None and conclude(evidence, {}).grade == grade


def test_a_number_without_values_is_nan() -> None:
    nothing = Quantity("n", "", np.array([np.nan, np.nan]))
    assert np.isnan(nothing.mean) and nothing.interval is None and nothing.defined == 0


# ---- running ---------------------------------------------------------------------------------------------------------


def test_a_stopped_audit_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    file, whole = tmp_path / "run.jsonl", whence.audit(planted("between"), texts(12), QUICK)
    run, calls = auditing.run_chunk, []

    def stopping(*given: Any) -> Any:
        calls.append(given[1])
        if len(calls) > 1:
            raise KeyboardInterrupt
        return run(*given)

    with monkeypatch.context() as patched:
        patched.setattr(auditing, "run_chunk", stopping)
        with pytest.raises(KeyboardInterrupt):
            whence.audit(planted("between"), texts(12), QUICK, resume=file)
    assert "stopped after 1 of 12 examples" in capsys.readouterr().err
    assert whence.audit(planted("between"), texts(12), QUICK, resume=file) == whole
    assert whence.audit(planted("between"), texts(12), QUICK, resume=file) == whole  # nothing is left to run
    with pytest.raises(ValueError, match="holds an audit of another kind"):
        whence.audit(planted("between"), texts(12), QUICK, resume=file, seed=1)
    (tmp_path / "other").write_text(json.dumps({"model": "x"}) + "\n")
    with pytest.raises(ValueError, match="is no file of an audit"):
        whence.audit(planted("between"), texts(12), QUICK, resume=tmp_path / "other")


def test_the_command_audits_and_lists(tmp_path: Path) -> None:
    table = tmp_path / "reviews.tsv"
    table.write_text("text\tlabel\na masterful film\tpositive\na dull film\tnegative\n", encoding="utf-8")
    page = tmp_path / "a.html"
    given = ["audit", str(table), "-m", "planted", "--experiment", "erasure,permutation(permutations=3)"]
    done = CliRunner().invoke(app, [*given, "--layers", "[0, -1]", "--heads", "each", "--html", str(page)])
    assert done.exit_code == 0, done.output
    assert "erasure" in done.output and page.stat().st_size > 1000
    wrong = CliRunner().invoke(app, ["audit", str(tmp_path / "none.tsv")])
    assert wrong.exit_code == 2 and "to audit on" in wrong.output
    listed = CliRunner().invoke(app, ["experiments"]).output
    assert all(record.name in listed for record in whence.list_experiments())
    shown = CliRunner().invoke(app, ["experiments", "adversary"]).output
    assert "epsilon" in shown and "Limit" in shown


def test_an_own_experiment_is_run_like_the_others() -> None:
    @whence.experiment(question="How long?", conclude=lambda evidence, options: Conclusion("partly", "Long."))
    def length(scene: Any, *, times: int = 1) -> dict[str, dict[str, float]]:
        """How many features there are."""
        return {"": {"features": float(times * len(scene.item.features))}}

    try:
        found = whence.audit(subject_of("bert"), TEXTS, ["length(times=2)"])
        assert found["length"].grade == "partly" and found["length"]["features"].defined == 4
        assert "length" not in auditing.usual_experiments()  # those that are run unasked edit attention
    finally:
        registry.unregister("experiment", "length")


# ---- what callers get wrong ------------------------------------------------------------------------------------------


class NoAttention(nn.Module):
    """The mean of word embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.word = nn.Embedding(1000, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return self.head(self.word(input_ids).mean(1))


def test_a_model_without_attention_over_its_inputs_is_told_in_every_finding() -> None:
    bare = whence.wrap(NoAttention().eval(), **family("torch-encoder").kwargs)
    for subject, data in ((bare, TEXTS[:2]), (subject_of("swin"), family("swin").inputs[:1])):
        found = whence.audit(subject, data, ["permutation", "agreement", SEARCH])
        assert found.verdict == "cannot tell" and [f.grade for f in found] == ["cannot tell"] * 3
        assert all("The question is not defined here" in finding.answer for finding in found)
        assert str(found) and found.to_html() and found.plot()


def test_texts_of_one_token_have_no_numbers_and_are_counted_out() -> None:
    found = whence.audit(subject_of("bert"), ["film", *TEXTS], ["erasure", "permutation(permutations=3)"])
    assert (
        np.isnan(found["erasure"]["effect of highest"].values[0]) and found["erasure"]["effect of highest"].defined == 4
    )
    alone = whence.audit(subject_of("bert"), ["film"], ["erasure"])
    assert alone["erasure"].grade == "cannot tell" and "enough features" in alone["erasure"].answer


def test_examples_of_one_class_without_labels_have_no_groups_and_no_accuracy() -> None:
    found = whence.audit(subject_of("bert"), [TEXTS[0]] * 3, ["uniform"])
    assert found.groups("predicted") == {} and found.groups("length") == {}
    assert "right" not in found["uniform"].names and found.labels == ("", "", "")


def test_an_output_that_never_changes_has_findings_without_an_answer_from_numbers_that_do_not_exist() -> None:
    model = Planted("irrelevant").eval()
    model.beside.zero_()
    found = whence.audit(whence.wrap(model, encode=encode, labels=WORDS), texts(6), [*QUICK, SEARCH])
    assert found["agreement"].grade == found["signs"].grade == "cannot tell"
    assert found["permutation"].grade == found["uniform"].grade == found["erasure"].grade == "does not"


WRONG: list[tuple[Callable[[], Any], str]] = [
    (lambda: whence.audit(subject_of("bert"), []), "the data is empty"),
    (lambda: whence.audit(subject_of("bert"), TEXTS, []), "experiments is a list of at least one"),
    (lambda: whence.audit(subject_of("bert"), TEXTS, ["permutations"]), "unknown experiment"),
    (lambda: whence.audit(subject_of("bert"), TEXTS, ["permutation(count=3)"]), "has no option 'count'"),
    (lambda: whence.audit(subject_of("bert"), TEXTS, ["adversary(epsilon=0)"]), "epsilon"),
    (lambda: whence.audit(subject_of("bert"), TEXTS, layers="first"), "layers"),  # type: ignore[arg-type]
    (lambda: whence.audit(subject_of("bert"), TEXTS, ["erasure"], layers=7), "layer 7 is out of range"),
    (lambda: whence.audit(subject_of("bert"), TEXTS, ["erasure"], heads=9), "heads=9 is out of range"),
    (lambda: whence.audit(subject_of("bert"), TEXTS, ["removal(methods=['nope'])"]), "unknown method"),
    (lambda: whence.audit(subject_of("bert"), [{"text": "a film", "label": "great"}], ["erasure"]), "great"),
    (lambda: small()["erasures"], "no experiment"),
    (lambda: small()["erasure"]["effects"], "has no number"),
    (lambda: small().groups("colour"), "'predicted' or 'length'"),
]


@pytest.mark.parametrize(("call", "sentence"), WRONG)
def test_what_is_wrong_is_said(call: Callable[[], Any], sentence: str) -> None:
    with pytest.raises((ValueError, KeyError), match=sentence):
        call()
