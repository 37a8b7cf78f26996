"""What the recipes of tweets share: models that the benchmarks measure explanations on; their weights do not ship."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import BertTokenizer

from training import common, minilm

HOME = common.ROOT / "out" / "models"  # ignored by git, and outside the package
BATCH_SIZE, SEED = 32, 0

Rows = list[tuple[int, str]]  # labels with their texts


def read(folder: Path, part: str) -> Rows:
    """The rows of one part of a TweetEval task: a file with a tweet on each line, and one with their labels."""
    texts, labels = (
        (folder / f"{part}_{kind}.txt").read_text(encoding="utf-8").rstrip("\n").split("\n")
        for kind in ("text", "labels")
    )
    return [(int(label), text.strip()) for label, text in zip(labels, texts, strict=True)]


def make(
    card: common.Card, labels: Sequence[str], train: Rows, held_out: Rows, test: Rows, *, epochs: int, rate: float
) -> None:
    """Fine-tune MiniLM on `train`, log its accuracy on `held_out` after each epoch, and keep it, measured on `test`.

    The whole vocabulary stays, since a few thousand tweets hold few of the words that other tweets use.
    """
    model, tokenizer = minilm.pretrained(labels)
    encoded = tokenizer([text for _, text in train])["input_ids"]
    batches = common.bucketed([len(ids) for ids in encoded], BATCH_SIZE, epochs, SEED)
    truth = torch.tensor([label for label, _ in train])

    def loss(model: nn.Module, step: int) -> Tensor:
        chosen = batches[step]
        inputs = tokenizer.pad({"input_ids": [encoded[i] for i in chosen]}, return_tensors="pt")
        return model(**inputs, labels=truth[chosen]).loss

    plan = common.Plan(steps=len(batches), rate=rate, seed=SEED, report=len(batches) // epochs)
    model = common.train(card.name, model, loss, plan, lambda model: figures(model, tokenizer, held_out)["accuracy"])
    keep(model, tokenizer, card, test)


def keep(model: nn.Module, tokenizer: BertTokenizer, card: common.Card, test: Rows) -> None:
    """Write a model as an ordinary Hugging Face folder with a card, measured with those files."""
    folder = HOME / card.name
    shutil.rmtree(folder, ignore_errors=True)
    common.write_model(model, folder)
    tokenizer.save_pretrained(folder)
    kept, spelled = minilm.loaded(folder)
    kept.eval()
    with torch.inference_mode():
        found = figures(kept, spelled, test)
    common.write_card(folder, card, size=common.size_mb(folder), **found)
    print(f"{card.name}: {', '.join(f'{name} {value:.4f}' for name, value in found.items())} on test, in {folder}")
    shutil.rmtree(common.OUT / card.name)  # the next run starts anew


def figures(model: nn.Module, tokenizer: BertTokenizer, rows: Rows) -> dict[str, float]:
    """Accuracy, and the means over the classes of F1 and of recall."""
    labels, texts = zip(*rows, strict=True)
    truth, found = torch.tensor(labels), minilm.predicted(model, tokenizer, texts)
    count = int(truth.max()) + 1
    table = torch.bincount(truth * count + found, minlength=count * count).view(count, count)  # (label, found)
    right = table.diag()
    return {
        "accuracy": float(right.sum() / table.sum()),
        "macro_f1": float((2 * right / (table.sum(0) + table.sum(1))).mean()),
        "macro_recall": float((right / table.sum(1)).mean()),
    }
