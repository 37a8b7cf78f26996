"""Words that must not count: attention to them is closed in every pass, exactly as if the model's own mask hid them."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AttentionInterface

import whence
from families import FAMILIES, family, fresh, subject_of
from whence.core.inputs import Input
from whence.methods.explaining import Settings, explained
from whence.model import batching, closing
from whence.model.attention_runs import AttentionRuns
from whence.model.interventions import entries_of, ignoring, with_ignored
from whence.propagation import long_inputs


def example(name: str, number: int = 1) -> Input:
    """An example of a family; of generated text, as the model saw it before the last token."""
    item = subject_of(name).encode(family(name).inputs[number])
    rows = subject_of(name).rows(item)
    return rows[-1][0] if rows else item


def middle(item: Input) -> int:
    """A token of the first stream that is neither special nor at an end."""
    first = [i for i in range(len(item.features)) if not item.special[i] and item.streams[i] == item.streams[0]]
    return first[1]


def by_own_mask(item: Input, number: int) -> Input:
    """The input with a token hidden by the model's own attention mask."""
    hidden = item.tensors["attention_mask"].copy()
    hidden[number] = 0
    return replace(item, tensors={**item.tensors, "attention_mask": hidden})


def logits(name: str, item: Input) -> torch.Tensor:
    return subject_of(name).logits(subject_of(name).batch([item]))


# Not clip, one of whose towers takes no mask, and not visual-bert, which counts the mask to know where to read.
OTHERS = ("clip", "visual-bert")
# Methods by which an ignored word may get a score: windows hide its neighbours too, the others fit or draw numbers.
FITTED = ("random", "occlusion", "lime", "shap", "context_cite")
HAVE_MASKS = [name for name in FAMILIES if name not in OTHERS and "attention_mask" in example(name).tensors]


@pytest.mark.parametrize("name", HAVE_MASKS)
def test_closed_attention_is_what_the_models_own_mask_gives(name: str) -> None:
    """The slow twin: padding in the middle. Encoders, grouped-query decoders, sinks, encoder-decoders, two towers."""
    item = example(name)
    number = middle(item)
    closed, plain = logits(name, replace(item, ignored=(number,))), logits(name, item)
    twin = logits(name, by_own_mask(item, number))
    scale = plain.abs().max().clamp(min=1.0)
    assert (closed - twin).abs().max() <= 1e-5 * scale
    assert (closed - plain).abs().max() > 1e-4 * scale


def masking_eager(numbers: list[int], length: int) -> Any:
    """Attention written out, with these keys masked wherever there are so many keys."""

    def attend(module: Any, query: Any, key: Any, value: Any, mask: Any, scaling: Any = None, **_: Any) -> Any:
        groups = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        scores = query @ key.transpose(2, 3) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
        scores = scores if mask is None else scores + mask[..., : key.shape[2]]
        if key.shape[2] == length:
            scores[..., numbers] = float("-inf")
        return (scores.softmax(-1) @ value).transpose(1, 2).contiguous(), None

    return attend


@pytest.mark.parametrize("name", ["vit", "deit", "dinov2", "clip"])
def test_where_a_model_takes_no_mask_a_masked_attention_function_is_the_twin(name: str) -> None:
    made = fresh(name)
    subject = whence.wrap(made.model, made.processor, **made.kwargs)
    item = subject.encode(made.inputs[0])
    stream = "image"
    members = [i for i, one in enumerate(item.streams) if one == stream]
    numbers = members[3:5]
    closed = subject.logits(subject.batch([replace(item, ignored=tuple(numbers))]))
    AttentionInterface.register("twin", masking_eager([n - members[0] for n in numbers], len(members)))
    made.model.set_attn_implementation({"": "twin", "vision_config": "twin", "text_config": "eager"})
    with torch.no_grad():
        tensors = {key: torch.from_numpy(array)[None] for key, array in item.tensors.items()}
        outputs = made.model(**tensors)
        twin = outputs.logits_per_image if name == "clip" else outputs.logits
    assert (closed - twin).abs().max() <= 1e-5 * twin.abs().max().clamp(min=1.0)


