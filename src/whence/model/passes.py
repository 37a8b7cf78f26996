"""What a pass over a model records and differentiates, and the small parts that it is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from whence.core.geometry import patch_of_pixels
from whence.model.batching import Batch
from whence.model.discovery import Site
from whence.model.tap import Record
from whence.model.targets import Aim

OF_ATTENTION = ("attention_gradient", "head_gradient")  # needs that differentiate every attention block
At = str | int  # "embeddings", "word", "pixels", the number of a block, or "module:NAME" for what that module gives


@dataclass(eq=False)
class Trace:
    """What one instrumented pass recorded, and only what was asked for."""

    needs: frozenset[str]
    aim: Aim
    logits: Tensor  # (batch, class)
    value: Tensor  # (batch,)
    attention: list[Record] = field(default_factory=list)
    states: dict[At, dict[str, Tensor]] = field(default_factory=dict)  # at -> stream -> (batch, token, width)
    gradients: dict[At, dict[str, Tensor]] = field(default_factory=dict)
    deciding: dict[str, Tensor] = field(default_factory=dict)  # stream -> (batch, token) bool: what the output reads


class InOrder(TorchFunctionMode):
    """A model that shuffles all its patches (ViLT) keeps their order: sums stay the same, and features have a place."""

    used = False

    def __torch_function__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func is torch.multinomial and out.shape == args[0].shape:
            places = torch.arange(out.shape[-1], device=out.device).expand_as(out)
            if torch.equal(out.sort(-1).values, places):
                self.used = True
                return places
        return out


def logits_of(outputs: Any) -> Any:
    """The logits among what a model returns; None where there are none."""
    if isinstance(outputs, Tensor):
        return outputs
    pairs = getattr(outputs, "logits_per_image", None)
    if pairs is not None:
        return pairs.diagonal()[:, None]
    for name in ("logits", "question_answering_score", "prediction_logits"):
        if getattr(outputs, name, None) is not None:
            return getattr(outputs, name)
    return outputs[0] if isinstance(outputs, (tuple, list)) and outputs else None


def replaced(new: Tensor, old: Tensor, leaf: bool = False) -> Tensor:
    """The new state in the precision of the old one, on demand as what is differentiated at."""
    return as_leaf(new.to(old.dtype)) if leaf else new.to(old.dtype)


def after(first: Callable[[Tensor], Tensor] | None, then: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """One change of a state after another."""
    return then if first is None else lambda tensor: then(first(tensor))


def noted(versions: dict[Site, int], site: Site, tensor: Tensor) -> Tensor:
    """The tensor itself; which version of it was seen is kept."""
    versions[site] = tensor._version
    return tensor


def as_leaf(tensor: Tensor) -> Tensor:
    """The tensor, as what is differentiated at."""
    return tensor.detach().requires_grad_()


def output_site(name: str, call: int, output: Any, batch: Batch) -> Site:
    """Where a call of a module gives its first tensor, which has a row for every example of the batch."""
    several: Any = (
        output.items() if isinstance(output, dict) else enumerate(output if isinstance(output, tuple) else ())
    )
    for key, tensor in [(-1, output)] if isinstance(output, Tensor) else several:
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
            continue
        streams = {length: stream for stream, length in batch.lengths.items()}
        by_token = tensor.ndim == 3
        tokens_first = by_token and tensor.shape[1] == len(batch) and tensor.shape[0] in streams
        if tokens_first or tensor.shape[:1] == (len(batch),):
            stream = streams.get(tensor.shape[0 if tokens_first else 1], "") if by_token else ""
            return Site(stream, "output", name, call, key, tokens_first)
    raise ValueError(f"the module {name!r} gives no tensor with a row for every example; choose one that does")


def at_of(need: str) -> At:
    """The site that a need names: "gradient:3" to 3."""
    name = need.split(":", 1)[1]
    return int(name) if name.lstrip("-").isdigit() else name


def differentiate(
    trace: Trace, value: Tensor, ats: list[At], sites: dict[At, dict[str, Site]], seen: dict[Site, Tensor]
) -> None:
    """One backward pass: gradients at the sites and, if asked, of all attention weights and heads, into the trace."""
    weighed, mixed = ([r for r in trace.attention if need in trace.needs] for need in OF_ATTENTION)
    places = [(at, stream, seen[site]) for at in ats for stream, site in sites[at].items()]
    wanted = [tensor for _, _, tensor in places]
    wanted += [part for record in weighed for part in record.parts]
    wanted += [out for record in mixed for out, _ in record.outputs]
    if not value.requires_grad:
        raise ValueError("the target does not depend on the inputs in a way that can be differentiated")
    used = [t for t in wanted if t.requires_grad]
    by_id = dict(zip(map(id, used), torch.autograd.grad(value.sum(), used, allow_unused=True), strict=True))
    grads = [torch.zeros_like(t) if by_id.get(id(t)) is None else by_id[id(t)] for t in wanted]
    for (at, stream, _), grad in zip(places, grads, strict=False):
        trace.gradients.setdefault(at, {})[stream] = sites[at][stream].turned(grad)
    rest = iter(grads[len(places) :])
    for record in weighed:
        record.gradient_parts = [next(rest) for _ in record.parts]
    for record in mixed:
        record.mixed = [(align(out.detach()), align(next(rest))) for out, align in record.outputs]


def patches(pixels: Tensor, batch: Batch, stream: str) -> Tensor:
    """(batch, height, width) summed into the patches: (batch, token of the image stream)."""
    item = batch.inputs[0]
    if item.grid is None:
        raise ValueError("pixels can only be summed to patches where the input has a grid of patches")
    index = torch.from_numpy(patch_of_pixels(pixels.shape[1], pixels.shape[2], item.grid)).reshape(-1).to(pixels.device)
    sums = pixels.new_zeros(len(pixels), item.grid[0] * item.grid[1]).index_add_(1, index, pixels.flatten(1))
    special = torch.tensor([sp for sp, st in zip(item.special, item.streams, strict=True) if st == stream])
    out = pixels.new_zeros(len(pixels), len(special))
    out[:, ~special.to(pixels.device)] = sums
    return out
