"""One pass over a model: a request says what to record, a trace holds what was recorded."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from whence.model.batching import Batch, shown
from whence.model.closing import Change
from whence.model.discovery import (
    At,
    Discovery,
    Structure,
    as_leaf,
    deciding_rows,
    last_rows,
    no_attention,
    no_gradients,
    summary,
)
from whence.model.forward import Forward
from whence.model.loan import attention_path, lent
from whence.model.row_passes import Running, row_gradients, running, spread_records
from whence.model.rules import Rules
from whence.model.tap import Align, AttentionRecord, Edit, Tap
from whence.model.targets import Aim, StateSeen
from whence.model.watching import Site

Streams = Mapping[str, Tensor]  # stream -> (batch, token, width), or (batch, channel, height, width) of pixels
OF_ATTENTION = ("attention_gradient", "head_gradient")  # needs that differentiate every attention block
_SEES_ATTENTION = frozenset({"attention", "scores", "values", "deciding", *OF_ATTENTION})
HALF_GAP = 5e-2  # of the largest logit: in half precision, the eager path may round as much apart from the model's own


@dataclass(frozen=True)
class Request:
    """What one pass shall record, and what it changes on the way.

    Needs: "attention", "scores", "values", "attention_gradient", "head_gradient", "deciding", "state:AT",
    "gradient:AT" (state included).
    """

    needs: frozenset[str] = frozenset()
    states: Mapping[At, Streams] = field(default_factory=dict)  # put in place of the model's own states
    edit: Edit | None = None  # of attention
    rules: Rules | None = None

    @cached_property
    def gradients(self) -> list[At]:
        """Where the target is differentiated."""
        return [_place_of(need) for need in sorted(self.needs) if need.startswith("gradient:") and need != "gradient:*"]

    @cached_property
    def recorded(self) -> list[At]:
        """Where states are recorded or replaced."""
        asked = [_place_of(need) for need in sorted(self.needs) if need.startswith("state:")]
        return list(dict.fromkeys([*self.gradients, *asked, *self.states]))

    @property
    def backward(self) -> bool:
        """Whether a backward pass follows."""
        return bool(self.gradients) or not self.needs.isdisjoint(OF_ATTENTION)

    @property
    def attention(self) -> bool:
        """Whether the tap is on and the model runs on its eager path."""
        ruled = self.rules is not None and self.rules.attention_path == "eager"
        return self.edit is not None or ruled or not self.needs.isdisjoint(_SEES_ATTENTION)

    @property
    def path(self) -> str | None:
        """The attention path to run on: eager to see attention, that of the rules, else the model's own."""
        if self.attention:
            return "eager"
        return None if self.rules is None else self.rules.attention_path

    @property
    def shares(self) -> bool:
        """Whether all that is recorded belongs to tokens: a beginning of a sequence then has what the whole has."""
        by_token = all(isinstance(at, int) or at in ("embeddings", "word") for at in self.recorded)
        return by_token and self.edit is None and (self.rules is None or self.rules.shares)

    @property
    def plain(self) -> bool:
        """Whether inputs and attention are the model's own: the logits are then predictions, also under rules."""
        return not self.states and self.edit is None


@dataclass(eq=False)
class Trace:
    """What one instrumented pass recorded, and only what was asked for."""

    needs: frozenset[str]
    aim: Aim
    logits: Tensor  # (batch, class)
    value: Tensor  # (batch,)
    attention: list[AttentionRecord] = field(default_factory=list)
    states: dict[At, dict[str, Tensor]] = field(default_factory=dict)  # at -> stream -> (batch, token, width)
    gradients: dict[At, dict[str, Tensor]] = field(default_factory=dict)
    deciding: dict[str, Tensor] = field(default_factory=dict)  # stream -> (batch, token) bool: read by the target


