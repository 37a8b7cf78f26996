"""Greedy decoding of an encoder-decoder: with which token it starts, and where it must stop."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from whence.model.forward import Forward
from whence.model.lengths import most_tokens
from whence.model.loan import lent

MAX_GENERATED = 256  # tokens, where the model has no limit of its own


def start_token(model: Any) -> int | None:
    """The token that a decoder is given first; None where the model does not say."""
    config = model.config
    for holder in (getattr(model, "generation_config", None), config):
        start = getattr(holder, "decoder_start_token_id", None)
        if start is not None:
            return int(start)
    start = getattr(config, "bos_token_id", None)
    return None if start is None else int(start)


def greedy(forward: Forward, tensors: Mapping[str, Tensor], start: int, end: int | None) -> tuple[list[int], str]:
    """The tokens that greedy decoding gives, the end token among them, and a note where it was stopped before that."""
    model: Any = forward.model
    limits, full = _limits(model)
    generate = partial(model.generate, **tensors, do_sample=False, num_beams=1, **limits)
    first = torch.full((1, 1), start, device=next(iter(tensors.values())).device)
    with lent(model), torch.no_grad(), forward.misfits(tensors):
        forward.observe({**tensors, "decoder_input_ids": first})
        with forward.self_changes.undone():
            try:
                ids = generate()[0].tolist()
            except (ValueError, IndexError):  # the cache of some models, as ProphetNet's, does not work
                ids = generate(use_cache=False)[0].tolist()
    ids = ids[1:]  # the start token
    if end in ids and len(ids) != full:
        return ids[: ids.index(end) + 1], ""
    reason = ", as many as the decoder takes" if len(ids) == full else ""
    return ids, f"decoding was stopped after {len(ids)} tokens{reason}"


def _limits(model: nn.Module) -> tuple[dict[str, int], int | None]:
    """The limits that `generate` is given beside the model's own, and after how many tokens the decoder is full."""
    settings: Any = getattr(model, "generation_config", None)
    new, total = (getattr(settings, name, None) for name in ("max_new_tokens", "max_length"))
    most = most_tokens(model, "decoder")
    full = None if most is None else max(most - 1, 1)  # the start token takes one place
    # without a limit of the model, transformers stops at 20 tokens and cuts ordinary sentences
    wanted = new or (MAX_GENERATED if total in (None, 20) else total - 1)
    if full is not None and wanted >= full:
        return ({"max_length": full + 1} if new is None and total is not None else {"max_new_tokens": full}), full
    return ({"max_new_tokens": wanted} if new is None and total in (None, 20) else {}), None
