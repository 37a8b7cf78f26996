"""Subject: a model with its tokenizer or image processor. Only here is the model touched."""

from __future__ import annotations

import contextlib
import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from whence.core.inputs import Input
from whence.core.tasks import TASKS
from whence.model import discovery, encoding
from whence.model.batching import Batch, buckets, collate, cut, distinct, kind_of, shown
from whence.model.discovery import Anatomy, Site
from whence.model.loan import eager, lent, put_back, settings
from whence.model.passes import (
    OF_ATTENTION,
    At,
    InOrder,
    Trace,
    after,
    as_leaf,
    at_of,
    differentiate,
    logits_of,
    noted,
    output_site,
    patches,
    replaced,
)
from whence.model.tap import Edit, Record, Rules, Tap
from whence.model.targets import Aim, resolve
from whence.propagation.long_inputs import Fold, Lean

Streams = Mapping[str, Tensor]
LEAN_BYTES = 2**30  # of weights and gradients; beyond it attention is not kept where that can be helped
MAX_GENERATED = 256  # tokens of greedy decoding


class Subject:
    """A model that can be encoded for, batched, run, differentiated and traced; made by `load` and `wrap`."""

    def __init__(
        self,
        model: nn.Module,
        processor: Any = None,
        *,
        task: str,
        labels: Sequence[str] | None = None,
        encode: Callable[[Any], dict[str, Any]] | None = None,
        output: Callable[[Any], Tensor] | None = None,
        embedding: str | None = None,
        name: str = "",
    ) -> None:
        self.model, self.processor, self.task = model, processor, task
        self.name = name or type(model).__name__
        self.labels = tuple(labels) if labels is not None else None
        self._encode, self._output, self._embedding = encode, output, embedding
        self._anatomies: dict[tuple[str, ...], Anatomy] = {}
        self._fused: dict[tuple[str, ...], bool] = {}
        self._whole: dict[tuple[str, ...], bool] = {}
        self._layouts: dict[tuple[int, ...], encoding.Layout] = {}
        self._outputs: dict[tuple[str, ...], dict[str, Site]] = {}
        self._padding: dict[tuple[str, ...], str | None] = {}
        self._shuffles: bool | None = None  # the model draws the order of its patches; None: not known yet
        self._restless: list[tuple[dict[str, Any], str]] | None = None  # settings that its forward changes (Swin)

    def __repr__(self) -> str:
        return f"Subject({self.name}, {self.task})"

    # ---- what the model is -------------------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        """Where the model's first parameter lives."""
        return next((p.device for p in self.model.parameters()), torch.device("cpu"))

    @property
    def dtype(self) -> torch.dtype:
        """The model's floating-point type."""
        return next((p.dtype for p in self.model.parameters() if p.is_floating_point()), torch.get_default_dtype())

    @property
    def generates(self) -> bool:
        """Predicts tokens, one after the other."""
        return TASKS[self.task].generates

    @property
    def max_length(self) -> int | None:
        """The most tokens the model takes, where tokenizer or config say so."""
        config = getattr(self.model, "config", None)
        offset = max(
            (1 + m.padding_idx for n, m in self.model.named_modules() if _counts_from_padding(n, m)), default=0
        )
        limits = [getattr(self._tokenizer, "model_max_length", None)]
        for part in (config, getattr(config, "text_config", None)):
            positions = [getattr(part, name, None) for name in ("max_position_embeddings", "n_positions")]
            limits += [count - offset for count in positions if isinstance(count, int)]
        return min((limit for limit in limits if isinstance(limit, int) and 0 < limit < 10**7), default=None)

    def pieces(self, text: str) -> list[tuple[int, str]]:
        """The tokens of a text, ids and pieces."""
        return encoding.pieces(self.processor, text)

    @property
    def unknown(self) -> int | None:
        """The token for what a tokenizer does not know."""
        return encoding.mask_ids(self.processor)["unknown"] if self.processor is not None else None

    @property
    def multi_label(self) -> bool:
        """Every class has a probability of its own, a sigmoid, instead of a share of one softmax."""
        return getattr(getattr(self.model, "config", None), "problem_type", None) == "multi_label_classification"

    def name_of(self, index: int) -> str:
        """The label of a class, or the text of a token."""
        if self.generates and index >= 0:
            return encoding.readable(self._tokenizer, [index])[0]
        return self.labels[index] if self.labels and index < len(self.labels) else str(index)

    @property
    def _tokenizer(self) -> Any:
        return getattr(self.processor, "tokenizer", self.processor)

    @property
    def _start_token(self) -> int:
        config, generation = self.model.config, getattr(self.model, "generation_config", None)
        for holder in (generation, config):
            start = getattr(holder, "decoder_start_token_id", None)
            if start is not None:
                return int(start)
        start = getattr(config, "bos_token_id", None)
        if start is None:
            raise ValueError(f"{self.name} does not say with which token decoding starts; set decoder_start_token_id")
        return int(start)

    # ---- encoding and batching ---------------------------------------------------------------------------------------

    def encode(self, raw: Any, *, truncate: bool = False) -> Input:
        """One raw example to an Input; a source without an output is decoded greedily first."""
        options: dict[str, Any] = {
            "task": self.task,
            "processor": self.processor,
            "max_length": self.max_length,
            "truncate": truncate,
            "encoder": self._encode,
        }
        if self.task == "seq2seq-lm":
            options["start_token"] = self._start_token
        guess = next(reversed(self._layouts.values()), None)
        item = self._taken(encoding.encode(raw, **options, image_layout=guess))
        if "pixel_values" in item.tensors and self._encode is None and self._layout(item) != guess:
            item = self._taken(encoding.encode(raw, **options, image_layout=self._layout(item)))
        return self._decoded(item) if self.task == "seq2seq-lm" and not item.generated else item

    def _taken(self, item: Input) -> Input:
        """Without what the tokenizer gives and the model does not take, as token types."""
        names = inspect.signature(self.model.forward).parameters
        if self._encode is not None or any(p.kind is p.VAR_KEYWORD for p in names.values()):
            return item
        return replace(item, tensors={name: array for name, array in item.tensors.items() if name in names})

    def rows(self, item: Input) -> list[tuple[Input, int]]:
        """One Input per generated token, holding what that row could see, and the token it produced."""
        rows = []
        decoder = "decoder_input_ids" in item.tensors
        for feature in item.generated:
            key = "decoder_input_ids" if decoder else "input_ids"
            place = feature - (item.streams.count("source") if decoder else 0)
            tensors = {
                name: array[:place] if name.startswith("decoder") == decoder and array.ndim else array
                for name, array in item.tensors.items()
            }
            streams = item.streams[:feature] if decoder else ("text",) * feature
            rows.append((cut(item, feature, streams, tensors), int(item.tensors[key][place])))
        return rows

    def batches(
        self, inputs: Sequence[Input], batch_size: int | None = None, seed: int = 0
    ) -> Iterator[tuple[list[int], Batch]]:
        """Batches of inputs with their numbers; every input comes once."""
        side = self._pad_side(inputs)
        # a processor's time goes with the tokens, padding included; an accelerator's more with the number of passes
        enough = 128 if self.device.type == "cpu" else 4096
        for group in buckets(inputs, batch_size, exact=side is None, enough=enough):
            yield group, self.batch([inputs[number] for number in group], seed)

    def batch(self, inputs: Sequence[Input], seed: int = 0, side: str | None = None) -> Batch:
        """These inputs as one batch."""
        pad = getattr(self._tokenizer, "pad_token_id", None)
        pad = getattr(getattr(self.model, "config", None), "pad_token_id", None) if pad is None else pad
        return collate(
            inputs,
            pad_id=pad or 0,
            side=side or self._padding.get(kind_of(inputs[0])) or "right",
            device=self.device,
            dtype=self.dtype,
            seed=seed,
        )

    def aim(self, wanted: Sequence[Any]) -> Aim:
        """The targets of a batch, from what the caller wrote: one entry per example, None for the prediction."""
        return Aim([resolve(w, self) for w in wanted], self.name_of, self.multi_label)

    # ---- passes ------------------------------------------------------------------------------------------------------

    def values(self, batch: Batch, aim: Aim) -> Tensor:
        """f of every example, without gradients: (batch,)."""
        if batch.aim is aim and aim.values is not None:
            return aim.values
        return self.trace(batch, aim, ()).value

    def logits(self, batch: Batch, words: Mapping[str, Tensor] | None = None, edit: Edit | None = None) -> Tensor:
        """The decision logits, without gradients: (batch, class).

        `words` are other word embeddings, by stream; `edit` changes attention while the model runs.
        """
        with lent(self.model), torch.no_grad():
            roots = self.anatomy(batch).roots if words else {}
            change = {roots[stream]: functools.partial(replaced, state) for stream, state in (words or {}).items()}
            if edit is None:
                return self._forward(batch, {}, change)[0]
            tap = Tap(self.model, len(batch), edit=edit, connections=self.anatomy(batch).connections)
            with eager(self.model), tap:
                return self._forward(batch, {}, change)[0]

    def trace(
        self,
        batch: Batch,
        aim: Aim,
        needs: Sequence[str],
        *,
        edit: Edit | None = None,
        rules: Rules | None = None,
    ) -> Trace:
        """One pass over the plain inputs that records the needs, and those of the methods that share the batch.

        With an `edit` of the attention, or under `rules`, the pass is this caller's alone.

        Needs: "attention", "scores", "values", "attention_gradient", "head_gradient", "deciding", "state:AT",
        "gradient:AT" (state included), "gradient:*" (of every block).
        """
        wanted = self._expanded(batch, needs)
        if edit is not None or rules is not None:
            return self._pass(batch, aim, wanted, {}, edit, rules)
        known = batch.trace
        if known is None or known.aim is not aim or not wanted <= known.needs:
            batch.trace = self._pass(batch, aim, wanted | self._expanded(batch, batch.wanted), {}, None)
        return batch.trace

    def _expanded(self, batch: Batch, needs: Iterable[str]) -> frozenset[str]:
        """The needs, with "gradient:*" for every block."""
        if "gradient:*" not in needs:
            return frozenset(needs)
        depth = max((len(blocks) for blocks in self.anatomy(batch).blocks.values()), default=0)
        return frozenset(needs) | {f"gradient:{number}" for number in range(depth)}

    def fold(self, batch: Batch, aim: Aim, fold: Fold, start_layer: int = 0) -> Tensor | None:
        """What a fold over all attention comes to, in memory that does not grow with layers; None where it cannot.

        It is meant for inputs whose attention is too large to keep, on models of one stream with a fused path.
        """
        heads = getattr(getattr(self.model, "config", None), "num_attention_heads", None)
        found = self.anatomy(batch)
        maps = len(batch) * batch.mask.shape[1] ** 2 * len(found.connections) * (heads if isinstance(heads, int) else 1)
        there = 0 <= start_layer < len(found.connections)
        if len(batch.streams) > 1 or maps * 8 < LEAN_BYTES or not there or not self._fuses(batch):
            return None
        rules = Lean(fold, next(iter(batch.streams)), start_layer)
        self._pass(batch, aim, frozenset({"gradient:word"}), {}, None, rules)
        return rules.result

    def _fuses(self, batch: Batch) -> bool:
        """The fused path makes all of the model's attention and the same logits as the eager one: tried once."""
        kind = kind_of(batch.inputs[0])
        if kind not in self._fused:
            probe, rules = self.batch([distinct(batch.inputs[0])]), Lean()
            with lent(self.model), torch.no_grad():
                with self._path(True, None):
                    plain = self._forward(probe, {}, {})[0]
                with self._path(False, rules), rules:
                    fused = self._forward(probe, {}, {})[0]
            same = torch.allclose(plain, fused, rtol=1e-3, atol=1e-3)
            whole = all(query == key != "" for query, key in self.anatomy(batch).connections)
            self._fused[kind] = same and whole and rules.calls == len(self.anatomy(batch).connections)
        return self._fused[kind]

    def gradient(
        self, batch: Batch, aim: Aim, at: At, states: Mapping[str, Tensor] | None = None, rules: Rules | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """f and its gradient at a site, with the states there replaced: (batch,), stream -> (batch, token, width)."""
        if states is None:
            trace = self.trace(batch, aim, (f"gradient:{at}",), rules=rules)
            return trace.value, trace.gradients[at]
        trace = self._pass(batch, aim, frozenset({f"gradient:{at}"}), {at: states}, None, rules)
        return trace.value, trace.gradients[at]

    def values_at(self, batch: Batch, aim: Aim, at: At, states: Mapping[str, Tensor]) -> Tensor:
        """f with the states at a site replaced, without gradients: (batch,)."""
        return self._pass(batch, aim, frozenset({f"state:{at}"}), {at: states}, None).value

    def embedded(self, batch: Batch, ids: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The word embeddings of other ids, by stream."""
        modules = dict(self.model.named_modules())
        roots = self.anatomy(batch).roots
        with lent(self.model), torch.no_grad():
            return {stream: modules[roots[stream].module](tensor) for stream, tensor in ids.items()}

    def carried(self, batch: Batch, words: Mapping[str, Tensor], at: At) -> dict[str, Tensor]:
        """The states at a site when these word embeddings go in, by stream."""
        with lent(self.model), torch.no_grad():
            roots, sites = self.anatomy(batch).roots, self.sites(batch, at)
            change = {roots[stream]: functools.partial(replaced, state) for stream, state in words.items()}
            _, seen = self._forward(batch, set(sites.values()), change)
        return {stream: site.turned(seen[site]) for stream, site in sites.items()}

    def on_features(self, batch: Batch, by_stream: Mapping[str, Tensor]) -> Tensor:
        """Scores by stream, (batch, token) or (batch, height, width) of pixels, to (batch, feature)."""
        first = next(iter(by_stream.values()))
        scores = first.new_zeros(len(batch), batch.mask.shape[1])
        for stream, values in by_stream.items():
            if values.ndim == 3:
                values = patches(values, batch, stream)
            scores[:, batch.span(stream)] = values
        return scores.masked_fill(~batch.mask.to(scores.device), 0.0)

    def anatomy(self, batch: Batch) -> Anatomy:
        """What one probing pass found out about the model; kept for inputs of the same kind."""
        kind = kind_of(batch.inputs[0])
        if kind not in self._anatomies:
            item = distinct(batch.inputs[0])
            probe = self.batch([item])
            with lent(self.model), eager(self.model):
                self._anatomies[kind] = discovery.dissect(
                    self.model, probe, self._call, lambda outputs: self._decision(outputs, probe), self._embedding
                )
        return self._anatomies[kind]

    def sites(self, batch: Batch, at: At) -> dict[str, Site]:
        """The sites of `at`, by stream; those of a module's outputs by the number of the call."""
        if isinstance(at, str) and at.startswith("module:"):
            return self._given_by(batch, at.removeprefix("module:"))
        found = self.anatomy(batch)
        if at == "word":
            return found.roots
        if at == "pixels":
            image = found.roots.get("image")
            if image is None or image.where != "tensor":
                raise ValueError(f"at='pixels' needs a picture, and {self.name} takes none here; use at='word'")
            return {"image": image}
        if at == "embeddings" and (not found.blocks or not self._enters_whole(batch)):
            return found.roots
        number = 0 if at == "embeddings" else at
        if not isinstance(number, int) or isinstance(number, bool):
            raise ValueError(f"at takes 'embeddings', 'word', 'pixels' or the number of a block, not {at!r}")
        depth = max((len(b) for b in found.blocks.values()), default=0)
        if not -depth <= number < depth:
            raise ValueError(f"at={number} names no block: {self.name} has {depth}, numbered from 0")
        return {s: blocks[number] for s, blocks in found.blocks.items() if -len(blocks) <= number < len(blocks)}

    def _given_by(self, batch: Batch, name: str) -> dict[str, Site]:
        """What each call of a module gives, found out by running once; kept for inputs of the same kind."""
        kind = (name, *kind_of(batch.inputs[0]))
        if kind not in self._outputs:
            names = [known for known, _ in self.model.named_modules() if known]
            if name not in names:
                near = " or ".join(map(repr, difflib.get_close_matches(name, names, n=3, cutoff=0.0)))
                raise ValueError(f"{self.name} has no module {name!r}; did you mean {near}?")
            item = distinct(batch.inputs[0])
            count = next(n for n in (2, 3, 4, 5) if n not in self.batch([item]).lengths.values())
            probe = self.batch([item] * count)  # a number of examples that is no stream's length
            with lent(self.model), eager(self.model):
                calls = [call for call in discovery.probe(self.model, probe, self._call)[0] if call.name == name]
            if not calls:
                raise ValueError(f"the module {name!r} of {self.name} does not run on this input; choose one that does")
            self._outputs[kind] = {
                str(call.number): output_site(name, call.number, call.output, probe) for call in calls
            }
        return self._outputs[kind]

    def _enters_whole(self, batch: Batch) -> bool:
        """The output depends on the inputs only through the states that enter the first blocks; tried once.

        A state that no module made may be used beside its block, as by a residual; then it is not all that enters.
        """
        kind, found = kind_of(batch.inputs[0]), self.anatomy(batch)
        if kind not in self._whole:
            probe = self.batch([distinct(batch.inputs[0])])
            roots = set(found.roots.values())
            cut_off = {blocks[0] for blocks in found.blocks.values()} - roots
            changes = dict.fromkeys(roots, as_leaf) | dict.fromkeys(cut_off, Tensor.detach)
            with lent(self.model), torch.enable_grad():
                logits, seen = self._forward(probe, roots, changes)
                leaves = [seen[site] for site in roots]
                grads = (
                    torch.autograd.grad(discovery.summary(logits), leaves, allow_unused=True)
                    if logits.requires_grad
                    else []
                )
            self._whole[kind] = all(grad is None or not grad.any() for grad in grads)
        return self._whole[kind]

    def _pass(
        self,
        batch: Batch,
        aim: Aim,
        needs: frozenset[str],
        change: Mapping[At, Streams],
        edit: Edit | None,
        rules: Rules | None = None,
    ) -> Trace:
        """One forward pass with what is asked for switched on, and one backward pass if gradients are."""
        plain = not change and edit is None  # rules leave every value as it is
        if not plain and not aim.fixed:
            self.trace(batch, aim, ())  # a target left open is what the plain inputs predict
        gradients = [at_of(need) for need in sorted(needs) if need.startswith("gradient:") and need != "gradient:*"]
        states = [*gradients, *(at_of(need) for need in sorted(needs) if need.startswith("state:"))]
        backward = bool(gradients) or not needs.isdisjoint(OF_ATTENTION)
        asked = bool(needs & {"attention", "scores", "values", "deciding", *OF_ATTENTION})
        attention = edit is not None or asked or (rules is not None and rules.eager)
        with lent(self.model), self._path(attention, rules):
            sites = {at: self.sites(batch, at) for at in dict.fromkeys(states)}
            watch = {site for by_stream in sites.values() for site in by_stream.values()}
            found = self.anatomy(batch) if backward or attention else None
            changes: dict[Site, Callable[[Tensor], Tensor]] = {}
            if found and backward:
                changes |= dict.fromkeys(found.roots.values(), as_leaf)
            for at, by_stream in change.items():
                for stream, state in by_stream.items():
                    changes[sites[at][stream]] = functools.partial(replaced, state, leaf=True)
            if rules is not None:
                edit = edit or rules.edit
            if rules is not None and type(rules).state is not Rules.state:
                for at, by_site in sites.items():
                    for stream, site in by_site.items():
                        changes[site] = after(changes.get(site), functools.partial(rules.state, at, stream))
            versions: dict[Site, int] = {}
            for site in (site for at in sites if str(at).startswith("module:") for site in sites[at].values()):
                changes[site] = after(changes.get(site), functools.partial(noted, versions, site))
            ends = set(found.deciding.values()) if found and "deciding" in needs else set()
            tap = Tap(
                self.model,
                len(batch),
                values="values" in needs,
                scores="scores" in needs,
                edit=edit,
                seen=rules.seen if rules is not None else None,
                outputs=range(len(found.connections)) if found and "head_gradient" in needs else ends,
                connections=found.connections if found else (),
            )
            graph = torch.enable_grad() if backward or ends or (rules is not None and rules.graph) else torch.no_grad()
            with graph, rules or contextlib.nullcontext(), tap if attention else contextlib.nullcontext():
                logits, seen = self._forward(batch, watch, changes)
                if rules is not None:
                    rules.decided(logits)
            altered = next((site.module for site, version in versions.items() if seen[site]._version != version), None)
            if altered is not None:
                raise ValueError(
                    f"{self.name} goes on to change in place what {altered!r} gives; name a module before it"
                )
            if plain:
                self._check(logits, batch)
                aim.fix(logits, batch)
                batch.aim = aim
            with graph:
                value = aim(logits, batch)
            trace = Trace(needs, aim, logits.detach(), value.detach())
            if plain and rules is not None and not torch.allclose(value.detach(), aim.values, rtol=1e-3, atol=1e-3):  # type: ignore[arg-type]
                raise RuntimeError(
                    f"{self.name} computed something else under rules that must not change what it computes"
                )
            if attention and not tap.records:
                raise ValueError(discovery.no_attention(self.model))
            trace.attention = tap.records
            if found and "deciding" in needs:
                trace.deciding = self._deciding(tap.records, logits, found)
            if backward:
                differentiate(trace, value, gradients, sites, seen)
            trace.states = {at: {n: s.turned(seen[s]).detach() for n, s in sites[at].items()} for at in sites}
            for record in trace.attention:
                record.parts = [part.detach() for part in record.parts]
                record.value_parts = [part.detach() for part in record.value_parts]
                record.outputs = []
            return trace

    def _path(self, attention: bool, rules: Rules | None) -> contextlib.AbstractContextManager[None]:
        """The attention path to run on: eager to see it, fused for what computes it again, else the model's own."""
        if attention:
            return eager(self.model)
        fused = isinstance(rules, Lean) and getattr(self.model, "_supports_sdpa", False)
        return eager(self.model, "sdpa") if fused else contextlib.nullcontext()

    def _forward(
        self, batch: Batch, watch: Any, changes: Mapping[Site, Callable[[Tensor], Tensor]]
    ) -> tuple[Tensor, dict[Site, Tensor]]:
        tensors = dict(batch.tensors)
        inputs = {}
        for site in {*watch, *changes}:
            if site.where == "tensor":
                key = str(site.key)
                tensors[key] = changes[site](tensors[key]) if site in changes else tensors[key]
                inputs[site] = tensors[key]
        with discovery.watched(self.model, watch, changes) as states:
            outputs = self._call(tensors)
        return self._decision(outputs, batch), {**states, **inputs}

    def _call(self, tensors: Mapping[str, Tensor]) -> Any:
        """Run the model. The first call finds out what the model does to itself and at random; later ones undo it."""
        arguments: dict[str, Any] = dict(tensors)
        first = [arguments.pop("input")] if "input" in arguments else []
        if self.generates:
            arguments["use_cache"] = False
        saved = settings(self.model) if self._restless is None else [(own, {k: own[k]}) for own, k in self._restless]
        order = InOrder()
        try:
            with contextlib.nullcontext() if self._shuffles is False else order:
                outputs = self.model(*first, **arguments)
        finally:
            changed = put_back(saved)
        if self._restless is None:
            self._restless, self._shuffles = changed, order.used
        return outputs

    def _decision(self, outputs: Any, batch: Batch) -> Tensor:
        """The logits the model decides by: (batch, class); for generated text those at the last position."""
        logits = self._output(outputs) if self._output is not None else logits_of(outputs)
        if not isinstance(logits, Tensor):
            raise ValueError(
                f"no logits were found in the output of {type(self.model).__name__}, a {type(outputs).__name__}; "
                "pass whence.wrap(..., output=function) that returns them, shape (batch, class)"
            )
        if logits.ndim == 3 and self.generates:
            mask = list(batch.streams.values())[-1]
            last = mask.shape[1] - 1 - mask.flip(1).to(torch.int).argmax(1)
            return logits[torch.arange(len(batch), device=logits.device), last]
        logits = logits[:, None] if logits.ndim == 1 else logits
        if logits.ndim != 2 or len(logits) != len(batch):
            raise ValueError(
                f"expected one row of logits per example, shape ({len(batch)}, class), and got {tuple(logits.shape)}; "
                "pass whence.wrap(..., output=function) that returns them"
            )
        return logits

    def _check(self, logits: Tensor, batch: Batch) -> None:
        bad = ~torch.isfinite(logits.detach()).all(-1)
        if bad.any():
            item = batch.inputs[int(bad.nonzero()[0, 0])]
            raise ValueError(
                f"{self.name} returned NaN or infinite logits for {shown(item)}; there is nothing to explain: "
                "check the weights, the input and the precision"
            )

    def _deciding(self, records: list[Record], logits: Tensor, found: Anatomy) -> dict[str, Tensor]:
        """The positions that the output reads, by stream: a CLS token, the last token, all of them."""
        scalar = discovery.summary(logits)
        rows = {stream: records[number].read(scalar) for stream, number in found.deciding.items()}
        return {stream: read for stream, read in rows.items() if read is not None}

    # ---- finding out -------------------------------------------------------------------------------------------------

    def _decoded(self, item: Input) -> Input:
        """The input with the output that greedy decoding gives it."""
        generate: Any = self.model.generate
        settings: Any = getattr(self.model, "generation_config", None)
        limits = [getattr(settings, name, None) for name in ("max_new_tokens", "max_length")]
        # transformers stops at 20 tokens where the model does not say; that cuts ordinary sentences
        longer = {} if any(limit not in (None, 20) for limit in limits) else {"max_new_tokens": MAX_GENERATED}
        with lent(self.model), torch.no_grad():
            ids = generate(**self.batch([item]).tensors, do_sample=False, num_beams=1, **longer)[0].tolist()
        ids = ids[1:]  # the start token
        end = getattr(self._tokenizer, "eos_token_id", None)
        if end in ids:
            ids = ids[: ids.index(end) + 1]
        else:
            item = replace(item, notes=(*item.notes, f"decoding was stopped after {len(ids)} tokens"))
        return encoding.with_output(item, np.asarray(ids), self.processor, self._start_token)

    def _layout(self, item: Input) -> encoding.Layout:
        """The patches of a picture of this shape, found once."""
        shape = item.tensors["pixel_values"].shape
        if shape not in self._layouts:
            arrays = dict(item.tensors)
            for _ in range(2):
                text = len(arrays.get("input_ids", ()))
                tensors = {k: torch.from_numpy(a)[None].to(self.device) for k, a in arrays.items()}
                tensors = {k: t.to(self.dtype) if t.is_floating_point() else t for k, t in tensors.items()}
                with lent(self.model), eager(self.model):
                    layout = discovery.find_layout(self.model, tensors, self._call, text)
                if layout is not None:
                    self._layouts[shape] = layout
                    return layout
                arrays |= {k: np.concatenate([a, a[-1:]]) for k, a in arrays.items() if a.shape == (text,)}
            raise ValueError(discovery.no_attention(self.model))
        return self._layouts[shape]

    def _pad_side(self, inputs: Sequence[Input]) -> str | None:
        """The side on which padding leaves the logits as they are: tried once; None: only equal lengths go together."""
        kind = kind_of(inputs[0])
        if kind not in self._padding:
            alike = sorted((i for i in inputs if kind_of(i) == kind), key=lambda item: len(item.features))
            shorter = [item for item in alike if len(item.features) < len(alike[-1].features)]
            if not shorter:
                return "right"  # nothing to pad yet
            masked = any("mask" in name for name in alike[0].tensors)  # without one, padding could only pass by chance
            self._padding[kind] = self._tried(shorter[-1], alike[-1]) if masked else None
        return self._padding[kind]

    def _tried(self, item: Input, longer: Input) -> str | None:
        """Pad an input beside a longer one, on its tokenizer's side first; decoders of encoder-decoders only right."""
        own = getattr(self._tokenizer, "padding_side", "right") if len(set(item.streams)) == 1 else "right"
        alone = self.logits(self.batch([item], side=own)).float()
        tolerance = 1e-3 if self.dtype in (torch.float64, torch.float32) else 5e-2
        for side in dict.fromkeys((own, "right")):
            with contextlib.suppress(ValueError):  # transformers' word for a classifier that needs a padding token
                padded = [self.logits(self.batch([longer, item], side=side))]
                with lent(self.model), eager(self.model):  # on which, in double precision, a padded row may become NaN
                    padded.append(self.logits(self.batch([longer, item], side=side)))
                gap = torch.stack([p.float()[1] - alone[0] for p in padded]).abs().max()
                if bool(gap <= tolerance * alone.abs().max().clamp(min=1e-6)):
                    return side
        return None


def _counts_from_padding(name: str, module: nn.Module) -> bool:
    """Position embeddings that count from behind the padding index (RoBERTa, MPNet) take that many tokens less."""
    return "position" in name and isinstance(module, nn.Embedding) and module.padding_idx is not None
