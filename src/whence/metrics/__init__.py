"""The metrics. Importing this package registers them all."""

from whence.metrics import faithfulness, pictures, plausibility, robustness

__all__ = ["faithfulness", "pictures", "plausibility", "robustness"]
