"""Experiments that train again: verdicts where the truth is planted, formulas written out, what must not change."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from scipy.spatial.distance import jensenshannon

import whence
from planted_attention import labelled, learnable
from planted_shortcut import FILLERS, LABELS, texts, trained
from whence.debate.guides import Guide, guided
from whence.debate.retraining import Course, Example, Seen, apart, attention_of, equal_weights, f1
from whence.debate.verdicts import Evidence
from whence.model.retraining import Learner, edited_logits, seen_by
from whence.views.content.audit import spread

PLANTED = "fresh=None, steps=160, rate=0.1"


@cache
def audited(kind: str, experiment: str) -> Any:
    subject = learnable(kind)
    found = whence.audit(subject, labelled(subject, 30, 1), [experiment], train=labelled(subject, 60, 2))
    return found.findings[0]


# ---- planted verdicts ------------------------------------------------------------------------------------------------


def test_an_adversary_fails_to_move_attention_that_is_the_output() -> None:
    found = audited("explains", f"trained_adversary(pulls=[0.0, 0.1, 1.0], {PLANTED})")
    assert found.grade == "explains" and found["change"].mean < 0.05 and found["share of ln 2"].mean < 0.1
    assert found["change, lambda 1"].mean > 0.2  # attention that is pulled away takes the output with it


def test_an_adversary_moves_attention_that_does_not_matter() -> None:
    found = audited("irrelevant", f"trained_adversary(pulls=[0.0, 0.1, 1.0], {PLANTED})")
    assert found.grade == "does not" and found["change"].mean < 1e-6 and found["share of ln 2"].mean > 0.5
    assert found["divergence, lambda 1"].mean > found["divergence, lambda 0"].mean + 0.05


def test_equal_weights_in_training_cost_what_attention_was_worth() -> None:
    experiment = f"trained_uniform({PLANTED})"
    assert audited("explains", experiment).grade == "explains"
    assert audited("explains", experiment)["right, uniform"].mean < 0.5
    assert audited("irrelevant", experiment).grade == "does not"
    assert audited("irrelevant", experiment)["loss of right decisions"].mean == 0


def test_attention_without_an_effect_is_left_where_the_seed_put_it() -> None:
    experiment = f"seed_variance(seeds=2, {PLANTED})"
    idle, needed = audited("irrelevant", experiment), audited("explains", experiment)
    assert idle["change"].mean == pytest.approx(0, abs=1e-6) and idle["same decision"].mean == 1
    assert idle["share of ln 2"].mean > 2 * needed["share of ln 2"].mean
    assert needed["right, trained again"].mean > 0.9


def test_a_guide_is_as_good_as_its_weights() -> None:
    """The label is one of the words of a text, and nothing but the weights tells which."""
    subject, rng = trained(), np.random.default_rng(0)
    words = FILLERS[:6]
    examples, seen = [], []
    for _ in range(240):
        own = [str(word) for word in rng.permutation(words)]
        place = int(rng.integers(6))
        item = subject.encode(" ".join(own))
        examples.append(Example(item, words.index(own[place])))
        weights = torch.zeros(1, len(item.features), dtype=torch.double)
        weights[0, place + 1] = 1.0
        seen.append(Seen(weights, torch.zeros(6)))
    parts = (examples[:200], examples[200:])
    labels = [example.label for example in parts[1]]

    def share(weights: Any) -> float:
        return float(np.mean(np.array(guided(subject, *parts, weights, 0, 150, 1e-2)) == labels))

    assert share((seen[:200], seen[200:])) > 0.95
    assert share("uniform") < 0.4 and share(None) < 0.4


# ---- formulas --------------------------------------------------------------------------------------------------------


def test_attention_is_the_row_of_the_deciding_token_over_words() -> None:
    subject = trained()
    items = [subject.encode(row["text"]) for row in texts(4, 3)]
    batch = subject.batch(items)
    found = attention_of(seen_by(subject, batch), Course())
    each = attention_of(seen_by(subject, batch), Course(layers="all", heads="each"))
    subject.model.set_attn_implementation("eager")
    with torch.no_grad():
        maps = subject.model(**batch.tensors, output_attentions=True).attentions  # (batch, head, query, key) each
    for row, item in enumerate(items):
        words = np.flatnonzero(~item.special)
        weights = maps[-1][row].mean(0)[0].double().numpy()
        assert found[row, 0].numpy()[words] == pytest.approx(weights[words] / weights[words].sum(), abs=1e-6)
        assert float(found[row].sum()) == pytest.approx(1)
        first = maps[0][row, 1, 0].double().numpy()
        assert each[row, 1].numpy()[words] == pytest.approx(first[words] / first[words].sum(), abs=1e-6)
    assert found.shape[1] == 1 and each.shape[1] == 4


def test_distances_are_those_of_the_papers() -> None:
    rng = np.random.default_rng(0)
    p, q = rng.dirichlet(np.ones(7), 2), rng.dirichlet(np.ones(7), 2)  # (place, feature)
    slow = np.mean([jensenshannon(a, b) ** 2 for a, b in zip(p, q, strict=True)])
    assert float(apart(torch.tensor(p), torch.tensor(q))) == pytest.approx(slow)
    kl = np.mean([(a * np.log(a / b)).sum() for a, b in zip(p, q, strict=True)])
    assert float(apart(torch.tensor(p), torch.tensor(q), "kl")) == pytest.approx(kl)
    assert f1([1, 1, 0, 0, 1], [1, 0, 0, 1, 1]) == pytest.approx(2 * 2 / (3 + 3))
    assert f1([0, 1, 2, 2], [0, 1, 2, 1]) == pytest.approx(np.mean([1, 2 * 1 / 3, 2 * 1 / 3]))


def test_a_guide_is_its_formula() -> None:
    guide = Guide(torch.randn(5, 4, generator=torch.Generator().manual_seed(0)), 3, 0, own=True)
    ids, free = torch.tensor([[1, 2, 4, 0]]), torch.tensor([[True, True, True, False]])
    embedded = [guide.words[i] for i in (1, 2, 4)]
    scores = torch.stack([((e @ guide.query).tanh() @ guide.score)[0] for e in embedded])
    weights = scores.exp() / scores.exp().sum()
    mixed = sum(w * (e @ guide.inner).relu() for w, e in zip(weights, embedded, strict=True))
    assert torch.allclose(guide(ids, free, None)[0], mixed @ guide.outer + guide.bias, atol=1e-6)


def test_equal_weights_are_equal_over_words() -> None:
    subject = trained()
    batch = subject.batch([subject.encode(row["text"]) for row in texts(3, 5)])
    edit, noted = equal_weights(subject, batch, Course()), []

    def noting(record: Any, weights: torch.Tensor, values: torch.Tensor) -> Any:
        new = edit(record, weights, values)
        noted.append((weights, new[0]))
        return new

    with torch.no_grad():
        logits = edited_logits(subject, batch, noting)
    assert torch.equal(*noted[0]) and len(noted) == 2  # the first layer is left alone
    for row, item in enumerate(batch.inputs):
        words = torch.from_numpy(np.flatnonzero(~item.special))
        own = noted[1][1][row, :, 0]
        assert torch.allclose(own[:, words], torch.full((2, len(words)), 1 / len(words)))
        assert torch.allclose(own.sum(-1), torch.ones(2))
    assert not torch.allclose(logits, subject.logits(batch), atol=1e-3)


# ---- what learns, and what does not ----------------------------------------------------------------------------------


def test_only_the_last_part_of_a_copy_learns() -> None:
    subject = trained()
    before = {name: p.clone() for name, p in subject.model.named_parameters()}
    item = subject.encode("good0 bad1 filler2")
    learner = Learner(subject, item, 1, 0)
    batch = learner.subject.batch([item])
    state = torch.get_rng_state()
    learner.learn(lambda step: seen_by(learner.subject, batch, graph=True).logits[0, 0], 3, 1e-2)
    assert torch.equal(state, torch.get_rng_state())
    changed = {name for name, p in learner.subject.model.named_parameters() if not torch.equal(p, before[name])}
    assert any("layer.1.attention" in name for name in changed) and any("classifier" in name for name in changed)
    assert not any("layer.0." in name or "embeddings" in name for name in changed)
    assert all(torch.equal(p, before[name]) for name, p in subject.model.named_parameters())
    assert all(p.requires_grad for p in subject.model.parameters())


def test_a_run_repeats_and_leaves_the_model_alone() -> None:
    subject, rows = trained(), texts(24, 6)
    before = subject.fingerprint(full=True)
    experiments = ["trained_uniform(steps=3)", "guide(steps=2, guide_steps=3, seeds=1)"]
    found = whence.audit(subject, rows, experiments, train=rows, seed=1)
    assert subject.fingerprint(full=True) == before
    assert found == whence.audit(subject, rows, experiments, train=rows, seed=1)
    table = found["guide"].tables[0]
    assert table.rows[1] == "uniform" and table.columns == ("right", "F1")
    assert table.cells[1, 0] == pytest.approx(found["guide"]["right, uniform"].mean)


def test_experiments_that_retrain_stand_beside_the_others() -> None:
    rows = texts(20, 6)
    found = whence.audit(trained(), rows, ["seed_variance(steps=2)", "uniform"], train=rows, seeds=2, limit=6)
    assert [finding.name for finding in found] == ["seed_variance", "uniform"]
    assert "2 seeds" in found["seed_variance"].answer and len(found["seed_variance"]["divergence"].values) == 6
    assert found["seed_variance"].question in found.to_html()


def test_the_curve_of_an_adversary_is_drawn() -> None:
    found = audited("irrelevant", f"trained_adversary(pulls=[0.0, 0.1, 1.0], {PLANTED})")
    drawn = spread(found)
    assert drawn is not None and drawn.line and len(drawn.x) == 3
    assert drawn.y.tolist() == [found[f"divergence, lambda {pull}"].mean for pull in ("0", "0.1", "1")]


def test_an_adversary_that_moved_nothing_cannot_tell() -> None:
    found = audited("explains", "trained_adversary(pulls=[0.0, 0.01], fresh=None, steps=160, rate=0.1)")
    assert found.grade == "cannot tell" and "too weak to tell" in found.answer


def test_a_guide_without_room_cannot_tell() -> None:
    values = {f"right, {name}": np.ones(9) for name in ("uniform", "own attention", "model's attention")}
    values |= {"right": np.ones(9), "right, adversary's attention": np.zeros(9)}
    record = next(r for r in whence.list_experiments() if r.name == "guide")
    assert record.conclude(Evidence(values, 9), {}).grade == "cannot tell"


# ---- bad input -------------------------------------------------------------------------------------------------------


def test_what_cannot_be_trained_is_refused_in_one_sentence() -> None:
    rows, plain = texts(25, 6), [row["text"] for row in texts(25, 6)]
    one = [row for row in texts(80, 6) if row["label"] == LABELS[0]]
    cases: list[tuple[dict[str, Any], str]] = [
        ({"train": plain}, "every example of train= needs a label to learn from, and 25 of 25 have none"),
        ({"train": rows[:5]}, "20 examples or more to learn from, and has 5"),
        ({"train": one}, "two classes or more"),
        ({"train": None}, "seed_variance trains the model again"),
        ({"train": [{"text": "good0", "label": "odd"}] * 25}, "odd"),
    ]
    for options, message in cases:
        with pytest.raises(ValueError, match=message):
            whence.audit(trained(), rows, ["seed_variance(steps=1)"], **options)
    with pytest.raises(ValueError, match="train= is for experiments that train the model again, and none is named"):
        whence.audit(trained(), rows, ["uniform"], train=rows)
    with pytest.raises(ValueError, match="recall is a causal-lm model"):
        whence.audit(whence.load("recall"), ["a b"], ["seed_variance"], train=["a b"] * 30)
    unlabelled = whence.audit(trained(), plain, ["trained_uniform(steps=1)"], train=rows)
    assert unlabelled.findings[0].grade == "cannot tell" and "have a label" in unlabelled.findings[0].answer