def test_closing_without_renormalising_is_another_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broken twin: weights are set to 0 and the others left as they were."""
    item = example("bert")
    twin = logits("bert", by_own_mask(item, middle(item)))
    monkeypatch.setattr(closing.Softmax, "again", lambda self, weights, keys, empty: weights.masked_fill(keys, 0.0))
    broken = logits("bert", replace(item, ignored=(middle(item),)))
    assert (broken - twin).abs().max() > 1e-3


def test_weights_that_are_more_than_a_softmax_are_closed_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a model multiplies weights by a gate: every row keeps its sum, which is the same mask up to rounding."""
    monkeypatch.setattr(closing.Softmax, "again", lambda *given: None)
    item = example("bert")
    closed = logits("bert", replace(item, ignored=(middle(item),)))
    assert (closed - logits("bert", by_own_mask(item, middle(item)))).abs().max() <= 1e-5


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_every_method_explains_the_model_under_the_intervention(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """f(x), base and scores of every method are those of the model whose own mask hides the word."""
    monkeypatch.setattr(batching, "_digest", lambda item: 0)  # both inputs draw the same random numbers
    subject, item = subject_of(name), example(name)
    number = middle(item)
    specs = [(record, {}) for record in whence.list_methods() if subject.task in record.tasks]
    pair = [replace(item, ignored=(number,)), by_own_mask(item, number)]
    closed, twin = (explained(subject, [one], specs, [None], Settings())[0] for one in pair)
    for a, b in zip(closed, twin, strict=True):
        scale = max(1.0, float(np.abs(b.scores).max()))
        assert a.output == pytest.approx(b.output, abs=1e-5), a.method
        assert np.abs(a.scores - b.scores).max() <= 1e-4 * scale, a.method
        assert a.intervention is not None and a.intervention.ignored == (item.features[number].strip(),)
        if a.method not in FITTED:
            assert a.scores[number] == 0, a.method


def test_every_method_of_pictures_explains_the_model_under_the_intervention() -> None:
    subject, item = subject_of("vit"), example("vit")
    closed = replace(item, ignored=(3, 4))
    expected = float(logits("vit", closed).max())
    specs = [(record, {}) for record in whence.list_methods() if subject.task in record.tasks]
    for a in explained(subject, [closed], specs, [None], Settings())[0]:
        assert a.output == pytest.approx(expected, abs=1e-5), a.method
        if a.method in ("attention", "rollout", "gae", "lrp", "gradient", "integrated_gradients", "leave_one_out"):
            assert not a.scores[[3, 4]].any(), a.method


@pytest.mark.parametrize("name", ["gpt2", "t5"])
def test_generated_text_is_explained_under_the_intervention_row_by_row(name: str) -> None:
    subject = subject_of(name)
    raw = {
        "gpt2": {"prompt": "the old man was singing", "continuation": " in the garden"},
        "t5": family(name).inputs[1],
    }
    a = whence.explain(subject, raw[name], "gradient_x_input", ignore=[1])
    assert a.intervention is not None and a.scores.ndim == 2 and len(a.intervention.predictions) == len(a.scores)
    rows = subject.rows(a.input)
    for row, (item, token) in enumerate(rows):
        assert item.ignored == (1,)
        assert a.output[row] == pytest.approx(float(logits(name, item)[0, token]), abs=1e-4)
        plain = float(logits(name, replace(item, ignored=()))[0, token])
        assert a.intervention.without[row] == pytest.approx(plain, abs=1e-4)
    assert not a.scores[1:, 1].any()
    assert any("decoded by the model without" in note for note in a.notes) == (name == "t5")


def test_statements_and_answers_against_each_other_keep_the_value_without_it() -> None:
    subject, prompt = subject_of("gpt2"), "the old man was singing"
    for given, target in (
        ({"prompt": prompt, "continuation": " in the garden"}, "statement()"),
        (prompt, "contrast(' in the garden', ' with a ball')"),
    ):
        a = whence.explain(subject, given, "gradient_x_input", target, ignore="old")
        plain = whence.explain(subject, given, "gradient_x_input", target)
        assert a.intervention is not None and not a.intervention.predictions
        assert a.intervention.without == pytest.approx(plain.output, abs=1e-4) != a.output
        assert not a.scores[list(a.input.ignored)].any()


def test_units_are_ignored_where_all_of_their_features_are() -> None:
    a = whence.explain(subject_of("bert"), "a film . the film stopped", "gae", ignore=["film", "the"], level="sentence")
    assert a.input.ignored == () and a.intervention is not None and a.intervention.ignored == ("film", "the", "film")
    by_word = whence.explain(subject_of("bert"), "an unforgettable film", "gae", ignore=["unforgettable"], level="word")
    assert [by_word.features[number] for number in by_word.input.ignored] == ["unforgettable"]
    assert by_word.scores[list(by_word.input.ignored)] == 0


def test_a_row_that_sees_nothing_else_is_zero() -> None:
    """The first token of a decoder sees itself alone: closed, it must not see the future instead."""
    maps = whence.attention_maps(subject_of("llama"), "the old man was singing", ignore=[0])
    [weights] = maps.weights.values()
    assert not weights[:, :, 0].any() and not weights[..., 0].any()
    assert np.allclose(weights[:, :, 1:].sum(-1), 1, atol=1e-5)
    assert np.triu(weights[0, 0], 1).max() == 0


@pytest.mark.parametrize("name", ["bert", "gpt-oss", "bart"])
def test_alone_and_padded_in_a_batch_are_the_same(name: str) -> None:
    subject = subject_of(name)
    items = [replace(example(name, n), ignored=(middle(example(name, n)),)) for n in (0, 1, 2)]
    items[1] = replace(items[1], ignored=())
    alone = [subject.logits(subject.batch([item])) for item in items]
    together = subject.logits(subject.batch(items, side=subject._padding_side(items) or "right"))
    assert (torch.cat(alone) - together).abs().max() <= 1e-4 * together.abs().max().clamp(min=1.0)


def test_long_inputs_and_edited_runs_are_never_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_inputs, "LONG_BYTES", 0)
    subject, item = subject_of("bert"), example("bert")
    closed, number = replace(item, ignored=(middle(item),)), middle(item)
    assert whence.explain(subject, family("bert").inputs[1], "rollout", ignore=[number]).scores[number] == 0
    runs = AttentionRuns(subject, closed)
    last = len(runs.records) - 1
    rows = torch.arange(runs.records[last].weights.shape[2])
    same = runs.logits({last: runs.own(last, rows)})
    assert (same - logits("bert", closed)).abs().max() <= 1e-5
    uniform = replace(runs.own(last, rows), weights=torch.full_like(runs.records[last].weights, 1 / len(rows)))
    seen: list[torch.Tensor] = []

    def look(record: Any, weights: torch.Tensor, values: torch.Tensor) -> Any:
        seen.append(uniform.weights if record.order == last else weights)
        return seen[-1], values

    expected = subject.logits(subject.batch([closed]), edit=look)
    assert (runs.logits({last: uniform}) - expected).abs().max() <= 1e-5
    assert (expected - subject.logits(subject.batch([item]), edit=look)).abs().max() > 1e-5


