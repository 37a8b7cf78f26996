"""Slow twins of the methods for pictures: the papers' formulas on the plain model, one picture and one mask at a time.

A twin can be told to make one mistake; then it must be far off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.cluster import AgglomerativeClustering
from torch import Tensor, nn
from torch.nn.functional import interpolate

import whence
from families import Family, family, fresh, plain_inputs, subject_of
from whence.core.results import Attribution
from whence.model.soft_masks import clustered_masks
from whence.model.subject import Subject

CLOSE, FAR = 1e-4, 1e-2
# family -> the norms that begin its blocks, and how many special tokens stand before its patches
NORMS = {
    "vit": ([f"vit.layers.{layer}.layernorm_before" for layer in range(2)], 1),
    "deit-teacher": ([f"deit.layers.{layer}.layernorm_before" for layer in range(2)], 2),
    "dinov2-registers": ([f"dinov2_with_registers.encoder.layer.{layer}.norm1" for layer in range(2)], 5),
    "beit": ([f"beit.layers.{layer}.layernorm_before" for layer in range(2)], 1),
    "swin": (
        [f"swin.encoder.layers.{stage}.blocks.{block}.layernorm_before" for stage in range(2) for block in range(2)],
        0,
    ),
    "clip": ([f"vision_model.encoder.layers.{layer}.layer_norm1" for layer in range(2)], 1),
}


def away(found: Any, expected: Any) -> float:
    """The largest difference, relative to the largest number."""
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def patch_scores(name: str, a: Attribution) -> np.ndarray:
    """The scores of the patches, (row, column); everything else scores 0."""
    patches = np.array([feature.startswith("patch") for feature in a.features])
    assert not a.scores[~patches].any() and patches.sum() == np.prod(a.input.grid)
    return a.scores[patches].reshape(a.input.grid)


# ---- what the model itself says --------------------------------------------------------------------------------------


class Plain:
    """One picture in a plain model: its logits, and the features behind a norm, with their gradients."""

    def __init__(self, made: Family, raw: Any) -> None:
        self.model, self.tensors = made.model, plain_inputs(made, raw)
        self.pixels = self.tensors["pixel_values"]

    def logits(self, pixels: Tensor | None = None) -> Tensor:
        """(class,); of CLIP, the one similarity."""
        tensors = self.tensors if pixels is None else {**self.tensors, "pixel_values": pixels}
        outputs = self.model(**tensors)
        return outputs.logits_per_image[0] if hasattr(outputs, "logits_per_image") else outputs.logits[0]

    @torch.no_grad()
    def probability(self, pixels: Tensor, index: int) -> float:
        return float(self.logits(pixels).double().softmax(-1)[index])

    def features(self, norm: str, special: int, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Features and their gradients as maps (channel, row, column), tokens before the patches cut off."""
        seen: list[Tensor] = []
        handle = self.model.get_submodule(norm).register_forward_hook(lambda module, args, output: seen.append(output))
        with torch.enable_grad():
            self.tensors["pixel_values"].requires_grad_(True)
            value = self.logits()[index]
            (gradient,) = torch.autograd.grad(value, seen[0])
        handle.remove()
        self.tensors["pixel_values"].requires_grad_(False)
        both = []
        for tokens in (seen[0].detach()[0, special:], gradient[0, special:]):
            side = round(len(tokens) ** 0.5)
            both.append(tokens.T.reshape(-1, side, side).double().numpy())
        return both[0], both[1]


def resized(maps: np.ndarray, height: int, width: int) -> np.ndarray:
    """Bilinear between centres, by torch: (map, row, column) to (map, height, width)."""
    out = interpolate(torch.from_numpy(maps)[None], (height, width), mode="bilinear", align_corners=False)
    return out[0].numpy()


def patch_means(pixels: np.ndarray, grid: tuple[int, int]) -> np.ndarray:
    """The mean of every patch."""
    high, wide = pixels.shape[0] // grid[0], pixels.shape[1] // grid[1]
    return pixels.reshape(grid[0], high, grid[1], wide).mean((1, 3))


# ---- Grad-CAM --------------------------------------------------------------------------------------------------------


