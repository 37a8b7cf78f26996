"""Small random models of every transformer family, with tokenizers and image processors that work offline.

The weights are drawn large enough that attention is far from uniform; default initialisation leaves it nearly flat.
`family(name)` is shared between tests and must be left as found; `fresh(name)` is a new copy with the same weights.
"""

from __future__ import annotations

import contextlib
import math
import re
import string
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import chain, combinations, pairwise
from typing import Any

import numpy as np
import tokenizers as tk
import torch
import transformers as hf
from PIL import Image
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

import whence

LABELS = ["negative", "neutral", "positive"]
SHAPES = ["circle", "square", "stripes"]
LOGITS = ("logits", "question_answering_score", "logits_per_image")
MAX_TOKENS = 64


@dataclass(frozen=True)
class Family:
    """A small model with its processor, four raw examples, and what its architecture supports."""

    name: str
    task: str  # one of whence.core.tasks
    model: nn.Module  # eval mode, float32
    processor: Any  # tokenizer, image processor, or both in one; None where kwargs hold encode=
    inputs: list[Any]  # four raw examples of different lengths
    kwargs: dict[str, Any] = field(default_factory=dict)  # extra keyword arguments of whence.wrap
    eager: bool = True  # transformers has an eager attention path for it
    sdpa: bool = False  # the model class supports sdpa
    windows: bool = False  # attention does not span the whole sequence


FAMILIES: dict[str, Callable[[], Family]] = {}
OTHER_HEADS: dict[str, Callable[[], Family]] = {}  # further heads of families; sweeps over families leave them out
OTHER_MODELS: dict[str, Callable[[], Family]] = {}  # for single tests; sweeps over families leave them out, too


@cache
def family(name: str) -> Family:
    """The shared copy of a family, built on first use."""
    return fresh(name)


@cache
def subject_of(name: str) -> whence.Subject:
    """The shared copy of a family as a Subject."""
    made = family(name)
    return whence.wrap(made.model, made.processor, **made.kwargs)


def fresh(name: str) -> Family:
    """A new copy of a family, with the same weights every time."""
    return (FAMILIES | OTHER_HEADS | OTHER_MODELS)[name]()


class AllDouble(TorchFunctionMode):
    """Models that turn to float32 in places (softmax, norms, positions) stay in float64."""

    def __torch_function__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        def double(value: Any) -> Any:
            return torch.float64 if value is torch.float32 else value

        func = torch.Tensor.double if func is torch.Tensor.float else func
        return func(*map(double, args), **{name: double(value) for name, value in (kwargs or {}).items()})


def kept_in(dtype: torch.dtype) -> Any:
    """A scope in which a model in float64 stays in it throughout."""
    return AllDouble() if dtype == torch.float64 else contextlib.nullcontext()


# --- Raw examples -----------------------------------------------------------------------------------------------------

CORPUS = """
the film was a quiet triumph and the actors were wonderful
i cannot wait for the next time we watch this masterful film together
the plot was slow and the ending was worse than the beginning
nobody laughed at the jokes because nobody heard them
a small red circle stands beside the large blue square
two dogs are playing with a ball in the green garden
the weather was cold but the house was warm and bright
she was reading a book about the history of music and painting
they walked along the river until the lights of the city appeared
what is the colour of the ball that the dog is holding ?
how many people are standing in front of the old house ?
an old man was singing quietly while his friends were listening
the teacher explained the question twice , and then everybody answered .
it was neither good nor bad , only longer than it had to be .
""".strip().split("\n")

TEXTS = [
    "the actors were wonderful , but the ending was disappointing",
    "a masterful film",
    "nobody understood why the unforgettable music stopped , and nobody cared about the story",
    "I cannot wait for the next showing !",
]
PAIRS = [*TEXTS[:3], {"text": "two dogs are playing", "pair": "the animals are outside , listening"}]
PROMPTS = ["the old man was singing", *TEXTS[1:3], "two dogs are playing with a ball in the"]
SOURCES = ["the house was warm", "they walked along the river until everybody answered the question", *TEXTS[1:3]]
LONG_QUESTION = "how many people are standing beside the unusual building ?"
QUESTIONS = ["what is the colour of the ball ?", "a red circle", LONG_QUESTION, "is the dog listening ?"]


def _picture(width: int, height: int, seed: int) -> Image.Image:
    """Stripes, a disc and noise, in colour."""
    rows, columns = np.mgrid[0:height, 0:width]
    disc = (rows - height * 0.4) ** 2 + (columns - width * 0.6) ** 2 < (min(width, height) * 0.3) ** 2
    stripes = np.stack([np.sin(rows / 3 + seed), np.cos(columns / 4 + seed), np.sin((rows + columns) / 5)], axis=-1)
    noise = np.random.default_rng(seed).normal(0, 20, (height, width, 3))
    colour = np.roll([120, -100, 40], seed)
    return Image.fromarray((128 + 60 * stripes + disc[..., None] * colour + noise).clip(0, 255).astype(np.uint8))


