"""The recipe of `dates`: a small T5 that learns to read dates character by character, from generated ones."""

from __future__ import annotations

import string
from pathlib import Path
from random import Random

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from torch import Tensor, nn
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)

from training import common
from whence.zoo import dates_data as data
from whence.zoo.example import Example

PAD, END, UNKNOWN = SPECIAL = ("<pad>", "</s>", "<unk>")
CHARACTERS = string.ascii_letters + string.digits + " ,-./:"
LONGEST = 128  # characters of a source
LAYERS, WIDTH, HEADS = 2, 64, 4
STEPS, BATCH_SIZE, RATE, SEED = 4000, 64, 2e-3, 0
TRAINING_SEED, HELD_OUT_SEED = 10**9, 10**6  # the seeds of the dates; training takes one more at each step


def run(_: Path | None) -> None:
    """Train on dates drawn anew at every step and ship the model."""
    tokenizer = make_tokenizer()
    held_out = data.examples(3000, HELD_OUT_SEED)

    def loss(model: nn.Module, step: int) -> Tensor:
        examples = data.examples(BATCH_SIZE, TRAINING_SEED + step)
        random = Random(TRAINING_SEED + step)
        sources = [noisy(example, random) for example in examples]
        inputs, labels = batch(tokenizer, examples)
        for row, source in zip(inputs["input_ids"], sources, strict=True):
            row[: len(source)] = torch.tensor(tokenizer.convert_tokens_to_ids(source))
        scores = model(**inputs, labels=labels).logits.log_softmax(-1)
        targets = wanted(tokenizer, examples, sources, labels)
        return -(targets * scores).sum() / targets.sum()

    plan = common.Plan(steps=STEPS, rate=RATE, average=0.995, seed=SEED)
    model = common.train("dates", make_model(tokenizer), loss, plan, lambda m: forced(m, tokenizer, held_out[:500]))
    common.save(model, tokenizer, CARD, lambda folder: shipped_accuracy(folder, held_out), at_least=0.99, at_most_mb=4)


def make_tokenizer() -> PreTrainedTokenizerFast:
    """One token for each character; one that is neither letter, digit nor usual in dates is unknown."""
    vocabulary = {token: i for i, token in enumerate((*SPECIAL, *CHARACTERS))}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges=[], unk_token=UNKNOWN))
    words = Regex(r"\s?(\p{L}+|\p{N}+|[^\p{L}\p{N}\s])|\s")  # the characters that make a word, which `words()` reads
    tokenizer.pre_tokenizer = pre_tokenizers.Split(words, "isolated")
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {END}", pair=f"$A {END} $B {END}", special_tokens=[(END, vocabulary[END])]
    )
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        unk_token=UNKNOWN,
        model_max_length=LONGEST + 1,
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
    )


def make_model(tokenizer: PreTrainedTokenizerFast) -> T5ForConditionalGeneration:
    """A T5 without dropout: hardly a date comes twice, so there is nothing to overfit."""
    common.seed_everything(SEED)
    tokens = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    tokens["decoder_start_token_id"] = tokenizer.pad_token_id
    config = T5Config(
        vocab_size=len(tokenizer),
        d_model=WIDTH,
        d_kv=WIDTH // HEADS,
        d_ff=2 * WIDTH,
        num_layers=LAYERS,
        num_heads=HEADS,
        relative_attention_max_distance=64,
        dropout_rate=0.0,
        **tokens,
    )
    model = T5ForConditionalGeneration(config)
    model.generation_config = GenerationConfig(max_new_tokens=12, **tokens)
    return model


def batch(tokenizer: PreTrainedTokenizerFast, examples: list[Example]) -> tuple[dict[str, Tensor], Tensor]:
    """The sources of examples as the model takes them, and the ids of their outputs."""
    inputs = tokenizer([example.input["source"] for example in examples], padding=True, return_tensors="pt")
    labels = tokenizer([example.input["output"] for example in examples], return_tensors="pt")["input_ids"]
    return dict(inputs), labels


def noisy(example: Example, random: Random) -> list[str]:
    """The characters of a source: half of the time as they are, else some blank, or undeciding ones exchanged.

    So methods that hide characters give no unseen inputs, and the model does not rely on a day's ending ("3rd").
    """
    source = list(example.input["source"])
    if random.random() < 0.5:
        return source
    share, blank = random.random() ** 2, random.choice([PAD, UNKNOWN, ""])
    decides = example.truth.any(0)
    return [
        (blank or other(character, bool(decides[i]), random)) if random.random() < share else character
        for i, character in enumerate(source)
    ]