def grad_cam_by_hand(features: np.ndarray, gradients: np.ndarray, mistake: str = "") -> np.ndarray:
    """For every channel the mean of its gradients over the map; the sum over channels; what is positive."""
    channels, rows, columns = features.shape
    total = np.zeros((rows, columns))
    for channel in range(channels):
        weight = gradients[channel].mean()
        if mistake == "mean over channels":
            total += gradients.mean(0) * features[channel]
            continue
        total += weight * features[channel]
    return total if mistake == "no relu" else np.maximum(total, 0)


@pytest.mark.parametrize("layer", [0, -1])
@pytest.mark.parametrize("name", NORMS)
def test_grad_cam(name: str, layer: int) -> None:
    norms, special = NORMS[name]
    raw, index = family(name).inputs[1], 0 if name == "clip" else 1
    a = whence.explain(subject_of(name), raw, "grad_cam", index, layer=layer)
    both = Plain(family(name), raw).features(norms[layer], special, index)
    found, grid = patch_scores(name, a), a.input.grid
    assert grid is not None and found.any()
    assert away(found, resized(grad_cam_by_hand(*both)[None], *grid)[0]) <= CLOSE
    for mistake in ("mean over channels", "no relu"):
        assert away(found, resized(grad_cam_by_hand(*both, mistake)[None], *grid)[0]) > FAR


def test_special_tokens_do_not_count_as_patches() -> None:
    """A map that begins at [CLS], as with a reshape function for another model, is told apart."""
    norms, special = NORMS["deit-teacher"]
    raw = family("deit-teacher").inputs[1]
    found = patch_scores("deit-teacher", whence.explain(subject_of("deit-teacher"), raw, "grad_cam(relu=False)", 1))
    features, gradients = Plain(family("deit-teacher"), raw).features(norms[-1], special, 1)
    expected = grad_cam_by_hand(features, gradients, "no relu")
    assert away(found, expected) <= CLOSE
    assert away(found.ravel()[1:], expected.ravel()[:-1]) > FAR


@pytest.mark.parametrize("name", ["vit", "deit-teacher", "beit"])
def test_grad_cam_of_attention(name: str) -> None:
    """Chefer's baseline: (mean_h w_h A_h)^+ of the rows that the output reads, w_h the mean of G_h over the patches."""
    made, raw = fresh(name), family(name).inputs[1]
    made.model.set_attn_implementation("eager")
    tensors, special = plain_inputs(made, raw), NORMS[name][1]
    outputs = made.model(**tensors, output_attentions=True)
    A = outputs.attentions[-1]  # (1, head, query, key)
    (G,) = torch.autograd.grad(outputs.logits[0, 1], A)
    rows = {"vit": [0], "deit-teacher": [0, 1], "beit": range(A.shape[2])}[name]
    read = [row for row in rows if G[0, :, row].any()]
    assert read

    def by_hand(mistake: str = "") -> np.ndarray:
        total = np.zeros(A.shape[3] - special)
        for head in range(A.shape[1]):
            weights = np.mean([A[0, head, row, special:].tolist() for row in read], 0)
            gradient = np.mean([G[0, head, row, special:].tolist() for row in read], 0)
            total += (gradient if mistake == "no mean" else gradient.mean()) * weights / A.shape[1]
        return total if mistake == "no relu" else np.maximum(total, 0)

    for relu in (True, False):
        a = whence.explain(subject_of(name), raw, "grad_cam", 1, of="attention", relu=relu)
        expected = by_hand("" if relu else "no relu")
        if not expected.any():
            assert relu and not a.scores.any()
            continue
        found = patch_scores(name, a).ravel()
        assert away(found, expected) <= CLOSE
        assert away(found, by_hand("no mean")) > FAR


class PatchClassifier(nn.Module):
    """A small vision transformer in plain torch, with norms behind its blocks, or before them and other layers."""

    def __init__(self, norms: str) -> None:
        super().__init__()
        self.norms = norms
        self.cut = nn.Conv2d(1, 16, 4, 4)
        self.attentions = nn.ModuleList(nn.MultiheadAttention(16, 2, batch_first=True) for _ in range(2))
        self.before = nn.ModuleList(nn.LayerNorm(16) for _ in range(2))
        self.behind = nn.ModuleList(nn.LayerNorm(16) for _ in range(2))
        self.idle, self.squash = nn.Linear(16, 16), nn.Tanh()  # large states and their doubles are the same to both
        nn.init.zeros_(self.idle.weight)
        self.head = nn.Linear(16, 3)

    def forward(self, pixel_values: Tensor) -> Tensor:
        state = self.cut(pixel_values).flatten(2).transpose(1, 2)
        for attention, before, behind in zip(self.attentions, self.before, self.behind, strict=True):
            read = state if self.norms == "behind" else before(state)
            read = read + self.idle(read) + self.squash(read) if self.norms == "before others" else read
            state = state + attention(read, read, read, need_weights=False)[0]
            state = behind(state) if self.norms == "behind" else state
        return self.head(state.mean(1))