class Pass:
    """One pass under way; `run` takes the steps in their order."""

    def __init__(
        self,
        forward: Forward,
        discovery: Discovery,
        batch: Batch,
        aim: Aim,
        request: Request,
        name: str,
        change: Change | None = None,
    ) -> None:
        self._forward, self._discovery, self._batch, self._aim = forward, discovery, batch, aim
        self._request, self._name = request, name
        self._change = change  # of all attention, for example by ignored words
        self._taps = request.attention or change is not None
        self._running = running(batch, request.states, request.shares and not aim.states)

    def run(self) -> Trace:
        """One forward pass that records what was requested, and a backward pass if gradients were.

        Examples that are beginnings of one sequence share the forward pass over it; each has its own backward pass.
        """
        request, batch = self._request, self._batch
        model = self._forward.model
        with lent(model), attention_path(model, "eager" if self._taps else request.path):
            if (request.backward or "deciding" in request.needs) and self._discovery.quantised:
                raise ValueError(no_gradients(self._name))
            structure = self._discovery.structure if request.backward or self._taps else None
            sites = {at: self._discovery.sites(at) for at in (*request.recorded, *self._aim.states)}
            tap = self._tap(structure)
            with self._graph(structure):
                logits, seen = self._run_model(sites, structure, tap)
                states = states_seen(self._discovery, batch, self._aim.states, seen)
                if request.plain:
                    self._check_finite(logits)
                    self._aim.fix(logits, batch, states)
                value = self._aim(logits, batch, states)
            if request.plain:
                self._check_value(value, logits)
                batch.known = (self._aim, value.detach())
            trace = Trace(
                request.needs, self._aim, logits.detach(), value.detach(), tap.records if request.attention else []
            )
            if self._taps and not tap.records:
                raise ValueError(no_attention(model))
            if structure is not None and "deciding" in request.needs:
                trace.deciding = self._deciding(tap.records, logits, value, structure)
            if request.backward:
                rules = request.rules or Rules()
                differentiate(trace, value, request.gradients, sites, seen, self._running, rules.turn)
            for at in request.recorded:
                turned = {stream: site.turned(seen[site]).detach() for stream, site in sites[at].items()}
                trace.states[at] = {stream: self._running.spread(state) for stream, state in turned.items()}
            _release(trace)
            if self._running.rows is not None:
                spread_records(trace.attention, self._running.rows)
            return trace

    def _graph(self, structure: Structure | None) -> contextlib.AbstractContextManager[Any]:
        """A scope in which a graph is made only if it is needed: for gradients, for deciding tokens or by the rules."""
        request = self._request
        deciding = structure is not None and bool(self._product_numbers(structure))
        ruled = request.rules is not None and request.rules.graph
        return torch.enable_grad() if request.backward or deciding or ruled else torch.no_grad()

    def _product_numbers(self, structure: Structure) -> set[int]:
        """The numbers of the attentions whose products are kept, to find out which queries the target reads."""
        if "deciding" not in self._request.needs or self._running.rows is not None:
            return set()
        if self._aim.states:  # a state inside the model may precede the attention that the output reads
            return set(range(len(structure.connections)))
        return set(structure.deciding.values())

    def _tap(self, structure: Structure | None) -> Tap:
        request = self._request
        outputs: set[int] = self._product_numbers(structure) if structure else set()
        if structure and "head_gradient" in request.needs:
            outputs = set(range(len(structure.connections)))
        rules = request.rules
        return Tap(
            self._forward.model,
            len(self._running.batch),
            values="values" in request.needs,
            scores="scores" in request.needs,
            edit=request.edit or (rules.edit if rules is not None else None),
            seen=rules.seen if rules is not None else None,
            outputs=outputs,
            connections=structure.connections if structure else (),
            apart=structure.apart if structure else (),
            change=self._change,
        )

    def _run_model(
        self, sites: dict[At, dict[str, Site]], structure: Structure | None, tap: Tap
    ) -> tuple[Tensor, dict[Site, Tensor]]:
        rules, watch = self._request.rules, {site for by_stream in sites.values() for site in by_stream.values()}
        under = contextlib.nullcontext() if rules is None else rules.on(self._forward.model)
        with under, tap if self._taps else contextlib.nullcontext():
            logits, seen = self._forward.run(self._running.batch, watch, self._changes(sites, structure))
            if rules is not None:
                rules.decided(logits)
        return logits, seen

    def _changes(
        self, sites: dict[At, dict[str, Site]], structure: Structure | None
    ) -> dict[Site, Callable[[Tensor], Tensor]]:
        """Functions applied to states while the model runs: make a leaf, replace, apply rules."""
        request = self._request
        changes: dict[Site, Callable[[Tensor], Tensor]] = {}
        if structure and request.backward:
            changes |= dict.fromkeys(structure.roots.values(), as_leaf)
        for at, by_stream in self._running.states.items():
            for stream, state in by_stream.items():
                changes[sites[at][stream]] = partial(replaced, state, leaf=True)
        if request.rules is not None and type(request.rules).state is not Rules.state:
            for at in request.recorded:
                for stream, site in sites[at].items():
                    changes[site] = _then(changes.get(site), partial(request.rules.state, at, stream))
        return changes

    def _check_finite(self, logits: Tensor) -> None:
        bad = ~torch.isfinite(logits.detach()).all(-1)
        if bad.any():
            item = self._batch.inputs[int(bad.nonzero()[0, 0])]
            raise ValueError(
                f"{self._name} returned NaN or infinite logits for {shown(item)}; there is nothing to explain: "
                "check the weights, the input and the precision"
            )

    def _check_value(self, value: Tensor, logits: Tensor) -> None:
        """A pass under rules must give the known value of f: rules change gradients, never values."""
        known = self._aim.values
        if self._request.rules is None or known is None:
            return
        precision = next(self._forward.model.parameters(), logits).dtype.itemsize
        rounding = HALF_GAP * float(logits.detach().abs().max()) if precision < 4 else 0.0
        if not torch.allclose(value.detach(), known, rtol=1e-3, atol=max(1e-3, rounding)):
            if self._request.rules.attention_path == "eager":
                raise ValueError(
                    f"{self._name} computes something else on the eager path, on which attention is seen; load it with "
                    "attn_implementation='eager', or use a gradient or perturbation method"
                )
            raise RuntimeError(
                f"{self._name} computed something else under rules that must not change what it computes"
            )

    def _deciding(
        self, records: list[AttentionRecord], logits: Tensor, value: Tensor, structure: Structure
    ) -> dict[str, Tensor]:
        """The positions that the target reads, by stream: a CLS token, the last token, all, those of a neuron."""
        if self._running.rows is not None:  # the rows of generated text decide at their last tokens
            read = {stream: self._discovery.deciding_tokens(self._batch, stream) for stream in structure.deciding}
            return {stream: tokens for stream, tokens in read.items() if tokens is not None}
        inside = self._aim.reads_states.to(value.device)
        if not inside.any():
            return deciding_rows(records, self._aim.read(logits), structure)
        scalar = summary(self._aim.read(logits)[~inside]) + value[inside].sum()
        if not scalar.requires_grad:  # the state precedes all attention
            return {}
        return last_rows(records, structure.connections, scalar)


