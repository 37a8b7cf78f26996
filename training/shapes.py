"""The recipe of `shapes`: a small LXMERT that learns to answer questions about drawn pictures."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import Tensor, nn
from transformers import AutoTokenizer, LxmertConfig, LxmertForQuestionAnswering, PreTrainedTokenizerFast

from training import common
from whence.zoo import shapes_data as data
from whence.zoo.example import Example

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
BLANKS = ("[PAD]", "[UNK]", "[MASK]")  # what a method may put in place of a word
KINDS = {"colour": tuple(data.COLOURS), "shape": data.SHAPES, "size": tuple(data.SIZES)}
LONGEST = 32  # tokens of a question
LAYERS, WIDTH, HEADS = {"l_layers": 1, "r_layers": 1, "x_layers": 2}, 96, 4
STEPS, BATCH_SIZE, RATE, SEED = 1500, 64, 1e-3, 0
TRAINING_SEED, HELD_OUT_SEED = 10**9, 10**6  # the seeds of the pictures; training takes one more at each step


def run(_: Path | None) -> None:
    """Train on pictures that never come twice and ship the model."""
    tokenizer = make_tokenizer()
    held_out = data.examples(2000, HELD_OUT_SEED)

    def loss(model: nn.Module, step: int) -> Tensor:
        rng = np.random.default_rng(TRAINING_SEED + step)
        scenes = [data.scene(rng) for _ in range(BATCH_SIZE)]
        examples = [data.example(things, rng) for things in scenes]
        inputs = batch(tokenizer, examples)
        seen = torch.tensor([shown(things) for things in scenes])
        random = Random(TRAINING_SEED + step)
        targets = torch.tensor([spoil(tokenizer, inputs, row, e, random) for row, e in enumerate(examples)])
        seen.masked_fill_(
            (inputs["visual_feats"] == 0).all(-1)[..., None], 0
        )  # a region that was blanked shows nothing
        return model(inputs, targets, seen)

    plan = common.Plan(steps=STEPS, rate=RATE, average=0.995, seed=SEED)
    learner = common.train(
        "shapes", Learner(tokenizer), loss, plan, lambda m: accuracy(m.model, tokenizer, held_out[:500])
    )
    common.save(
        learner.model, tokenizer, CARD, lambda folder: shipped_accuracy(folder, held_out), at_least=0.98, at_most_mb=5
    )


class Learner(nn.Module):
    """The model, and a layer that names what each region shows: a model that must learn this too learns much sooner."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        super().__init__()
        self.model = make_model(tokenizer)
        self.look = nn.Linear(WIDTH, sum(len(kind) + 1 for kind in KINDS.values()))

    def forward(self, inputs: dict[str, Tensor], answers: Tensor, seen: Tensor) -> Tensor:
        """The loss; `answers` (picture, answer) are probabilities, `seen` (picture, region, kind) numbers from 0."""
        output = self.model.lxmert(**inputs, output_hidden_states=True)
        told = self.look(output.vision_hidden_states[LAYERS["r_layers"] - 1])
        looks = [
            nn.functional.cross_entropy(part.flatten(0, 1), seen[..., n].flatten())
            for n, part in enumerate(told.split([len(kind) + 1 for kind in KINDS.values()], -1))
        ]
        return nn.functional.cross_entropy(self.model.answer_head(output.pooled_output), answers) + sum(looks)


def shown(things: list[data.Thing]) -> list[list[int]]:
    """What each region shows of each kind (its colour, its shape, its size), numbered from 1; 0: nothing."""
    regions = [[0] * len(KINDS) for _ in range(data.GRID**2)]
    for thing in things:
        regions[thing.cell] = [1 + values.index(getattr(thing, kind)) for kind, values in KINDS.items()]
    return regions


def make_tokenizer() -> PreTrainedTokenizerFast:
    """One token for each word the questions are made of, whatever its case; any other word is unknown."""
    phrases = " ".join((*data.BEFORE, *data.QUESTIONS)).replace("{asked}", "").replace("{it}", "the one")
    words = dict.fromkeys((*SPECIAL, *phrases.split(), *KINDS, *data.SPELLINGS["colour"], *data.ANSWERS))
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
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=LONGEST, **names)


def make_model(tokenizer: PreTrainedTokenizerFast) -> LxmertForQuestionAnswering:
    """An LXMERT without dropout: no picture comes twice, so there is nothing to overfit."""
    common.seed_everything(SEED)
    config = LxmertConfig(
        **LAYERS,
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        intermediate_size=2 * WIDTH,
        max_position_embeddings=LONGEST,
        initializer_range=WIDTH**-0.5,  # with the usual 0.02, small layers take long to find anything
        visual_feat_dim=4 * data.CELL**2,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        pad_token_id=tokenizer.pad_token_id,
        num_qa_labels=len(data.ANSWERS),
        id2label=dict(enumerate(data.ANSWERS)),
        label2id={label: i for i, label in enumerate(data.ANSWERS)},
    )
    return LxmertForQuestionAnswering(config)


