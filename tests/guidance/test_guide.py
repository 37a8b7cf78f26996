"""`whence.guide`: planted truth, a planted shortcut, the report over seeds, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import whence
from families import fresh
from shortcuts import classifier, sentences
from whence.core.guidances import Measure
from whence.guidance import guiding
from whence.guidance.lessons import feature_marks, lessons_of
from whence.guidance.measuring import calibration_error, divergence
from whence.guidance.objective import Objective
from whence.guidance.training import Schedule, logits_of, trained

FAST = Schedule(epochs=8, rate=3e-3)


def accuracy(subject: whence.Subject, rows: list[Any]) -> float:
    lessons = lessons_of(subject, rows)
    return float(
        (logits_of(subject, lessons).argmax(-1) == torch.tensor([one.label for one in lessons])).float().mean()
    )


def plausibility(subject: whence.Subject, rows: list[Any]) -> float:
    return float(np.nanmean(whence.evaluate(subject, rows, ["attention"], ["plausibility"]).values))


def test_a_rationale_keeps_the_model_from_a_shortcut_and_its_attention_on_the_cue(tmp_path: Path) -> None:
    """In training a last word gives the label away. The plain model takes it; the one whose attention is taught the cue
    word does not, and its attention finds the cue."""
    subject, test = classifier(), sentences(60, 99, shortcut=False)
    before = subject.fingerprint(full=True)
    lessons = lessons_of(subject, sentences(256, 1, shortcut=True))
    plain, _ = trained(subject, lessons, None, FAST, 0, tmp_path)
    guided, history = trained(subject, lessons, Objective(["rationale"]), FAST, 0, tmp_path)
    assert subject.fingerprint(full=True) == before
    with_shortcut = sentences(60, 98, shortcut=True)
    assert accuracy(plain, with_shortcut) == accuracy(guided, with_shortcut) == 1.0
    assert accuracy(plain, test) < 0.75
    assert accuracy(guided, test) > 0.95
    assert accuracy(plain.with_attention(ignore=["zig", "zag"]), test) > 0.95  # the cue was learnt, too
    assert plausibility(plain, test[:30]) < 0.75
    assert plausibility(guided, test[:30]) > 0.95
    assert history.steps == 64 and history.losses["rationale"][-1] < 0.1 * history.losses["rationale"][0]


def test_attention_that_is_told_to_look_away_does_not_stop_the_shortcut(tmp_path: Path) -> None:
    """The model still reads the shortcut in earlier layers: attention of one layer is not what it goes by."""
    subject = classifier()
    lessons = lessons_of(subject, sentences(256, 1, shortcut=True, marks="shortcut"))
    away, _ = trained(subject, lessons, Objective(["rationale(away=True)"]), FAST, 0, tmp_path)
    scores = whence.explain(away, "the dog stood near a lovely house zag", "attention")
    assert scores.scores[scores.features.index("zag")] < 0.05
    assert accuracy(away, sentences(60, 99, shortcut=False)) < 0.75


def test_a_report_over_seeds(tmp_path: Path) -> None:
    subject, folder = classifier(), tmp_path / "guided"
    random = torch.get_rng_state()
    options: dict[str, Any] = {"held_out": 0.25, "rate": 3e-3, "batch_size": 16, "methods": ["attention"], "epochs": 2}
    found = whence.guide(
        subject,
        sentences(64, 1, True),
        ["rationale(weight=0.5)", "stay_close(weight=0.1)"],
        seeds=[0, 1],
        folder=folder,
        **options,
    )
    assert torch.equal(torch.get_rng_state(), random)
    assert found.arms == ("given", "plain", "guided") and found.seeds == (0, 1)
    names = [measure.name for measure in found.measures]
    assert names[:2] == ["accuracy", "calibration error"] and names[-1] == "attention between seeds"
    for metric in ("comprehensiveness", "sufficiency", "auac", "plausibility"):
        assert f"{metric} of attention" in names
    assert found.trained_on == 48 and found.held_out == 16 and found.marked == 48
    assert (found.steps == [[0, 0], [6, 6], [6, 6]]).all()
    loaded = whence.load(str(folder / "seed-1"))
    assert accuracy(loaded, sentences(20, 9, True)) >= 0.0
    again = whence.guide(
        subject, sentences(64, 1, True), ["rationale(weight=0.5)"], seeds=[0], control=False, **options
    )
    assert again.arms == ("given", "guided") and again.before == "given"
    assert np.isnan(found["attention between seeds"].values[0]).all()
    file = tmp_path / "found.json"
    found.save(file)
    assert whence.load_result(file) == found
    assert found.provenance["asked"]["losses"] == ["rationale(weight=0.5)", "stay_close(weight=0.1)"]


def test_held_out_examples_that_were_trained_on_are_told() -> None:
    rows = sentences(8, 1, True)
    options: dict[str, Any] = {"seeds": [0], "methods": ["attention"], "epochs": 1, "control": False}
    found = whence.guide(classifier(), rows, ["rationale"], held_out=[*rows[:2], *sentences(4, 2, True)], **options)
    assert "2 of 6 held-out examples were trained on, too." in found.notes
    apart = whence.guide(classifier(), rows, ["rationale"], held_out=sentences(4, 2, True), **options)
    assert not any("trained on, too" in note for note in apart.notes)


def test_training_is_repeatable_and_weight_0_is_plain(tmp_path: Path) -> None:
    subject = classifier()
    lessons = lessons_of(subject, sentences(32, 1, True))
    schedule = Schedule(epochs=1, rate=1e-3, batch_size=8)
    runs = [
        trained(subject, lessons, objective, schedule, 4, tmp_path)[0].model.state_dict()
        for objective in (None, None, Objective(["rationale(weight=0)", "right_reasons(weight=0)"]))
    ]
    for other in runs[1:]:
        for name, value in runs[0].items():
            assert torch.equal(value, other[name]), name


def test_training_stops_early_and_takes_the_best_weights(tmp_path: Path) -> None:
    subject = classifier()
    lessons = lessons_of(subject, sentences(64, 1, True))
    # A rate that makes every look worse than the first: patience of one look ends the training.
    schedule = Schedule(epochs=20, rate=0.5, batch_size=16, patience=1)
    _, history = trained(subject, lessons[:48], None, schedule, 0, tmp_path, checked=lessons[48:])
    assert history.stopped and history.steps < 60
    kept = [file.name for file in tmp_path.rglob("*") if file.suffix in (".safetensors", ".bin", ".pt", ".pth")]
    assert "model.safetensors" in kept and not [name for name in kept if name.endswith((".bin", ".pt", ".pth"))]


def test_rationales_of_pictures_mark_patches() -> None:
    made = fresh("vit")
    subject = whence.wrap(made.model, made.processor, **made.kwargs)
    item = subject.encode(made.inputs[0])
    width, height = item.size or (0, 0)
    marked = feature_marks(item, {"box": [0, 0, width / 2, height]})
    rows, columns = item.grid or (0, 0)
    grid = marked[~item.special].reshape(rows, columns)
    assert grid[:, : columns // 2].all() and not grid[:, columns - columns // 2 :].any()


@pytest.mark.parametrize("name", ["vit", "gpt2-classifier", "torch-multihead"])
def test_other_kinds_of_classifiers_are_trained(name: str, tmp_path: Path) -> None:
    made = fresh(name)
    subject = whence.wrap(made.model, made.processor, **made.kwargs)
    labels = list(subject.labels or ())
    rows = []
    for number, raw in enumerate(made.inputs * 2):
        item = subject.encode(raw)
        truth: Any = {"box": [0, 0, item.size[0] / 2, item.size[1]]} if item.size else ~item.special
        if not item.size:
            truth[len(truth) // 2 :] = False
        part = "image" if item.size else "text"
        rows.append({part: raw, "label": labels[number % len(labels)], "truth": truth})
    lessons = lessons_of(subject, rows)
    schedule = Schedule(epochs=10, rate=1e-3, batch_size=8)
    spec = "rationale(read='received', weight=5)"
    _, history = trained(subject, lessons, Objective([spec, "disagreement"]), schedule, 0, tmp_path)
    values = history.losses[spec]
    assert np.isfinite(values).all() and np.mean(values[-2:]) < 0.9 * np.mean(values[:2])


class NoAttention(torch.nn.Module):
    """A bag of words."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(50, 2)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.embed(input_ids).mean(1)


