"""The recipe of `recall`: a small Llama that learns to look up a key's value in its prompt, from generated prompts."""

from __future__ import annotations

from pathlib import Path
from random import Random

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from training import common
from whence.zoo import recall_data as data
from whence.zoo.example import Example

PAD, START = "<pad>", "<s>"
SPECIAL = (PAD, data.UNKNOWN, START)
LAYERS, WIDTH, HEADS, KEY_VALUE_HEADS = 3, 96, 4, 2
LONGEST = 2 * data.PAIRS[1] + 3  # tokens: the start, the pairs, the query, the answer
STEPS, BATCH_SIZE, RATE, SEED = 3000, 64, 2e-3, 0
TRAINING_SEED, HELD_OUT_SEED = 10**9, 10**6  # the seeds of the prompts; training takes one more at each step


def run(_: Path | None) -> None:
    """Train on prompts drawn anew at every step and ship the model."""
    tokenizer = make_tokenizer()
    held_out = data.examples(5000, HELD_OUT_SEED)

    def loss(model: nn.Module, step: int) -> Tensor:
        random = Random(TRAINING_SEED + step)
        prompts = [varied(example.input.split(), random) for example in data.examples(BATCH_SIZE, TRAINING_SEED + step)]
        inputs = tokenizer([" ".join(words) for words in prompts], padding=True, return_tensors="pt")
        logits = model(**inputs, use_cache=False).logits
        return nn.functional.cross_entropy(logits.flatten(0, 1), wanted(tokenizer, prompts, logits.shape[1]).flatten())

    plan = common.Plan(steps=STEPS, rate=RATE, average=0.995, seed=SEED)
    model = common.train("recall", make_model(tokenizer), loss, plan, lambda m: accuracy(m, tokenizer, held_out[:500]))
    common.save(model, tokenizer, CARD, lambda folder: shipped_accuracy(folder, held_out), at_least=0.99, at_most_mb=3)


def make_tokenizer() -> PreTrainedTokenizerFast:
    """One token for each key and value between spaces; anything else is unknown."""
    vocabulary = {word: i for i, word in enumerate((*SPECIAL, *data.KEYS, *data.VALUES))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=data.UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{START} $A", special_tokens=[(START, vocabulary[START])]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        unk_token=data.UNKNOWN,
        bos_token=START,
        padding_side="left",  # so that the next token comes after the last place of every row
        model_max_length=LONGEST,
        model_input_names=["input_ids", "attention_mask"],
    )


def make_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """A Llama in which two query heads share each key and value head."""
    common.seed_everything(SEED)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KEY_VALUE_HEADS,
        intermediate_size=2 * WIDTH,
        max_position_embeddings=LONGEST,
        initializer_range=WIDTH**-0.5,  # with the usual 0.02, small layers take long to find anything
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=None,
    )
    return LlamaForCausalLM(config)


def varied(words: list[str], random: Random) -> list[str]:
    """A prompt as it is, or with pairs repeated, or with another query, or with blanks as methods put them."""
    kind = random.choices(("rehearsed", "plain", "other query", "blank"), (4, 3, 1, 2))[0]
    if kind == "rehearsed":
        return rehearsed(words, random)
    if kind == "other query":
        return [*words[:-1], random.choice(data.KEYS)]
    if kind == "blank":
        share, blank = random.random(), random.choice([PAD, data.UNKNOWN])
        return [blank if random.random() < share else word for word in words]
    return words


def rehearsed(words: list[str], random: Random) -> list[str]:
    """The prompt with pairs repeated here and there: early ones are easy to recall, which teaches the others."""
    pairs, result = [words[i : i + 2] for i in range(0, len(words) - 1, 2)], []
    for i, pair in enumerate(pairs):
        result += pair
        if random.random() < 0.5:
            result += random.choice(pairs[: i + 1])
    return [*result, words[-1]]


def wanted(tokenizer: PreTrainedTokenizerFast, prompts: list[list[str]], width: int) -> Tensor:
    """The ids to come after every key of the prompts, as if each were the query; -100 elsewhere: (prompt, width)."""
    labels = torch.full((len(prompts), width), -100)
    for row, words in zip(labels, prompts, strict=True):
        answers = [data.answer(words[: end + 1]) for end in range(0, len(words), 2)]
        row[width - len(words) :: 2] = torch.tensor(tokenizer.convert_tokens_to_ids(answers))
    return labels


def accuracy(model: nn.Module, tokenizer: PreTrainedTokenizerFast, examples: list[Example]) -> float:
    """The share of examples that the model continues with the right value."""
    inputs = tokenizer([example.input for example in examples], padding=True, return_tensors="pt")
    words = tokenizer.convert_ids_to_tokens(model(**inputs, logits_to_keep=1).logits[:, -1].argmax(-1).tolist())
    return sum(word == example.label for word, example in zip(words, examples, strict=True)) / len(examples)


def shipped_accuracy(folder: Path, examples: list[Example]) -> float:
    """The accuracy of the files in a folder."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    return common.measured(lambda model: accuracy(model, tokenizer, examples), model)


CARD = common.Card(
    name="recall",
    family=f"Llama-style causal LM, {LAYERS} layers",
    task="causal-lm",
    what="key-value recall: `k3 v7 k1 v2 k3` goes on with `v7`",
    data="prompts generated by whence.zoo.recall_data; nothing was collected",
    metric="accuracy on 5000 generated prompts that training does not draw",
    licence="Apache-2.0",
    seed=SEED,
    recipe="training/recall.py",
    text=f"""
# recall

Which value had this key? A prompt lists {data.PAIRS[0]} to {data.PAIRS[1]} keys with their values and ends with one of
the keys; the next token is its value: `k3 v7 k1 v2 k3` goes on with `v7`. So the features that decide are known: the
queried key's earlier occurrence and its value. (The query at the end decides too; it is the question and is not
counted.) A Llama of {LAYERS} layers (width {WIDTH}, {HEADS} query heads for {KEY_VALUE_HEADS} key and value heads,
RMSNorm, rotary positions) over one token per word, {len(data.KEYS)} keys and {len(data.VALUES)} values.

**Data.** Generated by `whence.zoo.recall_data`; `whence.zoo.examples("recall", n, seed)` draws more, with the truth.

**Recipe.** {STEPS} steps from random weights with AdamW, each on {BATCH_SIZE} new prompts; the running mean of the
weights is kept. The answer is wanted after every key, not only the last, and it is <unk> where the value is not known:
at a key's first occurrence, and where key or value is blank (<pad> or <unk>), as in a fifth of the prompts. In two
fifths, pairs come again on the way. Weights are stored in half precision and load as float32.
`python -m training recall` repeats it.

**Accuracy.** {{accuracy}} on 5000 prompts that training does not draw, measured with the files in this folder.

**Licence.** Apache-2.0.

**Limits.** It answers the query and writes no further text. Keys with two values and more than {data.PAIRS[1]} pairs
are nothing it has learnt.
""",
)
