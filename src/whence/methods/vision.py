"""Methods for pictures: class activation maps of a block's features, and soft masks of pixels.

They score the patches of a picture. Tokens that the model adds to it ([CLS], distillation, registers) score 0, as does
a text beside the picture.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

import numpy as np
import torch
from torch import Tensor

from whence.core.geometry import on_grid, patch_of_pixels, upsample
from whence.core.inputs import Input
from whence.core.registry import Explained, method
from whence.core.specs import Between, Number, Share
from whence.methods.attention import by_key_stream, mean_of_rows, of_layer, real
from whence.model.batching import Batch
from whence.model.masked_inputs import PixelWay, blending, picture_of
from whence.model.masked_runs import engine_of
from whence.model.passes import Trace
from whence.model.precision import wide
from whence.model.soft_masks import SoftMasks, clustered_masks, random_masks, scaled_maps
from whence.model.subject import Subject
from whence.model.tap import AttentionRecord
from whence.model.targets import Aim

TASKS = ("image-classification", "image-text", "module")
Score = Literal["probability", "target"]


@method(family="vision", signed=False, needs=("gradient:normed:{layer}",), tasks=TASKS, paper="arXiv:1610.02391")
def grad_cam(
    subject: Subject,
    batch: Batch,
    target: Aim,
    *,
    layer: Number = -1,
    of: Literal["features", "attention"] = "features",
    relu: bool = True,
) -> Explained:
    """Grad-CAM: (sum_c w_c F_c)^+ at every patch, w_c being the mean over patches of the gradient df/dF_c.

    F are the normed states that the block `layer` reads: the output of its first norm, or of the norm that ended the
    block before. (Behind the last block of a model that is read at [CLS], patches have no gradient.) Where a model
    merges patches from stage to stage, as Swin does, blocks are counted through all stages, and the coarser map is
    interpolated. `of="attention"` takes the attention that the deciding token pays to patches in place of F, and heads
    in place of channels: (mean_h w_h A_h)^+, the baseline of Chefer et al. (arXiv:2012.09838). `relu=False` leaves the
    ReLU out; scores then have a sign. Public code scales every map to [0, 1]; here scores stay as they are.
    """
    _picture_stream(subject, batch)
    if of == "attention":
        trace = subject.trace(batch, target, ("attention_gradient", "deciding"))
        maps = _attention_cam(subject, batch, trace, layer)
    else:
        trace = subject.trace(batch, target)
        features = _feature_maps(subject, batch, trace.states[f"normed:{layer}"])
        gradients = _feature_maps(subject, batch, trace.gradients[f"normed:{layer}"])
        maps = (gradients.mean((2, 3), keepdim=True) * features).sum(1)  # (batch, row, column)
    found = _on_patches(subject, batch, list((maps.clamp(min=0) if relu else maps).cpu().double().numpy()))
    return replace(found, signed=not relu)


@method(family="vision", signed=False, needs=("state:normed:{layer}",), tasks=TASKS, paper="arXiv:1910.01279")
def score_cam(
    subject: Subject,
    batch: Batch,
    target: Aim,
    *,
    layer: Number = -1,
    weights: Literal["softmax", "increase"] = "softmax",
    mask: PixelWay = "auto",
    score: Score = "probability",
) -> Explained:
    """Score-CAM: (sum_c w_c F_c)^+, w_c telling how sure the model is where channel c lets it see the picture.

    F as in grad_cam. A channel, interpolated to the pixels and scaled to [0, 1], is a soft mask; its increase is f of
    the masked picture minus f of the hidden one, and w is the softmax of the increases over all channels (the paper's
    algorithm 1), or the increase itself. f is the probability of the class; `score="target"` takes the target as it is,
    as is done for a model with one output and for targets that are no logit. `mask`: what stands in place of hidden
    pixels, "zero" (after normalisation, the same as "auto"), "mean", "black" or "blur". Channels that are the same
    everywhere are left out. The authors' code takes f itself as w; pytorch-grad-cam takes the softmax of logits, and
    interpolates between corners of patches instead of centres.
    """
    _picture_stream(subject, batch)
    trace = subject.trace(batch, target)
    masks, kept = [], []
    for item, maps in zip(batch.inputs, _feature_arrays(subject, batch, trace, layer), strict=True):
        cells, varied = scaled_maps(maps, _size(item))
        masks.append(SoftMasks(np.concatenate([np.zeros_like(maps[:1]), cells]), _size(item)))
        kept.append(maps[varied])
    aim, notes = _scored(trace, score)
    values = engine_of(subject, batch).soft_values(batch, aim, masks, mask)
    found = []
    for maps, (hidden, *seen) in zip(kept, values, strict=True):
        increase = np.array(seen) - hidden
        if weights == "softmax" and len(increase):
            increase = np.exp(increase - increase.max())
            increase /= increase.sum()
        found.append(np.maximum(np.tensordot(increase, maps, 1), 0))
    return _on_patches(subject, batch, found, notes=notes)


@method(family="vision", signed=False, tasks=TASKS, paper="arXiv:1806.07421")
def rise(
    subject: Subject,
    batch: Batch,
    target: Aim,
    *,
    samples: Annotated[int, Between(1, 50_000)] = 1000,
    cells: Annotated[int, Between(1, 50)] = 7,
    keep: Annotated[float, Between(0, 1, without_least=True)] = 0.5,
    mask: PixelWay = "auto",
    score: Score = "probability",
) -> Explained:
    """RISE: the mean of f(x o M) M over random soft masks M, divided by E[M]: f, on average, where a pixel is seen.

    Each of `samples` masks (4,000 to 8,000 in the paper) is a grid of `cells` x `cells`, of which each is kept with
    probability `keep`, interpolated to one cell more than the picture is large, and cut out at a random place. A patch
    scores the mean of its pixels, which are in `details["pixels"]`. A constant in f raises all scores alike. `mask` and
    `score` as in score_cam.
    """
    _picture_stream(subject, batch)
    sizes = [_size(item) for item in batch.inputs]
    if cells > min(sizes[0]):
        raise ValueError(
            f"rise: cells is at most the shorter side of the picture, which is {sizes[0][1]} x {sizes[0][0]} pixels "
            f"large, but cells={cells} came"
        )
    masks = [random_masks(g, samples, cells, keep, size) for g, size in zip(batch.generators(), sizes, strict=True)]
    aim, notes = _scored(subject.trace(batch, target), score)
    values = engine_of(subject, batch).soft_values(batch, aim, masks, mask)
    maps = [one.weighted_sum(found) / (samples * keep) for one, found in zip(masks, values, strict=True)]
    return _on_patches(subject, batch, maps, notes=notes, pixels=True)


@method(family="vision", signed=False, needs=("state:normed:{layer}",), tasks=TASKS, paper="arXiv:2211.03064")
def vit_cx(
    subject: Subject,
    batch: Batch,
    target: Aim,
    *,
    layer: Number = -1,
    distance: Share = 0.1,
    noise: Annotated[float, Between(0, 100)] = 0.1,
    mask: PixelWay = "auto",
    score: Score = "probability",
) -> Explained:
    """ViT-CX: clusters of feature maps are soft masks; f of what they keep, corrected for noise and for coverage.

    Channels of F (as in grad_cam), interpolated to the pixels and scaled to [0, 1], are clustered by complete linkage,
    1 - cosine at most `distance`; the sum of a cluster, scaled again, is a mask M_i. With Z_i ~ N(0, `noise`^2) where
    it hides, s_i = f(x o M_i + Z_i o (1 - M_i)) - f(x + Z_i o (1 - M_i)) + f(x), and the map is
    1/n sum_i s_i M_i / sum_k M_k; a patch scores the mean of its pixels. The map is in `details["pixels"]`, n in
    `details["masks"]`. `score` and `mask` as in score_cam; the noise is added to what `mask` puts in, which is 0 in the
    paper. Where the authors' code differs: it divides by 0 where a channel is the same everywhere, which is left out
    here; its noise has no seed; its users drop special tokens themselves.
    """
    _picture_stream(subject, batch)
    trace = subject.trace(batch, target)
    features = _feature_arrays(subject, batch, trace, layer)
    masks = [clustered_masks(m, _size(item), distance) for m, item in zip(features, batch.inputs, strict=True)]
    variants = [
        _with_noise(subject, item, one, mask, noise, generator)
        for item, one, generator in zip(batch.inputs, masks, batch.generators(), strict=True)
    ]
    aim, notes = _scored(trace, score)
    values = engine_of(subject, batch).values(batch.inputs, variants, aim)
    maps = []
    for one, found in zip(masks, values, strict=True):
        causal = found[1::2] - found[2::2] + found[0]
        coverage = len(one) * one.weighted_sum(np.ones(len(one)))
        maps.append(np.divide(one.weighted_sum(causal), coverage, out=np.zeros(one.size), where=coverage > 0))
    return _on_patches(subject, batch, maps, {"masks": [len(one) for one in masks]}, notes, pixels=True)


def _with_noise(
    subject: Subject, item: Input, masks: SoftMasks, how: PixelWay, noise: float, generator: np.random.Generator
) -> Iterator[Input]:
    """The picture itself; then, for every mask, what it keeps with noise around it, and the whole with that noise."""
    hide, leave = blending(subject, item, how), blending(subject, item, None)
    yield item
    for one in masks:
        drawn = generator.normal(0, noise, _picture(item).shape)
        yield hide(one, drawn)
        yield leave(one, drawn)


def _scored(trace: Trace, score: Score) -> tuple[Aim, tuple[str, ...]]:
    """What masked pictures are scored by, and a note: the class's probability in place of its logit, among classes."""
    logits = trace.logits.shape[-1] > 1 and any(target.kind == "logit" for target in trace.aim.targets)
    note = "scored by the probability of the class; score='target' takes the logit"
    return (trace.aim.of_probabilities(), (note,)) if logits and score == "probability" else (trace.aim, ())