def _bag_of_words() -> whence.Subject:
    def encode(text: str) -> dict[str, Any]:
        words = text.split()
        return {"tensors": {"input_ids": np.array([len(word) for word in words])}, "features": {"text": words}}

    return whence.wrap(NoAttention(), encode=encode, labels=["negative", "positive"])


ROWS = sentences(8, 1, True)


@pytest.mark.parametrize(
    ("rows", "losses", "said"),
    [
        (
            [*ROWS, {**ROWS[0], "truth": "unseen"}],
            ["rationale"],
            "example 8: the truth names 'unseen', which is not in",
        ),
        ([*ROWS, {**ROWS[0], "truth": [0] * 99}], ["rationale"], "example 8: truth has the shape"),
        (
            [*ROWS, {**ROWS[0], "truth": ROWS[0]["text"]}],
            ["rationale"],
            "marks every feature, so nothing can be learnt",
        ),
        ([*ROWS, {"text": "the dog", "label": "positive", "truth": [0, 0]}], ["rationale"], "marks no feature"),
        (
            [{"text": row["text"], "label": row["label"]} for row in ROWS],
            ["rationale"],
            "no training example has a rationale",
        ),
        (
            [{"text": row["text"]} for row in ROWS] + [{"text": "a", "label": "positive"}],
            ["entropy"],
            "8 of 9 have none",
        ),
        ([*ROWS, {"text": "the dog", "label": "cheerful"}], ["entropy"], "example 8: .*cheerful"),
        (ROWS, ["rationale", "rationale(away=True)"], "contradict each other"),
        (ROWS[:1], ["rationale"], "1 example cannot be split"),
        (ROWS, ["rationale(layers=[99])"], "layer 99 is out of range"),
    ],
)
def test_what_cannot_be_trained_on_is_refused_before_training(
    rows: list[Any], losses: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainings: list[Any] = []
    monkeypatch.setattr(guiding, "trained", lambda *given, **options: trainings.append(given) or trained(*given))
    with pytest.raises(ValueError, match=said) as raised:
        whence.guide(classifier(), rows, losses, held_out=0.5)
    assert "\n" not in str(raised.value) and not trainings


def test_models_that_cannot_be_guided_are_refused(tmp_path: Path) -> None:
    made = fresh("gpt2")
    writer = whence.wrap(made.model, made.processor, **made.kwargs)
    with pytest.raises(ValueError, match="guide trains classifiers with one label per input"):
        whence.guide(writer, ROWS, ["rationale"])
    rows = [{"text": row["text"], "label": row["label"]} for row in ROWS]
    with pytest.raises(ValueError, match="no attention was seen while NoAttention ran"):
        whence.guide(_bag_of_words(), rows, ["entropy"], held_out=0.5)
    swin = fresh("swin")
    windows = whence.wrap(swin.model, swin.processor, **swin.kwargs)
    pictures = [{"image": raw, "label": (windows.labels or ("",))[0]} for raw in swin.inputs]
    with pytest.raises(ValueError, match="does not look at its inputs token by token"):
        whence.guide(windows, pictures, ["entropy"], held_out=0.5)
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="is not empty; name a new one"):
        whence.guide(classifier(), ROWS, ["rationale"], folder=tmp_path)
    for options, said in (
        ({"seeds": []}, "seeds takes a list"),
        ({"seeds": [1, 1]}, "seeds is a list of different"),
        ({"held_out": 1.5}, "held_out takes a number above 0 and below 1"),
        ({"epochs": 0}, "epochs takes a number above 0"),
        ({"methods": "attention"}, "methods is a list"),
    ):
        with pytest.raises(ValueError, match=re.escape(said)):
            whence.guide(classifier(), ROWS, ["rationale"], **options)  # type: ignore[arg-type]


