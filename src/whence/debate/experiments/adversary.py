"""An adversary: attention as far as possible from the model's own that leaves the output as it is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from whence.core.registry import experiment
from whence.core.specs import Between
from whence.debate.distances import entropy, total_variation
from whence.debate.places import Heads, Layers, Place, Rows
from whence.debate.scenes import Scene, Values
from whence.debate.verdicts import Conclusion, Evidence, graded, too_few

NEAR, FAR = 0.15, 0.5  # shares of ln 2; up to NEAR, and from FAR on, the grade is clear


def _far(evidence: Evidence, options: dict[str, Any]) -> Conclusion:
    share = evidence.quantity("share of ln 2")
    few = too_few(share)
    if few is not None:
        return few
    return Conclusion(
        graded(share.mean, share.interval, FAR, NEAR),
        f"Attention at a Jensen-Shannon divergence of {evidence.said('divergence')} from the own (0.69 at most) leaves "
        f"the output within {options['epsilon']} (total variation) of what it was.",
    )


@experiment(
    question="Is there quite another attention that gives the same output?",
    conclude=_far,
    family="attention",
    paper="arXiv:1902.10186",
    limits=(
        "Another attention with the same output does not show that the own one was without effect (Wiegreffe and "
        "Pinter): it may be none that the model could come to.",
        "The search finds a lower bound: more steps and restarts may find attention further away.",
    ),
)
def adversary(
    scene: Scene,
    *,
    epsilon: Annotated[float, Between(0, 1, without_least=True)] = 0.01,
    restarts: Annotated[int, Between(1, 1000)] = 5,
    steps: Annotated[int, Between(1, 100_000)] = 500,
    rate: Annotated[float, Between(0, 10, without_least=True)] = 0.01,
    penalty: Annotated[float, Between(0, 10**6)] = 500.0,
    layers: Layers = "last",
    heads: Heads = "together",
    rows: Rows = "deciding",
    special: bool = False,
) -> Values:
    """The attention furthest from the model's own (Jensen-Shannon) whose output differs by `epsilon` at most.

    Adam (amsgrad) maximises JSD(a', a) - penalty * ReLU(TVD - epsilon) + JSD among the restarts, over the logarithms of
    the weights, from log uniform + 3 N(0, 1); restarts run as one batch. Unlike in the public code, the output must be
    within `epsilon` for a candidate to count (there .05 in place of .01), and candidates of all steps count, not only
    of the last. A candidate counts only if a run of the whole model with its weights confirms the output; the model's
    own attention, at a divergence of 0, is always a candidate. Every head and row has weights of its own; distances are
    means over them.
    """

    def measure(place: Place) -> dict[str, float]:
        generator = scene.generator(f"adversary at {place.name}")
        search = Search(scene, place, epsilon, restarts, generator)
        search.run(steps, rate, penalty)
        divergence, change = search.verified()
        return {
            "divergence": divergence,
            "share of ln 2": divergence / math.log(2),
            "change": change,
            "found": float(divergence > 0),
        }

    return scene.at_places(layers, heads, rows, special, measure)


@dataclass(eq=False)
class Search:
    """A search; `best` holds, for each restart, the weights furthest from the model's own that keep the output."""

    scene: Scene
    place: Place
    epsilon: float
    restarts: int
    generator: np.random.Generator

    def __post_init__(self) -> None:
        device = self.place.blocks[0].weights.device
        self.logs: list[Tensor] = []  # of every block, (restart, head, row, key)
        for block in self.place.blocks:
            noise = self.generator.normal(0, 3, (self.restarts, *block.weights.shape))
            start = torch.from_numpy(noise).to(device) - block.free.sum(-1, keepdim=True).clamp(min=1).log()
            self.logs.append(start.requires_grad_())
        self.best = [block.weights.repeat(self.restarts, 1, 1, 1) for block in self.place.blocks]
        self.furthest = torch.zeros(self.restarts, dtype=torch.double, device=device)

    def weights(self) -> list[Tensor]:
        """The weights that the logarithms stand for: free keys divide their total weight anew, others keep theirs."""
        found = []
        for block, logs in zip(self.place.blocks, self.logs, strict=True):
            shares = logs.masked_fill(~block.free, -1e30).softmax(-1)
            found.append(torch.where(block.free, block.mass * shares, block.weights))
        return found

    def run(self, steps: int, rate: float, penalty: float) -> None:
        """Take the steps of the search; the weights after the last step are candidates, too."""
        optimizer = torch.optim.Adam(self.logs, lr=rate, amsgrad=True)
        for step in range(steps + 1):
            with torch.enable_grad():
                weights = self.weights()
                outputs = self.scene.answered(self.place, weights, graph=True)
                change = total_variation(outputs, self.scene.own)
                divergence = self.place.divergence(weights)
                beyond = (change - self.epsilon).clamp(min=0)
                loss = (penalty * beyond - divergence).sum() - self._apart(weights)
                gradients = torch.autograd.grad(loss, self.logs)
            self._note([w.detach() for w in weights], change.detach(), divergence.detach())
            for logs, gradient in zip(self.logs, gradients, strict=True):
                logs.grad = gradient
            if step < steps:
                optimizer.step()

    def _apart(self, weights: list[Tensor]) -> Tensor:
        """The Jensen-Shannon divergence among the restarts, mean over heads and rows."""
        found = []
        for block, own in zip(self.place.blocks, weights, strict=True):
            shares = block.shares(own)
            found.append((entropy(shares.mean(0)) - entropy(shares).mean(0)).mean())
        return torch.stack(found).mean()

    def _note(self, weights: list[Tensor], change: Tensor, divergence: Tensor) -> None:
        """Store as `best` weights of restarts that keep the output and are further away than the best so far."""
        better = (change <= self.epsilon) & (divergence > self.furthest)
        self.furthest = torch.where(better, divergence, self.furthest)
        marks = better[:, None, None, None]
        self.best = [torch.where(marks, new, old) for new, old in zip(weights, self.best, strict=True)]

    def verified(self) -> tuple[float, float]:
        """The divergence and the change of the best weights whose output, from the whole model, is within epsilon."""
        outputs = self.scene.answered(self.place, self.best, whole=True)
        change = total_variation(outputs, self.scene.own)
        divergence = self.place.divergence(self.best).masked_fill(change > self.epsilon, 0.0)
        number = int(divergence.argmax())
        return (float(divergence[number]), float(change[number])) if divergence[number] > 0 else (0.0, 0.0)
