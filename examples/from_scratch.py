"""A transformer from scratch, step by step: build it, train it on a made-up language, then ask whence what it reads.

    python examples/from_scratch.py --positions learned
    python examples/from_scratch.py --positions sinusoidal

Nothing in the model is written for whence: it is what one writes in a first course, with one module per attention head.
Shapes stand beside the code; a batch holds sentences of one length, so there is no padding and no mask.
"""

from __future__ import annotations

import argparse
import random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import whence

# ---- 1. The language -------------------------------------------------------------------------------------------------
#
# A sentence is a row of fillers that mean nothing, and one cue: "blick" says yes, "wug" says no. A "not" right before
# the cue turns it around; a "not" before a filler is a decoy. So we know which words decide, and order matters: with
# the same words, "not wug" is a yes, and "wug not" a no. An explanation can be marked right or wrong here.

START = "[start]"  # stands before every sentence and has no meaning of its own: the model collects its answer there
NOT = "not"
CUES = {"blick": 1, "wug": 0}
FILLERS = ["dax", "fep", "gim", "lor", "mip", "nud", "pok", "rin", "sul", "tov"]
VOCABULARY = [START, NOT, *CUES, *FILLERS]
LABELS = ["no", "yes"]
LENGTHS = range(4, 9)  # words in a sentence
MAX_TOKENS = 1 + max(LENGTHS)
SEED = 2

Sentence = tuple[str, int, set[int]]  # its words, its label, and the places of the words that decide it


def make_sentence(rng: random.Random, length: int) -> Sentence:
    """A sentence of this many words; half of the cues are negated, half of the sentences have a decoy."""
    words = rng.choices(FILLERS, k=length)
    place = rng.randrange(1, length)
    words[place] = rng.choice(list(CUES))
    negated = rng.random() < 0.5
    if negated:
        words[place - 1] = NOT
    if rng.random() < 0.5:
        words[rng.choice([i for i in range(length) if i not in (place - 1, place)])] = NOT
    label = CUES[words[place]] ^ negated
    return " ".join(words), label, {place, place - 1} if negated else {place}


def to_ids(text: str) -> list[int]:
    """The words as numbers, with the start token before them."""
    return [VOCABULARY.index(word) for word in [START, *text.split()]]


# ---- 2. Attention ----------------------------------------------------------------------------------------------------


class Head(nn.Module):
    """One attention head: every token asks, every token answers, and each takes home a mixture of the answers."""

    def __init__(self, width: int, size: int, dropout: float) -> None:
        super().__init__()
        self.query = nn.Linear(width, size, bias=False)  # what a token looks for
        self.key = nn.Linear(width, size, bias=False)  # what a token can be found by
        self.value = nn.Linear(width, size, bias=False)  # what a token hands over when it is found
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.query(x), self.key(x), self.value(x)  # (batch, token, size) each
        scores = q @ k.transpose(1, 2)  # (batch, query, key): how well each question fits each key
        scores = scores / k.shape[-1] ** 0.5  # a sum of `size` products grows with its root; keep the softmax soft
        weights = F.softmax(scores, dim=-1)  # each row is positive and sums to 1: shares of attention
        return self.dropout(weights) @ v  # (batch, token, size): the values, mixed by these shares


class MultiHeadAttention(nn.Module):
    """Several heads look for different things at once; what they found is laid side by side and projected."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = nn.ModuleList(Head(width, width // heads, dropout) for _ in range(heads))
        self.project = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        found = torch.cat([head(x) for head in self.heads], dim=-1)  # (batch, token, width)
        return self.project(found)


# ---- 3. Blocks -------------------------------------------------------------------------------------------------------


class FeedForward(nn.Module):
    """Attention moves information between tokens; here each token thinks about what it got, alone."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class Block(nn.Module):
    """Talk, then think. Each step adds to what is there, so a token's own vector always has a way through."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(width, heads, dropout)
        self.feed_forward = FeedForward(width, dropout)
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)  # keep the scale of what goes in

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm_1(x))
        return x + self.feed_forward(self.norm_2(x))


# ---- 4. Positions ----------------------------------------------------------------------------------------------------
#
# Attention sees a bag of vectors: shuffle the tokens, and the outputs are shuffled with them. To tell "not wug" from
# "wug not", the place of a token must be part of its vector.


class LearnedPositions(nn.Module):
    """One vector per place, learned like a word's."""

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(length, width)

    def forward(self, length: int) -> Tensor:
        return self.table.weight[:length]  # (token, width)