def own(norms: str) -> tuple[PatchClassifier, Subject]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = PatchClassifier(norms).eval()
    patches = [f"patch {number}" for number in range(9)]

    def encode(pixels: np.ndarray) -> dict[str, Any]:
        return {"tensors": {"pixel_values": pixels}, "features": {"image": patches}, "grid": (3, 3)}

    return model, whence.wrap(model, encode=encode)


PIXELS = np.random.default_rng(5).normal(0, 1, (1, 12, 12)).astype(np.float32)


@pytest.mark.parametrize("norms", ["before", "behind", "before others"])
def test_plain_modules_with_norms_in_other_places(norms: str) -> None:
    """Norms before the attention are those of the block; where they stand behind, the block before has the last one."""
    model, subject = own(norms)
    places = ["cut", "behind.0"] if norms == "behind" else ["before.0", "before.1"]
    for layer, place in enumerate(places):
        seen: list[Tensor] = []
        hook = model.get_submodule(place).register_forward_hook(lambda *call, seen=seen: seen.append(call[-1]))
        value = model(torch.from_numpy(PIXELS)[None])[0, 2]
        hook.remove()
        (gradient,) = torch.autograd.grad(value, seen[0])
        maps = [
            (one.transpose(1, 2).unflatten(2, (3, 3)) if one.ndim == 3 else one)[0].detach().numpy()
            for one in (seen[0], gradient)
        ]
        a = whence.explain(subject, PIXELS, "grad_cam(relu=False)", 2, layer=layer)
        assert away(a.scores.reshape(3, 3), grad_cam_by_hand(maps[0], maps[1], "no relu")) <= CLOSE


# ---- soft masks ------------------------------------------------------------------------------------------------------


def scaled(maps: np.ndarray) -> np.ndarray:
    low, high = maps.min((1, 2), keepdims=True), maps.max((1, 2), keepdims=True)
    return (maps - low) / (high - low)


def vit_cx_by_hand(
    plain: Plain, features: np.ndarray, index: int, ours: np.ndarray, noise: Iterator[np.ndarray], mistake: str = ""
) -> np.ndarray:
    """As the paper has it: the map of pixels. The order of clusters is arbitrary: it is that of the masks `ours`."""
    height, width = plain.pixels.shape[-2:]
    masks = scaled(resized(features, height, width)).reshape(len(features), -1)
    cosine = (masks @ masks.T) / np.outer(np.linalg.norm(masks, axis=1), np.linalg.norm(masks, axis=1))
    clusters = AgglomerativeClustering(None, metric="precomputed", linkage="complete", distance_threshold=0.1)
    labels = clusters.fit_predict(1 - cosine)
    sums = np.stack([masks[labels == label].sum(0) for label in np.unique(labels)]).reshape(-1, height, width)
    merged = scaled(sums)
    assert merged.shape == ours.shape
    order = [int(np.abs(merged - one).max((1, 2)).argmin()) for one in ours]
    assert sorted(order) == list(range(len(ours))) and np.abs(merged[order] - ours).max() <= 1e-6
    merged = (sums / sums.max() if mistake == "masks not scaled" else merged)[order]
    x = plain.pixels.double()
    total, coverage = np.zeros((height, width)), np.zeros((height, width))
    for mask, drawn in zip(merged, noise, strict=False):
        M, Z = torch.from_numpy(mask), torch.from_numpy(drawn)
        kept = plain.probability((x * M + Z * (1 - M)).float(), index)
        noisy = plain.probability((x + Z * (1 - M)).float(), index)
        whole = plain.probability(x.float(), index)
        total += (kept if mistake == "no correction" else kept - noisy + whole) * mask
        coverage += 1 if mistake == "no coverage" else mask
    return total / coverage / len(merged)


