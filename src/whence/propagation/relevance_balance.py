"""The relevance of every module's outputs and inputs in one pass, and the relevance that is lost between them.

Relevance is value x gradient, under whatever rules the method runs. Nothing here knows those rules: the method itself
is run, modules are watched by hooks, and autograd's graph shows which operations do not conserve relevance.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from whence.core import registry
from whence.core.inputs import Input
from whence.core.registry import Record
from whence.core.relevance_balance import Conservation, ModuleRelevance
from whence.model.batching import Batch
from whence.model.pointing import pointed
from whence.model.subject import Subject
from whence.model.target_specs import of_generated
from whence.model.targets import Aim
from whence.propagation.conserving_operations import leaks, operation_name
from whence.propagation.operations import ADD, JOIN, NORM, SUBTRACT, is_activation

# operation -> the position of the bias among its arguments
_WITH_BIAS = {F.linear: 2, torch.addmm: 0, torch.conv1d: 2, torch.conv2d: 2, torch.conv3d: 2}
_IN_PLACE = {Tensor.add_, Tensor.__iadd__}


COMPARED = "gradient_x_input"  # always shown beside the method


def balanced(
    subject: Subject, item: Input, spec: tuple[Record, dict[str, Any]], target: Any, token: int
) -> Conservation:
    """Relevance entering and leaving every module, for one input and target; with gradient_x_input to compare."""
    rows, notes = subject.rows(item), item.notes
    if rows:
        if not -len(rows) <= token < len(rows):
            raise ValueError(f"token={token} names no generated token: there are {len(rows)}, numbered from 0")
        item, produced = rows[token]
        target = of_generated(subject, target, produced)
        notes += (f"one generated token of {len(rows)} is looked at: {subject.name_of(produced)!r}",)
    (item,), (target,) = pointed(subject, [item], [target])
    batch, aim = subject.batch([item]), subject.aim([target])
    record, options = spec
    method_rows = tuple(balance(subject, batch, aim, record, options))
    comparison, no_options = registry.resolve("method", COMPARED)
    comparison_rows = () if record is comparison else tuple(balance(subject, batch, aim, comparison, no_options))
    return Conservation(
        rows=method_rows,
        plain=comparison_rows,
        input=item,
        method=record.spec(options),
        target=aim.targets[0],
        output=float(subject.values(batch, aim)[0]),
        model=subject.name,
        notes=notes,
    )


def balance(subject: Subject, batch: Batch, aim: Aim, record: Record, options: dict[str, Any]) -> list[ModuleRelevance]:
    """The relevance at every module call of the one pass that the method makes over a batch of one."""
    if not record.signed or record.family not in ("gradient", "relevance"):
        raise ValueError(_unfit(record))
    with subject.lent():
        subject.values(batch, aim)  # fixes an open target, and runs the passes that discover the model
        watch = RelevanceWatch(_blocks(subject, batch))
        with subject.every_call(watch), watch:
            record(subject, batch, _TellingAim(aim, watch.read), **options)
    if watch.readings != 1:
        raise ValueError(_unfit(record))
    return watch.rows


def _unfit(record: Record) -> str:
    return (
        "conservation needs a method that hands relevance down in one backward pass, as lrp, attnlrp and "
        f"gradient_x_input do, and {record.name} does not; use one of those"
    )


def _blocks(subject: Subject, batch: Batch) -> dict[tuple[str, int], str]:
    """A name for every call that is a block, by module and number of the call."""
    found: dict[tuple[str, int], str] = {}
    streams = subject.structure(batch).calls
    for stream, sites in streams.items():
        for number, site in enumerate(sites):
            found.setdefault((site.module, site.call), f"{stream} {number}" if len(streams) > 1 else str(number))
    return found


class _TellingAim(Aim):
    """An aim that hands its value, with the graph behind it, to `tell` as soon as it is computed."""

    def __init__(self, aim: Aim, tell: Callable[[Tensor], None]) -> None:
        vars(self).update(vars(aim))
        self._tell = tell

    def __call__(self, logits: Tensor, batch: Any, states: Any = None) -> Tensor:
        value = super().__call__(logits, batch, states)
        if value.requires_grad:
            self._tell(value)
        return value


@dataclass(eq=False)
class _Entry:
    """A tensor's place in the graph and a copy of its value, which later operations in place cannot change."""

    edge: GradientEdge
    value: Tensor

    @staticmethod
    def of(tensor: Tensor) -> _Entry:
        return _Entry(get_gradient_edge(tensor), tensor.detach().clone())

    def relevance(self, gradient: Tensor | None) -> Tensor:
        """value x gradient; 0 without a gradient, also where a value of -inf (a mask) has a gradient of 0."""
        if gradient is None:
            return torch.zeros(1, dtype=torch.float64)
        gradient = gradient.cpu().double()
        return torch.where(gradient == 0, 0.0, self.value.cpu().double() * gradient)


