"""Greedy decoding: the token that a decoder starts with, where decoding stops, and a progress bar."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from whence.core import stopping
from whence.core.inputs import Input
from whence.core.wording import counted
from whence.model import encoding
from whence.model.batching import Batch, cut, tensors_up_to
from whence.model.encoding import Generation
from whence.model.forward import Forward
from whence.model.lengths import most_tokens
from whence.model.loan import lent

MAX_GENERATED = 256  # tokens that an encoder-decoder writes, where the model has no limit of its own
MAX_ANSWER = 64  # tokens that a causal model writes, where the input does not say how many


def start_token(model: Any) -> int | None:
    """The token that a decoder is given first; None where the model does not say."""
    config = model.config
    for holder in (getattr(model, "generation_config", None), config):
        start = getattr(holder, "decoder_start_token_id", None)
        if start is not None:
            return int(start)
    start = getattr(config, "bos_token_id", None)
    return None if start is None else int(start)


class Watch:
    """A stopping criterion for transformers: stops at given texts, and moves a progress bar."""

    def __init__(self, before: int, stop: Sequence[str], decode: Callable[[list[int]], str], bar: Any = None) -> None:
        self._before, self._stop, self._decode, self._bar = before, stop, decode, bar

    def __call__(self, ids: Tensor, scores: Any, **options: Any) -> Tensor:
        """Whether the text so far is complete, (batch,); called by transformers after every token."""
        stopping.check()
        if self._bar is not None:
            self._bar(ids.shape[1] - self._before)
        done = bool(self._stop) and self.kept(ids[0, self._before :].tolist()) is not None
        return torch.full((len(ids),), done, device=ids.device)

    def kept(self, ids: list[int]) -> list[int] | None:
        """The ids before the first that completes a text at which to stop; None where there is no such text."""
        if not any(stop in self._decode(ids) for stop in self._stop):
            return None
        return next(ids[: n - 1] for n in range(1, len(ids) + 1) if any(s in self._decode(ids[:n]) for s in self._stop))


def greedy(
    forward: Forward,
    tensors: Mapping[str, Tensor],
    start: int | None,
    ends: Container[int | None],
    wanted: Generation,
    decode: Callable[[list[int]], str],
    *,
    room: int | None = None,
    progress: bool = False,
) -> tuple[list[int], str]:
    """The tokens that greedy decoding gives, and a note where it was stopped before the end token.

    `start` begins the decoder of an encoder-decoder, whose end token is among the tokens; a causal model, without one,
    writes after its input, and its end token is left out. `room` is the most tokens that may still follow.
    """
    model: Any = forward.model
    limits, full = _limits(model) if start is not None else ({"max_new_tokens": MAX_ANSWER}, None)
    if wanted.most is not None and (full is None or wanted.most < full):
        limits, full = {"max_new_tokens": wanted.most}, None
    if room is not None and limits.get("max_new_tokens", 0) > room:
        limits, full = {"max_new_tokens": room}, room
    first = torch.full((1, 1), start or 0, device=next(iter(tensors.values())).device)
    before = 1 if start is not None else tensors["input_ids"].shape[1]
    with lent(model), torch.no_grad(), forward.misfits(tensors), _bar(progress, limits.get("max_new_tokens")) as bar:
        watch = Watch(before, wanted.stop, decode, bar)
        generate = partial(
            model.generate,
            **tensors,
            do_sample=False,
            num_beams=1,
            return_dict_in_generate=False,
            stopping_criteria=[watch],
            **limits,
            **_pad(model),
        )
        forward.observe({**tensors, "decoder_input_ids": first} if start is not None else tensors)
        with forward.self_changes.undone():
            try:
                ids = generate()[0].tolist()
            except (ValueError, IndexError):  # some models, such as ProphetNet, fail with their cache
                ids = generate(use_cache=False)[0].tolist()
    ids = ids[before:]
    stopped = watch.kept(ids)
    if stopped is not None:
        return stopped, "decoding was stopped at a text that the input names"
    end = next((place for place, id in enumerate(ids) if id in ends), None)
    if end is not None and (len(ids) != full or start is None):
        return ids[: end + 1 if start is not None else end], ""
    reason = ", as many as the decoder takes" if len(ids) == full and start is not None else ""
    return ids, f"decoding was stopped after {counted(len(ids), 'token')}{reason}"


def cut_to(item: Input, wanted: Generation, most: int | None) -> int | None:
    """To how many tokens a text is cut that leaves a causal model, which takes `most`, no room; None where it does."""
    if most is None or item.generated or not 1 < most <= len(item.features):
        return None
    return most - min(wanted.most or MAX_ANSWER, most // 2)


@contextlib.contextmanager
def _bar(progress: bool, total: int | None) -> Iterator[Callable[[int], None] | None]:
    """A bar on stderr that shows how many tokens are written, if asked for."""
    if not progress:
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as shown:
        task = shown.add_task("writing", total=total)
        yield lambda count: shown.update(task, completed=count)


def _pad(model: Any) -> dict[str, int]:
    """A padding token for `generate`, which asks for one; empty where the model's settings already name one."""
    settings = getattr(model, "generation_config", None)
    ends = end_tokens(model)
    return {} if getattr(settings, "pad_token_id", None) is not None or not ends else {"pad_token_id": min(ends)}


