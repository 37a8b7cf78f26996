"""The metrics. Importing this package registers them all."""

from whence.metrics import faithfulness, plausibility

__all__ = ["faithfulness", "plausibility"]
