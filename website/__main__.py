"""`python -m website`: build the site into `out/site`; `--pictures` makes the kept pictures anew."""

from __future__ import annotations

import argparse
from pathlib import Path

from website import building, pictures


def main() -> None:
    """Read the arguments and do as they say."""
    parser = argparse.ArgumentParser(prog="python -m website", description=__doc__)
    kinds = list(pictures.MAKERS)
    parser.add_argument("--pictures", nargs="*", choices=kinds, help="make docs/pictures anew, and build nothing")
    parser.add_argument("--out", type=Path, default=building.ROOT / "out", help="where site/ and its sources go")
    arguments = parser.parse_args()
    if arguments.pictures is not None:
        pictures.make(arguments.pictures)
    else:
        print(building.build(arguments.out))


main()