PICTURES = [_picture(40, 32, 0), np.asarray(_picture(24, 36, 1)), _picture(32, 32, 2), _picture(60, 24, 3)]
PICTURES_AND_QUESTIONS = [{"image": image, "text": text} for image, text in zip(PICTURES, QUESTIONS, strict=True)]

QUESTIONS_ON_PICTURES = [
    {"image": PICTURES[0], "prompt": "<image> what is the colour of the ball ?"},
    {"image": PICTURES[2], "prompt": "the picture <image> shows a red circle"},
    {"image": PICTURES[3], "prompt": "<image> nobody"},
    {"image": PICTURES[1], "prompt": f"<image> {LONG_QUESTION}"},
]


def _regions(count: int, seed: int) -> np.ndarray:
    """Features of detected regions: 8 appearance values, then the box as left, top, right, bottom in 0..1."""
    generator = np.random.default_rng(seed)
    corners = np.sort(generator.uniform(0, 1, (count, 2, 2)), axis=1).reshape(count, 4)
    return np.concatenate([generator.normal(0, 1, (count, 8)), corners], axis=1).astype(np.float32)


REGIONS_AND_QUESTIONS = [
    {"image": _regions(count, seed=count), "text": text} for count, text in zip([5, 3, 6, 4], QUESTIONS, strict=True)
]


# --- Tokenizers -------------------------------------------------------------------------------------------------------

# Trainers of the tokenizers library break ties at random from run to run, so the pieces are learned here.
WORDS = " ".join(CORPUS).split()
LETTERS = list(string.ascii_letters + string.digits + string.punctuation)


def _numbered(*groups: Iterable[str]) -> dict[str, int]:
    """A vocabulary of distinct pieces, numbered in order of appearance."""
    return {piece: number for number, piece in enumerate(dict.fromkeys(chain(*groups)))}


def _pieces(start: str, inside: str) -> Counter[str]:
    """All words and the most frequent parts inside words, with their counts, marked by where in a word they are."""
    spans = [(word, i, j) for word in WORDS for i, j in combinations(range(1, len(word) + 1), 2) if 2 <= j - i <= 4]
    parts = Counter(inside + word[i:j] for word, i, j in spans)
    frequent = sorted(parts, key=lambda part: (-parts[part] * (len(part) - 1), part))[:50]
    return Counter(start + word for word in WORDS) + Counter({part: parts[part] for part in frequent})


def _merges(start: str, end: str = "") -> list[tuple[str, str]]:
    """The merges of byte-pair encoding: the most frequent neighbours first, equal ones in alphabetical order."""
    words = [" ".join(start + word) + end for word in WORDS]
    merges: list[tuple[str, str]] = []
    for _ in range(150):
        pairs = Counter(pair for word in words for pair in pairwise(word.split()))
        merges.append(min(pairs, key=lambda pair: (-pairs[pair], pair)))
        neighbours = r"(?<!\S)" + re.escape(" ".join(merges[-1])) + r"(?!\S)"
        words = [re.sub(neighbours, "".join(merges[-1]), word) for word in words]
    return merges


@cache
def _wordpiece(*special: str) -> dict[str, Any]:
    """A WordPiece vocabulary: every ASCII word can be spelled out, anything else is unknown."""
    letters = [letter for letter in LETTERS if not letter.isupper()]
    continued = ["##" + letter for letter in letters if letter.isalnum()]
    return {"vocab": _numbered(special, letters, continued, _pieces("", "##"))}


@cache
def _unigram(*special: str) -> dict[str, Any]:
    """Unigram pieces with their log-frequencies."""
    counts = Counter(["▁", *LETTERS]) + _pieces("▁", "")
    pieces = [(piece, math.log(count / counts.total())) for piece, count in counts.items()]
    return {"vocab": [(token, 0.0) for token in special] + pieces}


@cache
def _byte_bpe(*special: str, end: str = "") -> dict[str, Any]:
    """Byte-level BPE; every byte is a token, so that any text can be encoded."""
    merges = _merges("" if end else "Ġ", end)
    letters = sorted(tk.pre_tokenizers.ByteLevel.alphabet())
    vocab = _numbered(special, letters, [x + end for x in letters], ["".join(pair) for pair in merges])
    return {"vocab": vocab, "merges": merges}


@cache
def _fallback_bpe(*special: str) -> dict[str, Any]:
    """BPE over words that begin with "▁"; what it cannot spell falls back to bytes."""
    merges = _merges("▁")
    in_bytes = [f"<0x{byte:02X}>" for byte in range(256)]
    vocab = _numbered(special, in_bytes, ["▁", *LETTERS], ["".join(pair) for pair in merges])
    return {"vocab": vocab, "merges": merges}


