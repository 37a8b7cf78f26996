"""Language models that look at pictures: patches among the tokens of a text, beside plain calls of the model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf

import whence
from families import LONG_QUESTION, PICTURES, family, fresh, gemma_tokenizer, llava_processor, subject_of
from whence.core.geometry import patches

RAW = {"image": PICTURES[0], "prompt": "the picture <image> shows a ball"}
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def given(raw: dict[str, Any] = RAW) -> Any:
    """The arguments that the processor itself makes."""
    return family("llava").processor(text=raw["prompt"], images=raw["image"], return_tensors="pt")


def last_logits(tensors: Any) -> torch.Tensor:
    with torch.no_grad():
        return family("llava").model(**tensors).logits[0, -1]


def test_the_input_is_what_the_processor_makes() -> None:
    item = subject_of("llava").encode(RAW)
    assert all(np.array_equal(item.tensors[name], array[0]) for name, array in given().items())
    names = [item.features[n] for n in patches(item)]
    assert item.grid == (4, 4) and names == [f"patch {row},{column}" for row in range(4) for column in range(4)]
    assert set(item.parts) == {"", "prompt", "image"} and set(item.streams) == {"text"}
    assert not item.special[patches(item)].any() and item.image is not None and item.size == PICTURES[0].size


def test_the_picture_stands_first_where_the_prompt_does_not_say_where() -> None:
    item = subject_of("llava").encode({"image": PICTURES[0], "prompt": "a ball"})
    assert item.features[0] == "<s>" and patches(item)[0] == 1


def test_leave_one_out_hides_patches_and_words() -> None:
    s, tensors = subject_of("llava"), given()
    a = whence.explain(s, RAW, "leave_one_out")
    plain = last_logits(tensors)
    target = int(plain.argmax())
    np.testing.assert_allclose(a.output, float(plain[target]), rtol=1e-5)
    token = s.mask_ids["unknown"]
    for number, name in enumerate(a.features):
        changed = {key: tensor.clone() for key, tensor in tensors.items()}
        if name.startswith("patch"):
            row, column = divmod(list(patches(a.input)).index(number), 4)
            changed["pixel_values"][0, :, 8 * row : 8 * row + 8, 8 * column : 8 * column + 8] = 0
        else:
            changed["input_ids"][0, number] = token
        expected = 0.0 if a.special[number] else float(plain[target] - last_logits(changed)[target])
        np.testing.assert_allclose(a.scores[number], expected, atol=2e-5)


def test_deleted_words_leave_the_picture_whole() -> None:
    a = whence.explain(subject_of("llava"), RAW, "leave_one_out(mask='delete')")
    word = a.features.index("ball") if "ball" in a.features else len(a.features) - 1
    tensors = given()
    kept = [n for n in range(len(a.features)) if n != word]
    shorter = {k: t[:, kept] if t.shape[:2] == (1, len(a.features)) else t for k, t in tensors.items()}
    plain = last_logits(tensors)
    expected = plain[int(plain.argmax())] - last_logits(shorter)[int(plain.argmax())]
    np.testing.assert_allclose(a.scores[word], float(expected), atol=2e-5)


def test_gradients_enter_where_the_language_model_does() -> None:
    made, entered = fresh("llava"), list[torch.Tensor]()

    def enter(module: Any, args: Any, kwargs: Any) -> Any:
        entered.append(kwargs["inputs_embeds"].detach().requires_grad_())
        return args, {**kwargs, "inputs_embeds": entered[0]}

    made.model.model.language_model.register_forward_pre_hook(enter, with_kwargs=True)
    made.model.requires_grad_(False)
    logits = made.model(**given()).logits[0, -1]
    gradient = torch.autograd.grad(logits.max(), entered)[0]
    scores = whence.explain(subject_of("llava"), RAW, "gradient_x_input").scores
    np.testing.assert_allclose(scores, (gradient * entered[0]).sum(-1)[0].detach(), rtol=1e-4, atol=1e-6)


def test_attention_is_that_of_the_language_model_alone() -> None:
    made = fresh("llava")
    made.model.set_attn_implementation("eager")
    with torch.no_grad():
        maps = [one[0].mean(0) for one in made.model(**given(), output_attentions=True).attentions]
    s = subject_of("llava")
    np.testing.assert_allclose(whence.explain(s, RAW, "attention").scores, maps[-1][-1], atol=1e-6)
    rolled = torch.eye(len(maps[0]))
    for one in maps:
        rolled = (0.5 * one + 0.5 * torch.eye(len(one))) @ rolled
    np.testing.assert_allclose(whence.explain(s, RAW, "rollout").scores, rolled[-1], atol=1e-6)
    found = s.structure(s.batch([s.encode(RAW)]))
    assert found.connections == (("text", "text"),) * 2 and all("vision" in name for name in found.apart)


def test_a_text_as_long_as_the_picture_has_patches() -> None:
    """Attention within the picture cannot be told by its length alone then."""
    s = whence.wrap(family("llava").model, family("llava").processor)
    for text in ("<image>", "<image> a", "<image> ball"):
        item = s.encode({"image": PICTURES[0], "prompt": text})
        found = s.structure(s.batch([item]))
        assert found.connections == (("text", "text"),) * 2, (len(item.features), found)


def gemma_processor() -> Any:
    """A processor of Gemma 3, whose texts name a picture by another token than its patches."""
    named = {"image_token": "<soft>", "boi_token": "<boi>", "eoi_token": "<eoi>"}
    images = hf.Gemma3ImageProcessorPil(size={"height": 32, "width": 32})
    return hf.Gemma3Processor(images, gemma_tokenizer(extra_special_tokens=named), image_seq_length=16)


@pytest.mark.parametrize(
    "method", ["gradient_x_input", "lrp", "decompx", "gae", "rollout", "leave_one_out(mask='zero')"]
)
def test_rows_of_an_answer_are_those_of_its_beginnings(method: str) -> None:
    s = subject_of("llava")
    a = whence.explain(s, RAW | {"continuation": " a red circle"}, method)
    ids = a.input.tensors["input_ids"]
    for row, place in enumerate(a.input.generated):
        beginning, _ = s.rows(a.input)[row]
        alone = whence.wrap(family("llava").model, encode=as_encoded, task="image-text-lm")
        b = whence.explain(alone, replace(beginning, raw=None), method, int(ids[place]))
        np.testing.assert_allclose(a.scores[row, :place], b.scores, rtol=1e-4, atol=1e-5 * np.abs(b.scores).max())


def as_encoded(item: Any) -> dict[str, Any]:
    """An input that was encoded, as the encoder of a caller gives it."""
    own = {name: {"text": list(getattr(item, name))} for name in ("special", "words", "offsets", "parts")}
    return {"tensors": item.tensors, "features": {"text": item.features}, "texts": item.texts, "grid": item.grid, **own}


def test_what_the_model_writes_is_explained() -> None:
    s = subject_of("llava")
    item = s.encode(RAW | {"max_tokens": 4})
    with torch.no_grad():
        written = family("llava").model.generate(**given(), max_new_tokens=4, do_sample=False)[0, -4:]
    assert item.tensors["input_ids"][-4:].tolist() == written.tolist() and len(item.generated) == 4
    a = whence.explain(s, RAW | {"max_tokens": 4}, "lrp")
    assert a.heatmap().shape[0] == 4 and np.abs(a.residual).max() < 1e-4


def test_messages_hold_the_picture() -> None:
    made = fresh("llava")
    made.processor.chat_template = TEMPLATE
    s = whence.wrap(made.model, made.processor)
    messages = [{"role": "user", "content": "what is it ?"}, {"role": "assistant", "content": "a ball"}]
    item = s.encode({"image": PICTURES[0], "messages": messages})
    plain = given({"image": PICTURES[0], "prompt": "user: <image>\nwhat is it ?\nassistant: a ball"})
    assert item.tensors["input_ids"].tolist() == plain["input_ids"][0, 1:].tolist()  # a chat begins without <s>
    assert item.generated and item.grid == (4, 4) and {"user", "assistant", "image"} <= set(item.parts)


def test_steps_along_a_path_leave_the_picture_unless_they_are_told() -> None:
    s = subject_of("llava")
    words, states = (
        whence.explain(s, RAW, method)
        for method in ("integrated_gradients", "integrated_gradients(at='embeddings', baseline='zero')")
    )
    told = [any("the picture is the same in the baseline" in note for note in a.notes) for a in (words, states)]
    assert told == [True, False]
    assert not words.scores[patches(words.input)].any() and states.scores[patches(states.input)].all()


def test_many_features_are_explained_by_a_method_that_sees_the_picture() -> None:
    """The usual method of long texts leaves the picture as it is."""
    s = subject_of("llava")
    short, long = (
        whence.explain(s, RAW | {"prompt": f"<image> {text}"}) for text in ("a ball", f"{LONG_QUESTION} a red circle")
    )
    assert len(short.features) <= 48 < len(long.features)
    assert (short.method, long.method) == ("leave_one_out", "gae")


def test_levels_words_and_views() -> None:
    s = subject_of("llava")
    a = whence.explain(s, RAW, "leave_one_out", level="sentence")
    assert sum(name.startswith("patch") for name in a.features) == 16 and "shows a ball" in a.features
    a = whence.explain(s, RAW, "gae")
    assert a.heatmap().shape == (32, 32) and "patch" in str(a) and "data:image" in a.to_html()


REFUSED = [
    (RAW | {"prompt": "<image> and <image>"}, "holds <image> 2 times"),
    (RAW | {"prompt": LONG_QUESTION * 2}, "the model takes 64; shorten the text"),
    ({"prompt": "a ball"}, "needs the key 'image'"),
]


@pytest.mark.parametrize(("raw", "sentence"), REFUSED)
def test_what_cannot_be_read_is_refused(raw: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        whence.explain(subject_of("llava"), raw, "random")


def test_a_processor_without_a_token_for_pictures_is_refused() -> None:
    s = whence.wrap(family("llava").model, llava_processor().tokenizer)
    with pytest.raises(ValueError, match="a processor with a token for pictures"):
        s.encode(RAW)


def test_special_tokens_around_the_picture_and_types_of_tokens() -> None:
    """Gemma 3 puts tokens around its patches, marks them by type, and pools four patches into one."""
    processor = gemma_processor()
    tokenizer = processor.tokenizer
    text = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 8}
    picture = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = hf.Gemma3Config(
        text_config=hf.Gemma3TextConfig(vocab_size=len(tokenizer), num_key_value_heads=2, **text),
        vision_config=hf.SiglipVisionConfig(image_size=32, patch_size=4, **picture),
        mm_tokens_per_image=16,
        image_token_index=tokenizer.image_token_id,
        boi_token_index=tokenizer.boi_token_id,
        eoi_token_index=tokenizer.eoi_token_id,
    )
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model = hf.Gemma3ForConditionalGeneration(config).eval()
        for parameter in model.parameters():
            parameter.normal_(0, 0.2)
    s = whence.wrap(model, processor, task="image-text-lm")
    raw = {"image": PICTURES[0], "prompt": f"{tokenizer.boi_token} what is it ?"}
    item = s.encode(raw)
    plain = processor(text=raw["prompt"], images=raw["image"], return_tensors="np")
    assert item.tensors["input_ids"].tolist() == plain["input_ids"][0].tolist()
    assert item.tensors["token_type_ids"].tolist() == plain["token_type_ids"][0].tolist()
    assert item.grid == (4, 4)
    for method in ("leave_one_out", "lrp", "gae"):
        assert whence.explain(s, raw, method).scores[patches(item)].any()