# ---- features and patches --------------------------------------------------------------------------------------------


def _picture_stream(subject: Subject, batch: Batch) -> str:
    """The stream of the picture's patches; an error where there is no picture."""
    item = batch.inputs[0]
    if picture_of(item) is None:
        raise ValueError(
            f"methods of the family vision explain a picture on a grid of patches, and an input of {subject.name} has "
            "none; use gradient_x_input, gae or leave_one_out"
        )
    return next(stream for stream in batch.streams if on_grid(item, stream))


def _picture(item: Input) -> np.ndarray:
    picture = picture_of(item)
    assert picture is not None  # `_picture_stream` found one, and a batch has pictures of one shape
    return picture


def _size(item: Input) -> tuple[int, int]:
    """Height and width of the picture as the model is given it."""
    return _picture(item).shape[1], _picture(item).shape[2]


def _patch_marks(subject: Subject, batch: Batch, stream: str) -> Tensor:
    """(token,) bool: the tokens of a stream, or of all ("*"), that are patches, alike in all examples of a batch."""
    marks = torch.zeros_like(batch.mask[0])
    picture = batch.span(_picture_stream(subject, batch))
    marks[picture] = ~batch.special[0, picture]
    return marks[batch.span(stream)]


def _feature_arrays(subject: Subject, batch: Batch, trace: Trace, layer: int) -> np.ndarray:
    """The features of a block as arrays in float64: (batch, channel, row, column)."""
    return _feature_maps(subject, batch, trace.states[f"normed:{layer}"]).cpu().double().numpy()