def drawn_noise(a: Attribution, subject: Subject, deviation: float) -> Iterator[np.ndarray]:
    """The noise that whence draws for this picture, mask by mask."""
    (generator,) = subject.batch([a.input]).generators()
    while True:
        yield generator.normal(0, deviation, a.input.tensors["pixel_values"].shape)


@pytest.mark.parametrize("name", ["vit", "dinov2-registers", "swin"])
def test_vit_cx(name: str) -> None:
    (norms, special), subject, raw = NORMS[name], subject_of(name), family(name).inputs[1]
    a = whence.explain(subject, raw, "vit_cx(noise=0.5)", 1)
    plain = Plain(family(name), raw)
    features, _ = plain.features(norms[-1], special, 1)
    ours = np.stack(list(clustered_masks(features, plain.pixels.shape[-2:], 0.1)))
    assert 1 < a.details["masks"] == len(ours) < len(features)

    def by_hand(mistake: str = "") -> np.ndarray:
        return vit_cx_by_hand(plain, features, 1, ours, drawn_noise(a, subject, 0.5), mistake)

    assert away(a.details["pixels"], by_hand()) <= CLOSE
    assert away(patch_scores(name, a), patch_means(by_hand(), a.input.grid or (0, 0))) <= CLOSE
    for mistake in ("masks not scaled", "no correction", "no coverage"):
        assert away(a.details["pixels"], by_hand(mistake)) > FAR


def test_vit_cx_with_one_mask_is_the_probability_everywhere() -> None:
    """Clusters as wide as can be are one mask; where it keeps everything, the noise vanishes."""
    subject, raw = subject_of("vit"), family("vit").inputs[1]
    p = whence.explain(subject, raw, "random", "probability").output
    a = whence.explain(subject, raw, "vit_cx(distance=1.0)")
    assert a.details["masks"] == 1
    assert np.ptp(a.details["pixels"][a.details["pixels"] > 0]) <= 1e-6  # s M / M
    masks = clustered_masks(np.ones((4, 3, 3)), (9, 9), 0.1)  # maps that do not vary
    assert len(masks) == 1 and (np.stack(list(masks)) == 1).all()
    assert p > 0


def score_cam_by_hand(plain: Plain, features: np.ndarray, index: int, mistake: str = "") -> dict[str, np.ndarray]:
    """Algorithm 1, channel by channel: by way of weighting, the map on the grid of features."""
    height, width = plain.pixels.shape[-2:]
    x = plain.pixels.double()
    hidden = plain.probability(torch.zeros_like(x).float(), index)
    increases = []
    for channel in features:
        mask = resized(channel[None], height, width)[0]
        mask = mask / np.abs(mask).max() if mistake == "masks not scaled" else scaled(mask[None])[0]
        increases.append(plain.probability((x * torch.from_numpy(mask)).float(), index) - hidden)
    increase = np.array(increases)
    by_weights = {"softmax": np.exp(increase) / np.exp(increase).sum(), "increase": increase}
    return {way: np.maximum(np.tensordot(w, features, 1), 0) for way, w in by_weights.items()}


@pytest.mark.parametrize("name", ["vit", "deit-teacher", "swin"])
def test_score_cam(name: str) -> None:
    (norms, special), subject, raw = NORMS[name], subject_of(name), family(name).inputs[2]
    plain = Plain(family(name), raw)
    features, _ = plain.features(norms[-1], special, 1)
    right, wrong = score_cam_by_hand(plain, features, 1), score_cam_by_hand(plain, features, 1, "masks not scaled")
    for way in ("softmax", "increase"):
        a = whence.explain(subject, raw, "score_cam", 1, weights=way)
        found, grid = patch_scores(name, a), a.input.grid or (0, 0)
        assert found.any() and away(found, resized(right[way][None], *grid)[0]) <= CLOSE
        other = "increase" if way == "softmax" else "softmax"
        assert away(found, resized(right[other][None], *grid)[0]) > FAR
    assert away(found, resized(wrong["increase"][None], *grid)[0]) > FAR


