"""Maximum flows through the layered graph of attention, by scipy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

from whence.core import stopping

MOST = 2**31 - 1  # that scipy can count to
Step = tuple[np.ndarray, slice, slice]  # weights (query, key), and the features that the queries and keys are


class Graph:
    """The layered graph of attention: node (l, i) is token i before step l, and edges lead from step l + 1 to l.

    Weights of the steps are capacities, in units of 1 / `scale`, since the solver counts in whole numbers.
    """

    def __init__(self, steps: Sequence[Step], residual: float, real: np.ndarray, scale: int) -> None:
        self.real, self.size, self.depth, self.scale = np.flatnonzero(real), len(real), len(steps), scale
        self._tails: list[np.ndarray] = []
        self._heads: list[np.ndarray] = []
        self._capacities: list[np.ndarray] = []
        for level, (weights, query, key) in enumerate(steps):
            matrix = np.eye(self.size)
            matrix[query, query] *= residual
            matrix[query, key] += weights
            matrix[~real] = 0
            matrix[:, ~real] = 0
            if (largest := matrix.sum(1).max()) * scale > MOST:
                raise ValueError(
                    f"flow counts in whole numbers up to {MOST:,}, and weights here sum to {largest:.3g}: take a scale "
                    f"of at most {int(MOST / largest):,}, not {scale:,}"
                )
            i, j = np.nonzero(matrix)
            self._add((level + 1) * self.size + i, level * self.size + j, matrix[i, j])

    def _add(self, tails: np.ndarray, heads: np.ndarray, capacities: np.ndarray) -> None:
        """Add edges from the nodes `tails` to the nodes `heads`."""
        self._tails.append(tails)
        self._heads.append(heads)
        self._capacities.append(np.round(capacities * self.scale).astype(np.int32))

    def row(self, start: np.ndarray) -> np.ndarray:
        """The greatest flow from the deciding tokens, which each give their share, to each input token: (feature,)."""
        source, deciding = (self.depth + 1) * self.size, np.flatnonzero(start)
        self._add(np.full(len(deciding), source), self.depth * self.size + deciding, start[deciding])
        return self._flows(self._matrix_of_edges(), source)

    def matrix(self) -> np.ndarray:
        """The greatest flow from every token to each: (feature, feature)."""
        graph, flows = self._matrix_of_edges(), np.zeros((self.size, self.size))
        for token in self.real:
            flows[token] = self._flows(graph, self.depth * self.size + int(token))
        return flows

    def _matrix_of_edges(self) -> csr_array:
        """All edges as scipy takes them; one node more than tokens is the source of `row`."""
        nodes = (self.depth + 1) * self.size + 1
        places = (np.concatenate(self._tails), np.concatenate(self._heads))
        graph = csr_array((np.concatenate(self._capacities), places), shape=(nodes, nodes))
        graph.eliminate_zeros()
        return graph

    def _flows(self, graph: csr_array, source: int) -> np.ndarray:
        """The greatest flow from a node to each input token: (feature,)."""
        flows = np.zeros(self.size)
        for token in self.real:
            stopping.check()
            flows[token] = maximum_flow(graph, source, int(token)).flow_value / self.scale
        return flows
