"""The verbs: each validates its arguments and calls the module that does the work."""

from __future__ import annotations

from whence.api.asking import audit, audit_names, audit_shortcuts, concept, maximize
from whence.api.explaining import attention_maps, compare, conservation, explain
from whence.api.guiding import guide
from whence.api.listing import list_experiments, list_losses, list_methods, list_metrics, list_models
from whence.api.measuring import arbitrate, evaluate, score
from whence.api.running import run, verify

__all__ = [
    "arbitrate",
    "attention_maps",
    "audit",
    "audit_names",
    "audit_shortcuts",
    "compare",
    "concept",
    "conservation",
    "evaluate",
    "explain",
    "guide",
    "list_experiments",
    "list_losses",
    "list_methods",
    "list_metrics",
    "list_models",
    "maximize",
    "run",
    "score",
    "verify",
]