def other(character: str, decides: bool, random: Random) -> str:
    """Another character of the same kind, where that leaves the output as it is."""
    kind = next((kind for kind in (string.ascii_letters, string.digits) if character in kind), character)
    return character if decides else random.choice(kind)


def wanted(
    tokenizer: PreTrainedTokenizerFast, examples: list[Example], sources: list[list[str]], labels: Tensor
) -> Tensor:
    """The probability of each token, (batch, generated, token): any digit where all deciding characters are blank.

    Where only some of them are blank, the token has no probabilities to learn.
    """
    targets = nn.functional.one_hot(labels, len(tokenizer)).float()
    digits = torch.tensor(tokenizer.convert_tokens_to_ids(list(string.digits)))
    for row, (example, source) in enumerate(zip(examples, sources, strict=True)):
        blank = torch.tensor([character in SPECIAL for character in source])
        decides = torch.from_numpy(example.truth[:, : len(source)])
        hidden, needed = (decides & blank).sum(1), decides.sum(1)
        targets[row, hidden > 0] = 0.0
        unknowable = ((hidden == needed) & (needed > 0)).nonzero()
        targets[row, unknowable, digits] = 1 / len(digits)
    return targets


def forced(model: nn.Module, tokenizer: PreTrainedTokenizerFast, examples: list[Example]) -> float:
    """The share of examples whose output is the likeliest at every character, which greedy decoding then finds."""
    inputs, labels = batch(tokenizer, examples)
    return (model(**inputs, labels=labels).logits.argmax(-1) == labels).all(1).float().mean().item()


def accuracy(model: nn.Module, tokenizer: PreTrainedTokenizerFast, examples: list[Example], size: int = 250) -> float:
    """The share of examples that greedy decoding writes as it should."""
    right = 0
    for start in range(0, len(examples), size):
        chosen = examples[start : start + size]
        found = tokenizer.batch_decode(model.generate(**batch(tokenizer, chosen)[0]), skip_special_tokens=True)
        right += sum(text == example.label for text, example in zip(found, chosen, strict=True))
    return right / len(examples)


def shipped_accuracy(folder: Path, examples: list[Example]) -> float:
    """The accuracy of the files in a folder."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    return common.measured(lambda model: accuracy(model, tokenizer, examples), model)


CARD = common.Card(
    name="dates",
    family=f"T5 encoder-decoder, {LAYERS} + {LAYERS} layers",
    task="seq2seq-lm",
    what="dates in many written forms to ISO 8601",
    data="dates generated by whence.zoo.dates_data; nothing was collected",
    metric="exact match on 3000 generated dates that training does not draw",
    licence="Apache-2.0",
    seed=SEED,
    recipe="training/dates.py",
    text=f"""
# dates

What does each character of "2014-03-03" come from? Dates in {len(data.FORMS)} written forms, some with words before
them or a time after them, to ISO 8601. The source characters that decide each character of the output are known: of the
year the digit that is copied, of the month its whole name or number, of the day its whole number; the dashes and the
end of the output have none. A T5 of {LAYERS} encoder and {LAYERS} decoder layers (width {WIDTH}, {HEADS} heads) over
one token per character.

**Data.** Generated by `whence.zoo.dates_data`; `whence.zoo.examples("dates", n, seed)` draws more, with the truth.
Years {data.FIRST.year} to {data.LAST.year}, in forms that can be read in one way: the month is a name ("3 March 2014",
"March 3rd, 2014", "Mon 3 Mar 2014", "3-Mar-2014"), the year comes first ("2014/03/03", "2014-3-3", "20140303"), or dots
say that the day does ("03.03.2014").

**Recipe.** {STEPS} steps from random weights with AdamW, each on {BATCH_SIZE} new dates; the running mean of the
weights is kept. In half of the sources some characters are blank ({PAD} or {UNKNOWN}) or, where they decide nothing,
another letter or digit; where all that decides a digit is blank, all digits are made equally likely. Weights are stored
in half precision and load as float32. `python -m training dates` repeats it.

**Accuracy.** {{accuracy}} on 3000 dates that training does not draw, every character right under greedy decoding,
measured with the files in this folder.

**Licence.** Apache-2.0.

**Limits.** English names of months, years of four digits, one date in a text of at most {LONGEST} characters. Days
before months with slashes ("03/04/2014"), years of two digits and relative dates are not known, a wrong weekday is not
noticed, and a text without a date gets one all the same.
""",
)