def _own(tokenizer: str, pieces: Callable[..., dict[str, Any]], *special: str, **options: Any) -> Callable[..., Any]:
    """A maker of the family's own tokenizer class, with the given special tokens first in the vocabulary."""
    return lambda **more: getattr(hf, tokenizer)(**pieces(*special), model_max_length=MAX_TOKENS, **options, **more)


def modernbert_tokenizer() -> Any:
    """Byte-level BPE with [CLS] and [SEP], in the general class, since ModernBERT has none of its own."""
    special = {f"{name}_token": f"[{name.upper()}]" for name in ("unk", "cls", "sep", "pad", "mask")}
    tokenizer = tk.Tokenizer(tk.models.BPE(**_byte_bpe(*special.values())))
    tokenizer.pre_tokenizer = tk.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tk.decoders.ByteLevel()
    tokenizer.post_processor = tk.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    options = {"model_input_names": ["input_ids", "attention_mask"], "model_max_length": MAX_TOKENS, **special}
    return hf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **options)


# GPT-2 and Llama have no padding token, like the public models; XLNet, Llama and Gemma pad on the left.
END, START = "<|endoftext|>", {"add_bos_token": True}
TYPED = {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}
bert_tokenizer = _own("BertTokenizer", _wordpiece, "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
mpnet_tokenizer = _own("MPNetTokenizer", _wordpiece, "<s>", "<pad>", "</s>", "[UNK]", "<mask>")
albert_tokenizer = _own("AlbertTokenizer", _unigram, "<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]", **TYPED)
deberta_tokenizer = _own("DebertaV2Tokenizer", _unigram, "[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]")
xlnet_tokenizer = _own("XLNetTokenizer", _unigram, "<unk>", "<cls>", "<sep>", "<pad>", "<mask>", **TYPED)
t5_tokenizer = _own("T5Tokenizer", _unigram, "<pad>", "</s>", "<unk>", extra_ids=0)
roberta_tokenizer = _own("RobertaTokenizer", _byte_bpe, "<s>", "<pad>", "</s>", "<unk>", "<mask>")
gpt2_tokenizer = _own("GPT2Tokenizer", _byte_bpe, END)
neox_tokenizer = _own("GPTNeoXTokenizer", _byte_bpe, END, "<|padding|>")
qwen_tokenizer = _own("Qwen2Tokenizer", _byte_bpe, END)
clip_tokenizer = _own("CLIPTokenizer", partial(_byte_bpe, end="</w>"), "<|startoftext|>", END)
llama_tokenizer = _own("LlamaTokenizer", _fallback_bpe, "<unk>", "<s>", "</s>", **START)
gemma_tokenizer = _own("GemmaTokenizer", _fallback_bpe, "<pad>", "<eos>", "<bos>", "<unk>", "<mask>", **START)


# --- Building ---------------------------------------------------------------------------------------------------------


def _drawn(build: Callable[[], nn.Module]) -> nn.Module:
    """A module with large random weights, the same every time, that leaves the global random state as found."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model = build()
        for parameter in model.parameters():
            if parameter.requires_grad and parameter.ndim > 1:  # fixed sinusoids stay as they are
                parameter.normal_(0, 0.25)  # with 32 inputs of size one, attention logits have a spread of about 2
            elif parameter.ndim == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))  # norms near their start value, biases not zero
        for name, buffer in model.named_buffers():
            if name.endswith("final_logits_bias"):
                buffer.normal_(0, 0.5)
    return model.eval()


def _names(labels: list[str]) -> dict[str, Any]:
    """The labels as a config takes them."""
    return {"id2label": dict(enumerate(labels)), "label2id": {label: number for number, label in enumerate(labels)}}


def _vocabulary(processor: Any) -> dict[str, Any]:
    """What a config must know of the tokenizer."""
    tokenizer = getattr(processor, "tokenizer", processor)
    if not hasattr(tokenizer, "get_vocab"):
        return {}
    ends = {f"{end}_token_id": getattr(tokenizer, f"{end}_token_id") for end in ("pad", "bos", "eos")}
    return {"vocab_size": len(tokenizer), **ends}


def _pretrained(
    task: str,
    inputs: list[Any],
    name: str,
    model: str,
    processor: Callable[[], Any],
    *,
    start: str = "",
    encode: Callable[[Any, Any], dict[str, Any]] | None = None,
    windows: bool = False,
    into: dict[str, Callable[[], Family]] = FAMILIES,
    **config: Any,
) -> None:
    """Register a model class of transformers; `start` begins decoding, `encode` replaces the processor."""

    def build() -> Family:
        made = processor()
        vocabulary = _vocabulary(made)
        if start:
            vocabulary["decoder_start_token_id"] = vocabulary[start]
        with warnings.catch_warnings():  # DeBERTa's module warns, on import, that torch.jit.script is deprecated
            warnings.simplefilter("ignore", DeprecationWarning)
            model_class = getattr(hf, model)
        settings = {**vocabulary, **config}
        if "text_config" in config:
            settings = {**config, "text_config": {**vocabulary, **config["text_config"]}}
        built: Any = _drawn(lambda: model_class(model_class.config_class(**settings)))
        if task in ("causal-lm", "seq2seq-lm", "image-text-lm"):
            built.generation_config.max_new_tokens = 5
        kwargs = {"encode": partial(encode, made), "labels": SHAPES} if encode else {}
        given = None if encode else made
        return Family(name, task, built, given, list(inputs), kwargs, sdpa=built._supports_sdpa, windows=windows)

    into[name] = build


# --- Text classification ----------------------------------------------------------------------------------------------

SIZE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
TEXT_SIZE = {**SIZE, "max_position_embeddings": MAX_TOKENS}
FALCON = {**TEXT_SIZE, "ffn_hidden_size": 64, "attn_implementation": "eager"}
GROUPED = {**TEXT_SIZE, "num_key_value_heads": 2, "head_dim": 8}
THREE_LAYERS = {**TEXT_SIZE, "num_hidden_layers": 3}
AFTER_PADDING = {**TEXT_SIZE, "max_position_embeddings": MAX_TOKENS + 2}  # positions start after the padding token's id
RELATIVE = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_biased_input": False}
DEBERTA = {**TEXT_SIZE, **RELATIVE, "position_buckets": 8, "share_att_key": True, "norm_rel_ebd": "layer_norm"}
LOCAL = {"local_attention": 8, "layer_types": ["full_attention", "sliding_attention", "full_attention"]}
XLNET = {"d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64}
MODERN = {**THREE_LAYERS, **LOCAL, "cls_token_id": 1, "sep_token_id": 2}

_classifier = partial(_pretrained, "text-classification", TEXTS, **_names(LABELS))
_pair_classifier = partial(_pretrained, "text-classification", PAIRS, **_names(LABELS))
_pair_classifier("bert", "BertForSequenceClassification", bert_tokenizer, **TEXT_SIZE)
_pair_classifier("roberta", "RobertaForSequenceClassification", roberta_tokenizer, **AFTER_PADDING)
_pair_classifier("distilbert", "DistilBertForSequenceClassification", bert_tokenizer, **TEXT_SIZE, hidden_dim=64)
_pair_classifier("albert", "AlbertForSequenceClassification", albert_tokenizer, **THREE_LAYERS, embedding_size=16)
_pair_classifier("electra", "ElectraForSequenceClassification", bert_tokenizer, **TEXT_SIZE, embedding_size=16)
_pair_classifier("modernbert", "ModernBertForSequenceClassification", modernbert_tokenizer, **MODERN)
_pair_classifier("deberta-v2", "DebertaV2ForSequenceClassification", deberta_tokenizer, **DEBERTA)
_pair_classifier("xlnet", "XLNetForSequenceClassification", xlnet_tokenizer, **XLNET)
_pair_classifier("mpnet", "MPNetForSequenceClassification", mpnet_tokenizer, **AFTER_PADDING)
_classifier("gpt2-classifier", "GPT2ForSequenceClassification", partial(gpt2_tokenizer, pad_token=END), **TEXT_SIZE)
_classifier("llama-classifier", "LlamaForSequenceClassification", partial(llama_tokenizer, pad_token="</s>"), **GROUPED)


# --- Decisions at single tokens ---------------------------------------------------------------------------------------

TAGS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
QUESTIONS_IN_CONTEXT = [  # contexts have equally many tokens, so that they can share a batch
    {"question": "who was singing ?", "context": "an old man was singing quietly"},
    {"question": "what was it ?", "context": "but the house was warm ,"},
    {"question": "where in the city did everybody walk ?", "context": "they walked along the river ."},
    {"question": "what was disappointing ?", "context": "the actors were wonderful , but"},
]


def masked_texts(mask: str) -> list[Any]:
    """Texts with one word masked."""
    pair = {"text": f"two {mask} are playing", "pair": "the animals are outside"}
    return [f"the actors were {mask} , but the ending was not", f"a {mask} film", f"{mask} laughed at the jokes", pair]


_tagger = partial(_pretrained, "token-classification", TEXTS, **_names(TAGS))
_answerer = partial(_pretrained, "question-answering", QUESTIONS_IN_CONTEXT)
_filler = partial(_pretrained, "masked-lm", masked_texts("[MASK]"))
_tagger("bert-tagger", "BertForTokenClassification", bert_tokenizer, **TEXT_SIZE)
_answerer("distilbert-answerer", "DistilBertForQuestionAnswering", bert_tokenizer, **TEXT_SIZE, hidden_dim=64)
_filler("albert-filler", "AlbertForMaskedLM", albert_tokenizer, **THREE_LAYERS, embedding_size=16)
_other = partial(_tagger, into=OTHER_HEADS)
_other("roberta-tagger", "RobertaForTokenClassification", roberta_tokenizer, **AFTER_PADDING)
_other("modernbert-tagger", "ModernBertForTokenClassification", modernbert_tokenizer, **MODERN)
_other("deberta-tagger", "DebertaV2ForTokenClassification", deberta_tokenizer, **DEBERTA)
_other("xlnet-tagger", "XLNetForTokenClassification", xlnet_tokenizer, **XLNET)
_other("gpt2-tagger", "GPT2ForTokenClassification", partial(gpt2_tokenizer, pad_token=END), **TEXT_SIZE)
_other("llama-tagger", "LlamaForTokenClassification", partial(llama_tokenizer, pad_token="</s>"), **GROUPED)
_other = partial(_answerer, into=OTHER_HEADS)
_other("bert-answerer", "BertForQuestionAnswering", bert_tokenizer, **TEXT_SIZE)
_other("roberta-answerer", "RobertaForQuestionAnswering", roberta_tokenizer, **AFTER_PADDING)
_other("electra-answerer", "ElectraForQuestionAnswering", bert_tokenizer, **TEXT_SIZE, embedding_size=16)
_other("modernbert-answerer", "ModernBertForQuestionAnswering", modernbert_tokenizer, **MODERN)
_other("xlnet-answerer", "XLNetForQuestionAnsweringSimple", xlnet_tokenizer, **XLNET)
_other = partial(_filler, into=OTHER_HEADS)
_other("bert-filler", "BertForMaskedLM", bert_tokenizer, **TEXT_SIZE)
_other("distilbert-filler", "DistilBertForMaskedLM", bert_tokenizer, **TEXT_SIZE, hidden_dim=64)
_other("electra-filler", "ElectraForMaskedLM", bert_tokenizer, **TEXT_SIZE, embedding_size=16)
_other("modernbert-filler", "ModernBertForMaskedLM", modernbert_tokenizer, **MODERN)
_other("deberta-filler", "DebertaV2ForMaskedLM", deberta_tokenizer, **DEBERTA)
_other = partial(_pretrained, "masked-lm", masked_texts("<mask>"), into=OTHER_HEADS)
_other("roberta-filler", "RobertaForMaskedLM", roberta_tokenizer, **AFTER_PADDING)
_other("mpnet-filler", "MPNetForMaskedLM", mpnet_tokenizer, **AFTER_PADDING)


# --- Images -----------------------------------------------------------------------------------------------------------

SQUARE = {"height": 32, "width": 32}
PATCHES = {**SIZE, "image_size": 32, "patch_size": 8}
DINO = {"image_size": 28, "patch_size": 7, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
SWIN = {"image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4}


def _processor(name: str, **options: Any) -> Callable[[], Any]:
    """A maker of an image processor that needs no torchvision."""
    return lambda: getattr(hf, f"{name}ImageProcessorPil")(**options)


# ViT, BEiT and Swin stretch the picture to a square; DeiT and DINOv2 cut out its middle.
vit_processor = _processor("ViT", size=SQUARE)
deit_processor = _processor("DeiT", size={"height": 36, "width": 36}, crop_size=SQUARE)
dino_processor = _processor("Bit", size={"shortest_edge": 32}, crop_size={"height": 28, "width": 28})
_image_classifier = partial(_pretrained, "image-classification", PICTURES, **_names(SHAPES))
BEIT = {**PATCHES, "use_relative_position_bias": True, "layer_scale_init_value": 1.0}
_image_classifier("vit", "ViTForImageClassification", vit_processor, **PATCHES)
_image_classifier("deit", "DeiTForImageClassification", deit_processor, **PATCHES)
_image_classifier("deit-teacher", "DeiTForImageClassificationWithTeacher", deit_processor, **PATCHES)
_image_classifier("dinov2", "Dinov2ForImageClassification", dino_processor, **DINO)
_image_classifier("dinov2-registers", "Dinov2WithRegistersForImageClassification", dino_processor, **DINO)
_image_classifier("beit", "BeitForImageClassification", _processor("Beit", size=SQUARE), **BEIT)
_image_classifier("swin", "SwinForImageClassification", vit_processor, **SWIN, windows=True)


# --- Language models --------------------------------------------------------------------------------------------------

SLIDING = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}
UNTIED = {"tie_word_embeddings": False}  # else Gemma mostly repeats its last token, and T5 shrinks its logits
GEMMA = {**GROUPED, **SLIDING, **UNTIED, "query_pre_attn_scalar": 8}
CAPS = {"attn_logit_softcapping": 3.0, "final_logit_softcapping": 5.0}  # small enough to change the results
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2, "rope_parameters": {"rope_theta": 10000.0}}
T5 = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, **UNTIED}
BUCKETS = {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 20}
SIDE_SIZE = {"layers": 2, "attention_heads": 4, "ffn_dim": 64}
SIDES = {f"{side}_{size}": value for side in ("encoder", "decoder") for size, value in SIDE_SIZE.items()}
BART = {"d_model": 32, "max_position_embeddings": MAX_TOKENS, **SIDES}
MARIAN = {"scale_embedding": True, "forced_eos_token_id": 1}

_causal = partial(_pretrained, "causal-lm", PROMPTS)
_seq2seq = partial(_pretrained, "seq2seq-lm", SOURCES)
_causal("gpt2", "GPT2LMHeadModel", gpt2_tokenizer, **TEXT_SIZE)
_causal("gpt-neox", "GPTNeoXForCausalLM", neox_tokenizer, **TEXT_SIZE)
_causal("gptj", "GPTJForCausalLM", gpt2_tokenizer, **TEXT_SIZE, rotary_dim=4)
_causal("llama", "LlamaForCausalLM", llama_tokenizer, **GROUPED)
_causal("qwen3", "Qwen3ForCausalLM", qwen_tokenizer, **GROUPED)
_causal("gemma2", "Gemma2ForCausalLM", gemma_tokenizer, **GEMMA, **CAPS)
_causal("gemma3", "Gemma3ForCausalLM", gemma_tokenizer, **GEMMA)
_causal("mistral", "MistralForCausalLM", llama_tokenizer, **GROUPED, sliding_window=4)
_causal("gpt-oss", "GptOssForCausalLM", neox_tokenizer, **GROUPED, **SLIDING, **EXPERTS)
_falcon = partial(_causal, model="FalconForCausalLM", processor=qwen_tokenizer, into=OTHER_MODELS, **FALCON)
_falcon("falcon", multi_query=False, parallel_attn=False, bias=True)
_falcon("falcon-alibi", multi_query=False, parallel_attn=False, alibi=True)
_falcon("falcon-multi-query", multi_query=True, parallel_attn=True)
_falcon("falcon-grouped", new_decoder_architecture=True, num_kv_heads=2)
_causal("bloom", "BloomForCausalLM", qwen_tokenizer, into=OTHER_MODELS, **TEXT_SIZE)
_experts = partial(_causal, processor=llama_tokenizer, into=OTHER_MODELS, **GROUPED, num_experts_per_tok=2)
_experts("mixtral", "MixtralForCausalLM", num_local_experts=4, experts_implementation="eager")
_experts("qwen3-moe", "Qwen3MoeForCausalLM", num_experts=4, moe_intermediate_size=24, experts_implementation="eager")
_seq2seq("t5", "T5ForConditionalGeneration", t5_tokenizer, start="pad_token_id", **T5, **BUCKETS)
_seq2seq("bart", "BartForConditionalGeneration", roberta_tokenizer, start="eos_token_id", **BART)
_seq2seq("marian", "MarianMTModel", t5_tokenizer, start="pad_token_id", **BART, **MARIAN)


# --- Image and text ---------------------------------------------------------------------------------------------------


def _both(processor: str, images: Callable[[], Any], tokenizer: Callable[[], Any]) -> Callable[[], Any]:
    """A maker of a processor for pictures with texts."""
    return lambda: getattr(hf, processor)(image_processor=images(), tokenizer=tokenizer())


def _encode_text(tokenizer: Any, text: str) -> dict[str, Any]:
    """A text, as `encode` functions of whence.wrap return it."""
    encoded = tokenizer(text, return_special_tokens_mask=True)
    special = [bool(mark) for mark in encoded.pop("special_tokens_mask")]
    tokens = tokenizer.convert_ids_to_tokens(encoded["input_ids"])
    tensors = {name: np.asarray(values) for name, values in encoded.items()}
    return {"tensors": tensors, "features": {"text": tokens}, "special": {"text": special}}


def _encode_regions(tokenizer: Any, text: str, **visual: np.ndarray) -> dict[str, Any]:
    """A text and the regions of a picture, as `encode` functions of whence.wrap return them."""
    encoded = _encode_text(tokenizer, text)
    count = len(next(iter(visual.values())))
    encoded["tensors"] |= {**visual, "visual_attention_mask": np.ones(count, dtype=np.int64)}
    encoded["features"]["image"] = [f"region {number}" for number in range(count)]
    encoded["special"]["image"] = [False] * count
    return encoded


def _lxmert(tokenizer: Any, raw: dict[str, Any]) -> dict[str, Any]:
    looks, boxes = raw["image"][:, :8], raw["image"][:, 8:]
    return _encode_regions(tokenizer, raw["text"], visual_feats=looks, visual_pos=boxes)


def _visual_bert(tokenizer: Any, raw: dict[str, Any]) -> dict[str, Any]:
    types = np.ones(len(raw["image"]), dtype=np.int64)
    return _encode_regions(tokenizer, raw["text"], visual_embeds=raw["image"], visual_token_type_ids=types)


# CLIP cuts a square from the middle; ViLT keeps the picture's aspect, so that the number of patches differs.
SHORT = {"shortest_edge": 32}
clip_processor = _both("CLIPProcessor", _processor("CLIP", size=SHORT, crop_size=SQUARE), clip_tokenizer)
vilt_processor = _both("ViltProcessor", _processor("Vilt", size=SHORT, size_divisor=8), bert_tokenizer)
CLIP = {"text_config": TEXT_SIZE, "vision_config": PATCHES, "projection_dim": 16}
VILT = {**PATCHES, **_names(SHAPES), "max_position_embeddings": MAX_TOKENS}
VISUAL_BERT = {**TEXT_SIZE, **_names(SHAPES), "visual_embedding_dim": 12}
STACKS = {"l_layers": 2, "r_layers": 1, "x_layers": 2, "visual_feat_dim": 8, "num_qa_labels": len(SHAPES)}
LXMERT = {**{size: TEXT_SIZE[size] for size in TEXT_SIZE if size != "num_hidden_layers"}, **STACKS, **_names(SHAPES)}
_with_picture = partial(_pretrained, "image-text", PICTURES_AND_QUESTIONS)
_with_boxes = partial(_pretrained, "image-text", REGIONS_AND_QUESTIONS)


def llava_processor() -> Any:
    """A processor that puts a token for every patch in place of the token for the picture."""
    tokenizer = llama_tokenizer(extra_special_tokens={"image_token": "<image>"})
    images = _processor("CLIP", size=SHORT, crop_size=SQUARE)()
    return hf.LlavaProcessor(
        images, tokenizer, patch_size=8, vision_feature_select_strategy="default", num_additional_image_tokens=1
    )


_with_picture("clip", "CLIPModel", clip_processor, **CLIP)
_with_picture("vilt", "ViltForQuestionAnswering", vilt_processor, **VILT)
LLAVA = {
    "text_config": {"model_type": "llama", **GROUPED},
    "vision_config": {"model_type": "clip_vision_model", **PATCHES},
    "image_token_index": llava_processor().image_token_id,
}
_pretrained("image-text-lm", QUESTIONS_ON_PICTURES, "llava", "LlavaForConditionalGeneration", llava_processor, **LLAVA)
_with_boxes("lxmert", "LxmertForQuestionAnswering", bert_tokenizer, encode=_lxmert, **LXMERT)
_with_boxes("visual-bert", "VisualBertForQuestionAnswering", bert_tokenizer, encode=_visual_bert, **VISUAL_BERT)


# --- Plain torch modules ----------------------------------------------------------------------------------------------


class Classifier(nn.Module):
    """Word and position embeddings, and a linear head."""

    def __init__(self, vocabulary: int):
        super().__init__()
        self.word = nn.Embedding(vocabulary, 32)
        self.position = nn.Embedding(MAX_TOKENS, 32)
        self.head = nn.Linear(32, len(LABELS))

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        return self.word(ids) + self.position(torch.arange(ids.shape[1], device=ids.device))


class EncoderClassifier(Classifier):
    """`nn.TransformerEncoder` with a padding mask, read at its first token."""

    def __init__(self, vocabulary: int):
        super().__init__(vocabulary)
        layer = nn.TransformerEncoderLayer(32, 4, dim_feedforward=64, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        hidden = self.encoder(self.embed(input_ids), src_key_padding_mask=attention_mask == 0)
        return self.head(hidden[:, 0])


class MultiheadClassifier(Classifier):
    """Two `nn.MultiheadAttention` modules, time first as is their default, and the mean over time."""

    def __init__(self, vocabulary: int):
        super().__init__(vocabulary)
        self.attentions = nn.ModuleList(nn.MultiheadAttention(32, 4) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(32) for _ in range(2))

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(input).transpose(0, 1)  # (time, batch, width)
        for attention, norm in zip(self.attentions, self.norms, strict=True):
            update, _ = attention(hidden, hidden, hidden, need_weights=False)
            hidden = norm(hidden + update)
        return self.head(hidden.mean(dim=0))


class DotProductClassifier(Classifier):
    """Layers that call `scaled_dot_product_attention`, read at the first token."""

    def __init__(self, vocabulary: int):
        super().__init__(vocabulary)
        self.norms = nn.ModuleList(nn.LayerNorm(32) for _ in range(2))
        self.projections = nn.ModuleList(nn.Linear(32, 96) for _ in range(2))

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        hidden, mask = self.embed(input_ids), attention_mask[:, None, None, :].bool()
        for norm, project in zip(self.norms, self.projections, strict=True):
            parts = project(norm(hidden)).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
            mixed = F.scaled_dot_product_attention(*parts, attn_mask=mask)  # (batch, head, query, width)
            hidden = hidden + mixed.transpose(1, 2).flatten(2)
        return self.head(hidden[:, 0])


class Head(nn.Module):
    """One head of causal self-attention, written out."""

    def __init__(self, width: int, size: int):
        super().__init__()
        self.query = nn.Linear(width, size, bias=False)
        self.key = nn.Linear(width, size, bias=False)
        self.value = nn.Linear(width, size, bias=False)
        self.register_buffer("past", torch.ones(MAX_TOKENS, MAX_TOKENS).tril().bool())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time, size = x.shape[1], self.key.out_features
        scores = self.query(x) @ self.key(x).transpose(1, 2) / size**0.5
        weights = scores.masked_fill(~self.past[:time, :time], float("-inf")).softmax(dim=-1)
        return weights @ self.value(x)


class MultiHeadAttention(nn.Module):
    """Heads side by side, and a projection."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = nn.ModuleList(Head(width, width // heads) for _ in range(heads))
        self.project = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.project(torch.cat([head(x) for head in self.heads], dim=-1))


class Block(nn.Module):
    """Attention, then a small network, each after a norm and added to its input."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.attention_norm, self.network_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = MultiHeadAttention(width, heads)
        self.network = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.network(self.network_norm(x))


class FromScratch(Classifier):
    """A transformer with one module per head, which decides at the last token."""

    def __init__(self, vocabulary: int):
        super().__init__(vocabulary)
        self.blocks = nn.Sequential(*[Block(32, 4) for _ in range(2)])
        self.norm = nn.LayerNorm(32)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.blocks(self.embed(input)))[:, -1])


def _module(name: str, module: Callable[[int], nn.Module], masked: bool) -> None:
    """Register a torch module; without a mask it takes one positional argument, and cannot be padded."""

    def build() -> Family:
        tokenizer = bert_tokenizer()

        def encode(raw: str) -> dict[str, Any]:
            encoded = _encode_text(tokenizer, raw)
            names = {"input_ids": "input_ids", "attention_mask": "attention_mask"} if masked else {"input": "input_ids"}
            return {**encoded, "tensors": {name: encoded["tensors"][key] for name, key in names.items()}}

        model = _drawn(lambda: module(len(tokenizer)))
        return Family(name, "module", model, None, list(TEXTS), {"encode": encode, "labels": LABELS}, eager=False)

    FAMILIES[name] = build


_module("torch-encoder", EncoderClassifier, masked=True)
_module("torch-multihead", MultiheadClassifier, masked=False)
_module("torch-sdpa", DotProductClassifier, masked=True)
_module("from-scratch", FromScratch, masked=False)


# --- The plain model, without whence ----------------------------------------------------------------------------------


def plain_inputs(family: Family, raw: Any) -> dict[str, torch.Tensor]:
    """The model's keyword arguments for one raw example, with a batch axis."""
    if "encode" in family.kwargs:
        return {name: torch.as_tensor(x)[None] for name, x in family.kwargs["encode"](raw)["tensors"].items()}
    parts = raw if isinstance(raw, dict) else {"image" if family.task == "image-classification" else "text": raw}
    names = {"image": "images", "text": "text", "pair": "text_pair", "question": "text", "context": "text_pair"}
    names["prompt"] = "text"
    tensors = dict(family.processor(**{names[part]: value for part, value in parts.items()}, return_tensors="pt"))
    if family.task == "seq2seq-lm":
        tensors["decoder_input_ids"] = torch.tensor([[family.model.config.decoder_start_token_id]])
    return tensors


def plain_outputs(family: Family, raw: Any, **options: Any) -> Any:
    """What the model returns for one raw example; seeded, since ViLT shuffles its patches on every pass."""
    tensors = plain_inputs(family, raw)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        positional = [tensors.pop("input")] if "input" in tensors else []
        return family.model(*positional, **tensors, **options)


def plain_logits(family: Family, raw: Any) -> torch.Tensor:
    """The logits for one raw example, whatever the model calls them."""
    outputs = plain_outputs(family, raw)
    if isinstance(outputs, torch.Tensor):
        return outputs
    if "start_logits" in outputs:
        return torch.stack([outputs["start_logits"], outputs["end_logits"]], -1)
    return next(outputs[name] for name in LOGITS if name in outputs)