class SinusoidalPositions(nn.Module):
    """Fixed waves from fast to slow, as the hands of a clock: a step to the left is the same rotation everywhere."""

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        # From 1 down to almost 1 / length, so that every hand moves within a sentence; for long texts 10,000 is usual.
        speed = length ** (-torch.arange(0, width, 2) / width)  # (width / 2,)
        angle = torch.arange(length)[:, None] * speed  # (token, width / 2)
        table = torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)  # (token, width): sine, cosine, sine, ...
        self.table: Tensor
        self.register_buffer("table", table)  # a buffer moves with the model and is not trained

    def forward(self, length: int) -> Tensor:
        return self.table[:length]


POSITIONS = {"learned": LearnedPositions, "sinusoidal": SinusoidalPositions}


# ---- 5. The model ----------------------------------------------------------------------------------------------------


class Transformer(nn.Module):
    """Words and places to vectors, through the blocks, and from the start token's last vector to the classes."""

    def __init__(self, positions: str, width: int = 32, heads: int = 4, blocks: int = 2, dropout: float = 0.1) -> None:
        super().__init__()
        self.words = nn.Embedding(len(VOCABULARY), width)
        self.forget = nn.Dropout1d(0.05)  # in training, now and then a whole word is blanked: learn to do without it
        self.positions = POSITIONS[positions](MAX_TOKENS, width)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.classify = nn.Linear(width, len(LABELS))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.forget(self.words(ids)) + self.positions(ids.shape[1])  # (batch, token, width)
        return self.answer(x)

    def answer(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)  # the shape stays, so blocks can be stacked
        return self.classify(self.norm(x)[:, 0])  # (batch, class)


@torch.no_grad()
def walk_through(model: Transformer, text: str) -> None:
    """Print what happens to a sentence on its way through an untrained model."""
    ids = torch.tensor([to_ids(text)])
    words = model.words(ids)
    x = words + model.positions(ids.shape[1])
    block: Any = model.blocks[0]
    normed = block.norm_1(x)
    for tensor, meaning in [
        (ids, f"ids, the start token first: {ids[0].tolist()}"),
        (words, "a vector per word"),
        (x, "with the vector of its place added"),
        (block.attention.heads[0](normed), "what one head brings each token"),
        (block.attention(normed), f"what {len(block.attention.heads)} heads bring, side by side and projected"),
        (block(x), "after a whole block: the same shape again"),
        (model(ids), "the logits, read from the start token"),
    ]:
        print(f"   {tuple(tensor.shape)!s:12} {meaning}")
    backwards = [0, *range(ids.shape[1] - 1, 0, -1)]  # the start token stays first
    change = (model.answer(words[:, backwards]) - model.answer(words)).abs().max()
    print(f"   Read backwards, the logits change by {change:.1e} without positions, which is rounding, and", end=" ")
    print(f"by {(model(ids[:, backwards]) - model(ids)).abs().max():.1e} with them.")


# ---- 6. Training -----------------------------------------------------------------------------------------------------


def make_batch(rng: random.Random, length: int, size: int) -> tuple[Tensor, Tensor]:
    """Sentences of one length, as ids (batch, token) and labels (batch,)."""
    texts, labels, _ = zip(*(make_sentence(rng, length) for _ in range(size)), strict=True)
    return torch.tensor([to_ids(text) for text in texts]), torch.tensor(labels)


@torch.no_grad()
def accuracy(model: Transformer, rng: random.Random, size: int) -> float:
    """The share of right answers on this many new sentences of each length."""
    model.eval()  # dropout off
    drawn = [make_batch(rng, length, size) for length in LENGTHS]
    return torch.cat([model(ids).argmax(-1) == labels for ids, labels in drawn]).float().mean().item()


