"""Statements: a part of a generated text explained as one, and answers against each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tokenizers as tk
import torch

import whence
from families import family, fresh, subject_of
from whence.core.inputs import Input, unmerged
from whence.model.masked_runs import Ask, MaskedRuns

PROMPT = "the film was good. nobody laughed. the weather was"
OUTPUT = "cold and the house was warm"
CAUSAL, DECODERS = ["gpt2", "llama", "gemma3"], ["bart", "t5"]


def raw_of(name: str) -> dict[str, str]:
    if name in DECODERS:
        return {"source": PROMPT, "output": OUTPUT}
    return {"prompt": PROMPT, "continuation": " " + OUTPUT}


def log_p(name: str, item: Input, hidden: np.ndarray, first: int, last: int) -> float:
    """The sum of log p of the tokens first..last of the whole text; hidden tokens are unknown ones, of GPT-2 zero."""
    model: Any = family(name).model
    tensors = {key: torch.tensor(array)[None] for key, array in item.tensors.items()}
    decoder = "decoder_input_ids" in tensors
    before = item.streams.index("target") if decoder else 0
    ids = tensors["decoder_input_ids" if decoder else "input_ids"][0].clone()
    marks = torch.tensor(hidden)
    fill = subject_of(name).mask_ids["unknown"]
    if name != "gpt2":
        tensors["input_ids"][0, marks[: before or None]] = fill
        if decoder:
            tensors["decoder_input_ids"][0, marks[before:]] = fill
    else:
        words = model.get_input_embeddings()(tensors.pop("input_ids"))
        tensors["inputs_embeds"] = words.masked_fill(marks[None, :, None], 0.0)
    with torch.no_grad():
        logs = model(**tensors).logits[0].double().log_softmax(-1)
    return float(sum(logs[place - before - 1, ids[place - before]] for place in range(first, last + 1)))


@pytest.mark.parametrize("name", [*CAUSAL, *DECODERS])
def test_log_probabilities_and_hidden_sentences_by_hand(name: str) -> None:
    s, raw = subject_of(name), raw_of(name)
    whole = s.encode(raw)
    way = "zero" if name == "gpt2" else "unknown"
    a = whence.explain(s, raw, "leave_one_out", "statement('the house')", level="sentence", mask=way)
    first = max(i for i, f in enumerate(whole.features) if f.strip() in ("the", "t") and i in whole.generated)
    last = first + len(a.input.answer) - 1
    none = np.zeros(len(whole.features), bool)
    assert a.output == pytest.approx(log_p(name, whole, none, first, last), abs=1e-3)
    tokens = unmerged(a.input)
    assert a.features[-1].strip() == "the house" and a.special[-1] and a.axes == ("feature",)
    for unit in np.flatnonzero(~a.special):
        hidden = none.copy()
        hidden[: len(tokens.features)] = (tokens.units == unit) & ~tokens.special
        twin = log_p(name, whole, none, first, last) - log_p(name, whole, hidden, first, last)
        assert a.scores[unit] == pytest.approx(twin, abs=2e-3)


@pytest.mark.parametrize("name", CAUSAL)
def test_deleted_sentences_are_gone_also_the_one_before_the_statement(name: str) -> None:
    """The statement is read after what is left; only where nothing would be left does the token before it stay."""
    s, model = subject_of(name), family(name).model
    a = whence.explain(s, raw_of(name), "shap(algorithm='exact', mask='delete')", "statement", level="sentence")
    tokens = unmerged(a.input)
    ids, first, players = tokens.tensors["input_ids"], tokens.decides[0] + 1, np.flatnonzero(~a.special)

    def value(gone: np.ndarray) -> float:
        kept = ~np.isin(tokens.units, gone)
        kept[first - 1] |= not kept[:first].any()
        left = torch.tensor(ids[kept])
        with torch.no_grad():
            logs = model(input_ids=left[None]).logits[0].double().log_softmax(-1)
        return float(sum(logs[place - 1, left[place]] for place in range(kept[:first].sum(), len(left))))

    assert a.base == pytest.approx(value(players), abs=1e-3)
    one = whence.explain(s, raw_of(name), "leave_one_out(mask='delete')", "statement", level="sentence")
    for number in players:
        assert one.scores[number] == pytest.approx(value(players[:0]) - value(np.array([number])), abs=2e-3)


@pytest.mark.parametrize("name", ["gpt2", "llama", "bart"])
def test_a_statement_is_the_sum_of_its_tokens(name: str) -> None:
    """Log-probability, and scores of a method that is linear in the target, of the text before the statement."""
    s, raw = subject_of(name), raw_of(name)
    rows = whence.explain(s, raw, "gradient_x_input", "log_probability")
    first, last = 2, 4
    a = whence.explain(s, raw, "gradient_x_input", f"statement(tokens=({first}, {last}))")
    assert a.output == pytest.approx(float(np.sum(rows.output[first:last])), abs=1e-3)
    count = len(a.features)
    np.testing.assert_allclose(a.scores, rows.scores[first:last, :count].sum(0), atol=1e-4)


@pytest.mark.parametrize("method", ["integrated_gradients", "shap(algorithm='exact')"])
def test_completeness(method: str) -> None:
    a = whence.explain(subject_of("llama"), raw_of("llama"), method, "statement('the house')", level="sentence")
    assert abs(a.residual) <= 0.02 * np.abs(a.scores).sum() + 1e-3


@pytest.mark.parametrize("method", ["gae", "rollout", "lrp", "attention", "value_zeroing", "lime(samples=20)"])
def test_every_family_of_methods_takes_statements(method: str) -> None:
    a = whence.explain(subject_of("llama"), raw_of("llama"), method, "statement('the house')")
    assert np.abs(a.scores).sum() > 0 and a.scores[-1] == pytest.approx(0, abs=1e-6)  # its last token is never read


def test_a_method_that_divides_logits_refuses() -> None:
    with pytest.raises(ValueError, match="decompx divides logits, and a statement is log-probabilities"):
        whence.explain(subject_of("llama"), raw_of("llama"), "decompx", "statement('the house')")


def test_kinds_of_a_statement() -> None:
    s, raw = subject_of("llama"), raw_of("llama")
    log, p, odds = (
        whence.explain(s, raw, "random", f"statement('cold', kind={kind!r})").output
        for kind in ("log_probability", "probability", "log_odds")
    )
    assert p == pytest.approx(np.exp(log), rel=1e-4) and odds == pytest.approx(log - np.log1p(-np.exp(log)), abs=1e-4)
    assert str(whence.explain(s, raw, "random", "statement('cold')").target) == "log-probability of 'cold'"
    by_characters = whence.explain(s, raw, "random", "statement(characters=(10, 19))")
    assert by_characters.target.name == "the house"
    assert whence.explain(s, raw, "random", "statement").target.name == OUTPUT


def test_scores_of_statements() -> None:
    s = subject_of("llama")
    a = whence.explain(
        s, raw_of("llama"), "leave_one_out", "statement('the house', kind='probability')", level="sentence"
    )
    for metric in ("deletion", "auac", "comprehensiveness(mask='auto')", "comprehensiveness"):
        assert np.isfinite(whence.score(s, a, metric).value)
    drops = whence.score(s, a, "comprehensiveness(bins=[0.01], mask='auto')").value
    assert drops == pytest.approx(float(a.scores[~a.special].max()), rel=1e-3, abs=1e-9)  # the top unit alone is hidden


def test_answers_against_each_other() -> None:
    s, prompt = subject_of("llama"), "the film was good. nobody laughed at"
    both = whence.explain(s, prompt, "leave_one_out", "contrast('the jokes', 'the old man')", level="sentence")
    one, other = (
        whence.explain(
            s, {"prompt": prompt, "continuation": f" {text}"}, "leave_one_out", "statement", level="sentence"
        )
        for text in ("the jokes", "the old man")
    )
    assert both.output == pytest.approx(one.output - other.output, abs=1e-3)
    np.testing.assert_allclose(both.scores, one.scores[:-1] - other.scores[:-1], atol=1e-3)
    assert str(both.target) == "log-probability of 'the jokes' minus that of 'the old man'"
    part = whence.explain(s, raw_of("llama"), "leave_one_out", "statement('house', against='dog')", level="sentence")
    assert part.features[-1] == "cold and the" and part.target.against_name == "dog"
    with pytest.raises(ValueError, match="attention has no signs"):
        whence.explain(s, prompt, "attention", "contrast('the jokes', 'the old man')")
    with pytest.raises(ValueError, match="cannot be scored; score a statement"):
        whence.score(s, both, "deletion")


@pytest.mark.parametrize("name", ["gpt2", "llama", "bart"])
def test_a_space_that_is_a_token_of_its_own_belongs_to_the_statement(name: str) -> None:
    """As it does where a tokenizer has the word and its space in one token."""
    s, raw = subject_of(name), raw_of(name)
    given = {key: value if key in ("prompt", "source") else f"{value} Qx." for key, value in raw.items()}
    whole, other = (
        s.encode({key: value.replace(" Qx.", new) for key, value in given.items()}) for new in (" Qx.", " house")
    )
    space = max(number for number, feature in enumerate(whole.features) if feature == " ")
    assert whole.features[space : space + 4] == (" ", "Q", "x", ".") and other.features[space] == " house"
    right = log_p(name, whole, np.zeros(len(whole.features), bool), space, space + 3)
    against = log_p(name, other, np.zeros(len(other.features), bool), space, space)
    for text in (" Qx.", "Qx."):
        a = whence.explain(s, given, "random", f"statement({text!r})")
        assert a.output == pytest.approx(right, abs=1e-3) and str(a.target).endswith("'Qx.'")
    assert len(whence.explain(s, given, "random", "statement('x.')").input.answer) == 2
    both = whence.explain(s, given, "leave_one_out", "statement('Qx.', against='house')")
    assert both.output == pytest.approx(right - against, abs=1e-3)


@pytest.mark.parametrize("name", ["gpt2", "llama", "bart"])
@pytest.mark.parametrize("method", ["lime", "context_cite", "shap(algorithm='permutation')"])
def test_answers_against_each_other_have_the_same_ablations(
    name: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where one answer is longer, and so chance does not add to the difference of their scores."""
    drawn: dict[tuple[int, ...], set[bytes]] = {}
    values = MaskedRuns.values

    def seen(self: MaskedRuns, items: list[Input], asks: list[Ask], *rest: Any) -> Any:
        for item, ask in zip(items, asks, strict=True):
            count = len(item.features) - len(item.answer)
            drawn.setdefault(item.answer, set()).update(row[:count].tobytes() for row in ask.keep)
        return values(self, items, asks, *rest)

    monkeypatch.setattr(MaskedRuns, "values", seen)
    raw, target = raw_of(name), "statement('house', against='old man was singing')"
    a = whence.explain(subject_of(name), raw, method, target)
    one, other = drawn.values()
    assert one == other and len(one) > 10 and a.scores.any()