def test_the_model_is_given_back_as_it_was_also_after_a_fault() -> None:
    made = fresh("llama")
    subject = whence.wrap(made.model, made.processor)
    before = subject.fingerprint(full=True)
    text = "the old man was singing"
    plain = subject.logits(subject.batch([subject.encode(text)]))
    whence.explain(subject, text, "lrp", ignore="old")

    def faulty(record: Any, weights: torch.Tensor) -> torch.Tensor:
        raise KeyError("planted")

    with pytest.raises(KeyError, match="planted"):
        whence.explain(subject.with_attention(faulty), text, "gae", ignore="old")
    assert subject.fingerprint(full=True) == before
    assert torch.equal(subject.logits(subject.batch([subject.encode(text)])), plain)


def test_threads_with_and_without_an_intervention_do_not_mix() -> None:
    subject, text, found = subject_of("bert"), "a masterful film", {}
    expected = {word: float(whence.explain(subject, text, "gae", 0, ignore=word).output) for word in (None, "film")}

    def explain(number: int) -> None:
        word = "film" if number % 2 else None
        found[number] = float(whence.explain(subject, text, "gae", 0, ignore=word).output)

    threads = [threading.Thread(target=explain, args=(number,)) for number in range(6)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    for number in range(6):
        assert found[number] == pytest.approx(expected["film" if number % 2 else None], abs=1e-6)


# ---- what still counts -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bert", "torch-multihead", "gpt2-classifier"])
def test_an_ignored_word_that_the_output_reads_itself_is_told(name: str) -> None:
    """A mean over tokens, or the last token: attention alone does not shut these out."""
    text = "a masterful film"
    last = len(subject_of(name).encode(text).features) - 1
    a = whence.explain(subject_of(name), text, "gradient", ignore=[last if name == "gpt2-classifier" else "film"])
    told = [note for note in a.notes if "still counted" in note]
    assert bool(told) == (name != "bert")
    assert bool(a.scores[list(a.input.ignored)].any()) == (name != "bert")


def test_special_tokens_are_told_and_windows_refused() -> None:
    a = whence.explain(subject_of("bert"), "a masterful film", "gae", ignore=[0])
    assert any("special" in note and "[CLS]" in note for note in a.notes)
    with pytest.raises(ValueError, match="spans no whole stream"):
        whence.explain(subject_of("swin"), family("swin").inputs[0], "gradient", ignore=[3])


# ---- forms -----------------------------------------------------------------------------------------------------------

TEXT = "The film was a film of the unforgettable sort"


def names(entry: Any, text: str = TEXT) -> list[str]:
    item = with_ignored(subject_of("bert").encode(text), entries_of(entry))[0]
    return [item.features[number] for number in item.ignored]


def test_words_phrases_occurrences_numbers_and_characters_name_features() -> None:
    item = subject_of("bert").encode(TEXT)
    assert names("film") == ["film", "film"]
    assert names(["the"]) == ["the", "the"]  # in any case
    assert names(["a film"]) == ["a", "film"]
    second = with_ignored(item, [{"word": "film", "occurrence": 1}])[0].ignored
    assert second == with_ignored(item, [{"word": "film", "occurrence": -1}])[0].ignored and len(second) == 1
    assert second[0] > with_ignored(item, [{"word": "film", "occurrence": 0}])[0].ignored[0]
    assert len(names(["unforgettable"])) > 1  # every piece of a word
    assert names([(0, 8)]) == ["the", "film"]
    assert names([1, -2]) == [item.features[1], item.features[-2]]
    pair = subject_of("bert").encode({"text": "a film", "pair": "the film"})
    assert len(with_ignored(pair, ["film"])[0].ignored) == 2


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("music", "not in the text"),
        ([], "at least one"),
        ([1.5], "an entry of ignore is"),
        ([True], "an entry of ignore is"),
        ([" "], "an entry of ignore is"),
        ([{"word": "film", "number": 1}], "an entry of ignore is"),
        ([{"word": "film", "occurrence": 2}], "2 times"),
        ([99], "numbered from 0"),
        ([(5, 2)], "characters 5 to 2"),
        ([(0, 999)], "the text has"),
        (list(range(11)), "leaves no feature"),
        (7, "a list of at least one"),
        ((0, 4), "a list of at least one"),
    ],
)
def test_what_cannot_be_read_is_refused_in_a_sentence(entry: Any, said: str) -> None:
    text = "a film of the actors : a film ."
    if entry and isinstance(entry, list) and entry[0] == 0:
        entry = list(range(len(subject_of("bert").encode(text).features)))
    with pytest.raises(ValueError, match=said) as error:
        whence.explain(subject_of("bert"), text, "gae", ignore=entry)
    assert "\n" not in str(error.value)


