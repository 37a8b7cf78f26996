"""The metrics. Importing this package registers them all, in the order in which they are listed."""

from whence.measure.metrics import faithfulness, pictures, plausibility, robustness

# isort: split
from whence.measure.metrics import axioms

__all__ = ["axioms", "faithfulness", "pictures", "plausibility", "robustness"]
