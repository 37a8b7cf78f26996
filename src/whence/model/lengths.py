"""How many tokens a model takes: what its configs say, how many rows its tables of positions and of words have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from torch import nn

from whence.core.inputs import Input
from whence.model import encoding

Side = Literal["encoder", "decoder"]  # a model that has one side takes as many tokens on either

_IN_CONFIGS = {
    "encoder": ("max_encoder_position_embeddings", "max_source_positions"),
    "decoder": ("max_decoder_position_embeddings", "max_target_positions"),
}
_TOKEN_IDS = ("input_ids", "decoder_input_ids")
_OF_BOTH_SIDES = ("max_position_embeddings", "n_positions", "max_seq_len")
_OTHER_TABLES = ("vision", "visual", "image", "patch", "relative")  # in the names of tables that place no tokens


def text_config(model: Any, decoder_only: bool) -> Any:
    """The config of a model, or of the part of a decoder that reads texts; None where there is none."""
    config: Any = getattr(model, "config", None)
    return config.get_text_config() if decoder_only and hasattr(config, "get_text_config") else config


def most_tokens(model: nn.Module, side: Side) -> int | None:
    """The most tokens that a side of a model takes; None where nothing limits them."""
    config = getattr(model, "config", None)
    counts = list(_rows_for_positions(model, side))
    for part in (config, getattr(config, "text_config", None)):
        found = [getattr(part, name, None) for name in (*_OF_BOTH_SIDES, *_IN_CONFIGS[side])]
        counts += [count for count in found if isinstance(count, int)]
    limit = min((count for count in counts if count > 0), default=None)
    if limit is None or side == "decoder":
        return limit
    windows = getattr(config, "attention_window", None) or 1  # the encoder pads its input to whole windows
    return limit - limit % max(windows if isinstance(windows, list) else [windows]) or limit


def _rows_for_positions(model: nn.Module, side: Side) -> Iterator[int]:
    """How many positions each table of a side has; the rows that stand for none come first."""
    other_side = "decoder" if side == "encoder" else "encoder"
    for name, module in model.named_modules():
        if not isinstance(module, nn.Embedding) or "position" not in name or other_side in name.split("."):
            continue
        if not any(word in name for word in _OTHER_TABLES):
            padding = 0 if module.padding_idx is None else module.padding_idx + 1  # RoBERTa, MPNet count from there
            yield module.num_embeddings - padding - getattr(module, "offset", 0)  # BART's has an offset


def check_ids(model: nn.Module, tokenizer: Any, name: str, item: Input) -> None:
    """An error for a token that the model has no embedding for, as of a tokenizer to which tokens were added."""
    ids = [int(array.max(initial=-1)) for key, array in item.tensors.items() if key in _TOKEN_IDS]
    try:
        table = getattr(model, "get_input_embeddings", lambda: None)()
    except (AttributeError, NotImplementedError):
        return
    if isinstance(table, nn.Embedding) and max(ids, default=-1) >= table.num_embeddings:
        token = "" if tokenizer is None else f" of the token {encoding.readable(tokenizer, [max(ids)])[0]!r}"
        raise ValueError(
            f"the id {max(ids)}{token} is beyond the {table.num_embeddings} tokens that {name} has embeddings "
            "of; use the tokenizer that the model was made with"
        )
