"""Views of results. They read results, never a model; importing this package registers them all with `core.display`.

`content` holds what every medium says about a result: facts, rows, names. `terminal`, `pages` and `figures` hold how it
looks there, a module per type of result; `tables` the columns and rows; `templates` the HTML and the style sheet.
A new module in any of these packages is found without being named here.
"""

import importlib
import pkgutil

for _module in pkgutil.walk_packages(__path__, f"{__name__}."):
    importlib.import_module(_module.name)
