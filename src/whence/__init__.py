"""whence: where a transformer's prediction came from, and how far that answer can be trusted."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# public name -> module; resolved on first use, so that `import whence` loads neither torch nor transformers
_PUBLIC = {
    "load": "model.loading",
    "wrap": "model.loading",
    "Subject": "model.subject",
    "explain": "api",
    "compare": "api",
    "attention_maps": "api",
    "conservation": "api",
    "score": "api",
    "evaluate": "api",
    "arbitrate": "api",
    "audit": "api",
    "audit_names": "api",
    "audit_shortcuts": "api",
    "concept": "api",
    "maximize": "api",
    "guide": "api",
    "run": "api",
    "verify": "api",
    "load_run": "runs.reading",
    "load_result": "core.results",
    "report": "core.reports",
    "list_methods": "api",
    "list_metrics": "api",
    "list_experiments": "api",
    "list_losses": "api",
    "list_models": "api",
    "method": "core.registry",
    "metric": "core.registry",
    "experiment": "core.registry",
    "Explained": "core.registry",
    "Arbitration": "core.scoreboards",
    "AttentionMaps": "core.attention_maps",
    "Attribution": "core.results",
    "Audit": "core.audits",
    "Comparison": "core.results",
    "Conservation": "core.relevance_balance",
    "Finding": "core.audits",
    "Guidance": "core.guidances",
    "Input": "core.inputs",
    "Maximisation": "core.maximisations",
    "PictureGrid": "core.picture_grids",
    "Plan": "runs.plans",
    "Report": "core.reports",
    "Run": "runs.reading",
    "RunSummary": "core.run_summaries",
    "NameAudit": "core.name_audits",
    "Score": "core.scoreboards",
    "Scoreboard": "core.scoreboards",
    "Sensitivity": "core.sensitivities",
    "ShortcutAudit": "core.shortcut_audits",
    "Target": "core.inputs",
    "Verification": "core.run_summaries",
}

if TYPE_CHECKING:
    from whence.api import (
        arbitrate,
        attention_maps,
        audit,
        audit_names,
        audit_shortcuts,
        compare,
        concept,
        conservation,
        evaluate,
        explain,
        guide,
        list_experiments,
        list_losses,
        list_methods,
        list_metrics,
        list_models,
        maximize,
        run,
        score,
        verify,
    )
    from whence.core.attention_maps import AttentionMaps
    from whence.core.audits import Audit, Finding
    from whence.core.guidances import Guidance
    from whence.core.inputs import Input, Target
    from whence.core.maximisations import Maximisation
    from whence.core.name_audits import NameAudit
    from whence.core.picture_grids import PictureGrid
    from whence.core.registry import Explained, experiment, method, metric
    from whence.core.relevance_balance import Conservation
    from whence.core.reports import Report, report
    from whence.core.results import Attribution, Comparison, load_result
    from whence.core.run_summaries import RunSummary, Verification
    from whence.core.scoreboards import Arbitration, Score, Scoreboard
    from whence.core.sensitivities import Sensitivity
    from whence.core.shortcut_audits import ShortcutAudit
    from whence.model.loading import load, wrap
    from whence.model.subject import Subject
    from whence.runs.plans import Plan
    from whence.runs.reading import Run, load_run

__all__ = [
    "Arbitration",
    "AttentionMaps",
    "Attribution",
    "Audit",
    "Comparison",
    "Conservation",
    "Explained",
    "Finding",
    "Guidance",
    "Input",
    "Maximisation",
    "NameAudit",
    "PictureGrid",
    "Plan",
    "Report",
    "Run",
    "RunSummary",
    "Score",
    "Scoreboard",
    "Sensitivity",
    "ShortcutAudit",
    "Subject",
    "Target",
    "Verification",
    "arbitrate",
    "attention_maps",
    "audit",
    "audit_names",
    "audit_shortcuts",
    "compare",
    "concept",
    "conservation",
    "evaluate",
    "experiment",
    "explain",
    "guide",
    "list_experiments",
    "list_losses",
    "list_methods",
    "list_metrics",
    "list_models",
    "load",
    "load_result",
    "load_run",
    "maximize",
    "method",
    "metric",
    "report",
    "run",
    "score",
    "verify",
    "wrap",
]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(f"whence.{_PUBLIC[name]}"), name)
    if name == "zoo":
        return importlib.import_module("whence.zoo")
    raise AttributeError(f"module 'whence' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
