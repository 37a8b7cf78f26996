"""Attention sinks: the model built by hand has one, it is found, nothing else is, and every option against sinks works.

The slow twin of the detector reads the definition query by query from what transformers itself returns; the twins of
the options `sinks` write out the maps row by row. Each twin can be told to make one mistake, and must then be far off.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

import whence
from families import FAMILIES, family, subject_of
from whence.methods.sinks import HEADS, LOOKED_AT, Found, sinks_of, without_sinks
from whence.propagation import fused_attention, long_inputs
from whence.testing import induction

LAYERS = 12
EXAMPLES = induction.examples(6, seed=3, words=21, pairs=3)


@cache
def built(sink: bool = True, layers: int = LAYERS) -> whence.Subject:
    return induction.subject(layers, sink=sink, longest=512)


def found(subject: whence.Subject, raws: list[Any]) -> list[Found | None]:
    return sinks_of(subject, [subject.encode(raw) for raw in raws])


# ---- the model that was built by hand --------------------------------------------------------------------------------


def chance(subject: whence.Subject, text: str, word: str) -> float:
    """The probability that the model goes on with this word."""
    logits = subject.logits(subject.batch([subject.encode(text)]))[0]
    return float(logits.softmax(-1)[induction.WORDS.index(word)])


@pytest.mark.parametrize("sink", [True, False])
@pytest.mark.parametrize(("layers", "words"), [(30, 31), (12, 21), (3, 7), (12, 401)])
def test_the_model_answers_at_any_length(sink: bool, layers: int, words: int) -> None:
    for example in induction.examples(3, seed=1, words=words, pairs=min(3, (words - 3) // 2)):
        assert chance(built(sink, layers), example.input, example.label) > 0.9


def test_the_truth_is_what_decides() -> None:
    for example in EXAMPLES[:3]:
        words, places = example.input.split(), np.flatnonzero(example.truth)
        for i in range(len(words) - 1):
            left = chance(built(), " ".join([*words[:i], induction.UNKNOWN, *words[i + 1 :]]), example.label)
            assert left < 0.1 if i in places else left > 0.9, words[i]
        words[places[1]] = next(value for value in induction.VALUES if value not in words)
        assert chance(built(), " ".join(words), words[places[1]]) > 0.9


def test_the_first_word_is_the_sink_whatever_it_is() -> None:
    words = EXAMPLES[0].input.split()
    for first in (words[0], "that", induction.UNKNOWN, "Norway"):
        (one,) = found(built(), [" ".join([first, *words[1:]])])
        assert one is not None and np.flatnonzero(one.sinks).tolist() == [0]


def test_prompts_that_cannot_be_made_are_refused() -> None:
    with pytest.raises(ValueError, match="odd number of words"):
        induction.examples(1, words=20)
    with pytest.raises(ValueError, match="at least 3"):
        induction.model(2)


# ---- the detector ----------------------------------------------------------------------------------------------------


def by_hand(subject: whence.Subject, raw: Any, wrong: str = "") -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The share of heads that sink into every token, attention received and value lengths, (layer, token), by loops."""
    model = subject.model
    values: list[np.ndarray] = []
    hooks = [
        layer.self_attn.v_proj.register_forward_hook(lambda module, args, out: values.append(out[0].detach().numpy()))
        for layer in model.model.layers
    ]
    implementation = model.config._attn_implementation
    model.set_attn_implementation("eager")
    ids = torch.tensor(subject.encode(raw).tensors["input_ids"])[None]
    with torch.no_grad():
        attention = [layer[0].numpy() for layer in model(input_ids=ids, output_attentions=True).attentions]
    model.set_attn_implementation(implementation)
    for hook in hooks:
        hook.remove()
    heads, size = attention[0].shape[0], ids.shape[1]
    groups = heads // model.config.num_key_value_heads
    sinking, received, lengths = np.zeros(size), np.zeros((len(values), size)), np.zeros((len(values), size))
    for number, (weights, flat) in enumerate(zip(attention, values, strict=True)):
        norms = np.linalg.norm(flat.reshape(size, -1, flat.shape[-1] // model.config.num_key_value_heads), axis=-1)
        for head in range(heads):
            own = norms[:, head // groups]
            relative = own / max(np.sort(own)[(size - 1) // 2], np.finfo(np.float32).tiny)
            for key in range(size):
                queries = [q for q in range(size) if q > key and q + 1 >= 3 and (q != key or wrong == "itself counts")]
                if wrong == "itself counts":
                    queries = [q for q in range(size) if q >= key and q + 1 >= 3]
                given = [weights[head, q, key] if wrong != "axes swapped" else weights[head, key, q] for q in queries]
                limits = [0.3 if wrong == "even share forgotten" else max(0.3, 2 / (q + 1)) for q in queries]
                many = sum(g >= limit for g, limit in zip(given, limits, strict=True)) * 2 >= len(queries)
                small = relative[key] <= 0.5 or wrong == "values forgotten"
                sinking[key] += len(queries) >= 3 and many and small
                received[number, key] += (np.mean(given) if queries else 0.0) / heads
                lengths[number, key] += relative[key] / heads
    return sinking / (heads * len(values)), received, lengths


@pytest.mark.parametrize("case", ["sink", "no sink", "llama", "recall"])
def test_the_detector_equals_its_slow_twin(case: str) -> None:
    subject = {"sink": built, "no sink": lambda: built(False), "recall": lambda: whence.load("recall")}.get(
        case, lambda: subject_of("llama")
    )()
    raws = family("llama").inputs[:2] if case == "llama" else [EXAMPLES[0].input]
    raws = [whence.zoo.examples("recall", 1)[0].input] if case == "recall" else raws
    for raw, one in zip(raws, found(subject, raws), strict=True):
        assert one is not None
        share, received, lengths = by_hand(subject, raw)
        np.testing.assert_allclose(one.heads, share, atol=1e-6)
        np.testing.assert_allclose(one.received, received, atol=1e-5)
        np.testing.assert_allclose(one.values, lengths, rtol=1e-4, atol=1e-5)
        assert one.sinks.tolist() == (share >= HEADS).tolist()


@pytest.mark.parametrize("wrong", ["axes swapped", "itself counts", "values forgotten"])
def test_a_wrong_detector_is_caught(wrong: str) -> None:
    differ = []
    for subject, raw in ((built(), EXAMPLES[0].input), (whence.load("recall"), "k3 v7 k1 v2 k3")):
        (one,) = found(subject, [raw])
        share, received, _ = by_hand(subject, raw, wrong)
        assert one is not None
        differ.append(max(np.abs(one.heads - share).max(), np.abs(one.received - received).max()))
    assert max(differ) > 1e-3


def test_massive_entries_are_told() -> None:
    (one,) = found(built(), [EXAMPLES[0].input])
    assert one is not None
    assert one.states[0, 0] < 2 and (one.states[1:, 0] > 50).all() and (one.states[:, 1:] < 2).all()


def test_padding_changes_nothing() -> None:
    raws = [example.input for words in (9, 21) for example in induction.examples(2, seed=words, words=words, pairs=1)]
    for alone, together in zip([found(built(), [raw])[0] for raw in raws], found(built(), raws), strict=True):
        assert alone is not None and together is not None
        for name in ("sinks", "heads", "received", "values", "states"):
            np.testing.assert_allclose(getattr(alone, name), getattr(together, name), atol=1e-5)


def test_of_a_long_text_the_beginning_is_enough() -> None:
    text = induction.examples(1, words=LOOKED_AT + 45)[0].input
    a = whence.explain(built(), text, "gradient")
    assert len(a.sinks) == LOOKED_AT + 45 and np.flatnonzero(a.sinks).tolist() == [0]


@pytest.mark.parametrize("name", FAMILIES)
def test_models_with_random_weights_have_none(name: str) -> None:
    for one in found(subject_of(name), family(name).inputs[:2]):
        assert one is None if family(name).windows else one is not None and not one.sinks.any()


@pytest.mark.parametrize("name", ["digits", "planted", "recall", "dates", "shapes", "textures"])
def test_trained_models_that_have_none(name: str) -> None:
    found_in = found(whence.load(name), [example.input for example in whence.zoo.examples(name, 8, seed=5)])
    assert not any(one.sinks.any() for one in found_in if one is not None)


def test_what_sst2_does_with_cls_is_a_sink() -> None:
    """[CLS] of sst2 gets a third of all attention and has values of a tenth: without them the logits hardly change."""
    subject = whence.load("sst2")
    raws = sorted((example.input for example in whence.zoo.examples("sst2", 40, seed=5)), key=len)[10:16]
    items = [subject.encode(raw) for raw in raws]
    changes = []
    for item, one in zip(items, sinks_of(subject, items), strict=True):
        assert one is not None and one.sinks.sum() <= 1
        if not one.sinks.any():
            continue
        batch = subject.batch([item])
        plain = subject.logits(batch)

        def changed(token: int, batch: Any = batch, plain: Any = plain) -> float:
            def edit(record: Any, weights: Any, values: Any) -> Any:
                others = torch.arange(values.shape[-2])[:, None] != token
                return weights, values * others

            return float((subject.logits(batch, edit=edit) - plain).abs().max())

        sink = int(one.sinks.argmax())
        changes.append(changed(sink) / np.median([changed(i) for i in range(len(item.features)) if i != sink]))
        assert item.features[sink] == "[CLS]"
    assert len(changes) >= 4 and np.median(changes) < 1


# ---- what a result says ----------------------------------------------------------------------------------------------


def test_a_result_says_what_its_sinks_are() -> None:
    a = whence.explain(built(), EXAMPLES[0].input, "lrp")
    assert a.sinks.tolist() == [True] + [False] * 20
    assert a.details["sinks"].tolist() == [0] and a.details["sink_received"].shape == (LAYERS, 1)
    assert (a.details["sink_values"][1:] < 0.1).all() and a.details["sink_states"].max() > 50
    assert any("is an attention sink: 92% of the heads" in note for note in a.notes)
    assert any("explain a contrast" in note for note in a.notes)
    assert a.words().sinks.tolist() == a.sinks.tolist()
    assert whence.Attribution.from_dict(a.to_dict()) == a
    rows = whence.explain(built(), {"prompt": EXAMPLES[0].input, "continuation": " Rome Oslo"}, "lrp")
    assert rows.scores.shape[0] == 2 and np.flatnonzero(rows.sinks).tolist() == [0]


def test_a_result_of_a_model_without_sinks_says_nothing() -> None:
    for subject, raw in ((built(False), EXAMPLES[0].input), (whence.load("recall"), "k3 v7 k1 v2 k3")):
        a = whence.explain(subject, raw, "lrp")
        assert not a.sinks.any() and "sinks" not in a.details and not any("sink" in note for note in a.notes)


def test_advice_is_given_only_where_the_sink_is_first() -> None:
    a = whence.explain(built(), EXAMPLES[0].input, "leave_one_out")
    assert a.sinks.any() and not any("largest score" in note for note in a.notes)


def test_a_unit_that_has_its_score_from_a_sink_says_so() -> None:
    text = EXAMPLES[0].input
    spans = [(0, len(" ".join(text.split()[:8]))), " ".join(text.split()[8:20])]
    said = f"the span that begins with ‘{text.split()[0]}’ holds an attention sink, which makes"
    for method in ("gae", "lrp"):
        assert any(said in note for note in whence.explain(built(), text, method, level=spans).notes)
    contrast = f"contrast({EXAMPLES[0].label!r}, 'Suva')" if EXAMPLES[0].label != "Suva" else "contrast('Suva', 'Rome')"
    for method, target in (("leave_one_out", None), ("lrp", contrast)):
        assert not any("holds an" in note for note in whence.explain(built(), text, method, target, level=spans).notes)
    alone = whence.explain(built(), text, "gae", level="word")
    assert alone.sinks[0] and not any("holds an" in note for note in alone.notes)


def test_merged_words_keep_their_sinks() -> None:
    a = whence.explain(built(), EXAMPLES[0].input, "lrp")
    assert a.words().sinks.tolist() == a.sinks.tolist() and a.sinks.any()  # every word is one token here
    assert a.sentences().sinks.tolist() == [False]  # a sentence is more than the sink in it
    with pytest.raises(ValueError, match="sinks"):
        whence.Attribution(a.scores, a.input, a.method, a.target, a.output, sinks=np.zeros(3))


# ---- the ways out ----------------------------------------------------------------------------------------------------


def ranks_of_truth(method: str, contrast: bool, examples: Any = EXAMPLES) -> list[int]:
    """For every example, the rank of the better of the two true words among all but the last."""
    ranks = []
    for example in examples:
        other = next(value for value in induction.VALUES if value not in example.input.split())
        target = f"contrast({example.label!r}, {other!r})" if contrast else None
        a = whence.explain(built(), example.input, method, target)
        sizes = np.abs(a.scores[:-1])
        ranks.append(int((sizes > sizes[example.truth[:-1]].max()).sum()))
    return ranks


@pytest.mark.parametrize("method", ["gae", "lrp", "decompx", "attention", "rollout", "globenc", "value_zeroing"])
def test_the_sink_is_first_before(method: str) -> None:
    for example in EXAMPLES[:2]:
        assert whence.explain(built(), example.input, method).scores.argmax() == 0


@pytest.mark.parametrize("method", ["gae", "lrp", "decompx"])
def test_a_contrast_takes_the_sink_away(method: str) -> None:
    assert min(ranks_of_truth(method, contrast=False, examples=EXAMPLES[:2])) > 0
    assert ranks_of_truth(method, contrast=True) == [0] * len(EXAMPLES)


@pytest.mark.parametrize("method", ["rollout", "globenc", "alti"])
def test_attention_to_a_sink_that_stays_in_place_finds_the_truth(method: str) -> None:
    ranks = ranks_of_truth(f"{method}(sinks='stay')", contrast=False)
    assert np.mean(ranks) <= 1


def test_excluding_moves_the_collapse_to_the_next_word() -> None:
    a = whence.explain(built(True, 30), EXAMPLES[0].input, "rollout(sinks='exclude')")
    assert a.scores[0] == 0 and a.scores[1] > 0.9 and any("collapsed" in note for note in a.notes)


def rolled(subject: whence.Subject, raw: Any, how: str, wrong: str = "") -> np.ndarray:
    """Rollout without its sinks, row by row, of a causal model that is read at its last token."""
    item = subject.encode(raw)
    batch = subject.batch([item])
    trace = subject.trace(batch, subject.aim([None]), ("attention", "deciding"))
    (one,) = sinks_of(subject, [item])
    assert one is not None
    size = len(item.features)
    product = np.eye(size)
    for record in trace.attention:
        mean = record.weights[0].double().mean(0).numpy()
        step = np.zeros((size, size))
        for q in range(size):
            row = mean[q].copy()
            total = row.sum()
            for key in np.flatnonzero(one.sinks):
                if key != q or wrong == "own too":
                    row[key] = 0
            if how == "exclude" and wrong != "not scaled":
                row = row * total / row.sum() if row.sum() > 0 else np.eye(size)[q] * total
            elif how == "stay":
                row[q] += total - row.sum()
            step[q] = 0.5 * row + 0.5 * np.eye(size)[q]
        product = step @ product
    return product[-1]


@pytest.mark.parametrize("how", ["exclude", "stay"])
def test_rollout_without_sinks_equals_its_slow_twin(how: str) -> None:
    raws = [example.input for words in (9, 21) for example in induction.examples(1, seed=words, words=words, pairs=2)]
    for a, raw in zip(whence.explain(built(), raws, f"rollout(sinks='{how}')"), raws, strict=True):
        np.testing.assert_allclose(a.scores, rolled(built(), raw, how), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(("how", "wrong"), [("exclude", "not scaled"), ("exclude", "own too"), ("stay", "own too")])
def test_a_wrong_rollout_without_sinks_is_caught(how: str, wrong: str) -> None:
    a = whence.explain(built(), EXAMPLES[0].input, f"rollout(sinks='{how}')")
    # The sink's own row leads nowhere but to itself, so giving it away shows on the other rows only where it is scaled.
    far = np.abs(a.scores - rolled(built(), EXAMPLES[0].input, how, wrong)).max()
    assert far > 1e-3 if wrong == "not scaled" else far < 1e-6


def test_maps_without_sinks() -> None:
    maps = torch.tensor([[[1.0, 0, 0], [0.6, 0.4, 0], [0.5, 0.3, 0.2]]])
    sinks = torch.tensor([[True, False, False]])
    everything = slice(0, 3)
    kept, stays = without_sinks(maps, sinks, "exclude", everything, everything)
    np.testing.assert_allclose(kept[0], [[1, 0, 0], [0, 1, 0], [0, 0.6, 0.4]], atol=1e-6)
    assert stays.abs().max() == 0
    kept, stays = without_sinks(maps, sinks, "stay", everything, everything)
    np.testing.assert_allclose(kept[0], [[1, 0, 0], [0, 0.4, 0], [0, 0.3, 0.2]], atol=1e-6)
    np.testing.assert_allclose(stays[0], [0, 0.6, 0.5], atol=1e-6)
    nothing = torch.tensor([[[1.0, 0, 0], [1.0, 0, 0]]])  # rows 1 and 2, of which nothing is left
    kept, stays = without_sinks(nothing, sinks, "exclude", slice(1, 3), everything)
    assert kept.abs().max() == 0 and stays.tolist() == [[1.0, 1.0]]


def test_attention_and_gae_without_sinks() -> None:
    raw, item = EXAMPLES[0].input, built().encode(EXAMPLES[0].input)
    plain = whence.explain(built(), raw, "attention").scores
    without = whence.explain(built(), raw, "attention(sinks='exclude')").scores
    np.testing.assert_allclose(without[1:], plain[1:] / plain[1:].sum(), rtol=1e-4)
    assert without[0] == 0
    trace = built().trace(built().batch([item]), built().aim([None]), ("attention_gradient", "deciding"))
    relevance = np.zeros((21, 21))
    for record in trace.attention:
        maps = (record.gradient[0] * record.weights[0]).clamp(min=0).mean(0).double().numpy()
        maps[1:, 0] = 0
        relevance += maps @ (relevance + np.eye(21))
    np.testing.assert_allclose(
        whence.explain(built(), raw, "gae(sinks='exclude')").scores, relevance[-1], rtol=1e-3, atol=1e-9
    )
    with pytest.raises(ValueError, match="reads none"):
        whence.explain(built(), raw, "attention(scores=True, sinks='exclude')")


@pytest.mark.parametrize("method", ["rollout(sinks='stay')", "rollout(sinks='exclude')", "gae(sinks='exclude')"])
def test_long_inputs_give_the_same(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = EXAMPLES[0].input
    monkeypatch.setattr(long_inputs, "LONG_BYTES", 2**62)
    kept = whence.explain(built(), raw, method)
    monkeypatch.setattr(long_inputs, "LONG_BYTES", 0)
    monkeypatch.setattr(fused_attention, "TILE_BYTES", 4 * 21 * 5)
    again = whence.explain(built(), raw, method)
    np.testing.assert_allclose(again.scores, kept.scores, rtol=1e-3, atol=1e-6)
    assert again.notes == kept.notes


@pytest.mark.parametrize("method", ["flow", "globenc", "alti", "value_zeroing"])
@pytest.mark.parametrize("how", ["exclude", "stay"])
def test_a_sink_gets_nothing(method: str, how: str) -> None:
    raws = [example.input for words in (7, 11) for example in induction.examples(1, seed=words, words=words, pairs=1)]
    together = whence.explain(built(), raws, f"{method}(sinks='{how}')")
    for a, raw in zip(together, raws, strict=True):
        assert a.scores[0] == 0 and a.scores[1:].max() > 0
        np.testing.assert_allclose(a.scores, whence.explain(built(), raw, a.method).scores, rtol=1e-3, atol=1e-6)
