"""Subject: a model together with its tokenizer or image processor."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from whence.core.inputs import Input, has_inline_picture
from whence.core.tasks import TASKS
from whence.model import batching, encoding
from whence.model.batching import Batch, buckets, collate, cut, enough_tokens, kind_of, tensors_up_to
from whence.model.closing import Change, WeightsEdit
from whence.model.decoding import cut_to, generated, start_token
from whence.model.discovery import At, Discovery, Structure, find_layout, no_attention
from whence.model.forward import Forward
from whence.model.interventions import change_of, noted, tapped, view, with_ignored
from whence.model.lengths import Side, check_ids, most_tokens, text_config
from whence.model.loan import attention_path, configs, fingerprint, lent
from whence.model.passes import Pass, Request, Streams, Trace, replaced, states_seen
from whence.model.places import with_places
from whence.model.precision import accumulation
from whence.model.rules import Rules
from whence.model.self_changes import SelfChanges
from whence.model.tap import Edit
from whence.model.target_specs import names_answers, resolve
from whence.model.targets import Aim, StateSeen
from whence.model.watching import Listener, Site, every_call, picked


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
        classes: int | None = None,
    ) -> None:
        self.model, self.processor, self.task = model, processor, task
        self.name = name or type(model).__name__
        self.labels = tuple(labels) if labels is not None else None
        self._encode, self._output, self._embedding = encode, output, embedding
        self._forward = Forward(model, generates=self.generates, output=output, reads=self.reads, classes=classes)
        self._collate = partial(_collate, model, self._tokenizer)
        self._discoveries: dict[tuple[str, ...], Discovery] = {}  # by kind of input
        self._layouts: dict[tuple[int, ...], encoding.Layout] = {}  # by shape of picture
        self.recomputes = False  # long inputs: layers run again in the backward pass, which takes less memory
        self._ignore: tuple[Any, ...] = ()  # words that must not count, of a subject under an intervention
        self._edit: WeightsEdit | None = None  # of all attention, of such a subject

    def __repr__(self) -> str:
        return f"Subject({self.name}, {self.task})"

    # ---- what the model is -------------------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        """Where the model's first parameter lives."""
        return _device_of(self.model)

    @property
    def dtype(self) -> torch.dtype:
        """The model's floating-point type."""
        return _dtype_of(self.model)

    @property
    def accumulation(self) -> torch.dtype:
        """The floating-point type in which sums over the model's states are taken."""
        return accumulation(self.dtype)

    @property
    def generates(self) -> bool:
        """Whether the model predicts tokens, one after the other."""
        return TASKS[self.task].generates

    @property
    def decoder_only(self) -> bool:
        """Whether the model reads one text from left to right and writes on at its end."""
        return self.task in ("causal-lm", "image-text-lm")

    @property
    def reads(self) -> str:
        """What is decided at single tokens: "token" a label, "mask" a word, "span" an answer; "" nothing."""
        return TASKS[self.task].reads

    @property
    def predicts_tokens(self) -> bool:
        """Whether classes are the tokens of the vocabulary."""
        return self.generates or self.reads == "mask"

    @property
    def max_length(self) -> int | None:
        """The most tokens of a text that the model takes, where tokenizer, config or tables of positions say so."""
        return self._most("encoder")

    @property
    def max_output(self) -> int | None:
        """The most tokens that the decoder takes, its start token among them; of other models as `max_length`."""
        return self._most("decoder")

    def _most(self, side: Side) -> int | None:
        limits = (getattr(self._tokenizer, "model_max_length", None), most_tokens(self.model, side))
        return min((limit for limit in limits if isinstance(limit, int) and 0 < limit < 10**7), default=None)

    @property
    def heads(self) -> int:
        """How many attention heads a layer has, where the config says so; else 1."""
        heads = getattr(text_config(self.model, self.decoder_only), "num_attention_heads", None)
        return heads if isinstance(heads, int) else 1

    @property
    def width(self) -> int:
        """How wide a token's state is, where the config says so; else 512."""
        return getattr(text_config(self.model, self.decoder_only), "hidden_size", None) or 512

    @property
    def multi_label(self) -> bool:
        """Whether every class has a probability of its own, a sigmoid, instead of a share of one softmax."""
        return getattr(getattr(self.model, "config", None), "problem_type", None) == "multi_label_classification"

    @property
    def regression(self) -> bool:
        """Whether outputs are numbers that belong to no class: where the config says so, or names one label alone.

        transformers trains such a model by the squared error, unless `problem_type` makes it a classifier.
        """
        config = getattr(self.model, "config", None)
        kind, count = getattr(config, "problem_type", None), getattr(config, "num_labels", None)
        classifier = self.task in ("text-classification", "image-classification")
        return classifier and (kind == "regression" or (kind is None and count == 1))

    # ---- names of tokens and classes ---------------------------------------------------------------------------------

    def pieces(self, text: str) -> list[tuple[int, str]]:
        """The tokens of a text: their ids and pieces."""
        return encoding.pieces(self.processor, text)

    @property
    def mask_ids(self) -> dict[str, int | None]:
        """The ids of the tokens that stand for nothing: pad, mask, unknown; None where the tokenizer has none."""
        if self.processor is None:
            return dict.fromkeys(("pad", "mask", "unknown"))
        return encoding.mask_ids(self.processor)

    @property
    def unknown(self) -> int | None:
        """The id of the token for words that the tokenizer does not know; None where it has none."""
        return self.mask_ids["unknown"]

    def name_of(self, index: int) -> str:
        """The label of a class, or the text of a token."""
        if self.predicts_tokens and index >= 0 and self._tokenizer is not None:
            return encoding.readable(self._tokenizer, [index])[0]
        return self.labels[index] if self.labels and index < len(self.labels) else str(index)

    @property
    def _tokenizer(self) -> Any:
        return getattr(self.processor, "tokenizer", self.processor)

    @property
    def _start_token(self) -> int:
        start = start_token(self.model)
        if start is None:
            raise ValueError(f"{self.name} does not say with which token decoding starts; set decoder_start_token_id")
        return start

    # ---- encoding ----------------------------------------------------------------------------------------------------

    def encode(self, raw: Any, *, truncate: bool = False, progress: bool = False, target: Any = None) -> Input:
        """One raw example to an Input; a source without an output, or a chat without an answer, is decoded greedily.

        Where the target contrasts two answers, nothing is written after a chat unless it says how much.
        """
        options: dict[str, Any] = {
            "task": self.task,
            "processor": self.processor,
            "max_length": self.max_length,
            "max_output": self.max_output,
            "truncate": truncate,
            "encoder": self._encode,
        }
        if self.task == "seq2seq-lm":
            options["start_token"] = self._start_token
        guess = next(reversed(self._layouts.values()), None)  # most pictures have the shape of the last one
        item = self._without_unused(encoding.encode(raw, **options, image_layout=guess))
        check_ids(self.model, self._tokenizer, self.name, item)
        own_stream = "pixel_values" in item.tensors and not has_inline_picture(item)
        if own_stream and self._encode is None and self._layout(item) != guess:
            item = self._without_unused(encoding.encode(raw, **options, image_layout=self._layout(item)))
        item = with_places(item, self.reads, self.mask_ids["mask"]) if self.reads else item
        wanted = encoding.generation_of(raw, self.generates and self._encode is None)
        wanted = None if wanted == encoding.Generation() and names_answers(target) else wanted
        if truncate and wanted and self.decoder_only and (most := cut_to(item, wanted, self.max_length)):
            item = self._without_unused(encoding.encode(raw, **options | {"max_length": most}))
        if not item.generated and (self.task == "seq2seq-lm" or wanted is not None):
            start = self._start_token if self.task == "seq2seq-lm" else None
            batch = partial(self.batch, side="right")
            item = generated(self._forward, item, batch, self.processor, wanted, (start, self.max_length), progress)
        return noted(*with_ignored(item, self._ignore)) if self._ignore else item

    def _without_unused(self, item: Input) -> Input:
        """The input without arguments that the tokenizer gives and the model does not take, as token types."""
        names = inspect.signature(self.model.forward).parameters
        if self._encode is not None or any(p.kind is p.VAR_KEYWORD for p in names.values()):
            return item
        return replace(item, tensors={name: array for name, array in item.tensors.items() if name in names})

    def _layout(self, item: Input) -> encoding.Layout:
        """The layout of patches in a picture, found once per shape."""
        shape = item.tensors["pixel_values"].shape
        if shape not in self._layouts:
            self._layouts[shape] = self._find_layout(dict(item.tensors))
        return self._layouts[shape]

    def _find_layout(self, arrays: dict[str, np.ndarray]) -> encoding.Layout:
        """The layout of patches, found by running the model."""
        for _ in range(2):
            text = len(arrays.get("input_ids", ()))
            tensors = {k: torch.from_numpy(a)[None].to(self.device) for k, a in arrays.items()}
            tensors = {k: t.to(self.dtype) if t.is_floating_point() else t for k, t in tensors.items()}
            with lent(self.model), attention_path(self.model, "eager"):
                layout = find_layout(self._forward, tensors, text)
            if layout is not None:
                return layout
            # the text was as long as the picture: with one more token they differ
            arrays |= {k: np.concatenate([a, a[-1:]]) for k, a in arrays.items() if a.shape == (text,)}
        raise ValueError(no_attention(self.model))

    def rows(self, item: Input) -> list[tuple[Input, int]]:
        """For every generated token, the Input that the model saw before it, and the token's id."""
        decoder, rows = "decoder_input_ids" in item.tensors, []
        ids = item.tensors["decoder_input_ids" if decoder else "input_ids"] if item.generated else ()
        for feature in item.generated:
            place = feature - (item.streams.count("source") if decoder else 0)
            streams = item.streams[:feature] if decoder else ("text",) * feature
            rows.append((cut(item, feature, streams, tensors_up_to(item, place)), int(ids[place])))
        return rows

    # ---- batches and targets -----------------------------------------------------------------------------------------

    def batches(
        self, inputs: Sequence[Input], batch_size: int | None = None, seed: int = 0
    ) -> Iterator[tuple[list[int], Batch]]:
        """Batches, each with the numbers of its inputs; every input is in one batch."""
        side = self._padding_side(inputs)
        for group in buckets(inputs, batch_size, exact=side is None, enough=enough_tokens(self.device)):
            yield group, self.batch([inputs[number] for number in group], seed)

    def batch(self, inputs: Sequence[Input], seed: int = 0, side: str | None = None) -> Batch:
        """These inputs as one batch."""
        return self._collate(inputs, side or self._discovery(inputs[0]).padding_side or "right", seed)

    def _padding_side(self, inputs: Sequence[Input]) -> str | None:
        """The side on which padding leaves the logits as they are, tried once; None: only equal lengths go together."""
        kind, discovery = kind_of(inputs[0]), self._discovery(inputs[0])
        if not discovery.padding_tried:
            alike = sorted((i for i in inputs if kind_of(i) == kind), key=lambda item: len(item.features))
            shorter = [item for item in alike if len(item.features) < len(alike[-1].features)]
            if not shorter:
                return "right"  # nothing to pad yet
            if any("mask" in name for name in alike[0].tensors):  # unmasked padding could fit only by chance
                # decoders of encoder-decoders are padded on the right only
                one_stream = len(set(shorter[-1].streams)) == 1
                preferred = getattr(self._tokenizer, "padding_side", "right") if one_stream else "right"
                tolerance = 1e-3 if self.dtype in (torch.float64, torch.float32) else 5e-2
                discovery.try_padding(shorter[-1], alike[-1], self._logits_of, preferred, tolerance)
            discovery.padding_tried = True
        return discovery.padding_side

    def _logits_of(self, inputs: list[Input], side: str) -> Tensor:
        return self.logits(self.batch(inputs, side=side))

    def aim(self, wanted: Sequence[Any]) -> Aim:
        """The targets of a batch, from what the caller wrote: one entry per example, None for the prediction."""
        return Aim([resolve(w, self) for w in wanted], self.name_of, self.multi_label)

    def on_features(self, batch: Batch, by_stream: Mapping[str, Tensor]) -> Tensor:
        """Scores by stream, (batch, token) or (batch, height, width) of pixels, to (batch, feature)."""
        return batching.on_features(batch, by_stream)

    # ---- facts found by running the model ----------------------------------------------------------------------------

    def discovery(self, batch: Batch) -> Discovery:
        """The facts about the model on inputs of this kind, each found out when first asked for."""
        return self._discovery(batch.inputs[0])

    def _discovery(self, item: Input) -> Discovery:
        kind = kind_of(item)
        if kind not in self._discoveries:
            item = replace(item, decides=(), answer=()) if item.answer else item  # facts hold for any target
            discovery = Discovery(self._forward, item, self._collate, name=self.name, embedding=self._embedding)
            self._discoveries[kind] = discovery
        return self._discoveries[kind]

    def structure(self, batch: Batch) -> Structure:
        """Where streams enter, the blocks, and which streams each attention connects."""
        return self.discovery(batch).structure

    def sites(self, batch: Batch, at: At) -> dict[str, Site]:
        """The sites of a place, by stream; the sites of a module's outputs by the number of the call."""
        return self.discovery(batch).sites(at)

    # ---- passes ------------------------------------------------------------------------------------------------------

    def with_attention(self, edit: WeightsEdit | None = None, *, ignore: Any = None) -> Subject:
        """A view of this subject all of whose passes run with attention to some words closed, or with it edited.

        `ignore` names words as `explain` takes them; `edit(record, weights)` returns the weights to use instead.
        """
        return view(self, edit, ignore)

    def change(self, batch: Batch) -> Change | None:
        """What is done to all attention in every pass over a batch; None where nothing is."""
        return change_of(batch, self._edit, lambda: self.structure(batch), self.model)

    def run(self, batch: Batch, aim: Aim, request: Request) -> Trace:
        """One pass as requested."""
        if not request.plain and not aim.fixed:
            self.trace(batch, aim)  # a target left open is what the plain inputs predict
        return Pass(self._forward, self.discovery(batch), batch, aim, request, self.name, self.change(batch)).run()

    def trace(
        self,
        batch: Batch,
        aim: Aim,
        needs: Iterable[str] = (),
        *,
        edit: Edit | None = None,
        rules: Rules | None = None,
    ) -> Trace:
        """One pass over the plain inputs that records what the methods of this batch have declared, and these needs.

        Methods that share a batch share the pass. With an `edit` of the attention, or under `rules`, the pass is this
        caller's alone and records only the needs that are given. `Request` lists what can be needed; "gradient:*"
        stands for every block.
        """
        if edit is not None or rules is not None:
            return self.run(batch, aim, Request(self._expanded(batch, needs), edit=edit, rules=rules))
        wanted = self._expanded(batch, {*needs, *batch.needs})
        known = batch.trace
        if known is None or known.aim is not aim or not wanted <= known.needs:
            batch.trace = self.run(batch, aim, Request(wanted))
        return batch.trace

    def _expanded(self, batch: Batch, needs: Iterable[str]) -> frozenset[str]:
        """The needs, with "gradient:*" for every block."""
        wanted = frozenset(needs)
        if "gradient:*" not in wanted:
            return wanted
        return wanted | {f"gradient:{number}" for number in range(self.structure(batch).depth)}

    def values(self, batch: Batch, aim: Aim) -> Tensor:
        """f of every example, without gradients: (batch,)."""
        if batch.known is not None and batch.known[0] is aim:
            return batch.known[1]
        return self.trace(batch, aim).value

    def values_at(self, batch: Batch, aim: Aim, at: At, states: Streams) -> Tensor:
        """f with the states at a place replaced, without gradients: (batch,)."""
        return self.run(batch, aim, Request(states={at: states})).value

    def gradient(
        self, batch: Batch, aim: Aim, at: At, states: Streams | None = None, rules: Rules | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """f and its gradient at a place, with the states there replaced: (batch,), stream -> (batch, token, width)."""
        needs = frozenset({f"gradient:{at}"})
        if states is None:
            trace = self.trace(batch, aim, needs, rules=rules)
        else:
            trace = self.run(batch, aim, Request(needs, {at: states}, rules=rules))
        return trace.value, trace.gradients[at]

    def logits(
        self,
        batch: Batch,
        words: Streams | None = None,
        *,
        edit: Edit | None = None,
        rules: Rules | None = None,
        path: str | None = None,
    ) -> Tensor:
        """The decision logits, without gradients: (batch, class).

        `words` are other word embeddings, by stream; `edit` changes attention while the model runs, `rules` watch it;
        `path` is the attention path, "eager" or "sdpa", if not the model's own.
        """
        return self.decision(batch, words=words, edit=edit, rules=rules, path=path)[0]

    def decision(
        self,
        batch: Batch,
        places: Sequence[At] = (),
        *,
        words: Streams | None = None,
        edit: Edit | None = None,
        rules: Rules | None = None,
        path: str | None = None,
        graph: bool = False,
    ) -> tuple[Tensor, dict[At, StateSeen]]:
        """The decision logits and the states at some places, without gradients unless `graph`; else as `logits`."""
        path = path if rules is None else rules.attention_path
        with lent(self.model), torch.set_grad_enabled(graph), contextlib.ExitStack() as scopes:
            changes = self._with_words(batch, words or {})
            watch = {site for at in places for site in self.sites(batch, at).values()}
            scopes.enter_context(attention_path(self.model, path))
            if rules is not None:
                scopes.enter_context(rules.on(self.model))
            scopes.enter_context(tapped(self, batch, edit))
            logits, seen = self._forward.run(batch, watch, changes)
        return logits, states_seen(self.discovery(batch), batch, places, seen)

    def _with_words(self, batch: Batch, words: Streams) -> dict[Site, Callable[[Tensor], Tensor]]:
        """Changes that put these word embeddings in place of the model's own."""
        roots = self.structure(batch).roots if words else {}
        return {roots[stream]: partial(replaced, state) for stream, state in words.items()}

    # ---- small operations on the model -------------------------------------------------------------------------------

    def embedded(self, batch: Batch, ids: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The word embeddings of other ids, by stream."""
        roots = self.structure(batch).roots
        with lent(self.model), self.self_changes.undone(), torch.no_grad():
            made = {stream: self.model.get_submodule(roots[stream].module)(ids[stream]) for stream in ids}
        return {stream: picked(output, roots[stream].key) for stream, output in made.items()}

    def vocabulary(self, batch: Batch, stream: str) -> Tensor | None:
        """The embedding of every word that a stream may hold, (word, width); None where it has no table of words."""
        site = self.structure(batch).roots.get(stream)
        if site is None or site.where != "output":
            return None
        weight = getattr(self.model.get_submodule(site.module), "weight", None)
        if weight is None or weight.ndim != 2:
            return None
        ids = torch.arange(len(weight), device=weight.device)
        return self.embedded(batch, {stream: ids[None]})[stream][0]  # not the table itself: some models scale its rows

    def carried(self, batch: Batch, words: Streams, at: At) -> dict[str, Tensor]:
        """The states at a place when the model is given these word embeddings, by stream."""
        with lent(self.model), torch.no_grad(), tapped(self, batch):
            sites = self.sites(batch, at)
            _, seen = self._forward.run(batch, set(sites.values()), self._with_words(batch, words))
        return {stream: site.turned(seen[site]) for stream, site in sites.items()}

    def lent(self) -> contextlib.AbstractContextManager[None]:
        """A scope in which the model is held alone and in eval mode; it is given back as it was."""
        return lent(self.model)

    @contextlib.contextmanager
    def on_path(self, path: str) -> Iterator[None]:
        """A scope in which the model is held alone and runs on this attention path, "eager" or "sdpa"."""
        with lent(self.model), attention_path(self.model, path):
            yield

    @property
    def self_changes(self) -> SelfChanges:
        """What the model's forward changes about itself, and how that is undone."""
        return self._forward.self_changes

    @property
    def has_paths(self) -> bool:
        """Whether the model has several attention paths, as in transformers; a plain module has only its own."""
        return any("_attn_implementation_internal" in vars(config) for config in configs(self.model))

    def fingerprint(self, *, full: bool = False) -> dict[str, Any]:
        """Everything that explaining must not change; `full` adds a hash of every tensor."""
        return fingerprint(self.model, full=full)

    def every_call(self, listener: Listener) -> contextlib.AbstractContextManager[None]:
        """A scope in which a listener is told of every module call of every pass."""
        return every_call(self.model, listener)


def _device_of(model: nn.Module) -> torch.device:
    return next((p.device for p in model.parameters()), torch.device("cpu"))


def _dtype_of(model: nn.Module) -> torch.dtype:
    return next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.get_default_dtype())


def _collate(model: nn.Module, tokenizer: Any, inputs: Sequence[Input], side: str = "right", seed: int = 0) -> Batch:
    """Inputs as a batch for a model; no method of Subject, because what Discovery keeps must not keep the subject."""
    pad = getattr(tokenizer, "pad_token_id", None)
    pad = getattr(getattr(model, "config", None), "pad_token_id", None) if pad is None else pad
    return collate(inputs, pad_id=pad or 0, side=side, device=_device_of(model), dtype=_dtype_of(model), seed=seed)
