"""The command line: `whence explain | compare | attention | conservation | concept | maximize | score | ...`.

`program` holds `main` and the class of commands; `arguments` and `output` hold what commands share. The commands
stand in modules by group: explaining, looking (attention, conservation), conceiving (concept, maximize), measuring,
auditing, guiding, running, reporting, serving, listing. Importing such a module registers its commands, in the order
of the help page.
"""

from whence.cli import explaining, looking, conceiving, measuring, auditing, guiding  # isort: skip
from whence.cli import running, reporting, serving, listing  # isort: skip
from whence.cli.program import app, main

__all__ = [
    "app",
    "auditing",
    "conceiving",
    "explaining",
    "guiding",
    "listing",
    "looking",
    "main",
    "measuring",
    "reporting",
    "running",
    "serving",
]