def _feature_maps(subject: Subject, batch: Batch, by_stream: dict[str, Tensor]) -> Tensor:
    """States of tokens as maps of the patches, special tokens left out: (batch, channel, row, column)."""
    ((stream, state),) = by_stream.items()
    rows, columns = batch.inputs[0].grid or (0, 0)
    marks = _patch_marks(subject, batch, stream)
    if state.shape[1] == len(marks):
        state = state[:, marks]
    else:
        rows, columns = _merged_grid(subject, rows, columns, state.shape[1])
    return wide(state).transpose(1, 2).unflatten(2, (rows, columns))


def _merged_grid(subject: Subject, rows: int, columns: int, tokens: int) -> tuple[int, int]:
    """The grid of a stage that merged neighbouring patches, by its number of tokens."""
    for side in range(1, max(rows, columns) + 1):
        merged = -(-rows // side), -(-columns // side)
        if merged[0] * merged[1] == tokens:
            return merged
    raise ValueError(
        f"a layer of {subject.name} has {tokens} tokens, which do not lie on its grid of {rows} x {columns} patches; "
        "choose another layer"
    )


def _attention_cam(subject: Subject, batch: Batch, trace: Trace, layer: int) -> Tensor:
    """Grad-CAM of the attention that deciding tokens pay to patches, heads as channels: (batch, row, column)."""
    picture = _picture_stream(subject, batch)
    records = next(group for group in by_key_stream(subject, trace) if group[0].key in (picture, "*"))
    record = of_layer(records, layer, subject)
    weights, gradient = (_paid(one, record, trace, batch) for one in (record.weights, record.gradient))
    marks = _patch_marks(subject, batch, record.key)
    gradient, weights = wide(gradient)[..., marks], wide(weights)[..., marks]  # (batch, head, patch)
    return (gradient.mean(-1, keepdim=True) * weights).mean(1).unflatten(1, batch.inputs[0].grid or (0, 0))


def _paid(maps: Tensor, record: AttentionRecord, trace: Trace, batch: Batch) -> Tensor:
    """The mean over the deciding tokens of maps (batch, head, query, key): (batch, head, key)."""
    rows = trace.deciding[record.query] & real(record, batch)
    return torch.stack([mean_of_rows(maps[:, head], rows) for head in range(maps.shape[1])], 1)


def _on_patches(
    subject: Subject,
    batch: Batch,
    maps: Sequence[np.ndarray],
    details: dict[str, Any] | None = None,
    notes: tuple[str, ...] = (),
    pixels: bool = False,
) -> Explained:
    """Maps of cells, (row, column), interpolated to the patches; or with `pixels`, maps of pixels, averaged in each."""
    rows, columns = batch.inputs[0].grid or (0, 0)
    by_patch = []
    for item, one in zip(batch.inputs, maps, strict=True):
        if pixels:
            number = patch_of_pixels(*_size(item), (rows, columns)).ravel()
            by_patch.append(np.bincount(number, one.ravel(), rows * columns) / np.bincount(number))
        else:
            by_patch.append(upsample(one, rows, columns).ravel())
    scores = torch.zeros(batch.mask.shape, dtype=subject.accumulation, device=batch.mask.device)
    marks = _patch_marks(subject, batch, "*" if len(batch.streams) > 1 else next(iter(batch.streams)))
    scores[:, marks] = torch.from_numpy(np.stack(by_patch)).to(scores)
    found = {**(details or {}), **({"pixels": list(maps)} if pixels else {})}
    beside = () if len(batch.streams) == 1 else ("only the picture is scored: the text scores 0",)
    return Explained(scores, details=found, notes=(*notes, *beside))
