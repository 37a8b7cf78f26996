"""What methods that read attention do not see of a model: tokens that reach each other by more than attention.

State-space layers, convolutions, recurrences and linear attention mix tokens too, as in Jamba, LFM2 or Qwen3-Next. With
every attention closed but that of a token to itself, the output at the last token of a model that mixes by attention
alone depends on that token alone. The gradient at the word embeddings tells.

Attention is seen on a model's eager path. Where that computes something else than the path that the model runs on, as
that of Falcon with ALiBi in transformers 5, the scores are of that computation.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from whence.core.inputs import Input
from whence.core.registry import Record
from whence.methods.interventions import REACHED
from whence.model.batching import Batch, beginning
from whence.model.passes import HALF_GAP
from whence.model.subject import Subject

LOOKED_AT = 16  # tokens of a text: what mixes tokens at all mixes neighbours
GAP = 1e-3  # of the largest logit, in 32 bits; less than this, or than `HALF_GAP` in 16 bits, is rounding


def reads_attention(record: Record) -> bool:
    """Whether a method's scores come from attention: its weights, or what it carries from token to token."""
    return record.follows_attention_only or any(need.startswith("attention") for need in record.needs)


def unseen_notes(subject: Subject, item: Input, record: Record) -> tuple[str, ...]:
    """Notes on what a method does not see of a causal model; found out once."""
    eager = reads_attention(record) or record.family == "relevance"  # relevance rules are put on the eager path
    if not eager or not subject.decoder_only:  # other outputs read several tokens, or streams that attend to others
        return ()
    batch = subject.batch([beginning(item, LOOKED_AT)])
    known = subject.discovery(batch)
    if known.quantised:
        return ()
    gap = known.remember("eager gap", lambda: _eager_gap(subject, batch))
    mixes = reads_attention(record) and known.remember("mixes beside attention", lambda: _mixes(subject, batch))
    return (*(_gap_note(subject, gap) if gap else ()), *(_mixing_note(subject) if mixes else ()))


def _gap_note(subject: Subject, gap: float) -> tuple[str, ...]:
    return (
        f"{subject.name} computes something else on the eager path, on which attention is seen: its logits differ by "
        f"{gap:.1%} of the largest, and these scores are of that path; load the model with "
        "attn_implementation='eager' to use it throughout",
    )


def _mixing_note(subject: Subject) -> tuple[str, ...]:
    return (
        f"{subject.name} also mixes tokens by other means than attention, as convolutions or state-space layers do, "
        "and these scores know nothing of them; use a gradient method, or one that hides words",
    )


def _eager_gap(subject: Subject, batch: Batch) -> float:
    """By how much logits differ between the eager path and the model's own, in the largest; 0.0 for rounding."""
    own, eager = (subject.logits(batch, path=path).float() for path in (None, "eager"))
    gap = float((own - eager).abs().max() / own.abs().max().clamp(min=1e-6))
    return gap if gap > (GAP if subject.dtype in (torch.float32, torch.float64) else HALF_GAP) else 0.0


def _mixes(subject: Subject, batch: Batch) -> bool:
    connections = subject.structure(batch).connections
    if not connections or any(not query for query, _ in connections) or batch.mask.shape[1] < 2:
        return False
    alone = subject.with_attention(_to_itself)
    try:
        _, gradients = alone.gradient(batch, alone.aim([_all_logits]), "word")
    except ValueError:  # a quantised model, or one whose word embeddings were not found
        return False
    reach = torch.cat([gradient.abs().sum(-1) for gradient in gradients.values()], 1)[0]
    return bool((reach[:-1] > REACHED * reach.max()).any())


def _to_itself(record: Any, weights: Tensor) -> Tensor:
    """All of a token's attention (batch, head, query, key) given to the token itself, as a constant.

    What a learned sink leaves of a row depends on the tokens that it looks at.
    """
    return torch.diag_embed(weights.detach().sum(-1)) if weights.shape[-1] == weights.shape[-2] else weights


def _all_logits(logits: Tensor, batch: Batch) -> Tensor:
    """A target that depends on every logit."""
    return logits.square().sum(-1)