def stream_read(discovery: Discovery, at: At) -> str:
    """The stream that a target reads at a place: the one that the output reads; or a module's last call."""
    sites = discovery.sites(at)
    return next((s for s in reversed(sites) if s in discovery.structure.deciding), next(reversed(sites)))


def states_seen(
    discovery: Discovery, batch: Batch, places: Sequence[At], seen: dict[Site, Tensor]
) -> dict[At, StateSeen]:
    """The states at these places as a target reads them: with their real and their deciding tokens."""
    found = {}
    for at in dict.fromkeys(places):
        site = discovery.sites(at)[stream_read(discovery, at)]
        state = site.turned(seen[site])
        real = batch.mask if site.stream == "*" else batch.streams.get(site.stream)
        if real is not None and state.shape[:-1] != real.shape:
            real = None  # pixels are no tokens
        deciding = None if real is None else discovery.deciding_tokens(batch, site.stream)
        found[at] = StateSeen(state, real, deciding, discovery.head_count(at, site.stream))
    return found


def replaced(new: Tensor, old: Tensor, leaf: bool = False) -> Tensor:
    """The new state in the precision of the old one; with `leaf`, as a leaf of the graph."""
    return as_leaf(new.to(old.dtype)) if leaf else new.to(old.dtype)


def differentiate(
    trace: Trace,
    value: Tensor,
    ats: list[At],
    sites: dict[At, dict[str, Site]],
    seen: dict[Site, Tensor],
    run: Running,
    told: Callable[[list[int]], None],
) -> None:
    """Gradients of the target at the sites and, if asked, of all attention weights and heads, into the trace."""
    with_weights, with_products = ([r for r in trace.attention if need in trace.needs] for need in OF_ATTENTION)
    places = [(at, stream, site) for at in ats for stream, site in sites[at].items()]
    wanted: list[tuple[Tensor, Align]] = [(seen[site], site.turned) for _, _, site in places]
    wanted += [(part, _as_it_is) for record in with_weights for part in record.parts]
    wanted += [output for record in with_products for output in record.outputs]
    if not value.requires_grad or not any(tensor.requires_grad for tensor, _ in wanted):
        raise ValueError(
            "the target does not depend on the inputs in a way that can be differentiated; "
            "use a method that only runs the model, as leave_one_out, occlusion, shap or lime"
        )
    grads = _gradients(value, wanted, run, told)
    for (at, stream, _), grad in zip(places, grads, strict=False):
        trace.gradients.setdefault(at, {})[stream] = grad
    of_attention = iter(grads[len(places) :])
    for record in with_weights:
        record.gradient_parts = [next(of_attention) for _ in record.parts]
    for record in with_products:
        products = [run.spread(align(out.detach())) for out, align in record.outputs]
        record.mixed = [(product, next(of_attention)) for product in products]