def test_of_several_inputs_each_word_must_be_in_one_and_a_note_tells_where_it_is_not() -> None:
    subject = subject_of("bert")
    one, two = whence.explain(subject, ["a masterful film", "the music stopped"], "gae", ignore=["film"])
    assert one.intervention is not None and two.intervention is None
    assert any("not in the text: 'film'" in note for note in two.notes)
    with pytest.raises(ValueError, match="'dog', which is not in the text"):
        whence.explain(subject, ["a masterful film", "the music stopped"], "gae", ignore=["film", "dog"])
    assert ignoring([], ["film"]) == []


# ---- views of a subject ----------------------------------------------------------------------------------------------


def test_a_view_ignores_words_of_every_input_and_the_subject_stays() -> None:
    subject = subject_of("bert")
    view = subject.with_attention(ignore=["film"])
    direct = whence.explain(subject, "a masterful film", "lrp", 0, ignore="film")
    through = whence.explain(view, "a masterful film", "lrp", 0)
    assert through == direct and through.provenance["intervention"] == {"ignore": ["film"]}
    assert direct.provenance["asked"]["ignore"] == "film"
    assert whence.explain(subject, "a masterful film", "lrp", 0).intervention is None
    both = whence.explain(view, "a masterful film", "lrp", 0, ignore="masterful")
    assert both.intervention is not None and both.intervention.ignored == ("masterful", "film")


