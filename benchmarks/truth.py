"""Which methods find the features that were planted? `python benchmarks/truth.py --examples 24` prints the table.

For every model of the zoo whose deciding features are known, every method that applies explains the same examples;
`whence.testing.planted_truth` says how they are judged.
"""

from __future__ import annotations

import argparse

import whence
from whence.testing.planted_truth import MODELS, measured


def main() -> None:
    """Print the table as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=24)
    parser.add_argument("--seed", type=int, default=100)
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument("--methods", nargs="+", default=[record.name for record in whence.list_methods()])
    options = parser.parse_args()
    print(f"AUPRC / top-k recall over {options.examples} examples of each model (seed {options.seed}).\n")
    print("| method | " + " | ".join(options.models) + " |")
    print("|---|" + "---:|" * len(options.models), flush=True)
    for method in options.methods:
        cells = [measured(name, method, options.examples, options.seed) for name in options.models]
        shown = ["-" if cell is None else f"{cell[0]:.2f} / {cell[1]:.2f}" for cell in cells]
        print(f"| `{method}` | " + " | ".join(shown) + " |", flush=True)


if __name__ == "__main__":
    main()