def train(model: Transformer, rng: random.Random, goal: float = 0.995, max_steps: int = 2000) -> None:
    """Guess, measure the surprise at the true labels, go a small step downhill; until the goal is reached."""
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(1, max_steps + 1):
        model.train()  # dropout on
        ids, labels = make_batch(rng, rng.choice(LENGTHS), 64)
        loss = F.cross_entropy(model(ids), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            right = accuracy(model, rng, size=200)
            print(f"   step {step:4}: loss {loss.item():.3f}, {right:.1%} of new sentences right")
            if right >= goal:
                break
    model.eval()


# ---- 7. Explaining ---------------------------------------------------------------------------------------------------

METHODS = ["attention", "gradient_x_input", "integrated_gradients"]
TEXT = "dax not wug sul not pok"  # "not wug" decides: yes; the second "not" is a decoy


def encode(text: str) -> dict[str, Any]:
    """All that whence must be told: what the module takes for a text, and what its tokens are called."""
    names = [START, *text.split()]
    special = [name == START for name in names]
    return {"tensors": {"input": torch.tensor(to_ids(text))}, "features": {"text": names}, "special": {"text": special}}


def mark(subject: whence.Subject, sentences: list[Sentence], methods: list[str]) -> dict[str, float]:
    """Of k deciding words, the share among the k strongest scores, for or against: per method, and when guessing."""
    found: dict[str, list[float]] = {name: [] for name in [*methods, "guessing"]}
    comparisons = whence.compare(subject, [text for text, _, _ in sentences], methods=methods)
    for comparison, (_, _, planted) in zip(comparisons, sentences, strict=True):
        for attribution in comparison:
            strength = np.abs(attribution.scores[~attribution.special])  # the start token does not compete
            strongest = np.argsort(-strength)[: len(planted)].tolist()
            found[attribution.method].append(len(planted.intersection(strongest)) / len(planted))
        found["guessing"].append(len(planted) / len(strength))
    return {name: float(np.mean(shares)) for name, shares in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--positions", choices=list(POSITIONS), default="learned")
    positions = parser.parse_args().positions

    print("1. The language: fillers, one cue, perhaps a 'not' before it. The words that decide are in capitals.")
    new = random.Random(SEED + 1)  # draws of its own, apart from those of the training
    for text, label, planted in [make_sentence(new, 6) for _ in range(4)]:
        words = [word.upper() if place in planted else word for place, word in enumerate(text.split())]
        print(f"   {' '.join(words)} -> {LABELS[label]}")

    torch.manual_seed(SEED)
    model = Transformer(positions).eval()
    print(f"\n2. On its way through the model, {TEXT!r} is")
    walk_through(model, TEXT)

    print(f"\n3. Training with {positions} positions:")
    train(model, random.Random(SEED))
    print(f"   In the end: {accuracy(model, new, size=400):.1%} of {400 * len(LENGTHS)} new sentences right")

    print("\n4. The same pass, alone and with whence watching:")
    subject = whence.wrap(model, encode=encode, labels=LABELS)
    trace = subject.trace(subject.batch([subject.encode(TEXT)]), subject.aim([None]), ["attention"])
    with torch.no_grad():
        logits = model(torch.tensor([to_ids(TEXT)]))
    print(f"   The logits, {logits[0].numpy().round(3)}, differ by {(trace.logits - logits).abs().max():.1e}.")
    print("   The heads of one MultiHeadAttention are recorded as one layer. Where the start token looks:")
    print(f"   {'':14}", *(f"{name:>7}" for name in [START, *TEXT.split()]))
    for record in trace.attention:
        for number, weights in enumerate(record.weights[0]):  # (query, key)
            print(f"   layer {record.layer} head {number}", *(f"{share:7.2f}" for share in weights[0].tolist()))

    print("\n5. Which words made the model say so? One method, then three side by side:\n")
    print(whence.explain(subject, TEXT, method="gradient_x_input"), "\n")
    print(whence.compare(subject, TEXT, methods=METHODS))
    print(
        "\n   They need not agree. In the last layer, tokens have already gathered something from others: a look at"
        "\n   'not' can be a look at 'wug'. A gradient asks what a tiny change would do, which is little where the"
        "\n   model is sure. Integrated gradients go all the way from blank words to these, and add up to the change"
        "\n   of the logit."
    )

    sentences = [make_sentence(new, new.choice(LENGTHS)) for _ in range(60)]
    print(f"\n6. Here it is known which words decide. How many of them are on top, in {len(sentences)} new sentences?")
    for method, share in mark(subject, sentences, METHODS).items():
        print(f"   {method:22} {share:.0%}")


if __name__ == "__main__":
    main()
