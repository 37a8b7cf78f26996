"""The command line: `whence explain | compare | attention | conservation | score | evaluate | arbitrate | ...`.

`program` holds `main` and the class of commands; `arguments` and `output` hold what commands share. The commands
stand in modules by group: explaining, looking (attention, conservation), measuring, listing. Importing such a module
registers its commands, in the order of the help page.
"""

from whence.cli import explaining, looking, measuring, listing  # isort: skip
from whence.cli.program import app, main

__all__ = ["app", "explaining", "listing", "looking", "main", "measuring"]
