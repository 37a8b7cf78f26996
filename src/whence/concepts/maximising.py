"""Activation maximisation: pictures or embeddings that are changed until they excite a unit as much as can be."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from whence.concepts import sets
from whence.concepts.sensitivity import thumbnail
from whence.core.inputs import Input, Target
from whence.core.maximisations import Maximisation
from whence.core.specs import Between, check_fields
from whence.core.wording import shown
from whence.methods.explaining import tracked
from whence.model.encoding import readable
from whence.model.subject import Subject

SETTLING = 0.5  # share of the steps, at the end, over which the views become the picture itself
SHOWN = 5  # examples of the data beside what was made


@dataclass(frozen=True)
class Search:
    """How the search goes."""

    steps: Annotated[int, Between(1, 100_000)] = 256
    rate: Annotated[float, Between(0, 10, without_least=True)] = 0.1
    views: Annotated[int, Between(1, 1000)] = 8  # varied copies of a picture that a step sees
    jitter: Annotated[int, Between(0, 10_000)] | None = None  # pixels of the largest shift, at first; None: an eighth
    colour: Annotated[float, Between(0, 10)] = 0.5  # the spread of a view's random shift of colour, in the end 0
    tv: Annotated[float, Between(0, 10)] = 0.3  # the pull of total variation, as a share of that of the target
    length: Annotated[int, Between(1, 1000)] = 8  # tokens of a text
    seed: Annotated[int, Between(0, 2**63 - 1)] = 0
    progress: bool = False

    def __post_init__(self) -> None:
        check_fields(self)


def maximised(subject: Subject, units: Any, data: Any, search: Search) -> Maximisation:
    """What excites each unit most, beside the strongest examples of the data."""
    wanted = units if isinstance(units, list) else [units]
    if not wanted:
        raise ValueError("there is no unit to maximise: give a class, a neuron as 'mlp:3:17', or a head as 'head:3:2'")
    targets = [_unit(subject, one) for one in wanted]
    items = [] if data is None else sets.encoded(subject, sets.read(data, "data")[0], "data", False)
    if not sets.takes_pictures(subject) and not sets.takes_texts(subject):
        raise ValueError(f"maximize makes one picture or one text, and inputs of {subject.name} are neither")
    make = _picture if sets.takes_pictures(subject) else _text
    with subject.lent():
        found = [make(subject, target, search) for target in targets]
        excited = np.array([_values(subject, items, target) for target in targets]) if items else None
    best = None if excited is None else np.argsort(-excited, axis=1, kind="stable")[:, :SHOWN]
    return Maximisation(
        targets=tuple(targets),
        made=tuple(one.made for one in found),
        free=np.array([one.free for one in found]),
        real=np.array([one.real for one in found]),
        start=np.array([one.curve[0] for one in found]),
        curves=np.array([one.curve for one in found]),
        examples=() if best is None else tuple(tuple(thumbnail(items[i]) for i in row) for row in best),
        excited=None if excited is None or best is None else np.take_along_axis(excited, best, 1),
        model=subject.name,
    )


@dataclass(frozen=True)
class _Found:
    """The input that was made for one unit."""

    made: Any
    free: float
    real: float
    curve: list[float]


def _unit(subject: Subject, wanted: Any) -> Target:
    """A unit as a target; a state without a position is read as the mean over all tokens."""
    target = subject.aim([wanted]).targets[0]
    if target.kind == "function":
        raise ValueError("maximize takes classes, neurons, heads, channels and directions, not a function")
    if target.open:
        raise ValueError(
            f"the unit {shown(wanted)} names no class or token; give one, a neuron as 'mlp:3:17', or a head as "
            "'head:3:2'"
        )
    return replace(target, position="mean") if target.of_state and target.position is None else target


def _values(subject: Subject, items: list[Input], target: Target) -> np.ndarray:
    """The target of every example."""
    values = np.empty(len(items))
    for numbers, batch in subject.batches(items):
        values[numbers] = subject.values(batch, subject.aim([target] * len(batch))).cpu().numpy()
    return values


def _steps(search: Search, what: Target) -> Iterable[int]:
    return tracked(list(range(search.steps)), search.progress, str(what))


def _picture(subject: Subject, target: Target, search: Search) -> _Found:
    """A picture from noise: each step sees shifted and recoloured views of it, and total variation is held down."""
    dark, bright = (_constant(subject, value) for value in (0, 255))
    low, high = (torch.from_numpy(item.tensors["pixel_values"])[None].to(subject.device) for item in (dark, bright))
    if low.ndim != 4:
        raise ValueError(
            f"maximize makes pictures (channel, height, width), and {subject.name} takes {low.ndim - 1} axes"
        )
    rng = torch.Generator().manual_seed(search.seed)
    picture = torch.rand(low.shape, generator=rng).to(low.device).requires_grad_()
    reach = low.shape[-1] // 8 if search.jitter is None else search.jitter
    batch = subject.batch([dark] * search.views)
    aim = subject.aim([target] * search.views)  # one aim for all steps; the first step fixes it

    def climb(share: float) -> float:
        views = _views(picture, search.views, round(reach * share), search.colour * share, rng)
        pixels = low + (high - low) * views
        value, gradient = subject.gradient(batch, aim, "pixels", {"image": pixels.detach()})
        up = torch.autograd.grad(pixels, picture, gradient["image"].to(pixels.dtype))[0]
        rough = torch.autograd.grad(_variation(picture), picture)[0]
        picture.grad = search.tv * rough / rough.norm().clamp_min(1e-12) - up / up.norm().clamp_min(1e-12)
        return float(value.mean())

    curve = _ascend(picture, climb, search, target, lambda x: x.clamp_(0, 1))
    pixels = low + (high - low) * picture.detach()
    free = float(subject.values_at(subject.batch([dark]), subject.aim([target]), "pixels", {"image": pixels}))
    made = (picture[0].detach().permute(1, 2, 0) * 255).round().to(torch.uint8).cpu().numpy()
    return _Found(made, free, float(_values(subject, [subject.encode(made)], target)[0]), curve)


def _constant(subject: Subject, value: int) -> Input:
    """A picture of one grey value, encoded: it shows the size and the range of the model's pixels."""
    return subject.encode(np.full((64, 64, 3), value, np.uint8))


