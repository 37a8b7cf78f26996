"""Flows through a part of the edges, which a cut proves to be enough: the same whole numbers as through all edges."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

from whence.methods import maxflow
from whence.methods.maxflow import Graph

SCALE = 10**6


def steps(seed: int, tokens: int, layers: int, sharpness: float, causal: bool) -> list[np.ndarray]:
    """Random attention, which is even where `sharpness` is 0 and on few keys where it is large."""
    scores = sharpness * np.random.default_rng(seed).normal(size=(layers, tokens, tokens))
    maps = np.exp(np.where(np.tril(np.ones((tokens, tokens))) > 0, scores, -np.inf) if causal else scores)
    return list(maps / maps.sum(-1, keepdims=True))


def whole(maps: list[np.ndarray], start: np.ndarray) -> np.ndarray:
    """The slow twin: a maximum flow through all edges for every input token."""
    size, depth = len(start), len(maps)
    nodes = (depth + 1) * size + 1
    graph = np.zeros((nodes, nodes), np.int32)
    for level, weights in enumerate(maps):
        mixed = np.round((0.5 * weights + 0.5 * np.eye(size)) * SCALE)
        graph[(level + 1) * size : (level + 2) * size, level * size : (level + 1) * size] = mixed
    graph[-1, depth * size : (depth + 1) * size] = np.round(start * SCALE)
    return np.array([maximum_flow(csr_array(graph), nodes - 1, token).flow_value for token in range(size)])


def found(maps: list[np.ndarray], start: np.ndarray) -> np.ndarray:
    everything, tokens = slice(0, len(start)), np.ones(len(start), bool)
    flows = Graph([(0.5 * weights, everything, everything) for weights in maps], 0.5, tokens, SCALE).row(start)
    return np.round(flows * SCALE).astype(int)


@pytest.mark.parametrize("strongest", [1, 8])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("sharpness", [0.0, 1.0, 4.0])
def test_the_same_flows(sharpness: float, causal: bool, strongest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maxflow, "STRONGEST", strongest)
    for layers in (1, 2, 4):
        maps = steps(layers, 20, layers, sharpness, causal)
        for start in (np.eye(20)[-1], np.full(20, 1 / 20), np.eye(20)[[4, 12]].mean(0)):
            np.testing.assert_array_equal(found(maps, start), whole(maps, start))


def test_the_strongest_edges_alone_are_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the edges that cross the first cut, some flows are too small: the comparison can fail."""
    monkeypatch.setattr(maxflow, "STRONGEST", 1)
    monkeypatch.setattr(maxflow, "_reached", lambda graph, flow: np.zeros(graph.shape[0], bool))
    maps, start = steps(0, 20, 4, 1.0, False), np.full(20, 1 / 20)
    assert (found(maps, start) < whole(maps, start)).any()
