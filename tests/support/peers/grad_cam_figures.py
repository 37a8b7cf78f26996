"""Class activation maps of small random vision transformers by pytorch-grad-cam, frozen in grad_cam_figures.json.

The figures come from an environment that has the package and OpenCV as well:

    pip install torch==2.13.0 transformers==5.23.0 grad-cam==1.5.7 ttach opencv-python-headless
    python tests/support/peers/grad_cam_figures.py

Importing pytorch-grad-cam imports torchvision, which its GradCAM does not use; where that is missing, empty names
stand in for it. Its users name the layer and write the function that drops special tokens and makes a map of the rest:
both are in `MODELS`. Recorded are the sums over channels on the grid of tokens, before the ReLU, as `get_cam_image`
returns them; and of the first picture of the ViT what a user sees: after the ReLU, scaled to [0, 1], resized to the
picture.

Left out: its ScoreCAM, which interpolates between the corners of patches and so makes other masks than the paper's.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor, nn

FIGURES = Path(__file__).with_name("grad_cam_figures.json")
CLASSES, SIDE, PICTURES = 3, 32, 2
SIZE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
PATCHES = {**SIZE, "image_size": SIDE, "patch_size": 8, "num_labels": CLASSES}
DINO = "dinov2_with_registers"
SWIN = {"image_size": SIDE, "patch_size": 4, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4}
# name -> class of model, its settings, special tokens before the patches, the layers that a user names
MODELS: dict[str, tuple[str, dict[str, Any], int, list[str]]] = {
    "vit": ("ViTForImageClassification", PATCHES, 1, ["vit.layers.{}.layernorm_before"] * 2),
    "deit": ("DeiTForImageClassification", PATCHES, 2, ["deit.layers.{}.layernorm_before"] * 2),
    "registers": ("Dinov2WithRegistersForImageClassification", PATCHES, 5, [f"{DINO}.encoder.layer.{{}}.norm1"] * 2),
    "swin": (
        "SwinForImageClassification",
        {**SWIN, "num_labels": CLASSES},
        0,
        [f"swin.encoder.layers.{stage}.blocks.{block}.layernorm_before" for stage in range(2) for block in range(2)],
    ),
}  # fmt: skip


def made(name: str) -> Any:
    """The model with weights drawn by numpy, parameter by parameter in the order of their names."""
    kind, settings, *_ = MODELS[name]
    model_class = getattr(transformers, kind)
    model = model_class(model_class.config_class(**settings)).eval()
    generator = np.random.default_rng(0)
    with torch.no_grad():
        for key, parameter in sorted(model.named_parameters()):
            drawn = torch.from_numpy(generator.normal(0, 0.25, tuple(parameter.shape)))
            norm = parameter.ndim == 1 and key.endswith("weight")
            parameter.copy_(0.8 + drawn if norm else drawn)
    return model


def pictures() -> np.ndarray:
    """Pictures as the models are given them, (picture, channel, height, width)."""
    return np.random.default_rng(1).normal(0, 1, (PICTURES, 3, SIDE, SIDE)).astype(np.float32)


class Logits(nn.Module):
    """The model as pytorch-grad-cam calls it: a picture in, logits out."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixel_values: Tensor) -> Tensor:
        return self.model(pixel_values).logits


def explained(name: str) -> dict[str, Any]:
    """Figures of one model: for every layer one map per picture; class 1 is explained."""
    from pytorch_grad_cam import GradCAM
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    _, _, special, layers = MODELS[name]

    def reshaped(states: Tensor) -> Tensor:
        patches = states[:, special:]
        side = round(patches.shape[1] ** 0.5)
        return patches.reshape(len(states), side, side, -1).permute(0, 3, 1, 2)

    model, figures = Logits(made(name)), {}
    for number, layer in enumerate(layers):
        target_layer = model.model.get_submodule(layer.format(number))
        cam = GradCAM(model, [target_layer], reshape_transform=reshaped)
        targets = [ClassifierOutputTarget(1)] * PICTURES
        seen = cam(torch.from_numpy(pictures()), targets)
        states, gradients = (
            one[0].cpu().numpy() for one in (cam.activations_and_grads.activations, cam.activations_and_grads.gradients)
        )
        figures[str(number)] = rounded(cam.get_cam_image(None, target_layer, targets, states, gradients))
        figures["logits"] = rounded(cam.outputs.detach().numpy()[:, 1])
        if name == "vit" and number == 1:
            figures["seen"] = rounded(seen[0])
        cam.activations_and_grads.release()
    return figures


def rounded(array: np.ndarray) -> Any:
    """Nested lists of numbers with seven digits."""
    return json.loads(json.dumps(array.tolist()), parse_float=lambda text: float(f"{float(text):.7g}"))


def stand_in_for_torchvision() -> None:
    """Names that pytorch-grad-cam imports from torchvision and that its GradCAM never calls."""
    names = {"": (), ".transforms": ("Compose", "Normalize", "ToTensor"), ".transforms.functional": ("resize",)}
    for name, contents in names.items():
        module = ModuleType(f"torchvision{name}")
        for one in contents:
            setattr(module, one, None)
        sys.modules[module.__name__] = module


def main() -> None:
    if importlib.util.find_spec("torchvision") is None:
        stand_in_for_torchvision()
    names = ("grad-cam", "transformers", "torch", "numpy", "opencv-python-headless")
    figures: dict[str, Any] = {"versions": {name: importlib.metadata.version(name) for name in names}}
    figures |= {name: explained(name) for name in MODELS}
    FIGURES.write_text(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