def end_tokens(model: Any, tokenizer: Any = None) -> set[int]:
    """The ids that end a text, as model and tokenizer name them."""
    holders = (getattr(model, "generation_config", None), getattr(model, "config", None), tokenizer)
    named = [getattr(holder, "eos_token_id", None) for holder in holders]
    return {int(id) for ids in named if ids is not None for id in (ids if isinstance(ids, (list, tuple)) else [ids])}


def generated(
    forward: Forward,
    item: Input,
    batch: Callable[[list[Input]], Batch],
    processor: Any,
    wanted: Generation | None,
    limits: tuple[int | None, int | None],
    progress: bool,
) -> Input:
    """The input with a text that greedy decoding writes: the output of an encoder-decoder, else a continuation.

    `limits` are the token that starts the decoder (None for a causal model) and the most tokens that the model takes.
    """
    start, most = limits
    tokenizer, wanted = getattr(processor, "tokenizer", processor), wanted or Generation()
    decode = partial(tokenizer.decode, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    if start is not None:
        end = getattr(tokenizer, "eos_token_id", None)
        ids, note = greedy(forward, batch([item]).tensors, start, {end}, wanted, decode, progress=progress)
        item = replace(item, notes=(*item.notes, note)) if note else item
        return encoding.with_output(item, np.asarray(ids), processor, start)
    item = without_closing(item)
    room = None if most is None else most - len(item.features)
    if room is not None and room < 1:
        raise ValueError("the input fills all tokens that the model takes, so nothing can be generated; shorten it")
    ends = end_tokens(forward.model, tokenizer)
    ids, note = greedy(forward, batch([item]).tensors, None, ends, wanted, decode, room=room, progress=progress)
    if not ids:
        return replace(item, notes=(*item.notes, "the model writes nothing here: its next token is explained"))
    notes = (*item.notes, "the continuation was generated greedily" + f": {note}" * bool(note))
    roles = sum(part.partition(" ")[0] == "assistant" for part in item.texts)
    part = "continuation" if "prompt" in item.texts else f"assistant {roles + 1}" if roles else "assistant"
    return encoding.with_continuation(replace(item, notes=notes), ids, processor, part)


def without_closing(item: Input) -> Input:
    """A prompt without its closing special tokens, since a continuation follows; those of a chat template stay."""
    last = int(np.flatnonzero(~item.special).max(initial=-1)) + 1
    if "prompt" not in item.texts or last == len(item.features):
        return item
    return cut(item, last, item.streams[:last], tensors_up_to(item, last))


def _limits(model: nn.Module) -> tuple[dict[str, int], int | None]:
    """The limits to pass to `generate` beside the model's own, and the number of tokens that fill the decoder."""
    settings: Any = getattr(model, "generation_config", None)
    new, total = (getattr(settings, name, None) for name in ("max_new_tokens", "max_length"))
    most = most_tokens(model, "decoder")
    full = None if most is None else max(most - 1, 1)  # the start token takes one place
    # without a limit of the model, transformers stops at 20 tokens and cuts ordinary sentences
    wanted = new or (MAX_GENERATED if total in (None, 20) else total - 1)
    if full is not None and wanted >= full:
        return ({"max_length": full + 1} if new is None and total is not None else {"max_new_tokens": full}), full
    return ({"max_new_tokens": wanted} if new is None and total in (None, 20) else {}), None
