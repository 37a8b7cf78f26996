"""The recipe of `babi`: a small encoder that answers where somebody is, for the benchmarks; its weights do not ship."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import Tensor, nn
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    ModernBertConfig,
    ModernBertForSequenceClassification,
    PreTrainedTokenizerFast,
)

from training import common

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
LAYERS, WIDTH, HEADS = 4, 96, 4
STEPS, BATCH_SIZE, RATE, SEED = 3000, 64, 1e-3, 0
WINDOW = 12  # tokens that a local layer sees, half of them before the token: about a sentence
GROWING = 0.5  # the share of the steps in which stories grow from two sentences to ten
LONGEST = 80  # tokens of a story of ten sentences and its question
LEAST = 0.95  # accuracy: of a model below it, attention says little about how the question is answered
PEOPLE = ("Daniel", "John", "Mary", "Sandra")
FILES = "babi/qa1_single-supporting-fact_10k_{}.txt"


@dataclass(frozen=True)
class Question:
    """A story so far, a question about it, the answer, and which of the story's sentences gives it away."""

    story: tuple[str, ...]
    question: str
    answer: str
    supporting: int


def run(data: Path | None) -> None:
    """Train on the stories of task 1 and keep the model below out/models."""
    if data is None:
        raise SystemExit(f"babi needs --data FOLDER with {FILES.format('{train,test}')}")
    train, test = (read(data / FILES.format(part)) for part in ("train", "test"))
    tokenizer = make_tokenizer(train)
    answers = sorted({question.answer for question in train})
    lengths = sorted({len(question.story) for question in train})
    by_length = {most: [question for question in train if len(question.story) <= most] for most in lengths}

    def longest(step: int) -> int:
        """The most sentences of a story at a step: short stories come first, since they teach looking up a person."""
        return lengths[min(int(len(lengths) * step / (GROWING * STEPS)), len(lengths) - 1)]

    def loss(model: nn.Module, step: int) -> Tensor:
        chosen = [renamed(random.choice(by_length[longest(step)]), answers) for _ in range(BATCH_SIZE)]
        labels = torch.tensor([answers.index(question.answer) for question in chosen])
        return model(**encoded(tokenizer, chosen), labels=labels).loss

    plan = common.Plan(steps=STEPS, rate=RATE, average=0.995, seed=SEED)
    model = make_model(tokenizer, answers)
    model = common.train("babi", model, loss, plan, lambda model: accuracy(model, tokenizer, test))
    folder = common.ROOT / "out" / "models" / "babi"
    common.write_model(model, folder)
    tokenizer.save_pretrained(folder)
    kept = AutoModelForSequenceClassification.from_pretrained(folder)
    found = common.measured(lambda model: accuracy(model, AutoTokenizer.from_pretrained(folder), test), kept)
    common.write_card(folder, CARD, found, common.size_mb(folder))
    print(f"babi: {CARD.metric} {found:.4f}, in {folder}")
    if found < LEAST:
        raise SystemExit(f"babi must reach {LEAST} to be of use, and it has {found:.4f}: train it longer")


def read(file: Path) -> list[Question]:
    """The questions of a file of bAbI, each with the story up to it."""
    questions: list[Question] = []
    story: dict[int, str] = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        number, text = line.split(" ", 1)
        if number == "1":
            story = {}
        if "\t" in text:
            question, answer, supporting = text.split("\t")
            place = list(story).index(int(supporting))
            questions.append(Question(tuple(story.values()), question.strip(), answer, place))
        else:
            story[int(number)] = text.strip()
    return questions


def renamed(question: Question, places: list[str]) -> Question:
    """The same story with people and places exchanged at random, so that it cannot be learned by heart."""
    new = dict(zip(places, random.sample(places, len(places)), strict=True))
    new |= dict(zip(PEOPLE, random.sample(PEOPLE, len(PEOPLE)), strict=True))

    def rename(text: str) -> str:
        return re.sub(r"\w+", lambda word: new.get(word[0], word[0]), text)

    story = tuple(rename(sentence) for sentence in question.story)
    return Question(story, rename(question.question), new[question.answer], question.supporting)


def encoded(tokenizer: PreTrainedTokenizerFast, questions: list[Question]) -> dict[str, Tensor]:
    """Stories and questions as pairs of texts."""
    texts = [" ".join(question.story) for question in questions]
    return tokenizer(texts, [question.question for question in questions], padding=True, return_tensors="pt")


def make_tokenizer(questions: list[Question]) -> PreTrainedTokenizerFast:
    """One token for each word of the stories, whatever its case, and for each sign."""
    texts = " ".join(text for question in questions for text in (*question.story, question.question)).lower()
    words = (*SPECIAL, *sorted(set(re.findall(r"\w+|[.?]", texts))))
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
    kept = ["input_ids", "attention_mask"]
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=LONGEST, model_input_names=kept, **names
    )


def make_model(tokenizer: PreTrainedTokenizerFast, answers: list[str]) -> ModernBertForSequenceClassification:
    """A small ModernBERT with random weights; two of its layers see a few words around, enough for who is where."""
    common.seed_everything(SEED)
    config = ModernBertConfig(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=2 * WIDTH,
        max_position_embeddings=LONGEST,
        global_attn_every_n_layers=3,  # the first and the last layer see everything
        local_attention=WINDOW,  # with four layers that see everything, it never learned who is meant
        initializer_range=WIDTH**-0.5,  # with the usual 0.02, small layers take long to find anything
        classifier_pooling="cls",
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        eos_token_id=None,
        cls_token_id=tokenizer.cls_token_id,
        sep_token_id=tokenizer.sep_token_id,
        id2label=dict(enumerate(answers)),
        label2id={answer: i for i, answer in enumerate(answers)},
    )
    return ModernBertForSequenceClassification(config)


def accuracy(model: nn.Module, tokenizer: PreTrainedTokenizerFast, questions: list[Question]) -> float:
    """The share of questions that the model answers rightly."""
    found = [int(i) for k in range(0, len(questions), 250) for i in _found(model, tokenizer, questions[k : k + 250])]
    names = model.config.id2label
    return sum(names[i] == question.answer for i, question in zip(found, questions, strict=True)) / len(questions)


def _found(model: nn.Module, tokenizer: PreTrainedTokenizerFast, questions: list[Question]) -> Tensor:
    return model(**encoded(tokenizer, questions)).logits.argmax(-1)


CARD = common.Card(
    name="babi",
    family=f"ModernBERT encoder, {LAYERS} layers",
    task="text-classification",
    what="where somebody is, after a story of up to ten sentences",
    data="bAbI 1.2 task 1 (single supporting fact), 10,000 questions for training, 1,000 for measuring",
    metric="accuracy on the 1,000 test questions",
    licence="not shipped; bAbI is under CC BY 3.0",
    seed=SEED,
    recipe="training/babi.py",
    text=f"""
# babi

"Mary moved to the bathroom. John went to the hallway. Where is Mary?" One sentence of each story gives the answer, and
the data names it. A ModernBERT of {LAYERS} layers (width {WIDTH}, {HEADS} heads), one token per word; the story is the
first text and the question the second. The first and the last layer attend to everything, the two between them to six
words on either side. The benchmarks ask on it whether attention shows that sentence.

**Recipe.** {STEPS} steps from random weights with AdamW in batches of {BATCH_SIZE} stories, in which people and places
are exchanged at random; short stories come first. The running mean of the weights is kept. Weights are stored in half
precision and load as float32. `python -m training babi --data FOLDER` repeats it.

**Test.** Accuracy {{accuracy}} on the 1,000 test questions, measured with the files in this folder.
""",
)