def _views(picture: Tensor, count: int, reach: int, colour: float, rng: torch.Generator) -> Tensor:
    """Copies of the picture (view, channel, height, width), shifted by whole pixels and in colour."""
    shifts = torch.randint(-reach, reach + 1, (count, 2), generator=rng).tolist()
    tones = torch.randn((count, picture.shape[1], 1, 1), generator=rng).to(picture.device) * colour
    return torch.cat([picture.roll(shift, (-2, -1)) for shift in shifts]) + tones


def _variation(picture: Tensor) -> Tensor:
    """The mean change from a pixel to its neighbours: to the right, below, and on both diagonals."""
    pairs = [
        (picture[..., :, 1:], picture[..., :, :-1]),
        (picture[..., 1:, :], picture[..., :-1, :]),
        (picture[..., 1:, 1:], picture[..., :-1, :-1]),
        (picture[..., 1:, :-1], picture[..., :-1, 1:]),
    ]
    return torch.stack([((a - b) ** 2).sum(1).add(1e-8).sqrt().mean() for a, b in pairs]).sum()


def _ascend(
    made: Tensor, climb: Callable[[float], float], search: Search, target: Target, kept: Callable[[Tensor], Any]
) -> list[float]:
    """Adam with a rate that falls to 0 along a cosine; `kept` holds the input within its bounds after every step."""
    optimizer = torch.optim.Adam([made], lr=search.rate, betas=(0.5, 0.99))
    curve = []
    for step in _steps(search, target):
        share = 0.5 * (1 + np.cos(np.pi * step / search.steps))
        optimizer.param_groups[0]["lr"] = search.rate * share
        optimizer.zero_grad()
        with torch.enable_grad():
            curve.append(climb(min(1.0, (1 - step / search.steps) / SETTLING)))
        optimizer.step()
        with torch.no_grad():
            kept(made)
    return curve


def _text(subject: Subject, target: Target, search: Search) -> _Found:
    """Embeddings of a few tokens, as long as those of words, and then the nearest words."""
    item = _template(subject, search.length)
    batch = subject.batch([item])
    table = subject.vocabulary(batch, "text")
    if table is None:
        raise ValueError(
            f"maximize needs a table of word embeddings, and {subject.name} has none; give a picture model"
        )
    own = subject.embedded(batch, {"text": batch.tensors["input_ids"]})["text"].detach().float()
    free_places = torch.tensor(~item.special, device=own.device)
    size = table.float().norm(dim=-1).median()
    rng = torch.Generator().manual_seed(search.seed)
    words = torch.randn(int(free_places.sum()), own.shape[-1], generator=rng).to(own.device)
    words = (words / words.norm(dim=-1, keepdim=True) * size).requires_grad_()
    aim = subject.aim([target])  # one aim for all steps; the first step fixes it

    def states(rows: Tensor) -> Tensor:
        whole = own.clone()
        whole[0, free_places] = rows
        return whole

    def climb(share: float) -> float:
        value, gradient = subject.gradient(batch, aim, "word", {"text": states(words).detach()})
        words.grad = -gradient["text"][0, free_places].to(words.dtype)
        return float(value)

    curve = _ascend(words, climb, search, target, lambda x: x.mul_(size / x.norm(dim=-1, keepdim=True)))
    free = float(subject.values_at(batch, aim, "word", {"text": states(words.detach())}))
    ids = _nearest(subject, table.float(), words.detach())
    found = item.tensors["input_ids"].copy()
    found[~item.special] = ids
    real = _values(subject, [replace(item, tensors={**item.tensors, "input_ids": found})], target)[0]
    return _Found(" ".join(readable(_tokenizer(subject), ids)), free, float(real), curve)


def _template(subject: Subject, length: int) -> Input:
    """A text of `length` tokens beside the special ones."""
    for words in range(1, length + 1):
        item = subject.encode(" ".join(["the"] * words))
        if int((~item.special).sum()) >= length:
            return item
    return item


def _nearest(subject: Subject, table: Tensor, rows: Tensor) -> list[int]:
    """The words whose embeddings point most nearly the same way, special tokens left out."""
    cosine = torch.nn.functional.normalize(rows, dim=-1) @ torch.nn.functional.normalize(table, dim=-1).T
    special = [i for i in getattr(_tokenizer(subject), "all_special_ids", ()) if i < len(table)]
    cosine[:, special] = -torch.inf
    return cosine.argmax(-1).tolist()


def _tokenizer(subject: Subject) -> Any:
    return getattr(subject.processor, "tokenizer", subject.processor)