@pytest.mark.parametrize("name", [*CAUSAL, *DECODERS, "marian"])
def test_a_part_against_another_is_read_as_if_it_had_been_written(name: str) -> None:
    """Also by tokenizers that put a space before every text, and in the output of an encoder-decoder."""
    s, raw, part = subject_of(name), raw_of(name), "source" if name in (*DECODERS, "marian") else "prompt"
    written = OUTPUT if part == "source" else " " + OUTPUT
    raw = {part: PROMPT, "output" if part == "source" else "continuation": written}
    other = {key: value.replace("was warm", "is cold") for key, value in raw.items()}
    both, one, without = (
        whence.explain(s, given, "leave_one_out", target, level="word")
        for given, target in (
            (raw, "statement('was warm', against='is cold')"),
            (raw, "statement('was warm')"),
            (other, "statement('is cold')"),
        )
    )
    count = len(both.features)
    assert both.features == one.features[:count] == without.features[:count]
    assert both.output == pytest.approx(one.output - without.output, abs=1e-3)
    np.testing.assert_allclose(both.scores, one.scores[:count] - without.scores[:count], atol=1e-3)


def test_answers_are_cut_as_continuations_are() -> None:
    """Also where the tokenizer puts a space before every text, as those of Llama 2, Phi-3 and Mistral do."""
    made, prompt = fresh("llama"), "the film was good. nobody laughed at"
    normalizers = tk.normalizers
    made.processor.backend_tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    made.processor.backend_tokenizer.pre_tokenizer = None
    s = whence.wrap(made.model, made.processor)
    assert len(s.pieces(" the jokes")) > len(s.pieces("the jokes")), "the test needs a tokenizer that adds a space"
    a = whence.explain(s, prompt, "gradient_x_input", "contrast(' the jokes', ' the old man')")
    one, other = (
        whence.explain(s, {"prompt": prompt, "continuation": text}, "random", "statement").output
        for text in (" the jokes", " the old man")
    )
    assert a.output == pytest.approx(one - other, abs=1e-3)
    given = {"prompt": prompt, "continuation": " the house"}
    part = whence.explain(s, given, "gradient_x_input", "statement('house', against='old man')")
    one, other = (
        whence.explain(s, {"prompt": f"{prompt} the", "continuation": text}, "random", "statement").output
        for text in (" house", " old man")
    )
    assert part.output == pytest.approx(one - other, abs=1e-3)


