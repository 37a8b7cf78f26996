"""What there is: methods, metrics, experiments, models."""

from __future__ import annotations

from typing import Any

from whence import zoo
from whence.core import registry
from whence.core.registry import Record


def list_methods() -> list[Record]:
    """The record of every method: name, family, options, needs, promises, paper."""
    return registry.records("method")


def list_metrics() -> list[Record]:
    """The record of every metric."""
    return registry.records("metric")


def list_experiments() -> list[Record]:
    """The record of every experiment of an audit."""
    return registry.records("experiment")


def list_losses() -> list[Record]:
    """The record of every loss that `guide` trains by."""
    return registry.records("loss")


def list_models() -> list[dict[str, Any]]:
    """The card of every model that ships with the package: name, family, task, accuracy, size, licence."""
    return [zoo.card(name) for name in zoo.names()]