def test_edited_attention_holds_in_every_pass_and_is_part_of_what_is_scored() -> None:
    subject, text = subject_of("bert"), "the actors were wonderful"

    def uniform(record: Any, weights: torch.Tensor) -> torch.Tensor:
        return torch.full_like(weights, 1 / weights.shape[-1])

    view = subject.with_attention(uniform)
    found = whence.compare(view, text, ["gradient_x_input", "leave_one_out", "attention", "lrp"], 0)
    batch = subject.batch([subject.encode(text)])
    expected = subject.logits(batch, edit=lambda record, weights, values: (uniform(record, weights), values))[0, 0]
    for a in found:
        assert a.output == pytest.approx(float(expected), abs=1e-5)
        assert a.intervention is not None and "uniform" in a.intervention.edit
        assert a.intervention.without == pytest.approx(float(subject.logits(batch)[0, 0]), abs=1e-5)
    assert np.ptp(found["attention"].scores) < 1e-6
    whence.score(view, found["lrp"], "comprehensiveness")
    with pytest.raises(ValueError, match="explains another model"):
        whence.score(subject, found["lrp"], "comprehensiveness")
    for returned, said in ((lambda w: w[:, :1], r"not \(1, 1, "), (lambda w: None, "not None")):
        other = subject.with_attention(lambda record, weights, returned=returned: returned(weights))
        with pytest.raises(ValueError, match=f"an edit of attention returns weights .* the shape .*{said}"):
            whence.explain(other, text, "attention")
    for wrong, said in ((None, "and none came"), (3, "is a function")):
        with pytest.raises((ValueError, TypeError), match=said):
            subject.with_attention(wrong)


def test_words_are_not_looked_for_in_pictures() -> None:
    item = example("vit")
    for entry, said in (
        ("sky", "not in the input, which has no text; name features, such as 'patch"),
        ((0, 5), "no text"),
    ):
        with pytest.raises(ValueError, match=said):
            ignoring([item], [entry])
    assert ignoring([item], [item.features[-1]])[0].ignored == (len(item.features) - 1,)


def test_ignore_is_reserved_for_explain() -> None:
    def clashing(subject: Any, batch: Any, target: Any, *, ignore: str = "") -> Any:
        """A method that would take the option."""

    with pytest.raises(ValueError, match="'ignore' belongs to explain"):
        whence.method(family="test")(clashing)
