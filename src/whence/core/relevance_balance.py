"""The relevance that every module of one pass received, passed on and lost."""

from __future__ import annotations

from dataclasses import dataclass

from whence.core.inputs import Input, Target
from whence.core.results import Result
from whence.core.storage import Storable


@dataclass(frozen=True, eq=False)
class ModuleRelevance(Storable):
    """The relevance, value x gradient, that one call of a module receives, passes on, puts on its biases and leaks."""

    name: str  # of the module; "" is the whole model
    kind: str  # its class
    call: int  # number of the call, for a module that is called more than once
    depth: int  # how many modules the module is inside of
    block: str  # the block that the module is or belongs to; "" outside of all blocks
    relevance_out: float  # the relevance of its outputs, which it receives from later modules
    relevance_in: float  # the relevance of its inputs through this call, and of words or pixels that enter in it
    bias: float  # the relevance of constants that it adds: biases, position embeddings
    leak: float  # relevance_out - relevance_in - bias
    own_leak: float  # the part of the leak that is in no module inside this one
    absolute: float  # the sum of |relevance| at its outputs or inputs, whichever is larger
    uncovered: tuple[str, ...] = ()  # its operations, outside the modules in it, for which no rule conserves


@dataclass(frozen=True, eq=False, repr=False)
class Conservation(Result):
    """The relevance at every module of one pass: where it leaks, how much biases take, what no rule covers."""

    rows: tuple[ModuleRelevance, ...]  # in the order in which the calls begin; the first is the whole model
    plain: tuple[ModuleRelevance, ...]  # the rows of gradient_x_input, to compare; empty if that is the method
    input: Input
    method: str  # the spec: name and options
    target: Target
    output: float  # f(x)
    model: str = ""
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Conservation({self.method}: {len(self.rows)} module calls of {self.model}, leak {self.leak:.4g})"

    def __getitem__(self, name: str) -> ModuleRelevance:
        """The first call of a module, by its name."""
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(f"no module {name!r} was called with what the target depends on")

    @property
    def reached(self) -> float:
        """The relevance that arrives at the input: words or pixels."""
        return self.rows[0].relevance_in

    @property
    def bias(self) -> float:
        """The relevance of all biases and other constants that are added."""
        return self.rows[0].bias

    @property
    def leak(self) -> float:
        """The relevance of the output that is neither on the input nor on biases."""
        return self.rows[0].leak

    @property
    def uncovered(self) -> dict[str, tuple[str, ...]]:
        """The operations that no rule makes conserve, with the modules that use them."""
        names = dict.fromkeys(operation for row in self.rows for operation in row.uncovered)
        return {name: tuple(row.name for row in self.rows if name in row.uncovered) for name in names}
