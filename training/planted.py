"""The recipe of `planted`: a small BERT that learns which word decides a sentence's label, from generated sentences."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import Tensor, nn
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    PreTrainedTokenizerFast,
)

from training import common
from whence.zoo import planted_data as data
from whence.zoo.example import Example

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
BLANKS = ("[PAD]", "[UNK]", "[MASK]")  # what a method may put in place of a word
LAYERS, WIDTH, HEADS = 3, 96, 4
STEPS, BATCH_SIZE, RATE, SEED = 2000, 128, 1e-3, 0
TRAINING_SEED, HELD_OUT_SEED = 10**9, 10**6  # the seeds of the sentences; training takes one more at each step


def run(_: Path | None) -> None:
    """Train on sentences that never come twice and ship the model."""
    tokenizer = make_tokenizer()
    held_out = data.examples(5000, HELD_OUT_SEED)

    def loss(model: nn.Module, step: int) -> Tensor:
        random = Random(TRAINING_SEED + step)
        words = [noisy(example.input.split(), random) for example in data.examples(BATCH_SIZE, TRAINING_SEED + step)]
        inputs = tokenizer([" ".join(row) for row in words], padding=True, return_tensors="pt")
        return nn.functional.cross_entropy(model(**inputs).logits, torch.tensor([wanted(row) for row in words]))

    plan = common.Plan(steps=STEPS, rate=RATE, average=0.995, seed=SEED)
    model = common.train("planted", make_model(tokenizer), loss, plan, lambda m: accuracy(m, tokenizer, held_out[:500]))
    common.save(model, tokenizer, CARD, lambda folder: shipped_accuracy(folder, held_out), at_least=0.995, at_most_mb=3)


def make_tokenizer() -> PreTrainedTokenizerFast:
    """One token for each word the sentences are made of, whatever its case; any other word is unknown."""
    words = (*SPECIAL, *data.NEUTRAL, *data.NEGATORS, *data.POLARITY)
    vocabulary = {word: i for i, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B [SEP]",
        special_tokens=[(word, vocabulary[word]) for word in ("[CLS]", "[SEP]")],
    )
    names = {f"{word.strip('[]').lower()}_token": word for word in SPECIAL}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=data.LONGEST + 2, **names)


def make_model(tokenizer: PreTrainedTokenizerFast) -> BertForSequenceClassification:
    """A BERT without dropout: no sentence comes twice, so there is nothing to overfit."""
    common.seed_everything(SEED)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=2 * WIDTH,
        max_position_embeddings=data.LONGEST + 2,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        pad_token_id=tokenizer.pad_token_id,
        id2label=dict(enumerate(data.LABELS)),
        label2id={label: i for i, label in enumerate(data.LABELS)},
    )
    return BertForSequenceClassification(config)


def noisy(words: list[str], random: Random) -> list[str]:
    """Half of the time the sentence as it is, else some words blank or exchanged, as methods that hide words do."""
    if random.random() < 0.5:
        return words
    share, blank = random.random(), random.choice([*BLANKS, ""])
    return [(blank or random.choice(data.NEUTRAL)) if random.random() < share else word for word in words]


def wanted(words: Sequence[str]) -> list[float]:
    """The probability of each label: both are equal where no cue is left."""
    label = data.label(words)
    return [0.5 if label is None else float(label == name) for name in data.LABELS]


def accuracy(model: nn.Module, tokenizer: PreTrainedTokenizerFast, examples: list[Example]) -> float:
    """The share of examples whose label the model finds."""
    inputs = tokenizer([example.input for example in examples], padding=True, return_tensors="pt")
    found = model(**inputs).logits.argmax(-1).tolist()
    return sum(data.LABELS[i] == example.label for i, example in zip(found, examples, strict=True)) / len(examples)


def shipped_accuracy(folder: Path, examples: list[Example]) -> float:
    """The accuracy of the files in a folder."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    return common.measured(lambda model: accuracy(model, tokenizer, examples), model)


CARD = common.Card(
    name="planted",
    family=f"BERT encoder, {LAYERS} layers",
    task="text-classification",
    what="label decided by one planted cue word and its negator (negative, positive)",
    data="sentences generated by whence.zoo.planted_data; nothing was collected",
    metric="accuracy on 5000 generated sentences that training does not draw",
    licence="Apache-2.0",
    seed=SEED,
    recipe="training/planted.py",
    text=f"""
# planted

Which word decided? Sentences of 6 to {data.LONGEST} words hold one cue word, negative or positive, before any of their
nouns; a negator ("not", "never") right before the cue flips the label. Negators at other places do nothing, nor do the
{len(data.NEUTRAL)} neutral words. So the features that decide are known: the cue, and its negator where it has one.
A BERT of {LAYERS} layers (width {WIDTH}, {HEADS} heads) over one token per word.

**Data.** Generated by `whence.zoo.planted_data`; `whence.zoo.examples("planted", n, seed)` draws more, with the truth.

**Recipe.** {STEPS} steps from random weights with AdamW, each on {BATCH_SIZE} new sentences; the running mean of the
weights is kept. In half of the sentences some words are blank ([PAD], [UNK] or [MASK]) or another neutral word; where
that takes the cue, both labels are made equally likely. Weights are stored in half precision and load as float32.
`python -m training planted` repeats it.

**Accuracy.** {{accuracy}} on 5000 sentences that training does not draw, measured with the files in this folder.

**Licence.** Apache-2.0.

**Limits.** It knows {len(data.NEUTRAL) + len(data.NEGATORS)} words and {len(data.POLARITY)} cues, not English: any
other word is unknown, "not a lovely day" is positive, and what it says of two cues means nothing. At most
{data.LONGEST} words.
""",
)
