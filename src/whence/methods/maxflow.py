"""Maximum flows through the layered graph of attention, by scipy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

Step = tuple[np.ndarray, slice, slice]  # weights (query, key) that leave a token, where queries and keys lie


def flows(steps: Sequence[Step], residual: float, start: np.ndarray, real: np.ndarray, scale: int) -> np.ndarray:
    """The greatest flow from the start, shares of the deciding tokens, to each real token of the input: (feature,).

    Node (l, i) is token i before step l; edges go from (l + 1, i) to (l, j) with the weight of step l.
    """
    size, depth = len(start), len(steps)
    tails, heads, capacities = [], [], []
    for level, (weights, query, key) in enumerate(steps):
        matrix = np.eye(size)
        matrix[query, query] *= residual
        matrix[query, key] += weights
        matrix[~real] = 0
        matrix[:, ~real] = 0
        i, j = np.nonzero(matrix)
        tails.append((level + 1) * size + i)
        heads.append(level * size + j)
        capacities.append(matrix[i, j])
    source = (depth + 1) * size
    begin = np.flatnonzero(start)
    tails.append(np.full(len(begin), source))
    heads.append(depth * size + begin)
    capacities.append(start[begin])
    whole = np.round(np.concatenate(capacities) * scale).astype(np.int32)
    shape = (source + 1, source + 1)
    graph = csr_array((whole, (np.concatenate(tails), np.concatenate(heads))), shape=shape)
    graph.eliminate_zeros()
    found = np.zeros(size)
    for token in np.flatnonzero(real):
        found[token] = maximum_flow(graph, source, int(token)).flow_value / scale
    return found
