"""Training with attention in the loss: losses on what a training pass recorded, and fine-tuning by them.

In a training loop of your own:

    objective = Objective(["rationale(weight=0.5)"])
    with watching(subject, batch, objective.needs, labels=labels, marks=marks) as seen:
        outputs = model(**batch.tensors)
    loss = cross_entropy(outputs.logits, labels) + objective(seen)
"""

from __future__ import annotations

from whence.guidance.objective import Objective
from whence.model.training_pass import TrainingPass, training_pass, watching

__all__ = ["Objective", "TrainingPass", "training_pass", "watching"]
