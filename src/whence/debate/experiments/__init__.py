"""The experiments of an audit, a file or more per claim of the debate, in the order in which they are listed."""

from whence.debate.experiments import agreement, replacing, adversary, erasing, signs, retraining  # noqa: F401, I001  in this order
