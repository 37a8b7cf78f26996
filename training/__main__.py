"""`python -m training MODEL ... --data FOLDER`: train the zoo's models anew, or those of the benchmarks."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

import torch
import transformers

SHIPPED = ("sst2", "digits", "planted", "recall", "dates", "shapes", "textures", "photos")
UNSHIPPED = ("emotion", "sentiment", "babi")  # models that benchmarks need and the package does not
MODELS = SHIPPED + UNSHIPPED


def main() -> None:
    """Run the recipes that were asked for, or those of all models that ship."""
    parser = argparse.ArgumentParser(prog="python -m training", description="Train the models of the zoo anew.")
    choices = f"one or more of {', '.join(MODELS)}; default: all but {', '.join(UNSHIPPED)}, which do not ship"
    parser.add_argument("models", nargs="*", metavar="MODEL", help=choices)
    parser.add_argument("--data", type=Path, help="the folder that holds the real data; training/README.md lists it")
    parser.add_argument("--threads", type=int, help="threads of torch; default: one per core")
    options = parser.parse_args()
    unknown = [name for name in options.models if name not in MODELS]
    if unknown:
        parser.error(f"the models are {', '.join(MODELS)}, but {', '.join(unknown)} came")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()  # training shows a progress bar of its own
    if options.threads:
        torch.set_num_threads(options.threads)
    for name in options.models or SHIPPED:
        importlib.import_module(f"training.{name}").run(options.data)


if __name__ == "__main__":
    main()