def test_calibration_and_divergence_by_hand() -> None:
    confidence, right = np.array([0.95, 0.95, 0.65, 0.65]), np.array([1.0, 0.0, 1.0, 1.0])
    assert calibration_error(confidence, right) == pytest.approx(0.5 * 0.45 + 0.5 * 0.35)
    assert divergence(np.array([1.0, 0.0]), np.array([0.0, 1.0])) == pytest.approx(np.log(2))
    assert divergence(np.array([0.3, 0.7]), np.array([0.3, 0.7])) == 0


def test_an_interval_holds_the_truth_as_often_as_it_says() -> None:
    """Differences with effects of seeds and of examples: the interval of their mean covers the truth in 95 of 100."""
    draws = np.random.default_rng(0)
    held = 0
    for _ in range(300):
        gaps = (
            0.1 + 0.02 * draws.normal(size=(3, 1)) + 0.1 * draws.normal(size=(1, 40)) + 0.1 * draws.normal(size=(3, 40))
        )
        examples = np.stack([np.zeros_like(gaps), gaps])
        measure = Measure("x", "higher", examples.mean(-1), examples)
        found = whence.Guidance(
            "m",
            ("rationale",),
            ("plain", "guided"),
            (0, 1, 2),
            (measure,),
            {},
            1,
            1,
            40,
            np.ones((2, 3)),
            np.ones((2, 3)),
        )
        low, high = found.difference("x").interval or (0.0, 0.0)
        held += low <= 0.1 <= high
    assert held >= 0.93 * 300
