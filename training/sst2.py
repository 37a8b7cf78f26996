"""The recipe of `sst2`: a six-layer MiniLM, its vocabulary pruned, fine-tuned on movie-review sentiment."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import BertForSequenceClassification, BertTokenizer

from training import common, minilm

LABELS = ("negative", "positive")
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
LEAST_COUNT = 4  # rarer pieces are spelled with shorter ones, which keeps the folder below 32 MB
EPOCHS, BATCH_SIZE, SEED = 2, 32, 1

Rows = list[tuple[int, str]]  # labels with their texts


def run(data: Path | None) -> None:
    """Fine-tune on the phrases of the training set and ship the model."""
    if data is None:
        raise SystemExit("sst2 needs --data FOLDER with sst2/train.tsv, sst2/dev.tsv and sst2/test.tsv")
    rows, dev, test = (read(data / "sst2" / f"{part}.tsv") for part in ("train", "dev", "test"))
    texts = [spellings(text) for _, text in rows]
    model, tokenizer = pruned([text for variants in texts for text in variants])
    encoded = [tokenizer(variants)["input_ids"] for variants in texts]
    batches = common.bucketed([len(variants[0]) for variants in encoded], BATCH_SIZE, EPOCHS, SEED)
    labels = torch.tensor([label for label, _ in rows])

    def loss(model: nn.Module, step: int) -> Tensor:
        chosen = batches[step]
        inputs = tokenizer.pad({"input_ids": [random.choice(encoded[i]) for i in chosen]}, return_tensors="pt")
        return model(**inputs, labels=labels[chosen]).loss

    plan = common.Plan(steps=len(batches), rate=6e-5, average=0.999, seed=SEED, report=500)
    model = common.train("sst2", model, loss, plan, lambda model: accuracy(model, tokenizer, dev))
    print(f"sst2: accuracy on SST-2 test {common.measured(lambda m: accuracy(m, tokenizer, test), model):.4f}")
    common.save(model, tokenizer, CARD, lambda folder: shipped_accuracy(folder, dev), at_least=0.90, at_most_mb=32)


def spellings(text: str) -> list[str]:
    """A text of the treebank, which writes "ca n't" and ``so'', and the same text as people write it."""
    quoted = text.replace("``", '"').replace("''", '"').replace("can not", "cannot")
    short = quoted.replace("ca n't", "can't").replace(" n't", "n't")
    long = quoted.replace("ca n't", "cannot").replace("wo n't", "will not").replace(" n't", " not")
    return list(dict.fromkeys([text, short, long]))


def read(file: Path) -> Rows:
    """The rows of a TSV file: a header, then a label and a text on each line."""
    lines = file.read_text(encoding="utf-8").splitlines()[1:]
    return [(int(label), text) for label, text in (line.split("\t", 1) for line in lines)]


def pruned(texts: list[str]) -> tuple[BertForSequenceClassification, BertTokenizer]:
    """MiniLM with a new head, and of its vocabulary what the texts need and every single character."""
    model, full = minilm.pretrained(LABELS)
    vocabulary = full.get_vocab()
    counts = Counter(i for ids in full(texts, add_special_tokens=False)["input_ids"] for i in ids)
    pieces = [
        piece
        for piece, i in sorted(vocabulary.items(), key=lambda item: item[1])
        if len(piece.removeprefix("##")) == 1 or counts[i] >= LEAST_COUNT
    ]
    kept = [*SPECIAL, *pieces]
    tokenizer = BertTokenizer({piece: i for i, piece in enumerate(kept)}, model_max_length=full.model_max_length)
    old = model.get_input_embeddings().weight.data
    model.resize_token_embeddings(len(kept), mean_resizing=False)
    model.get_input_embeddings().weight.data.copy_(old[[vocabulary[piece] for piece in kept]])
    return model, tokenizer


def accuracy(model: nn.Module, tokenizer: BertTokenizer, rows: Rows) -> float:
    """The share of rows whose label the model finds."""
    labels, texts = zip(*rows, strict=True)
    right = minilm.predicted(model, tokenizer, texts) == torch.tensor(labels)
    return int(right.sum()) / len(rows)


def shipped_accuracy(folder: Path, rows: Rows) -> float:
    """The accuracy of the files in a folder."""
    model, tokenizer = minilm.loaded(folder)
    return common.measured(lambda model: accuracy(model, tokenizer, rows), model)


CARD = common.Card(
    name="sst2",
    family="BERT encoder, 6 layers",
    task="text-classification",
    what="sentiment of movie reviews: negative, positive",
    data="SST-2 (Stanford Sentiment Treebank, binary), 67,349 phrases for training, 872 sentences for measuring",
    metric="accuracy on SST-2 dev",
    licence="Apache-2.0 (weights, as MiniLM); SST-2 states no licence",
    seed=SEED,
    recipe="training/sst2.py",
    text=f"""
# sst2

Is a sentence about a movie negative or positive? all-MiniLM-L6-v2 (6 layers, width 384, 12 heads, uncased) with a
classification head.

**Data.** The Stanford Sentiment Treebank (Socher et al. 2013) in its two-class form: phrases and sentences of movie
reviews. The dev sentences were used for measuring only.

**Recipe.** The vocabulary is pruned to the pieces that occur at least {LEAST_COUNT} times in the training texts, and to
every single character, so that any text that MiniLM can spell can still be spelled. Then all weights are trained for
{EPOCHS} epochs with AdamW, batches of {BATCH_SIZE} phrases of similar length, each spelled as in the treebank or as
people write; the running mean of the weights is kept. Weights are stored in half precision and load as float32.
`python -m training sst2 --data FOLDER` repeats it.

**Accuracy.** {{accuracy}} on the 872 dev sentences, measured with the files in this folder; 0.8979 on the 1,821 test
sentences, which played no part in choosing the recipe (dev did).

**Licence.** Apache-2.0, as the MiniLM that it starts from (published as sentence-transformers/all-MiniLM-L6-v2).

**Limits.** English; trained on single phrases and sentences of movie reviews, at most 66 tokens long. There is no
neutral class, so a text without an opinion gets a label all the same. Irony and long arguments are often misread, and
the judgement of names and groups of people may carry the bias of the reviews.
""",
)
