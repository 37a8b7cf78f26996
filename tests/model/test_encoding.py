"""Raw inputs to Input: text, pairs, prompts, sources, images, image+text, the user's own encoder, and bad input."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import transformers as hf
from PIL import Image
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers.models.bert.tokenization_bert_legacy import BertTokenizerLegacy
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.levit.image_processing_pil_levit import LevitImageProcessorPil
from transformers.models.vilt.image_processing_pil_vilt import ViltImageProcessorPil
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

from whence.core.inputs import Input
from whence.model.encoding import Layout, encode, mask_ids, pieces, with_output

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.,!?'-0123456789"
WORDS = ["master", "film", "the", "capital", "of", "France", "is", "Paris", "Rome", "good"]
SENTENCE = "a masterful film, the  capital of France is Paris!"
NASTY = [
    "a\x00b film",
    "שלום עולם",
    "مرحبا بالعالم film",
    "film 👩‍👩‍👧‍👦 the 🙂🇫🇷",
    "cafe\u0301 e\u0301\u0301 naïve",
    "  film\t\nthe\r\n  ",
    "x\u3000y\u00a0z",
    "masterful\ud800 film \udfff!",
    "𝔉𝔯𝔞𝔨𝔱𝔲𝔯 ﬁlm İstanbul ẞ",
    "Ġorġ ▁film ##ful",
    "日本語のテキスト film",
    "한국어 각가 film",
    "\ufeffthe film\u200b",
]


def _fast(backend: Tokenizer, **special: Any) -> hf.PreTrainedTokenizerFast:
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=backend, model_input_names=["input_ids", "attention_mask"], **special
    )


def _numbered(*pieces: str) -> dict[str, int]:
    return {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}


def _merges(words: list[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """Merges that build each word from the left, and the pieces they make."""
    made, merges = [], []
    for word in words:
        for i in range(1, len(word)):
            if (word[:i], word[i]) not in merges:
                merges.append((word[:i], word[i]))
                made.append(word[: i + 1])
    return made, merges


@lru_cache
def wordpiece() -> hf.PreTrainedTokenizerFast:
    """As BERT's: [CLS] text [SEP] pair [SEP], lower case, accents stripped."""
    words = [*(w.lower() for w in WORDS), *LETTERS, *("##" + c for c in LETTERS), "##ful"]
    vocabulary = _numbered("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words)
    backend = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.normalizer, backend.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {"cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
    return _fast(backend, unk_token="[UNK]", pad_token="[PAD]", **names)


@lru_cache
def byte_level() -> hf.PreTrainedTokenizerFast:
    """As GPT-2's: no special tokens added."""
    made, merges = _merges([*("Ġ" + w for w in WORDS), *WORDS, "ful", "Ã©"])
    vocabulary = _numbered("<|end|>", *sorted(pre_tokenizers.ByteLevel.alphabet()), *made)
    backend = Tokenizer(models.BPE(vocabulary, merges))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    backend.post_processor = processors.ByteLevel(trim_offsets=False)
    return _fast(backend, eos_token="<|end|>")


@lru_cache
def unigram() -> hf.PreTrainedTokenizerFast:
    """As T5's: text </s>."""
    scores = {"<pad>": 0.0, "</s>": 0.0, "<unk>": 0.0} | {"▁" + w: -2.0 for w in WORDS} | {"ful": -3.0, "▁": -4.0}
    backend = Tokenizer(models.Unigram([*(scores | {c: -6.0 for c in LETTERS}).items()], unk_id=2))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    backend.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return _fast(backend, unk_token="<unk>", pad_token="<pad>", eos_token="</s>")


@lru_cache
def one_word() -> hf.PreTrainedTokenizerFast:
    """As Llama's: <s> text, no pre-tokenizer, so that its word ids are all the same; bytes for the unknown."""
    made, merges = _merges([*("▁" + w for w in WORDS), "ful"])
    in_bytes = [f"<0x{i:02X}>" for i in range(256)]
    vocabulary = _numbered("<unk>", "<s>", "</s>", *in_bytes, "▁", *LETTERS, *made)
    backend = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    joined = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(joined)
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return _fast(backend, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


@lru_cache
def clip_text() -> hf.CLIPTokenizer:
    made, merges = _merges([*("a",), "film", "good"])
    ends = [word + "</w>" for word in (*LETTERS, "film", "good")]
    merges += [("fil", "m</w>"), ("goo", "d</w>")]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = _numbered(*alphabet, *(c + "</w>" for c in alphabet), *made, *ends, "<|startoftext|>", "<|endoftext|>")
    return hf.CLIPTokenizer(vocab=vocabulary, merges=merges)


def slow(folder: Any) -> BertTokenizerLegacy:
    """As BERT's, in plain Python: no offsets."""
    vocabulary = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        "a",
        "the",
        "cafe",
        "master",
        "##ful",
        "film",
        "fi",
        "##lm",
    ]
    (folder / "vocab.txt").write_text("\n".join(vocabulary))
    return BertTokenizerLegacy(str(folder / "vocab.txt"))


FAST = {"wordpiece": wordpiece, "byte_level": byte_level, "unigram": unigram, "one_word": one_word, "clip": clip_text}


@pytest.fixture(params=FAST)
def tokenizer(request: pytest.FixtureRequest) -> Any:
    return FAST[request.param]()


@pytest.fixture(autouse=True)
def nothing_logged() -> Iterator[None]:
    """Transformers logs some of its warnings: none may appear."""
    records: list[logging.LogRecord] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = records.append  # type: ignore[method-assign]
    logger = logging.getLogger("transformers")
    logger.addHandler(handler)
    yield
    logger.removeHandler(handler)
    assert [record.getMessage() for record in records] == []


def text(
    raw: Any, tokenizer: Any, *, task: str = "text-classification", max_length: int | None = None, **more: Any
) -> Input:
    return encode(raw, task=task, processor=tokenizer, max_length=max_length, **more)


def spans(item: Input) -> list[str | None]:
    """The original text of each feature, None where it has none."""
    return [item.texts[part][a:b] if a >= 0 else None for part, (a, b) in zip(item.parts, item.offsets, strict=True)]


def groups(item: Input) -> list[str]:
    """The words as the pieces make them."""
    found: dict[int, str] = {}
    for word, name in zip(item.words, item.features, strict=True):
        if word >= 0:
            found[word] = found.get(word, "") + name
    return [found[word] for word in sorted(found)]


def check(item: Input) -> None:
    """What holds for every Input of text."""
    count = len(item.features)
    assert len(item.streams) == len(item.parts) == count
    assert item.special.shape == item.words.shape == (count,) and item.offsets.shape == (count, 2)
    assert item.special.dtype == bool and item.words.dtype.kind == item.offsets.dtype.kind == "i"
    last = dict.fromkeys(item.texts, 0)
    columns = (item.special, item.streams, item.words, item.offsets, item.parts)
    for special, stream, word, (a, b), part in zip(*columns, strict=True):
        if special or stream == "image":
            assert (word, a, b, part) == (-1, -1, -1, "")
        else:
            assert word >= 0 and part in item.texts
            assert (a, b) == (-1, -1) or 0 <= a < b <= len(item.texts[part])
            if a >= 0:
                assert a >= last[part]
                last[part] = a
    words = item.words[item.words >= 0]
    assert sorted(set(words)) == list(range(len(set(words)))) and (np.diff(words) >= 0).all()


def same(a: Input, b: Input) -> None:
    assert (a.features, a.streams, a.parts, a.texts, a.generated) == (
        b.features,
        b.streams,
        b.parts,
        b.texts,
        b.generated,
    )
    for name in ("special", "words", "offsets"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
    assert a.tensors.keys() == b.tensors.keys()
    for name, tensor in a.tensors.items():
        np.testing.assert_array_equal(tensor, b.tensors[name])


# --- text -------------------------------------------------------------------------------------------------------------


def test_importing_loads_no_torch() -> None:
    code = "import sys, whence.model.encoding; assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_wordpieces() -> None:
    item = text("A masterful film.", wordpiece())
    assert item.features == ("[CLS]", "a", "master", "##ful", "film", ".", "[SEP]")
    assert spans(item) == [None, "A", "master", "ful", "film", ".", None]
    assert item.words.tolist() == [-1, 0, 1, 1, 2, 3, -1]
    assert item.special.tolist() == [True, False, False, False, False, False, True]
    assert set(item.streams) == {"text"} and item.raw == "A masterful film." and item.notes == ()
    ids = wordpiece()("A masterful film.")["input_ids"]
    assert item.tensors["input_ids"].tolist() == ids and item.tensors["attention_mask"].tolist() == [1] * 7
    check(item)


def test_byte_level_pieces_keep_their_space_and_are_decoded() -> None:
    item = text("masterful masterful café\n🙂", byte_level())
    assert item.features[:4] == ("master", "ful", " master", "ful")
    assert "é" in item.features and "\n" in item.features
    assert item.features[-4:] == ("ð", "Ł", "Ļ", "Ĥ")  # bytes of one character stay as the tokenizer writes them
    assert spans(item)[-4:] == ["🙂"] * 4 and len(set(item.words[-4:])) == 1
    assert groups(item)[:2] == ["masterful", " masterful"]
    check(item)


def test_metaspace_pieces() -> None:
    item = text("a masterful film, Paris", unigram())
    assert item.features == (" ", "a", " master", "ful", " film", ",", " Paris", "</s>")
    # the space before the first word was put there by the tokenizer: it came from no text
    assert spans(item) == [None, "a", " master", "ful", " film", ",", " Paris", None]
    assert groups(item) == [" a", " masterful", " film,", " Paris"]
    check(item)


def test_words_are_split_at_whitespace_where_the_tokenizer_has_only_one() -> None:
    item = text("a masterful  film, Paris", one_word())
    assert set(one_word()("a masterful  film, Paris").word_ids()[1:]) == {0}
    assert groups(item) == [" a", " masterful", "  film,", " Paris"]
    assert item.special.tolist()[0] and item.features[0] == "<s>"
    check(item)


def test_end_of_word_marks_read_as_spaces() -> None:
    item = text("a film goo", clip_text())
    assert item.features == ("<|startoftext|>", "a ", "film ", "go", "o ", "<|endoftext|>")
    assert groups(item) == ["a ", "film ", "goo "]


def test_marks_of_other_tokenizers_are_letters_here() -> None:
    backend = Tokenizer(models.WordLevel(_numbered("[UNK]", "Ġorġ", "▁x"), unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    assert text("Ġorġ ▁x", _fast(backend, unk_token="[UNK]")).features == ("Ġorġ", "▁x")


def test_added_tokens_are_shown_as_they_are() -> None:
    tokenizer = unigram().__class__(tokenizer_object=Tokenizer.from_str(unigram().backend_tokenizer.to_str()))
    tokenizer.add_tokens([AddedToken("<｜begin▁here｜>", special=True)])
    item = text("<｜begin▁here｜>film", tokenizer)
    assert "<｜begin▁here｜>" in item.features
    assert not item.special[item.features.index("<｜begin▁here｜>")]  # the user wrote it


@pytest.mark.parametrize("raw", [{"text": "A film.", "pair": "the film"}, ("A film.", "the film")])
def test_pair(raw: Any) -> None:
    item = text(raw, wordpiece())
    assert item.features == ("[CLS]", "a", "film", ".", "[SEP]", "the", "film", "[SEP]")
    assert item.parts == ("", "text", "text", "text", "", "pair", "pair", "")
    assert item.words.tolist() == [-1, 0, 1, 2, -1, 3, 4, -1]
    assert spans(item) == [None, "A", "film", ".", None, "the", "film", None]
    assert item.texts == item.raw == {"text": "A film.", "pair": "the film"}
    assert item.tensors["input_ids"].tolist() == wordpiece()("A film.", "the film")["input_ids"]
    check(item)


def test_a_dict_may_leave_out_the_pair() -> None:
    same(text({"text": "the film"}, wordpiece()), text("the film", wordpiece()))
    same(text({"text": "the film", "pair": None}, wordpiece()), text("the film", wordpiece()))


@pytest.mark.parametrize("raw", [SENTENCE, *NASTY])
def test_any_text_keeps_its_places(tokenizer: Any, raw: str) -> None:
    item = text(raw, tokenizer)
    check(item)
    assert item.raw == raw and list(item.texts.values()) == [raw]
    readable = "".join("\ufffd" if "\ud800" <= c <= "\udfff" else c for c in raw)
    assert any("surrogate" in note for note in item.notes) == (readable != raw)
    assert item.tensors["input_ids"].tolist() == tokenizer(readable)["input_ids"]
    for name, part in zip(item.features, spans(item), strict=True):
        if part is not None and name.isascii() and name.strip().isalpha() and part.isascii():
            assert name.strip().lower() == part.strip().lower()


@pytest.mark.parametrize("build", FAST.values(), ids=FAST)
def test_every_word_is_found_whole(build: Any) -> None:
    """Whitespace separates words in every tokenizer, and pieces without whitespace between them are not torn apart."""
    item = text("masterful Paris good xyz", build())
    assert ["".join(word.split()).replace("##", "").lower() for word in groups(item)] == [
        "masterful",
        "paris",
        "good",
        "xyz",
    ]


def test_without_offsets_pieces_are_searched(tmp_path: Any) -> None:
    item = text(("Café  Masterful zzz FILM", "the film"), slow(tmp_path))
    assert item.features == ("[CLS]", "cafe", "master", "##ful", "[UNK]", "film", "[SEP]", "the", "film", "[SEP]")
    assert spans(item) == [None, "Café", "Master", "ful", None, "FILM", None, "the", "film", None]
    assert item.parts == ("", *["text"] * 5, "", "pair", "pair", "")
    assert item.words.tolist() == [-1, 0, 1, 1, 1, 2, -1, 3, 4, -1]
    assert any("no offsets" in note for note in item.notes)
    check(item)


def test_without_offsets_pieces_are_not_found_where_they_did_not_come_from() -> None:
    item = text("éé banana", hf.ByT5Tokenizer(extra_ids=0))  # its pieces are bytes, as letters: "é" is "Ã", "©"
    assert item.features == (*"Ã©Ã©", " ", *"banana", "</s>")
    assert spans(item) == [None] * 4 + [" ", *"banana", None]
    assert spans(text("é Ã", hf.ByT5Tokenizer(extra_ids=0)))[:3] == [None, None, " "]
    check(item)


@pytest.mark.parametrize("raw", [SENTENCE, *NASTY])
def test_any_text_keeps_its_places_without_offsets(tmp_path: Any, raw: str) -> None:
    for tokenizer in (slow(tmp_path), hf.ByT5Tokenizer(extra_ids=0)):
        check(text(raw, tokenizer))
        check(text((raw, "the film"), tokenizer))
        check(text(raw, tokenizer, max_length=6, truncate=True))


# --- too long, and what cannot be read --------------------------------------------------------------------------------


def test_too_long_says_by_how_much_and_truncate_cuts() -> None:
    long = "film " * 40
    with pytest.raises(
        ValueError, match=r"^the text has 42 tokens, 32 more than the 10 the model takes; .*truncate=True"
    ):
        text(long, wordpiece(), max_length=10)
    item = text(long, wordpiece(), max_length=10, truncate=True)
    assert item.features == ("[CLS]", *["film"] * 8, "[SEP]")
    assert item.tensors["input_ids"].shape == (10,) and item.notes == ("the text was cut from 42 to 10 tokens",)
    assert item.raw == long and text(long, wordpiece(), max_length=42).notes == ()
    with pytest.raises(ValueError, match="the text and the pair have 8 tokens, 1 more than the 7"):
        text(("the film", "good film is"), wordpiece(), max_length=7)
    pair = text(("the film", "good film is"), wordpiece(), max_length=7, truncate=True)
    assert pair.features == ("[CLS]", "the", "film", "[SEP]", "good", "film", "[SEP]")


def test_a_limit_below_the_special_tokens_is_an_error() -> None:
    for limit in (1, 2):
        with pytest.raises(ValueError, match="token"):
            text("the film", wordpiece(), max_length=limit, truncate=True)


def test_the_tokenizer_is_given_back_as_it_was() -> None:
    tokenizer = hf.PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(wordpiece().backend_tokenizer.to_str()))
    tokenizer.model_max_length = 5
    tokenizer.backend_tokenizer.enable_truncation(20)
    tokenizer.backend_tokenizer.enable_padding(length=30)
    before = tokenizer.backend_tokenizer.to_str()
    assert len(text("film " * 40, tokenizer).features) == 42
    assert len(text("film " * 40, tokenizer, max_length=10, truncate=True).features) == 10
    assert tokenizer.backend_tokenizer.to_str() == before


def test_threads_that_cut_do_not_cut_the_others() -> None:
    def length(limit: int | None) -> int:
        return len(text("film " * 40, wordpiece(), max_length=limit, truncate=True).features)

    limits = [10, None, 7, None] * 20
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(length, limits)) == [limit or 42 for limit in limits]


@pytest.mark.parametrize("raw", ["", " ", "\n\t ", {"text": "film", "pair": " "}, ("", "film")])
def test_empty_text(raw: Any) -> None:
    with pytest.raises(ValueError, match=r"^the (text|pair) is empty"):
        text(raw, wordpiece())


def test_a_text_without_tokens() -> None:
    with pytest.raises(ValueError, match=r"^no token of the text is left"):
        text("\x00\x01", wordpiece())
    with pytest.raises(ValueError, match=r"^no token of the pair is left"):
        text(("film", "\x00"), wordpiece())


@pytest.mark.parametrize(
    ("task", "raw", "error", "message"),
    [
        ("text-classification", 3, TypeError, "a string or a tuple .text, pair. or a dict .* but a int came"),
        ("text-classification", ["a", "b"], TypeError, "but a list came"),
        ("text-classification", ("a", "b", "c"), TypeError, "but a tuple came"),
        ("text-classification", {"text": 3}, TypeError, "the text must be a string, but a int came"),
        ("text-classification", np.zeros((2, 2)), TypeError, "the text must be a string, but a ndarray came"),
        (
            "text-classification",
            {"text": "a", "prompt": "b"},
            ValueError,
            "takes the keys 'text', 'pair', but 'prompt'",
        ),
        ("text-classification", {"pair": "b"}, ValueError, "needs the key 'text', but only 'pair' came"),
        (
            "causal-lm",
            {"text": "a"},
            ValueError,
            "takes the keys 'prompt', 'continuation', 'messages', 'max_tokens', 'stop', but 'text' came",
        ),
        ("causal-lm", {}, ValueError, "needs the key 'prompt', but only none came"),
        (
            "seq2seq-lm",
            {"source": "a", "target": "b"},
            ValueError,
            "takes the keys 'source', 'output', 'messages', 'max_tokens', 'stop', but 'target'",
        ),
        ("image-text", "a film", TypeError, "takes a tuple .image, text. or a dict with the keys 'image', 'text'"),
        ("image-text", ("a", "b"), TypeError, "pass a dict with the keys 'image' and 'text'"),
        ("image-text", {"text": "a"}, ValueError, "needs the key 'image'"),
        ("image-classification", 3, TypeError, "takes a picture or a dict with the keys 'image', but a int came"),
        ("image-classification", {"image": 3}, TypeError, "a picture must be a PIL image, an array or a path"),
        ("module", "a", ValueError, "needs an encoder"),
        ("translation", "a", ValueError, "unknown task 'translation'"),
    ],
)
def test_wrong_forms(task: str, raw: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        encode(raw, task=task, processor=wordpiece(), max_length=None)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("task", ["text-classification", "causal-lm", "seq2seq-lm"])
@pytest.mark.parametrize("processor", [None, ViTImageProcessorPil()])
def test_no_tokenizer(task: str, processor: Any) -> None:
    with pytest.raises(ValueError, match=rf"^{task} needs a tokenizer: pass whence.wrap\(model, tokenizer\)"):
        encode("a film", task=task, processor=processor, max_length=None)


# --- causal and encoder-decoder models --------------------------------------------------------------------------------


def test_prompt() -> None:
    item = text("the capital of France is", one_word(), task="causal-lm")
    assert item.features == ("<s>", " the", " capital", " of", " France", " is")
    assert set(item.streams) == {"text"} and item.generated == () and item.texts == {"prompt": item.raw}
    same(text({"prompt": item.raw}, one_word(), task="causal-lm"), item)
    check(item)


@pytest.mark.parametrize("build", [byte_level, one_word])
def test_continuation_has_the_pieces_of_the_joint_text(build: Any) -> None:
    raw = {"prompt": "the capital of France", "continuation": " is Paris"}
    item = text(raw, build(), task="causal-lm")
    joint = build()("the capital of France is Paris")["input_ids"]
    assert item.tensors["input_ids"].tolist() == joint and item.tensors["attention_mask"].tolist() == [1] * len(joint)
    count = len(joint)
    assert item.generated == (count - 2, count - 1) and item.features[-2:] == (" is", " Paris")
    assert item.streams == ("source",) * (count - 2) + ("target",) * 2
    assert item.parts[-3:] == ("prompt", "continuation", "continuation") and spans(item)[-2:] == [" is", " Paris"]
    assert item.words[-2] == item.words[-3] + 1 and item.texts == raw and item.notes == ()
    same(text(tuple(raw.values()), build(), task="causal-lm"), item)
    check(item)


def test_continuation_is_tokenised_apart_where_the_boundary_forbids() -> None:
    item = text({"prompt": "good fi", "continuation": "lm is"}, byte_level(), task="causal-lm")
    assert byte_level().tokenize("good film is") == ["good", "Ġfilm", "Ġis"]
    assert item.features == ("good", " fi", "l", "m", " is") and item.generated == (2, 3, 4)
    assert spans(item) == ["good", " fi", "l", "m", " is"]
    assert len(item.notes) == 1 and "tokenised apart" in item.notes[0]
    check(item)


def test_continuation_follows_the_prompt_and_not_its_closing_token() -> None:
    item = text(("the film", " is good"), unigram(), task="causal-lm")
    assert item.features == (" the", " film", " is", " good") and "closing special tokens" in item.notes[0]


def test_a_space_between_prompt_and_continuation_belongs_to_both() -> None:
    item = text(("the film ", "is good"), unigram(), task="causal-lm")
    check(item)
    assert [s for s in spans(item)][-2:] == ["is", " good"]


def test_continuation_errors_and_cuts() -> None:
    with pytest.raises(ValueError, match="the continuation is empty"):
        text(("the film", ""), byte_level(), task="causal-lm")
    raw = ("the film of France", " is good is good")
    with pytest.raises(ValueError, match="the prompt and the continuation have 8 tokens, 2 more than the 6"):
        text(raw, byte_level(), task="causal-lm", max_length=6)
    item = text(raw, byte_level(), task="causal-lm", max_length=6, truncate=True)
    assert item.features == (" of", " France", " is", " good", " is", " good") and item.generated == (2, 3, 4, 5)
    assert any("cut from 8 to 6" in note for note in item.notes)
    with pytest.raises(ValueError, match="the continuation alone has 4 tokens, and the model takes 3"):
        text(raw, byte_level(), task="causal-lm", max_length=3, truncate=True)
    newline = text(("the film", "\n"), byte_level(), task="causal-lm")
    assert newline.features[-1] == "\n" and newline.generated == (2,)


def test_a_cut_from_the_left_keeps_the_opening_token() -> None:
    tokenizer = hf.PreTrainedTokenizerFast(tokenizer_object=one_word().backend_tokenizer, truncation_side="left")
    item = text(("the film of France", " is good"), tokenizer, task="causal-lm", max_length=5, truncate=True)
    assert item.features == ("<s>", " of", " France", " is", " good") and item.generated == (3, 4)


def test_source_and_output() -> None:
    plain = text("the film", unigram(), task="seq2seq-lm", start_token=0)
    assert plain.features == (" the", " film", "</s>") and set(plain.streams) == {"source"} and plain.generated == ()
    raw = {"source": "the film", "output": "good masterful"}
    item = text(raw, unigram(), task="seq2seq-lm", start_token=0)
    assert item.features == (" the", " film", "</s>", "<pad>", " good", " master", "ful", "</s>")
    assert item.streams == ("source",) * 3 + ("target",) * 5 and item.generated == (4, 5, 6, 7)
    assert item.special.tolist() == [False, False, True, True, False, False, False, True]
    assert item.words.tolist() == [0, 1, -1, -1, 2, 3, 3, -1] and item.texts == raw
    assert item.tensors["input_ids"].tolist() == unigram()("the film")["input_ids"]
    assert item.tensors["decoder_input_ids"].tolist() == [0, *unigram()("good masterful")["input_ids"]]
    check(item)
    with pytest.raises(ValueError, match="the output has 4 tokens, 1 more than the 3"):
        text(raw, unigram(), task="seq2seq-lm", start_token=0, max_output=4)
    with pytest.raises(ValueError, match="decoder_start_token_id"):
        text(raw, unigram(), task="seq2seq-lm")


@pytest.mark.parametrize("build", [unigram, byte_level, wordpiece])
def test_generated_output_is_like_a_given_one(build: Any) -> None:
    given = text(("the film", "good masterful film"), build(), task="seq2seq-lm", start_token=0)
    source = text("the film", build(), task="seq2seq-lm", start_token=0)
    ids = given.tensors["decoder_input_ids"][1:]
    same(with_output(source, ids, build(), 0), given)
    assert with_output(source, ids, build(), 0).raw == "the film" and source.generated == ()


def test_generated_output_that_the_tokenizer_would_write_otherwise() -> None:
    names = ["Ġ", "f", "i", "l", "m", "ð", "Ł", "Ļ", "Ĥ", "Ġthe"]
    ids = [*byte_level().convert_tokens_to_ids(names), 0]
    item = with_output(text("the film", byte_level(), task="seq2seq-lm", start_token=0), ids, byte_level(), 0)
    start = 3
    assert item.texts["output"] == " film🙂 the" and item.generated == tuple(range(start, start + 11))
    assert spans(item)[start:] == [" ", "f", "i", "l", "m", None, None, None, "🙂", " the", None]
    assert item.special.tolist()[start:] == [False] * 10 + [True]
    assert len(set(item.words[start : start + 9])) == 1 and item.words[start + 9] == item.words[start + 8] + 1
    assert item.tensors["decoder_input_ids"].tolist() == [0, *ids]
    check(item)


def test_generated_output_of_nothing_but_the_end() -> None:
    item = with_output(text("the film", unigram(), task="seq2seq-lm", start_token=0), [1], unigram(), 0)
    assert item.features[-2:] == ("<pad>", "</s>") and item.generated == (4,) and item.texts["output"] == ""


def test_pieces_of_a_token() -> None:
    assert pieces(byte_level(), " Paris") == [(byte_level().convert_tokens_to_ids("ĠParis"), " Paris")]
    assert pieces(one_word(), " Paris") == [(one_word().convert_tokens_to_ids("▁Paris"), " Paris")]
    assert pieces(one_word(), "Paris") == [(one_word().convert_tokens_to_ids("▁Paris"), " Paris")]
    assert [name for _, name in pieces(byte_level(), " masterful")] == [" master", "ful"]
    assert [name for _, name in pieces(wordpiece(), "masterful")] == ["master", "##ful"]
    assert pieces(SimpleNamespace(tokenizer=byte_level()), "\ud800")
    with pytest.raises(ValueError, match="needs a tokenizer"):
        pieces(None, "a")


def test_ids_that_stand_for_nothing() -> None:
    assert mask_ids(wordpiece()) == {"pad": 0, "mask": 4, "unknown": 1}
    assert mask_ids(byte_level()) == mask_ids(None) == {"pad": None, "mask": None, "unknown": None}
    assert mask_ids(SimpleNamespace(tokenizer=unigram())) == {"pad": 0, "mask": None, "unknown": 2}


# --- images -----------------------------------------------------------------------------------------------------------


def picture(width: int, height: int) -> np.ndarray:
    """A smooth picture: red grows to the right, green downwards."""
    across, down = np.linspace(0, 255, width), np.linspace(0, 255, height)
    return np.stack([*np.meshgrid(across, down), np.full((height, width), 60.0)], axis=-1).round().astype(np.uint8)


VIT = ViTImageProcessorPil(size={"height": 16, "width": 16}, image_mean=[0.4, 0.5, 0.6], image_std=[0.2, 0.3, 0.4])
PLAIN = ViTImageProcessorPil(do_resize=False, do_normalize=False, do_rescale=False)


def image(raw: Any, processor: Any = PLAIN, **more: Any) -> Input:
    return encode(raw, task="image-classification", processor=processor, max_length=None, **more)


def test_image_features_and_tensors() -> None:
    raw = picture(40, 30)
    item = image(raw, VIT, image_layout=Layout(("[CLS]", "[REG] 0"), 2, 3, ("[END]",)))
    grid = tuple(f"patch {r},{c}" for r in range(2) for c in range(3))
    assert item.features == ("[CLS]", "[REG] 0", *grid, "[END]") and item.grid == (2, 3)
    assert item.special.tolist() == [True] * 2 + [False] * 6 + [True]
    assert set(item.streams) == {"image"} and set(item.parts) == {""} and (item.words == -1).all()
    assert item.offsets.shape == (9, 2) and (item.offsets == -1).all()
    expected = VIT(images=Image.fromarray(raw), return_tensors="np")["pixel_values"][0]
    np.testing.assert_array_equal(item.tensors["pixel_values"], expected)
    assert item.tensors["pixel_values"].shape == (3, 16, 16)
    np.testing.assert_array_equal(item.raw, raw)
    assert item.size == (40, 30) and item.box == (0.0, 0.0, 40.0, 30.0)
    resized = np.asarray(Image.fromarray(raw).resize((16, 16), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(item.image, resized)  # normalisation undone exactly
    assert item.image is not None and item.image.dtype == np.uint8


def test_without_a_layout_there_are_no_image_features() -> None:
    item = image(picture(8, 8), VIT)
    assert item.features == () and item.grid is None and item.offsets.shape == (0, 2) and item.special.shape == (0,)


@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize("edge", [32, 20])
def test_box_of_a_centre_crop(wide: bool, edge: int) -> None:
    """Where the box says, the original has the colours of the picture the model saw."""
    raw = picture(96, 48) if wide else picture(48, 96)
    processor = CLIPImageProcessorPil(size={"shortest_edge": edge}, crop_size={"height": 20, "width": 16})
    item = image(raw, processor)
    left, top, right, bottom = item.box  # type: ignore[misc]
    assert right - left == pytest.approx(16 * 48 / edge, rel=0.03) and bottom - top == pytest.approx(
        20 * 48 / edge, rel=0.03
    )
    crop = Image.fromarray(raw).resize((16, 20), Image.Resampling.BICUBIC, box=item.box)
    assert np.abs(np.asarray(crop).astype(int) - item.image).max() <= 6


def test_box_reaches_outside_where_the_crop_pads() -> None:
    processor = CLIPImageProcessorPil(do_resize=False, crop_size={"height": 10, "width": 20})
    item = image(picture(10, 10), processor)
    assert item.box == (-5.0, 0.0, 15.0, 10.0)
    assert item.image is not None and (item.image[:, :5] == 0).all() and item.image[:, 5:15].any()
    np.testing.assert_array_equal(item.image[:, 5:15], picture(10, 10))


def test_box_is_unknown_where_the_processor_resizes_in_its_own_way() -> None:
    processor = LevitImageProcessorPil(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    assert image(picture(60, 40), processor).box is None


def _exif(orientation: int) -> Image.Image:
    upright = Image.fromarray(picture(6, 4))
    exif = Image.Exif()
    exif[0x0112] = orientation
    turned = upright.transpose(Image.Transpose.ROTATE_90)  # orientation 6 means: turn clockwise to see it upright
    turned.info["exif"] = exif.tobytes()
    return turned


def test_orientation_is_respected(tmp_path: Any) -> None:
    path = tmp_path / "turned.png"
    _exif(6).save(path, exif=_exif(6).info["exif"])
    with Image.open(path) as stored:
        assert stored.size == (4, 6)
    for raw in (path, str(path), {"image": path}):
        item = image(raw)
        np.testing.assert_array_equal(item.image, picture(6, 4))
        assert item.size == (6, 4)


def _palette() -> Image.Image:
    return Image.fromarray(picture(5, 4)).convert("P", palette=Image.Palette.ADAPTIVE)


def _clear_palette() -> Image.Image:
    clear = Image.new("P", (5, 4), 0)
    clear.putpalette([10, 20, 30])
    clear.info["transparency"] = 0
    return clear


GREY = np.arange(20, dtype=np.uint8).reshape(4, 5) * 12
RED = np.full((4, 5, 3), (255, 0, 0), np.uint8)
MODES = {
    "grey": (Image.fromarray(GREY), GREY),
    "grey array": (GREY, GREY),
    "one channel": (GREY[..., None], GREY),
    "float": (GREY / 255.0, GREY),
    "float32": ((GREY / 255.0).astype(np.float32), GREY),
    "16 bits": (Image.fromarray(GREY.astype(np.uint16) * 257), GREY),
    "32 bits": (Image.fromarray(GREY.astype(np.int32) * 257), GREY),
    "32 bits, small": (Image.fromarray(GREY.astype(np.int32)), GREY),
    "float image": (Image.fromarray(GREY.astype(np.float32) / 255), GREY),
    "black and white": (Image.fromarray(GREY > 100), (GREY > 100) * 255),
    "palette": (_palette(), np.asarray(_palette().convert("RGB"))),
    "clear palette": (_clear_palette(), np.full((4, 5, 3), 255)),
    "opaque": (np.dstack([RED, np.full((4, 5), 255, np.uint8)]), RED),
    "half clear": (np.dstack([RED, np.full((4, 5), 128, np.uint8)]), np.full((4, 5, 3), (255, 127, 127))),
    "clear": (Image.fromarray(np.dstack([RED, np.zeros((4, 5), np.uint8)])), np.full((4, 5, 3), 255)),
    "grey and alpha": (Image.fromarray(np.dstack([GREY, np.zeros((4, 5), np.uint8)]), "LA"), np.full((4, 5, 3), 255)),
    "cmyk": (Image.fromarray(RED).convert("CMYK"), RED),
    "1x1": (np.array([[[9, 8, 7]]], np.uint8), np.array([[[9, 8, 7]]])),
    "1x1 grey": (Image.new("L", (1, 1), 77), np.full((1, 1, 3), 77)),
    "flipped view": (RED[:, ::-1], RED),
}


@pytest.mark.parametrize("name", MODES)
def test_every_kind_of_picture_becomes_rgb(name: str) -> None:
    raw, expected = MODES[name]
    expected = expected if expected.ndim == 3 else np.repeat(expected[..., None], 3, axis=-1)
    item = image(raw)
    np.testing.assert_array_equal(item.image, expected)
    np.testing.assert_array_equal(item.raw, expected)
    assert image(raw, VIT).tensors["pixel_values"].shape == (3, 16, 16)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (np.zeros((3, 32, 32), np.uint8), r"\(height, width\) or .* not \(3, 32, 32\)"),
        (np.zeros((0, 4), np.uint8), "shape"),
        (np.zeros(4, np.uint8), "shape"),
        (np.zeros((4, 4), np.int64), "uint8 or float in .* but it is int64"),
        (np.full((4, 4), 200.0), r"must lie in \[0, 1\], but it goes from 200.0 to 200.0"),
        (np.full((4, 4), np.nan), r"must lie in \[0, 1\]"),
        ("no_such_file.png", "the picture 'no_such_file.png' cannot be read"),
    ],
)
def test_bad_pictures(raw: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        image(raw)
    assert "\n" not in str(caught.value)


def test_files_that_are_no_pictures(tmp_path: Any) -> None:
    (tmp_path / "text.png").write_text("not a picture")
    Image.fromarray(picture(64, 64)).save(tmp_path / "whole.png")
    (tmp_path / "half.png").write_bytes((tmp_path / "whole.png").read_bytes()[:120])
    for path in (tmp_path / "text.png", tmp_path / "half.png", tmp_path):
        with pytest.raises(ValueError, match="cannot be read"):
            image(path)


@pytest.mark.parametrize("processor", [None, "wordpiece"])
def test_no_image_processor(processor: Any) -> None:
    with pytest.raises(ValueError, match=r"needs an image processor: pass whence\.wrap"):
        image(picture(4, 4), wordpiece() if processor else None)


@pytest.mark.parametrize("size", [(0, 0), (0, 3), (3, 0)])
def test_a_picture_without_pixels_is_refused(size: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=f"a picture needs pixels, and this one has {size[0]} x {size[1]}"):
        image(Image.new("RGB", size))


def test_pixels_that_are_not_finite_are_refused() -> None:
    processor = ViTImageProcessorPil(size={"height": 16, "width": 16}, image_mean=[0.5] * 3, image_std=[0.5, 0.0, 0.5])
    with pytest.raises(ValueError, match=r"must give finite pixels.* look at its image_mean"):
        image(picture(4, 4), processor)


# --- image and text ---------------------------------------------------------------------------------------------------


def _both(kind: str) -> Any:
    if kind == "clip":
        size = {"size": {"shortest_edge": 16}, "crop_size": {"height": 16, "width": 16}}
        return hf.CLIPProcessor(CLIPImageProcessorPil(**size), clip_text())
    if kind == "vilt":
        return hf.ViltProcessor(ViltImageProcessorPil(size={"shortest_edge": 32}), wordpiece())
    return SimpleNamespace(image_processor=VIT, tokenizer=wordpiece())


@pytest.mark.parametrize("kind", ["clip", "vilt", "apart"])
def test_image_and_text(kind: str) -> None:
    processor, raw = _both(kind), {"image": picture(40, 30), "text": "a good film"}
    item = encode(raw, task="image-text", processor=processor, max_length=20, image_layout=Layout(("[CLS]",), 2, 2))
    count = len(item.features) - 5
    assert item.streams == ("text",) * count + ("image",) * 5 and item.features[-1] == "patch 1,1"
    assert [s.strip() for s in spans(item) if s] == ["a", "good", "film"] and item.grid == (2, 2)
    assert item.image is not None and item.size == (40, 30) and item.raw["text"] == "a good film"
    check(item)
    if kind != "apart":
        expected = processor(text=raw["text"], images=Image.fromarray(raw["image"]), return_tensors="np")
        assert item.tensors.keys() == expected.keys()
        for name, tensor in expected.items():
            np.testing.assert_array_equal(item.tensors[name], tensor[0])
    for pair in ((raw["image"], raw["text"]), (raw["text"], raw["image"])):
        same(
            encode(pair, task="image-text", processor=processor, max_length=20, image_layout=Layout(("[CLS]",), 2, 2)),
            item,
        )
    with pytest.raises(ValueError, match="the text has 5 tokens, 1 more than the 4"):
        encode(raw, task="image-text", processor=processor, max_length=4)


# --- the user's own encoder -------------------------------------------------------------------------------------------


def own(result: Any, raw: Any = "anything") -> Input:
    return encode(raw, task="module", processor=None, max_length=None, encoder=lambda _: result)


def test_own_encoder() -> None:
    import torch

    picture_of = np.full((4, 4, 3), 7, np.uint8)
    item = own(
        {
            "tensors": {
                "x": torch.ones(3, 2, requires_grad=True),
                "y": torch.ones(1, dtype=torch.bfloat16),
                "mask": [1, 1, 1],
            },
            "features": {"text": ["<s>", "a"], "image": ["region 0", "region 1"]},
            "special": {"text": [True, False]},
            "words": {"text": [-1, 0]},
            "offsets": {"text": [(-1, -1), (0, 1)]},
            "parts": {"text": ["", "text"]},
            "texts": {"text": "a"},
            "grid": (1, 2),
            "image": picture_of,
            "notes": ["by hand"],
        },
        raw=torch.zeros(2),
    )
    assert item.features == ("<s>", "a", "region 0", "region 1") and item.streams == ("text", "text", "image", "image")
    assert item.special.tolist() == [True, False, False, False] and item.words.tolist() == [-1, 0, -1, -1]
    assert item.offsets.tolist() == [[-1, -1], [0, 1], [-1, -1], [-1, -1]] and item.parts == ("", "text", "", "")
    assert item.grid == (1, 2) and item.texts == {"text": "a"} and item.notes == ("by hand",)
    np.testing.assert_array_equal(item.image, picture_of)
    assert all(type(t) is np.ndarray for t in item.tensors.values()) and type(item.raw) is np.ndarray
    assert item.tensors["x"].shape == (3, 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tensors": {}}, "'tensors' as a dict that is not empty"),
        ({"features": ["a", "b"]}, "'features' as a dict that is not empty"),
        ({"feature": {}}, "but the keys .*'feature' came"),
        ({"special": {"text": [True]}}, "1 special for 2 features of the stream 'text'"),
        ({"special": {"image": [True, True]}}, "'special' as lists by stream, one of 'text'"),
        ({"special": [True, True]}, "'special' as lists by stream"),
        ({"grid": (2, 2)}, "the grid .2, 2. for 2 features"),
        ({"tensors": {"x": object()}}, "'x' as numbers in an array or tensor, not object"),
        ({"tensors": {"x": [[1], [2, 3]]}}, "'x' as numbers in an array or tensor, not list"),
        ({"tensors": {"x": "text"}}, "'x' as numbers in an array or tensor, not str"),
    ],
)
def test_own_encoder_is_checked(change: dict[str, Any], message: str) -> None:
    good = {"tensors": {"x": np.ones(2)}, "features": {"text": ["a", "b"]}}
    assert own(good).features == ("a", "b")
    with pytest.raises(ValueError, match=message):
        own(good | change)
    with pytest.raises(ValueError, match="but a list came"):
        own([1, 2])


def test_the_end_of_a_prompt_is_kept() -> None:
    """The next token follows on the end of the prompt: cutting that would explain another token."""
    whole = text("the film of France is good", byte_level(), task="causal-lm")
    item = text("the film of France is good", byte_level(), task="causal-lm", max_length=5, truncate=True)
    assert item.features == whole.features[-5:]
    np.testing.assert_array_equal(item.tensors["input_ids"], whole.tensors["input_ids"][-5:])
    assert len(item.tensors["attention_mask"]) == 5
    assert item.notes == (f"the prompt was cut from {len(whole.features)} to 5 tokens: its beginning was left out",)
