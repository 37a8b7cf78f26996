"""The diagnostic guide: a classifier that sees words without their context, weighted by attention from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from whence.debate.retraining import Example, Seen, padded
from whence.debate.scenes import Undefined
from whence.model.batching import ids_of
from whence.model.subject import Subject

HIDDEN = 128  # width of the layer that every word goes through alone
BATCH = 64


class Guide:
    """softmax(V sum_t a_t relu(W e_t)): every word goes alone through one layer, and weights a_t mix the results.

    The embeddings e_t start as the model's own and learn, too. Without given weights, a_t = softmax(v . tanh(U e_t)).
    """

    def __init__(self, embeddings: Tensor, classes: int, seed: int, own: bool) -> None:
        generator = torch.Generator().manual_seed(seed)

        def layer(width: int, out: int) -> Tensor:
            return (torch.randn(width, out, generator=generator) / width**0.5).requires_grad_()

        # scaled to a spread of 1, so that one learning rate fits all models
        self.words = (embeddings / embeddings.std().clamp(min=1e-12)).requires_grad_()
        self.inner, self.outer = layer(embeddings.shape[1], HIDDEN), layer(HIDDEN, classes)
        self.bias = torch.zeros(classes, requires_grad=True)
        self.query = layer(embeddings.shape[1], HIDDEN) if own else None
        self.score = layer(HIDDEN, 1) if own else None

    @property
    def learned(self) -> list[Tensor]:
        """The tensors that learn."""
        own = (self.words, self.inner, self.outer, self.bias, self.query, self.score)
        return [tensor for tensor in own if tensor is not None]

    def __call__(self, ids: Tensor, free: Tensor, weights: Tensor | None) -> Tensor:
        """Logits (example, class) of words (example, word), of which `free` ones count, by weights (example, word)."""
        embedded = self.words[ids]
        if self.query is not None and self.score is not None:
            scores = ((embedded @ self.query).tanh() @ self.score)[..., 0]
            weights = scores.masked_fill(~free, -1e30).softmax(-1)
        assert weights is not None
        mixed = torch.einsum("ew,ewh->eh", weights, (embedded @ self.inner).relu())
        return mixed @ self.outer + self.bias


@dataclass(frozen=True, eq=False)
class Words:
    """Examples as a guide sees them: numbers of their words, which of them count, labels."""

    ids: Tensor  # (example, word)
    free: Tensor  # (example, word) bool
    labels: Tensor  # (example,)


def words_of(subject: Subject, examples: Sequence[Example], numbers: dict[int, int], learn: bool) -> Words:
    """The words of examples. Each has its number among the words that are learned from; 0 is any other word."""
    longest = max(len(example.item.features) for example in examples)
    ids = torch.zeros(len(examples), longest, dtype=torch.long)
    free = torch.zeros(len(examples), longest, dtype=torch.bool)
    for row, example in enumerate(examples):
        given = _ids(example)
        if learn:
            for one in given.tolist():
                numbers.setdefault(int(one), len(numbers) + 1)
        ids[row, : len(given)] = torch.tensor([numbers.get(int(one), 0) for one in given])
        free[row, : len(given)] = torch.from_numpy(~example.item.special)
    labels = torch.tensor([-1 if example.label is None else example.label for example in examples])
    return Words(ids, free, labels)


def _ids(example: Example) -> np.ndarray:
    """The ids of an example's features."""
    item = example.item
    name = ids_of(item.tensors, item.streams, item.streams[0]) if len(set(item.streams)) == 1 else None
    if name is None or item.tensors[name].shape != (len(item.features),):
        raise Undefined("the model's features are not words of one table")
    return np.asarray(item.tensors[name])


def guided(
    subject: Subject,
    lessons: Sequence[Example],
    audited: Sequence[Example],
    weights: tuple[Sequence[Seen], Sequence[Seen]] | str | None,
    seed: int,
    steps: int,
    rate: float,
) -> list[int]:
    """The classes that a guide gives the audited examples, after learning with frozen weights.

    `weights` are what a model gives for both sets, of which the attention is used; "uniform"; or None: the guide learns
    weights of its own.
    """
    table = subject.vocabulary(subject.batch([lessons[0].item]), next(iter(lessons[0].item.streams)))
    if table is None:
        raise Undefined(f"{subject.name} has no table of words")
    numbers: dict[int, int] = {}
    learned, asked = words_of(subject, lessons, numbers, True), words_of(subject, audited, numbers, False)
    embeddings = torch.cat([torch.zeros(1, table.shape[1]), table[list(numbers)].detach().cpu().float()])
    classes = 1 + max(int(learned.labels.max()), int(asked.labels.max()), len(subject.labels or ()) - 1)
    guide = Guide(embeddings, classes, seed, weights is None)
    both = [
        _weights(words, weights if isinstance(weights, str) or weights is None else weights[i])
        for i, words in enumerate((learned, asked))
    ]
    optimizer = torch.optim.Adam(guide.learned, lr=rate)
    rng = np.random.default_rng([seed, 21])
    with torch.enable_grad():
        for _ in range(steps):
            chosen = torch.from_numpy(rng.integers(len(lessons), size=min(BATCH, len(lessons))))
            own = None if both[0] is None else both[0][chosen]
            loss = F.cross_entropy(guide(learned.ids[chosen], learned.free[chosen], own), learned.labels[chosen])
            gradients = torch.autograd.grad(loss, guide.learned)
            for parameter, gradient in zip(guide.learned, gradients, strict=True):
                parameter.grad = gradient
            optimizer.step()
    with torch.no_grad():
        return [int(one) for one in guide(asked.ids, asked.free, both[1]).argmax(-1)]


def _weights(words: Words, given: Sequence[Seen] | str | None) -> Tensor | None:
    """(example, word): the same for all words, those of a model, or None."""
    if given is None:
        return None
    if isinstance(given, str):
        return words.free / words.free.sum(-1, keepdim=True).clamp(min=1)
    own = padded([one.attention.mean(0, keepdim=True) for one in given], words.ids.shape[1])[:, 0]
    return own.float()