def batch(tokenizer: PreTrainedTokenizerFast, examples: list[Example]) -> dict[str, Tensor]:
    """The questions and pictures of examples as the model takes them."""
    inputs = tokenizer([example.input["text"] for example in examples], padding=True, return_tensors="pt")
    regions = [data.visual(example.input["image"]) for example in examples]
    return dict(inputs) | {name: torch.from_numpy(np.stack([r[name] for r in regions])) for name in regions[0]}


def spoil(
    tokenizer: PreTrainedTokenizerFast, inputs: dict[str, Tensor], row: int, example: Example, random: Random
) -> list[float]:
    """Blank some words and regions half of the time, so that explaining leaves no unseen inputs; what to answer then.

    Where what decides is blank, all answers of the kind that is asked for are equally likely, and all answers where
    the kind is blank too: the probability of each answer.
    """
    words = int(inputs["attention_mask"][row].sum())
    decides = torch.from_numpy(example.truth)
    blank = torch.zeros_like(decides)
    if random.random() < 0.5:
        shares = [random.random() ** 2] * words + [random.random() ** 2] * (len(decides) - words)
        blank = torch.tensor([random.random() < share for share in shares])
        blank[[0, words - 1]] = False  # special tokens are never blanked
        inputs["input_ids"][row, :words][blank[:words]] = tokenizer.convert_tokens_to_ids(random.choice(BLANKS))
        inputs["visual_feats"][row][blank[words:]] = 0.0
    kind = next(kind for kind in KINDS.values() if example.label in kind)
    if not (blank & decides).any():
        possible = (example.label,)
    else:
        asked = decides.nonzero()[0]  # the word for what is asked comes before the one for the shape
        possible = data.ANSWERS if blank[asked] else kind
    return [(answer in possible) / len(possible) for answer in data.ANSWERS]


def accuracy(model: nn.Module, tokenizer: PreTrainedTokenizerFast, examples: list[Example], size: int = 500) -> float:
    """The share of questions that the model answers as it should."""
    right = 0
    for start in range(0, len(examples), size):
        chosen = examples[start : start + size]
        found = model(**batch(tokenizer, chosen)).question_answering_score.argmax(-1).tolist()
        right += sum(data.ANSWERS[i] == example.label for i, example in zip(found, chosen, strict=True))
    return right / len(examples)


def shipped_accuracy(folder: Path, examples: list[Example]) -> float:
    """The accuracy of the files in a folder."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = LxmertForQuestionAnswering.from_pretrained(folder)
    return common.measured(lambda model: accuracy(model, tokenizer, examples), model)


CARD = common.Card(
    name="shapes",
    family="LXMERT, {l_layers} language, {r_layers} region and {x_layers} cross layers".format(**LAYERS),
    task="image-text",
    what="questions about shapes in a drawn picture (colours, shapes, sizes)",
    data="pictures and questions generated by whence.zoo.shapes_data; nothing was collected",
    metric="accuracy on 2000 generated questions that training does not draw",
    licence="Apache-2.0",
    seed=SEED,
    recipe="training/shapes.py",
    text=f"""
# shapes

"What colour is the circle?" A picture of {data.GRID} x {data.GRID} cells holds two to four shapes, no two of the same
kind or colour; the question asks for the colour, shape or size of one of them, called by its kind or by its colour.
What decides is known: the region of that shape, the word that calls it, and the word for what is asked. An LXMERT
(width {WIDTH}, {HEADS} heads) with {LAYERS["l_layers"]} layers over the words, {LAYERS["r_layers"]} over the regions,
and {LAYERS["x_layers"]} in which words and regions attend to each other.

**Data.** Generated by `whence.zoo.shapes_data`; `whence.zoo.examples("shapes", n, seed)` draws more, with the truth.
Place, size, colour and background vary. A region is the {data.CELL} x {data.CELL} pixels of a cell, 0 being the mean
grey behind the shapes, and how far each stands out from that; `whence.zoo.shapes_data.encode` cuts them from any
picture.

**Answers.** {", ".join(data.ANSWERS)}.

**Recipe.** {STEPS} steps from random weights with AdamW, each on {BATCH_SIZE} new pictures and questions; the running
mean of the weights is kept. While training, an extra layer tells from each region what it shows. In half of the
questions some words ([PAD], [UNK] or [MASK]) and regions (0) are blank; where that takes what decides, all answers
that remain are made equally likely. Weights are stored in half precision and load as float32.
`python -m training shapes` repeats it.

**Accuracy.** {{accuracy}} on 2000 questions that training does not draw, measured with the files in this folder.

**Licence.** Apache-2.0.

**Limits.** It knows drawings of this kind only, one shape to a cell, and {len(data.QUESTIONS)} ways to put a question:
any other word is unknown. A question about a shape that is not there gets an answer all the same.
""",
)
