"""All attention weights of one input, as the model used them."""

from __future__ import annotations

import numpy as np

from whence.core.attention_maps import AttentionMaps
from whence.core.inputs import Input
from whence.methods.explaining import of_example
from whence.model.batching import cut
from whence.model.subject import Subject


def maps_of(subject: Subject, item: Input) -> AttentionMaps:
    """The maps of one input, which runs alone, so that no map contains padding."""
    if subject.decoder_only:  # the model reads prompt and continuation as one text
        item = cut(item, len(item.features), ("text",) * len(item.features), item.tensors)
    trace = subject.trace(subject.batch([item]), subject.aim([None]), ("attention",))
    by_connection: dict[tuple[str, str], list[np.ndarray]] = {}
    for record in trace.attention:
        if not record.query:
            raise ValueError(
                f"{subject.name} attends within windows, not over the whole sequence, so its attention cannot be "
                "placed on its features; use whence.explain with a gradient or perturbation method"
            )
        by_connection.setdefault((record.query, record.key), []).append(of_example(record.weights, 0))
    for (query, key), layers in by_connection.items():
        heads = [len(layer) for layer in layers]
        if len(set(heads)) > 1:
            raise ValueError(f"maps need as many heads in every layer, and {query}:{key} of {subject.name} has {heads}")
    return AttentionMaps({pair: np.stack(layers) for pair, layers in by_connection.items()}, item, subject.name)