@dataclass(eq=False)
class _Call:
    """One module call of the pass, with the tensors whose relevance is wanted."""

    name: str
    number: int
    kind: str
    around: list[_Call]
    block: str
    activation: bool
    holds: bool = False  # whether a module inside has tracked outputs
    inputs: list[_Entry] = field(default_factory=list)
    sources: list[_Entry] = field(default_factory=list)  # where a stream enters the model, as its word embeddings
    outputs: list[_Entry] = field(default_factory=list)
    constants: list[_Entry] = field(default_factory=list)  # biases, position embeddings and the like
    norm_biases: list[Tensor] = field(default_factory=list)

    def entries(self) -> Iterator[_Entry]:
        yield from (*self.inputs, *self.sources, *self.outputs, *self.constants)


class RelevanceWatch(TorchFunctionMode):
    """Keeps the inputs, outputs and added constants of every module call; `read` turns them into rows.

    As the lowest function mode it sees the operations that rules and tap call. It gives added constants a gradient.
    """

    def __init__(self, blocks: dict[tuple[str, int], str]) -> None:
        super().__init__()
        self.rows: list[ModuleRelevance] = []
        self.readings = 0
        self._blocks = blocks
        self.begin()

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        self.begin()

    # ---- the forward pass --------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Forget the calls of the last pass."""
        self._calls: list[_Call] = []
        self._ended: list[_Call] = []
        self._running: list[_Call] = []
        self._counts: Counter[str] = Counter()  # calls of each module so far

    def enter(self, name: str, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """A module is called: its tracked inputs are replaced by aliases, so that only uses inside the module count."""
        number = self._counts[name]
        self._counts[name] += 1
        around = self._running[-1].block if self._running else ""
        block = self._blocks.get((name, number), around)
        call = _Call(name, number, type(module).__name__, list(self._running), block, is_activation(module))
        self._calls.append(call)
        self._running.append(call)
        return _aliased((args, kwargs), call.inputs)

    def leave(self, name: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        """A module returns: its outputs are kept at their place in the graph."""
        call = self._running.pop()
        self._ended.append(call)
        tracked = {id(t): t for t in pytree.tree_leaves(output) if _tracked(t)}
        if not call.inputs and not call.holds:  # no tracked tensor went in: a stream enters the model here
            call.sources = [_Entry.of(tensor) for tensor in tracked.values()]
        for outer in call.around:
            outer.holds |= bool(tracked)
        if len(tracked) > 1:  # one output may be made of another inside the module: only uses outside of it count
            output = _aliased(output, call.outputs)
        else:  # no alias: backward rules know some tensors by their identity
            call.outputs = [_Entry.of(tensor) for tensor in tracked.values()]
        for bias in call.norm_biases:
            call.constants += [_Entry(entry.edge, bias) for entry in call.outputs]
        return output

    def __torch_function__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._running and torch.is_grad_enabled() and _tracked([*args, *kwargs.values()]):
            args, kwargs = self._with_constants(func, args, kwargs)
        return func(*args, **kwargs)

    def _with_constants(self, func: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """The arguments, with gradients for constants that are added to states."""
        if func in ADD or func in SUBTRACT:
            terms = self._terms(args)
            return (args[0] if func in _IN_PLACE else self._constant(terms[0]), *map(self._constant, terms[1:])), kwargs
        if func in JOIN:
            return (type(args[0])(map(self._constant, args[0])), *args[1:]), kwargs
        if func in NORM:  # rules do not differentiate the bias of a norm
            bias = kwargs["bias"] if "bias" in kwargs else args[3] if len(args) > 3 and func is not F.rms_norm else None
            self._running[-1].norm_biases += [] if bias is None else [bias.detach()]
        elif func in _WITH_BIAS:
            place = _WITH_BIAS[func]
            args = tuple(self._constant(a) if number == place else a for number, a in enumerate(args))
            kwargs = {name: self._constant(a) if name == "bias" else a for name, a in kwargs.items()}
        return args, kwargs

    def _terms(self, args: Any) -> Any:
        """The terms of a sum, numbers as tensors; not inside activations, where numbers belong to the formula."""
        state = next((value for value in args if _tracked(value)), None)
        if state is None or self._running[-1].activation:
            return args
        return tuple(state.new_tensor(value) if isinstance(value, (int, float)) else value for value in args)

    def _constant(self, value: Any) -> Any:
        """A floating-point tensor without a gradient as a leaf whose relevance is noted; other values as they are."""
        if not isinstance(value, Tensor) or value.requires_grad or not value.is_floating_point():
            return value
        constant = value.detach().requires_grad_()
        self._running[-1].constants.append(_Entry.of(constant))
        return constant

    # ---- the backward pass -------------------------------------------------------------------------------------------

    def read(self, value: Tensor) -> None:
        """One row per call, in the order in which they begin, for the pass that ended in this value."""
        self.readings += 1
        entries = [entry for call in self._calls for entry in call.entries()]
        edges = [entry.edge for entry in entries]
        gradients = torch.autograd.grad(value.sum(), edges, allow_unused=True, retain_graph=True)
        pairs = list(zip(entries, gradients, strict=True))
        operations = self._operations({entry.edge.node for entry, gradient in pairs if gradient is not None})
        self.rows = _rows(self._calls, {id(e): e.relevance(g) for e, g in pairs}, operations)

    def _operations(self, reached: set[Node]) -> dict[int, tuple[str, ...]]:
        """By call, the operations that do not conserve relevance, without those of modules inside the call."""
        owned: set[Node] = set()
        found: dict[int, tuple[str, ...]] = {}
        for call in self._ended:  # inner calls first
            ends = {entry.edge.node for entry in call.inputs}
            waiting = [entry.edge.node for entry in call.outputs if entry.edge.node in reached]
            seen, names = set(ends), list[str]()
            while waiting:
                node = waiting.pop()
                if node in seen:
                    continue
                seen.add(node)
                if node not in owned:
                    owned.add(node)
                    names += [operation_name(node)] if leaks(node) else []
                waiting += [following for following, _ in node.next_functions if following is not None]
            owned |= ends
            found[id(call)] = tuple(sorted(set(names)))
        return found


def _rows(
    calls: list[_Call], relevance: dict[int, Tensor], operations: dict[int, tuple[str, ...]]
) -> list[ModuleRelevance]:
    """A row of sums for every call that has tracked outputs."""

    def total(entries: Iterable[_Entry]) -> float:
        return float(sum(relevance[id(entry)].sum() for entry in entries))

    def size(entries: Iterable[_Entry]) -> float:
        return float(sum(relevance[id(entry)].abs().sum() for entry in entries))

    rows: dict[int, ModuleRelevance] = {}
    sources, constants, inner = (defaultdict[int, float](float) for _ in range(3))  # sums over the calls inside a call
    for call in reversed(calls):  # inner calls first
        sources[id(call)] += total(call.sources)
        constants[id(call)] += total(call.constants)
        out, into = total(call.outputs), total(call.inputs) + sources[id(call)]
        leak = out - into - constants[id(call)]
        if call.outputs:
            rows[id(call)] = ModuleRelevance(
                name=call.name,
                kind=call.kind,
                call=call.number,
                depth=len(call.around),
                block=call.block,
                relevance_out=out,
                relevance_in=into,
                bias=constants[id(call)],
                leak=leak,
                own_leak=leak - inner[id(call)],
                absolute=max(size(call.outputs), size(call.inputs)),
                uncovered=operations[id(call)],
            )
        if call.around:
            outer = id(call.around[-1])
            sources[outer] += sources[id(call)]
            constants[outer] += constants[id(call)]
            inner[outer] += leak if call.outputs else 0.0
    return [rows[id(call)] for call in calls if id(call) in rows]


def _aliased(holder: Any, entries: list[_Entry]) -> Any:
    """Arguments or outputs with an alias for every tracked tensor: the alias's gradient belongs to this use alone."""
    if not torch.is_grad_enabled():
        return holder
    aliases: dict[int, Tensor] = {}

    def alias(tensor: Tensor) -> Tensor:
        if not _tracked(tensor):
            return tensor
        if id(tensor) not in aliases:
            aliases[id(tensor)] = tensor.view_as(tensor)
            entries.append(_Entry.of(aliases[id(tensor)]))
        return aliases[id(tensor)]

    return pytree.tree_map_only(Tensor, alias, holder)


def _tracked(value: Any) -> bool:
    """Whether a floating-point tensor, or one in a list, requires a gradient."""
    if isinstance(value, (tuple, list)):
        return any(map(_tracked, value))
    return isinstance(value, Tensor) and value.requires_grad and value.is_floating_point()
