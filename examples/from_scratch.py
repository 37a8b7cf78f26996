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
        speed = length ** (-torch.arange(0, width, 2) / width)  # (width / 2,): from 1 down to almost 1 / length
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
        self.forget = nn.Dropout1d(dropout)  # in training, whole words go missing: the model learns to do without
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
    words, places = model.words(ids), model.positions(ids.shape[1])
    x = words + places
    block = model.blocks[0]
    print(f"2. On its way through the model, {text!r} is")
    for tensor, meaning in [
        (ids, f"ids, the start token first: {ids[0].tolist()}"),
        (words, "a vector per word"),
        (x, "with the vector of its place added"),
        (block.attention.heads[0](x), "what one head brings each token"),
        (block.attention(x), f"what {len(block.attention.heads)} heads bring, side by side and projected"),
        (block(x), "after a whole block: the same shape again"),
        (model(ids), "the logits, read from the start token"),
    ]:
        print(f"   {tuple(tensor.shape)!s:12} {meaning}")
    order = torch.randperm(words.shape[1] - 1) + 1
    order = torch.cat([torch.zeros(1, dtype=torch.long), order])  # the start token stays first
    change = (model.answer(words[:, order]) - model.answer(words)).abs().max()
    print(f"   Shuffle the words, and without positions the logits change by {change:.1e}: rounding,", end=" ")
    change = (model(ids[:, order]) - model(ids)).abs().max()
    print(f"with positions by {change:.1e}.\n")


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


def look_inside(subject: whence.Subject, text: str) -> whence.subject.Trace:
    """One pass with whence watching: the logits and the attention weights of every head."""
    batch = subject.batch([subject.encode(text)])
    return subject.trace(batch, subject.aim([None]), ["attention"])


def print_heads(trace: Any, text: str) -> None:
    """Where each head of each layer looks, seen from the start token."""
    print(f"   {'':14}", *(f"{name:>7}" for name in [START, *text.split()]))
    for record in trace.attention:
        for number, weights in enumerate(record.weights[0]):  # (query, key)
            print(f"   layer {record.layer} head {number}", *(f"{share:7.2f}" for share in weights[0].tolist()))


def found(attribution: whence.Attribution, planted: set[int]) -> float:
    """Of k planted words, the share among the k strongest scores, for or against; the start token does not compete."""
    strength = np.abs(attribution.scores[~attribution.special])
    strongest = set(np.argsort(-strength)[: len(planted)].tolist())
    return len(planted & strongest) / len(planted)


def mark(subject: whence.Subject, sentences: list[Sentence], methods: list[str]) -> dict[str, float]:
    """Each method's mean share of planted words found, and what guessing would find."""
    comparisons = whence.compare(subject, [text for text, _, _ in sentences], methods=methods)
    marks = {}
    for method in methods:
        shares = [found(c[method], planted) for c, (_, _, planted) in zip(comparisons, sentences, strict=True)]
        marks[method] = float(np.mean(shares))
    marks["guessing"] = float(np.mean([len(planted) / len(text.split()) for text, _, planted in sentences]))
    return marks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--positions", choices=list(POSITIONS), default="learned")
    positions = parser.parse_args().positions

    torch.manual_seed(0)
    rng = random.Random(0)
    print("1. The language: fillers, one cue, perhaps a 'not' before it. What decides is in capitals.")
    for _ in range(4):
        text, label, planted = make_sentence(rng, 6)
        print(
            "  ", *(word.upper() if i in planted else word for i, word in enumerate(text.split())), "->", LABELS[label]
        )
    print()

    model = Transformer(positions)
    walk_through(model.eval(), TEXT)

    print(f"3. Training with {positions} positions:")
    train(model, rng)
    print(f"   Held out: {accuracy(model, random.Random(1), size=400):.1%} of 2000 sentences right.\n")

    subject = whence.wrap(model, encode=encode, labels=LABELS)
    print(f"4. whence found {subject!r}")
    trace = look_inside(subject, TEXT)
    with torch.no_grad():
        plain = model(torch.tensor([to_ids(TEXT)]))
    print(f"   Logits alone {plain[0].tolist()}, watched {trace.logits[0].tolist()}:", end=" ")
    print(f"they differ by {(plain - trace.logits).abs().max().item()}.")
    print("   The heads of one MultiHeadAttention are one layer. Where the start token looks:")
    print_heads(trace, TEXT)

    print("\n5. Attention is one answer to what the model read; other methods ask the gradients.\n")
    print(whence.compare(subject, TEXT, methods=METHODS))

    sentences = [make_sentence(rng, rng.choice(LENGTHS)) for _ in range(60)]
    print(f"\n6. The right answer is known here, so explanations can be marked, on {len(sentences)} new sentences.")
    print("   Share of the deciding words among the strongest scores:")
    for method, share in mark(subject, sentences, METHODS).items():
        print(f"   {method:22} {share:.0%}")


if __name__ == "__main__":
    main()