def rise_by_hand(
    f: Callable[[np.ndarray], float], size: tuple[int, int], generator: np.random.Generator, mistake: str = ""
) -> np.ndarray:
    """20 masks of 5 x 5 cells, kept with probability 0.4: the map of pixels."""
    (height, width), samples, cells, keep = size, 20, 5, 0.4
    high, wide = int(np.ceil(height / cells)), int(np.ceil(width / cells))
    grids = (generator.random((samples, cells, cells)) < keep).astype(float)
    tops, lefts = generator.integers(0, high, samples), generator.integers(0, wide, samples)
    total = np.zeros(size)
    for grid, top, left in zip(grids, tops, lefts, strict=True):
        if mistake == "not shifted":
            top, left = 0, 0
        large = resized(grid[None], (cells + 1) * high, (cells + 1) * wide)[0]
        mask = large[top : top + height, left : left + width]
        total += f(mask) * mask
    return total / samples / (1 if mistake == "not divided by the mean mask" else keep)


@pytest.mark.parametrize("name", ["vit", "vilt"])
def test_rise(name: str) -> None:
    subject, raw = subject_of(name), family(name).inputs[1]
    a = whence.explain(subject, raw, "rise(samples=20, cells=5, keep=0.4)", 1)
    made = family(name)
    tensors = plain_inputs(made, raw)
    x = tensors["pixel_values"]

    @torch.no_grad()
    def f(mask: np.ndarray) -> float:
        pixels = (x.double() * torch.from_numpy(mask)).float()
        return float(made.model(**{**tensors, "pixel_values": pixels}).logits[0].double().softmax(-1)[1])

    def by_hand(mistake: str = "") -> np.ndarray:
        (generator,) = subject.batch([a.input]).generators()
        return rise_by_hand(f, x.shape[-2:], generator, mistake)

    assert away(a.details["pixels"], by_hand()) <= CLOSE
    for mistake in ("not shifted", "not divided by the mean mask"):
        assert away(a.details["pixels"], by_hand(mistake)) > FAR


class Sums(nn.Module):
    """An additive model: one output, the sum of the pixels, each times its weight, and a constant."""

    def __init__(self, weights: np.ndarray) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.from_numpy(weights))

    def forward(self, pixel_values: Tensor) -> Tensor:
        return (self.weights * pixel_values).sum((1, 2, 3))[:, None] + 2.0


