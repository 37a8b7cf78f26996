"""Maximum flows through the layered graph of attention, by scipy, each on a part of the graph that a cut proves enough.

A flow through some of the edges is a flow through the graph, so its value is a lower bound; the capacity of any cut of
the whole graph is an upper one. Flows are whole numbers: where both bounds meet, the value is exact.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from whence.core import stopping

MOST = 2**31 - 1  # the largest capacity that scipy takes
STRONGEST = 8  # edges from every node, and to every node, that are tried first
Step = tuple[np.ndarray, slice, slice]  # weights (query, key), and the features that the queries and keys are


class Graph:
    """The layered graph of attention: node (l, i) is token i before step l, and edges lead from step l + 1 to l.

    Weights of the steps are capacities, in units of 1 / `scale`, since the solver counts in whole numbers.
    """

    def __init__(self, steps: Sequence[Step], residual: float, real: np.ndarray, scale: int) -> None:
        self.real, self.size, self.depth, self.scale = np.flatnonzero(real), len(real), len(steps), scale
        self._capacities: list[np.ndarray] = []  # of every step, (from, to)
        self._strong: list[np.ndarray] = []  # of every step, (from, to) bool: the edges that are tried first
        for weights, query, key in steps:
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
            self._capacities.append(np.round(matrix * scale).astype(np.int32))
            self._strong.append(_strongest(self._capacities[-1]))

    def row(self, start: np.ndarray) -> np.ndarray:
        """The greatest flow from the deciding tokens, which each give their share, to each input token: (feature,)."""
        return self._flows(np.round(start * self.scale).astype(np.int32))

    def matrix(self) -> np.ndarray:
        """The greatest flow from every token to each: (feature, feature)."""
        flows = np.zeros((self.size, self.size))
        for token in self.real:
            gives = np.zeros(self.size, np.int32)
            gives[token] = MOST
            flows[token] = self._flows(gives)
        return flows

    def _flows(self, gives: np.ndarray) -> np.ndarray:
        """The greatest flow to each input token from a source that gives `gives` to the tokens of the last layer."""
        flows = np.zeros(self.size)
        for token in self.real:
            stopping.check()
            flows[token] = self._flow(gives, int(token)) / self.scale
        return flows

    def _flow(self, gives: np.ndarray, token: int) -> int:
        """The greatest flow to one input token."""
        chosen = [strong.copy() for strong in self._strong]
        sources = np.flatnonzero(gives)
        for step, edges in enumerate(chosen):
            edges[:, token] = True
            edges[sources if len(sources) <= STRONGEST else []] = True
            edges &= self._capacities[step] > 0
        limit = self._trivial_cut(gives, token)
        while True:
            graph = self._edges(chosen, gives, token)
            found = maximum_flow(graph, graph.shape[0] - 1, token)
            if found.flow_value == limit:
                return limit
            before = _reached(graph, found.flow)[:-1].reshape(self.depth + 1, self.size)  # the source's side of a cut
            before[0] = np.arange(self.size) != token  # edges to other input tokens lead nowhere
            enough = True
            for step, capacities in enumerate(self._capacities):
                crossing = np.ix_(before[step + 1], ~before[step])
                there = capacities[crossing] > 0
                enough = enough and bool(chosen[step][crossing][there].all())
                chosen[step][crossing] = there
            if enough:  # no edge of the whole graph crosses the cut but the chosen ones, which are full
                return int(found.flow_value)

    def _trivial_cut(self, gives: np.ndarray, token: int) -> int:
        """The smaller of what the source can give and what the edges to the token can carry."""
        top = np.minimum(gives, self._capacities[-1].sum(1, dtype=np.int64)).sum(dtype=np.int64)
        return int(min(top, self._capacities[0][:, token].sum(dtype=np.int64)))

    def _edges(self, chosen: list[np.ndarray], gives: np.ndarray, token: int) -> csr_array:
        """The chosen edges as scipy takes them; the last node is the source."""
        tails, heads, capacities = [], [], []
        for step, edges in enumerate(chosen):
            used = edges
            if step == 0:  # only edges to the token lead on
                used = np.zeros_like(edges)
                used[:, token] = edges[:, token]
            if step == self.depth - 1:  # only tokens that the source gives to have flow to pass on
                used = used & (gives > 0)[:, None]
            i, j = np.nonzero(used)
            tails.append((step + 1) * self.size + i)
            heads.append(step * self.size + j)
            capacities.append(self._capacities[step][i, j])
        nodes = (self.depth + 1) * self.size + 1
        deciding = np.flatnonzero(gives)
        tails.append(np.full(len(deciding), nodes - 1))
        heads.append(self.depth * self.size + deciding)
        capacities.append(gives[deciding])
        places = (np.concatenate(tails), np.concatenate(heads))
        return csr_array((np.concatenate(capacities), places), shape=(nodes, nodes))


def _strongest(capacities: np.ndarray) -> np.ndarray:
    """The edges that stay in place, and the strongest few from and to every node: (from, to) bool."""
    size = len(capacities)
    chosen = np.eye(size, dtype=bool)
    if size <= STRONGEST:
        return np.ones_like(chosen)
    by_row = np.argpartition(capacities, size - STRONGEST, 1)[:, size - STRONGEST :]
    by_column = np.argpartition(capacities, size - STRONGEST, 0)[size - STRONGEST :]
    np.put_along_axis(chosen, by_row, True, 1)
    np.put_along_axis(chosen, by_column, True, 0)
    return chosen


def _reached(graph: csr_array, flow: csr_array) -> np.ndarray:
    """The nodes to which more could flow from the last one, (node,) bool: one side of a smallest cut of this graph."""
    left = (graph - flow).tocsr()
    left.data = np.maximum(left.data, 0)
    left.eliminate_zeros()
    reached = np.zeros(graph.shape[0], bool)
    reached[breadth_first_order(left, graph.shape[0] - 1, return_predecessors=False)] = True
    return reached
