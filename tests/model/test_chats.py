"""Messages through a model's own chat template, and what a model writes after a prompt or a chat."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

import whence
from families import PICTURES, fresh, subject_of

CHATML = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
TRIMMED = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
    "[{{ m.role }}] {{ m.content | trim }}\n{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)
BY_CONTENT = "{% for m in messages %}{{ 'long: ' if m.content | length > 12 else '' }}{{ m.content }}|{% endfor %}"
ASKED = [
    {"role": "system", "content": "the film was good. nobody laughed."},
    {"role": "user", "content": "  user: who was singing ?  "},
]
ANSWER = {"role": "assistant", "content": "the old man"}


@cache
def chatty(name: str, template: str) -> whence.Subject:
    made = fresh(name)
    tokenizer = getattr(made.processor, "tokenizer", made.processor)
    tokenizer.chat_template = template
    tokenizer.model_max_length = 400
    for config in (made.model.config, getattr(made.model.config, "text_config", None)):
        if hasattr(config, "max_position_embeddings"):
            config.max_position_embeddings = 400
    return whence.wrap(made.model, made.processor)


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3"])
@pytest.mark.parametrize("template", [CHATML, TRIMMED])
def test_tokens_are_those_of_the_template(name: str, template: str) -> None:
    s = chatty(name, template)
    item = s.encode({"messages": [*ASKED, ANSWER]})
    text = s.processor.apply_chat_template(ASKED, tokenize=False, add_generation_prompt=True)
    ids = s.processor(text, add_special_tokens=False)["input_ids"]
    count = len(ids)
    assert item.tensors["input_ids"][:count].tolist() == ids and item.generated == tuple(
        range(count, len(item.features))
    )
    stripped = {m["role"]: m["content"].strip() if template is TRIMMED else m["content"] for m in ASKED}
    assert item.texts == {**stripped, "assistant": " the old man" if template is TRIMMED else "the old man"}
    for i, part in enumerate(item.parts):
        start, end = item.offsets[i]
        assert bool(item.special[i]) == (part == "")
        if part and start >= 0 and "<0x" not in item.features[i]:
            assert item.texts[part][start:end].strip() == item.features[i].strip()
    for part, text in item.texts.items():  # every letter of every message has its token
        own = [item.offsets[i] for i in range(len(item.features)) if item.parts[i] == part]
        covered = set().union(*(range(a, b) for a, b in own))
        assert all(place in covered for place, letter in enumerate(text) if not letter.isspace())


def test_rows_are_those_of_the_same_tokens() -> None:
    """A chat with an answer is the prompt that the template writes, and its continuation."""
    s = chatty("llama", TRIMMED)
    a = whence.explain(s, {"messages": [*ASKED, ANSWER]}, "leave_one_out")
    ids = torch.tensor(a.input.tensors["input_ids"])[None]
    with torch.no_grad():
        logits = s.model(ids).logits[0]
    places = [feature - 1 for feature in a.input.generated]
    np.testing.assert_allclose(a.output, [float(logits[p, ids[0, p + 1]]) for p in places], atol=1e-4)


SPACED = "{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %} {{ m.content | trim }} </s>{% else %}\
[INST] {{ m.content | trim }} [/INST]{% endif %}{% endfor %}"
THOUGHTFUL = CHATML.replace("{{ m.content }}", "{{ 'no idea : ' if m.role == 'assistant' }}{{ m.content }}")


@pytest.mark.parametrize("template", [CHATML, TRIMMED, SPACED, THOUGHTFUL])
@pytest.mark.parametrize("content", ["the old man", "  the old man "])
def test_an_answer_stands_where_the_template_writes_it(template: str, content: str) -> None:
    """The tokens up to the answer's end are those of the template's own text of the whole chat."""
    s = chatty("llama", template)
    messages = [ASKED[1], {"role": "assistant", "content": content}]
    item = s.encode({"messages": messages})
    text = s.processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=False)
    written = content.strip() if template in (TRIMMED, SPACED) else content
    ids = s.processor(text[: text.rindex(written) + len(written)], add_special_tokens=False)["input_ids"]
    assert item.tensors["input_ids"].tolist() == ids
    assert "".join(item.features[i] for i in item.generated).strip() == "the old man"
    assert all(item.special[i] for i in range(item.generated[0]) if item.parts[i] != "user")


def test_roles_that_come_again_are_numbered() -> None:
    s = chatty("llama", TRIMMED)
    item = s.encode({"messages": [ASKED[1], ANSWER, ASKED[1], ANSWER]})
    assert set(item.texts) == {"user 1", "assistant 1", "user 2", "assistant 2"}
    generated = s.encode({"messages": [ASKED[1], ANSWER, ASKED[1]], "max_tokens": 2})
    assert [generated.parts[i] for i in generated.generated] == ["assistant 2"] * 2


def test_a_template_that_writes_by_the_content() -> None:
    s = chatty("llama", BY_CONTENT)
    item = s.encode({"messages": ASKED, "max_tokens": 1})
    assert item.texts["system"] == ASKED[0]["content"] and item.texts["user"] == ASKED[1]["content"].strip()


def test_messages_and_sentences_of_a_chat() -> None:
    s = chatty("llama", TRIMMED)
    raw = {"messages": [*ASKED, ANSWER]}
    found = {level: whence.explain(s, raw, "random", level=level) for level in ("message", "sentence")}
    names = {k: [f for f, special in zip(a.features, a.special, strict=True) if not special] for k, a in found.items()}
    assert names["message"] == ["the film was good. nobody laughed.", "user: who was singing ?", "the old man"]
    assert names["sentence"] == ["the film was good.", "nobody laughed.", "user: who was singing ?", "the old man"]
    around = [f for f, special in zip(found["message"].features, found["message"].special, strict=True) if special]
    assert len(around) == 3 and around[0].endswith("[system]")  # what the template writes between two messages is one


def test_truncation_keeps_the_end() -> None:
    made = fresh("llama")
    made.processor.chat_template = TRIMMED
    s = whence.wrap(made.model, made.processor)
    raw = {"messages": [{"role": "user", "content": "the film was good. " * 20 + "the end"}, ANSWER]}
    with pytest.raises(ValueError, match="pass truncate=True"):
        s.encode(raw)
    item = s.encode(raw, truncate=True)
    assert len(item.features) == 64 and any("the beginning was left out" in note for note in item.notes)
    assert "".join(item.features[i] for i in item.generated).strip() == "the old man"


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"messages": []}, "messages is a list such as"),
        ({"messages": "hello"}, "messages is a list such as"),
        ({"messages": [{"role": "user"}]}, 'message 0 has the texts "role" and "content"'),
        ({"messages": [{"role": "user", "content": 3}]}, 'message 0 has the texts "role" and "content"'),
        ({"messages": [{"role": "user", "content": " "}]}, "the last message is empty"),
        ({"messages": [ANSWER]}, "give at least one message before it"),
        (
            {"messages": [{"role": "tool", "content": "x"}]},
            "the chat template of the tokenizer refuses the messages: no to",
        ),
        ({"messages": ASKED, "prompt": "x"}, "messages take the place of 'prompt', and both came"),
        ({"messages": ASKED, "max_tokens": 0}, "max_tokens is a whole number of at least 1"),
        ({"messages": ASKED, "stop": ""}, "stop is a text, or a list of texts"),
        ({"prompt": "the", "stop": [3]}, "stop is a text, or a list of texts"),
    ],
)
def test_refused(raw: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        chatty("llama", TRIMMED).encode(raw)
    assert "\n" not in str(error.value)


def test_a_model_without_a_template_is_refused() -> None:
    with pytest.raises(ValueError, match="has no chat template, so messages cannot be written as it reads them"):
        subject_of("gpt2").encode({"messages": ASKED})
    with pytest.raises(ValueError, match="'messages' came"):
        subject_of("bert").encode({"messages": ASKED})


# ---- other models ----------------------------------------------------------------------------------------------------


def test_an_encoder_decoder() -> None:
    s = chatty("t5", TRIMMED.replace("{{ bos_token }}", ""))
    given = s.encode({"messages": [*ASKED, ANSWER]})
    assert set(given.texts) == {"system", "user", "output"} and given.texts["output"] == "the old man"
    written = s.encode({"messages": ASKED, "max_tokens": 2})
    assert written.generated and len(written.generated) <= 2
    a = whence.explain(s, {"messages": [*ASKED, ANSWER]}, "gradient_x_input", level="sentence")
    assert "nobody laughed." in a.features


def test_a_picture_and_messages() -> None:
    s = chatty("vilt", "{{ cls_token }} {% for m in messages %}{{ m.content }} {% endfor %}{{ sep_token }}")
    raw = {"image": PICTURES[0], "messages": [{"role": "user", "content": "what is the colour of the ball ?"}]}
    chat, plain = (s.encode(x) for x in (raw, {"image": PICTURES[0], "text": "what is the colour of the ball ?"}))
    assert chat.tensors["input_ids"].tolist() == plain.tensors["input_ids"].tolist()
    one, other = (whence.explain(s, x, "leave_one_out") for x in (raw, raw | {"messages": raw["messages"]}))
    np.testing.assert_array_equal(one.scores, other.scores)
    assert "user" in one.input.texts and one.input.grid is not None
    with pytest.raises(ValueError, match="writes no answer"):
        s.encode({**raw, "messages": [*raw["messages"], ANSWER]})


PARTS_ALONE = (  # as the templates of LLaVA and Idefics
    "{% for m in messages %}{{ m.role | upper }}: {% for part in m.content | selectattr('type', 'equalto', 'text') %}"
    "{{ part.text }}{% endfor %}\n{% endfor %}{% if add_generation_prompt %}ASSISTANT: {% endif %}"
)
TEXTS_ALONE = CHATML.replace("m.content", "m.content + ''")


@pytest.mark.parametrize("template", [CHATML, PARTS_ALONE, TEXTS_ALONE])
def test_contents_may_be_lists_of_parts(template: str) -> None:
    """Both in what is given and in what the template reads; a template that reads texts alone gets texts."""
    s = chatty("llama", template)
    written = [*ASKED, ANSWER]
    in_parts = [{**m, "content": [{"type": "text", "text": m["content"]}]} for m in written]
    one, other = (s.encode({"messages": messages}) for messages in (written, in_parts))
    assert one.tensors["input_ids"].tolist() == other.tensors["input_ids"].tolist()
    assert one.parts == other.parts and one.texts == other.texts == {m["role"]: m["content"] for m in written}
    two = [{"role": "user", "content": [{"type": "text", "text": text} for text in ("a film.", "who laughed ?")]}]
    assert s.encode({"messages": [*two, ANSWER]}).texts["user"] == "a film.\nwho laughed ?"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([{"type": "image"}, {"type": "text", "text": "what is this ?"}], "has a part of the type 'image', and only"),
        ([{"type": "text"}], 'has the texts "role" and "content"'),
        ([], 'has the texts "role" and "content"'),
        ([3], 'has the texts "role" and "content"'),
    ],
)
def test_parts_that_are_refused(content: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        chatty("llama", CHATML).encode({"messages": [{"role": "user", "content": content}]})


# ---- generating ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen3"])
def test_what_is_written_is_what_greedy_steps_give(name: str) -> None:
    s = subject_of(name)
    item = s.encode({"prompt": "the old man was", "max_tokens": 5})
    start = item.generated[0] if item.generated else len(item.features)
    ids = torch.tensor(item.tensors["input_ids"])[None]
    for place in item.generated:
        with torch.no_grad():
            assert int(s.model(ids[:, :place]).logits[0, -1].argmax()) == int(ids[0, place])
    assert 1 <= len(item.generated) <= 5 and item.features[:start] == s.encode("the old man was").features
    assert any("generated greedily" in note for note in item.notes) and set(item.texts) == {"prompt", "continuation"}


def test_stop_texts() -> None:
    s, raw = subject_of("llama"), {"prompt": "the old man", "max_tokens": 6}
    whole = s.encode(raw).texts["continuation"]
    assert whole[-1] not in whole[:-1], "the test needs a text whose last letter is new"
    short = s.encode({**raw, "stop": [whole[-1], "never there"]})
    assert short.texts["continuation"] and whole[-1] not in short.texts["continuation"]
    assert whole.startswith(short.texts["continuation"])
    assert any("stopped at a text that the input names" in note for note in short.notes)
    none = s.encode({**raw, "stop": whole[0]})
    assert none.generated == () and any("writes nothing" in note for note in none.notes)


def test_a_text_that_is_cut_leaves_room_for_what_is_written() -> None:
    s, long = subject_of("llama"), "the old man was singing " * 30
    item = s.encode({"prompt": long, "max_tokens": 5}, truncate=True)
    assert s.max_length is not None and len(item.features) <= s.max_length and len(item.generated) == 5
    assert any(f"to {s.max_length - 5} tokens" in note for note in item.notes)
    with pytest.raises(ValueError, match="pass truncate=True"):
        s.encode({"prompt": long, "max_tokens": 5})


def test_a_model_that_gives_more_than_tokens() -> None:
    made = fresh("gpt2")
    expected = whence.wrap(made.model, made.processor).encode({"prompt": "the old man", "max_tokens": 3})
    settings: Any = made.model.generation_config
    settings.return_dict_in_generate, settings.output_scores = True, True
    item = whence.wrap(made.model, made.processor).encode({"prompt": "the old man", "max_tokens": 3})
    assert len(item.generated) == 3 and item.features == expected.features and item.notes == expected.notes


def test_without_options_a_prompt_is_not_continued() -> None:
    assert subject_of("gpt2").encode({"prompt": "the old man"}).generated == ()


def test_tables_and_python_are_the_same() -> None:
    s = subject_of("gpt2")
    one, other = (s.encode({"prompt": "the old man was", "max_tokens": most}) for most in (3, "3"))
    assert one.tensors["input_ids"].tolist() == other.tensors["input_ids"].tolist()


def test_progress_of_writing(capsys: pytest.CaptureFixture[str]) -> None:
    s = subject_of("gpt2")
    before = s.fingerprint(full=True)
    whence.explain(s, {"prompt": "the old man was", "max_tokens": 3}, "random", progress=True)
    assert "writing" in capsys.readouterr().err and s.fingerprint(full=True) == before