@pytest.mark.parametrize("cells", [2, 3])
def test_rise_is_unbiased_on_an_additive_model(cells: int) -> None:
    """E[f M_p] / E[M_p] = b + sum_q a_q E[M_p M_q] / E[M_p]; moments of masks follow from their interpolation."""
    side, keep, samples = 6, 0.5, 3000
    effects = np.random.default_rng(0).normal(0, 1, (side, side))  # a_q: the picture is all ones
    effects[4, 1] = 12.0
    names = [f"patch {number}" for number in range(9)]
    subject = whence.wrap(
        Sums(effects.astype(np.float32)),
        encode=lambda raw: {"tensors": {"pixel_values": raw}, "features": {"image": names}, "grid": (3, 3)},
    )
    picture = np.ones((1, side, side), np.float32)
    found = whence.explain(subject, picture, "rise", 0, samples=samples, cells=cells, keep=keep).details["pixels"]

    cell = -(-side // cells)
    basis = resized(np.eye(cells * cells).reshape(-1, cells, cells), (cells + 1) * cell, (cells + 1) * cell)
    second = np.zeros((side * side, side * side))
    for top in range(cell):
        for left in range(cell):
            shares = basis[:, top : top + side, left : left + side].reshape(cells * cells, -1)  # M = kept @ shares
            second += (keep * (1 - keep) * shares.T @ shares + keep**2) / cell**2  # E[M_p M_q]
    expected = 2.0 + (second @ effects.ravel() / keep).reshape(side, side)
    # deviation of one term f M_p / keep, at most that of f in all, by the law of large numbers
    deviation = np.sqrt(effects.ravel() @ (second - keep**2) @ effects.ravel() + (2 + keep * effects.sum()) ** 2) / keep
    assert np.abs(found - expected).max() <= 5 * deviation / np.sqrt(samples)
    plain = 2.0 + keep * effects.sum()  # without any effect of p itself
    assert np.abs(found - plain).max() > 5 * deviation / np.sqrt(samples)
    assert found.argmax() == expected.argmax()


def test_the_target_itself_in_place_of_the_probability() -> None:
    subject, raw = subject_of("vit"), family("vit").inputs[1]
    for method in ("rise(samples=5)", "vit_cx", "score_cam"):
        probability = whence.explain(subject, raw, method, "circle")
        asked = whence.explain(subject, raw, method, "probability('circle')")
        logit = whence.explain(subject, raw, method, "circle", score="target")
        assert np.array_equal(probability.scores, asked.scores)
        assert away(logit.scores, probability.scores) > FAR
        assert any("probability of the class" in note for note in probability.notes)
        assert not any("probability of the class" in note for note in [*asked.notes, *logit.notes])
    contrast = whence.explain(subject, raw, "rise(samples=5)", "contrast('circle', 'square')")
    same = whence.explain(subject, raw, "rise(samples=5)", "contrast('circle', 'square')", score="target")
    assert np.array_equal(contrast.scores, same.scores)


# ---- bad input -------------------------------------------------------------------------------------------------------

METHODS = ["grad_cam", "score_cam", "rise", "vit_cx"]


@pytest.mark.parametrize("method", ["grad_cam", "score_cam", "vit_cx", "grad_cam(of='attention')"])
def test_a_layer_that_does_not_exist(method: str) -> None:
    for name, count, layer in (("vit", 2, 2), ("vit", 2, -3), ("swin", 4, 4)):
        if "attention" in method and name == "swin":
            continue
        with pytest.raises(ValueError, match=f"layer {layer} is out of range: .* has {count} layers") as error:
            whence.explain(subject_of(name), family(name).inputs[0], method, layer=layer)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("method", METHODS)
def test_inputs_without_a_picture(method: str) -> None:
    with pytest.raises(ValueError, match=f"{method} works on image-classification, image-text, module models"):
        whence.explain(subject_of("bert"), "a film", method)
    for name in ("from-scratch", "lxmert"):
        with pytest.raises(ValueError, match=r"explain a picture on a grid of patches, and an input of \w+ has none"):
            whence.explain(subject_of(name), family(name).inputs[0], method)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("rise(samples=0)", "'samples' takes a whole number from 1 to 50,000, not 0"),
        ("rise(cells=33)", "at most the shorter side of the picture, which is 32 x 32 pixels large, but cells=33"),
        ("rise(keep=0.0)", "'keep' takes a number above 0 and at most 1"),
        ("rise(mask='pad')", "'mask' takes"),
        ("vit_cx(distance=2.0)", "'distance' takes a number from 0 to 1"),
        ("vit_cx(noise=-1.0)", "'noise' takes a number from 0 to 100"),
        ("score_cam(weights='none')", "'weights' takes 'softmax' or 'increase'"),
        ("grad_cam(of='tokens')", "'of' takes 'features' or 'attention'"),
    ],
)
def test_options_out_of_bounds(spec: str, words: str) -> None:
    with pytest.raises(ValueError, match=words) as error:
        whence.explain(subject_of("vit"), family("vit").inputs[0], spec)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("method", ["grad_cam", "score_cam", "vit_cx"])
def test_a_picture_of_another_size_than_its_grid(method: str) -> None:
    _, subject = own("before")
    larger = np.random.default_rng(5).normal(0, 1, (1, 20, 20)).astype(np.float32)
    with pytest.raises(ValueError, match="25 tokens, which do not lie on its grid of 3 x 3 patches"):
        whence.explain(subject, larger, method)


@pytest.mark.parametrize("method", METHODS)
def test_a_model_without_attention(method: str) -> None:
    names = [f"patch {number}" for number in range(9)]
    subject = whence.wrap(
        Sums(np.ones((6, 6), np.float32)),
        encode=lambda raw: {"tensors": {"pixel_values": raw}, "features": {"image": names}, "grid": (3, 3)},
    )
    picture = np.ones((1, 6, 6), np.float32)
    if method == "rise":
        assert whence.explain(subject, picture, method, 0, samples=5, cells=2).scores.any()
    else:
        with pytest.raises(ValueError, match=r"no attention was seen while Sums ran.*; use a gradient or perturbation"):
            whence.explain(subject, picture, method, 0)


def test_grad_cam_has_signs_only_without_its_relu() -> None:
    made = family("vit")
    subject = subject_of("vit")
    plain, signed = (whence.explain(subject, made.inputs[0], f"grad_cam(relu={relu})") for relu in (True, False))
    assert not plain.signed and (plain.scores >= 0).all()
    assert signed.signed and (signed.scores < 0).any()
