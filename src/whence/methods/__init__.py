"""The methods. Importing this package registers them all."""

from whence.methods import attention, attention_gradient, baseline, gradient

__all__ = ["attention", "attention_gradient", "baseline", "gradient"]
