"""The methods. Importing this package registers them all."""

from whence.methods import attention, baseline, gradient

__all__ = ["attention", "baseline", "gradient"]