def _gradients(
    value: Tensor, wanted: list[tuple[Tensor, Align]], run: Running, told: Callable[[list[int]], None]
) -> list[Tensor]:
    """The gradients of all values with respect to these tensors, the axis of examples first; 0 where there is none."""
    used = [(tensor, align) for tensor, align in wanted if tensor.requires_grad]
    tensors, aligns = [tensor for tensor, _ in used], [align for _, align in used]
    if run.rows is not None:
        found = row_gradients(value, tensors, aligns, run.rows, told)
    else:
        grads = torch.autograd.grad(value.sum(), tensors, allow_unused=True)
        found = [None if grad is None else align(grad) for grad, align in zip(grads, aligns, strict=True)]
    by_id = dict(zip(map(id, tensors), found, strict=True))
    return [
        torch.zeros_like(run.spread(align(tensor))) if (grad := by_id.get(id(tensor))) is None else grad
        for tensor, align in wanted
    ]


def _as_it_is(tensor: Tensor) -> Tensor:
    return tensor


def _release(trace: Trace) -> None:
    """Detach what the trace keeps, so that the graph's memory is freed."""
    for record in trace.attention:
        record.parts = [part.detach() for part in record.parts]
        record.value_parts = [part.detach() for part in record.value_parts]
        record.outputs = []


def _then(first: Callable[[Tensor], Tensor] | None, second: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A change that applies `first`, where there is one, and then `second`."""
    return second if first is None else lambda tensor: second(first(tensor))


def _place_of(need: str) -> At:
    """The place that a need names: "gradient:3" to 3."""
    name = need.split(":", 1)[1]
    return int(name) if name.lstrip("-").isdigit() else name
