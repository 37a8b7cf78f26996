"""Grad-SAM beside SHAP on five sentences: do they rank the same words first, and what becomes of [CLS]?

Grad-SAM sums A o ReLU(G) along the rows of every head, so it scores the token that attends. In the last layer of a
classifier that reads [CLS] only the [CLS] row has a gradient: all of that layer's share goes to [CLS]. Summed along
columns instead, by the token that is attended to, the same numbers are spread over the words. SHAP hides words, and
never [CLS].
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.stats import kendalltau

import whence

SENTENCES = (
    "I like the movie",
    "She hates the book",
    "This is so boring",
    "I cannot wait for next time",
    "You look extremely confused",
)
METHODS = ("grad_sam", "grad_sam(read='received')", "shap")


def ranking(a: whence.Attribution) -> str:
    """Features from the largest score to the smallest, each with its share of the sum of sizes."""
    shares = np.abs(a.scores) / np.abs(a.scores).sum()
    return "  ".join(f"{a.features[i]} {shares[i]:.0%}" for i in np.argsort(-shares))


def place(a: whence.Attribution, feature: str) -> int:
    """The rank of a feature, from 1."""
    order = [a.features[i] for i in np.argsort(-np.abs(a.scores))]
    return 1 + order.index(feature)


def agreement(a: whence.Attribution, b: whence.Attribution) -> float:
    """Kendall's tau between the sizes of two methods' scores, special tokens left out."""
    words = ~np.asarray(a.special)
    return float(kendalltau(np.abs(a.scores[words]), np.abs(b.scores[words])).statistic)


def last_layer(subject: whence.Subject, sentence: str) -> np.ndarray:
    """Grad-SAM's share of the last layer, by the token that attends."""
    a = whence.explain(subject, sentence, method="attention_x_gradient(layer=-1, positive=True, read='query')")
    return a.scores / a.scores.sum()


def main(model: str = "sst2", sentences: Sequence[str] = SENTENCES) -> None:
    """Print the rankings, where [CLS] stands, and how far the methods agree on the words."""
    subject, console = whence.load(model), Console()
    agreed: dict[tuple[str, str], list[float]] = {}
    for sentence in sentences:
        compared = whence.compare(subject, sentence, methods=list(METHODS))
        by_name = {a.method: a for a in compared.attributions}
        first = compared.attributions[0]
        console.print(f"\n[bold]{sentence}[/] -> {first.target}, f(x) = {float(first.output):.2f}", highlight=False)
        table = Table("method", "ranking", "[CLS] is number", box=None)
        for name, a in by_name.items():
            table.add_row(name, ranking(a), str(place(a, "[CLS]")))
        console.print(table)
        own = dict(zip(first.features, last_layer(subject, sentence), strict=True))
        console.print(f"last layer alone, by the token that attends: [CLS] has {own['[CLS]']:.0%}", highlight=False)
        for name in METHODS[:2]:
            agreed.setdefault((name, "shap"), []).append(agreement(by_name[name], by_name["shap"]))
    console.print("\nKendall's tau on the words, mean over the sentences:", highlight=False)
    for (a_name, b_name), taus in agreed.items():
        console.print(f"  {a_name} and {b_name}: {np.mean(taus):+.2f}", highlight=False)


if __name__ == "__main__":
    main()
