"""Where did these predictions come from? A sentence and a handwritten digit, explained by models that ship along."""

from __future__ import annotations

from pathlib import Path

from rich import print as show

import whence

SENTENCE = "I cannot wait for next time"
METHODS = ["integrated_gradients", "leave_one_out", "gae", "attention", "random"]


def main() -> None:
    sentiment = whence.load("sst2")
    sentence = whence.explain(sentiment, SENTENCE, method="integrated_gradients")
    show(sentence)
    compared = whence.compare(sentiment, SENTENCE, methods=METHODS)
    show(compared)

    drawn = whence.zoo.examples("digits", 1, seed=3)[0]
    print(f"\nA handwritten {drawn.label}:")
    digit = whence.explain(whence.load("digits"), drawn.input, method="gae")
    show(digit)

    folder = Path("out")
    folder.mkdir(exist_ok=True)
    compared.write(folder / "demo.html")
    digit.write(folder / "digit.html")
    print(f"\nThe same as pages: {folder.resolve()}/demo.html and digit.html")


if __name__ == "__main__":
    main()