CHAT = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def test_answers_to_a_chat_against_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    made = fresh("llama")
    made.processor.chat_template, made.processor.model_max_length = CHAT, 400
    made.model.config.max_position_embeddings = 400
    s, asked = whence.wrap(made.model, made.processor), {"role": "user", "content": "the film was good. who laughed ?"}
    one, other = (
        whence.explain(
            s, {"messages": [asked, {"role": "assistant", "content": text}]}, "leave_one_out", "statement", level="word"
        )
        for text in ("the jokes", "an old man")
    )

    def generate(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a contrast of two answers needs no text that the model writes")

    monkeypatch.setattr(made.model, "generate", generate)
    both = whence.explain(
        s, {"messages": [asked]}, "leave_one_out", "contrast('the jokes', 'an old man')", level="word"
    )
    count = len(both.features)
    assert both.features == one.features[:count]
    assert both.output == pytest.approx(one.output - other.output, abs=1e-3)
    np.testing.assert_allclose(both.scores, one.scores[:count] - other.scores[:count], atol=1e-3)
    next_token = whence.explain(s, {"messages": [asked]}, "leave_one_out", "contrast('a', 'b')")
    assert next_token.axes == ("feature",)


@pytest.mark.parametrize(
    ("raw", "target", "message"),
    [
        ("the film", "statement('film')", "give a continuation"),
        (
            "the film " * 30,
            "contrast('the jokes', 'the old man')",
            "has 62 tokens and the answer 5, and the model takes",
        ),
        (raw_of("llama"), "statement('hous')", "not as whole tokens"),
        (raw_of("llama"), "statement('elephants')", "not as whole tokens"),
        (raw_of("llama"), "statement(3)", "is named by its text, not by 3"),
        (raw_of("llama"), "statement('cold', tokens=(0, 1))", "is named once"),
        (raw_of("llama"), "statement(tokens=(0, 99))", "lies outside"),
        (raw_of("llama"), "statement(tokens=(3, 3))", "are two numbers"),
        (raw_of("llama"), "statement('cold', kind='margin')", "is one of 'log_probability'"),
        (raw_of("llama"), "statement('cold', size=3)", "takes kind="),
        (raw_of("llama"), "statement('cold', kind='log_odds', against='warm')", "leave kind= out"),
        (raw_of("llama"), "contrast('the jokes', 'the old man')", "and a continuation came"),
    ],
)
def test_refused(raw: Any, target: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        whence.explain(subject_of("llama"), raw, "random", target)
    assert "\n" not in str(error.value)
