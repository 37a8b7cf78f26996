"""The recipe of `digits`: a small vision transformer that reads handwritten digits."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from transformers import AutoImageProcessor, AutoModelForImageClassification, ViTConfig, ViTForImageClassification
from transformers import ViTImageProcessorPil as ViTImageProcessor

from training import common

SIDE, SHEET_COLUMNS, SHEET_ROWS = 28, 20, 10
EPOCHS, BATCH_SIZE, SEED = 8, 128, 0


def run(data: Path | None) -> None:
    """Train on the shifted and turned training images, and ship the model and a sheet of test images."""
    if data is None:
        raise SystemExit("digits needs --data FOLDER with the four gzip files of MNIST in mnist/")
    (images, labels), (test_images, test_labels) = (read(data / "mnist", part) for part in ("train", "t10k"))
    pixels, targets = as_pixels(images), torch.tensor(labels)
    test_pixels, test_targets = as_pixels(test_images), torch.tensor(test_labels)
    batches = common.bucketed([SIDE] * len(images), BATCH_SIZE, EPOCHS, SEED)

    def loss(model: nn.Module, step: int) -> Tensor:
        chosen = batches[step]
        return model(pixel_values=as_rgb(jittered(pixels[chosen])), labels=targets[chosen]).loss

    plan = common.Plan(steps=len(batches), rate=1.5e-3, weight_decay=0.05, average=0.998, seed=SEED, report=469)
    model = common.train("digits", make_model(), loss, plan, lambda model: accuracy(model, test_pixels, test_targets))
    processor = ViTImageProcessor(
        size={"height": SIDE, "width": SIDE}, image_mean=[0.5] * 3, image_std=[0.5] * 3, do_convert_rgb=True
    )
    write_sheet(test_images, test_labels, common.ZOO / "data")
    common.save(
        model,
        processor,
        CARD,
        lambda folder: shipped_accuracy(folder, test_images, test_targets),
        at_least=0.985,
        at_most_mb=3,
    )


def read(folder: Path, part: str) -> tuple[np.ndarray, np.ndarray]:
    """The images (count, 28, 28) and labels (count,) of the training or test part, from files in the idx format."""
    images = gzip.decompress((folder / f"{part}-images-idx3-ubyte.gz").read_bytes())
    labels = gzip.decompress((folder / f"{part}-labels-idx1-ubyte.gz").read_bytes())
    return (
        np.frombuffer(images, np.uint8, offset=16).reshape(-1, SIDE, SIDE),
        np.frombuffer(labels, np.uint8, offset=8).astype(np.int64),
    )


def make_model() -> ViTForImageClassification:
    """A vision transformer of six narrow layers, with random weights."""
    common.seed_everything(SEED)
    names = {i: str(i) for i in range(10)}
    config = ViTConfig(
        image_size=SIDE,
        patch_size=4,
        num_channels=3,
        hidden_size=96,
        num_hidden_layers=6,
        num_attention_heads=4,
        intermediate_size=192,
        id2label=names,
        label2id={name: i for i, name in names.items()},
    )
    return ViTForImageClassification(config)


def as_pixels(images: np.ndarray) -> Tensor:
    """Grey values between -1 and 1, as the image processor gives them, of the shape (count, 1, 28, 28)."""
    return torch.tensor(images).unsqueeze(1).float() / 127.5 - 1


def as_rgb(pixels: Tensor) -> Tensor:
    """The same values in three channels, since pictures of any kind reach the model as RGB."""
    return pixels.expand(-1, 3, -1, -1)


def jittered(pixels: Tensor) -> Tensor:
    """Images turned by up to 10 degrees, scaled by up to a tenth and shifted by up to two pixels."""
    count = len(pixels)
    angle = (torch.rand(count) * 2 - 1) * math.radians(10)
    scale = 1 + (torch.rand(count) * 2 - 1) * 0.1
    shift = (torch.rand(count, 2) * 2 - 1) * (2 * 2 / SIDE)  # the picture is two units wide
    cos, sin = scale * angle.cos(), scale * angle.sin()
    turn = torch.stack([torch.stack([cos, -sin], -1), torch.stack([sin, cos], -1)], 1)  # (count, 2, 2)
    grid = nn.functional.affine_grid(
        torch.cat([turn, shift.unsqueeze(-1)], -1), list(pixels.shape), align_corners=False
    )
    # what lies outside is 0, so black has to be 0 while sampling
    return nn.functional.grid_sample(pixels + 1, grid, align_corners=False) - 1


def accuracy(model: nn.Module, pixels: Tensor, targets: Tensor, batch_size: int = 500) -> float:
    """The share of images whose digit the model finds."""
    found = torch.cat([model(pixel_values=as_rgb(part)).logits.argmax(-1) for part in pixels.split(batch_size)])
    return (found == targets).float().mean().item()


def shipped_accuracy(folder: Path, images: np.ndarray, targets: Tensor) -> float:
    """The accuracy of the files in a folder, on pictures that went through its image processor."""
    processor = AutoImageProcessor.from_pretrained(folder)
    model = AutoModelForImageClassification.from_pretrained(folder)
    pictures = [Image.fromarray(image) for image in images]
    pixels = processor(images=pictures, return_tensors="pt")["pixel_values"][:, :1]
    return common.measured(lambda model: accuracy(model, pixels, targets), model)


def write_sheet(images: np.ndarray, labels: np.ndarray, folder: Path) -> None:
    """Write the first 20 test images of each digit as one picture, row by row, with their labels beside it."""
    chosen = np.sort(np.concatenate([np.flatnonzero(labels == digit)[:SHEET_COLUMNS] for digit in range(10)]))
    rows = images[chosen].reshape(SHEET_ROWS, SHEET_COLUMNS, SIDE, SIDE).swapaxes(1, 2)  # (row, y, column, x)
    folder.mkdir(parents=True, exist_ok=True)
    Image.fromarray(rows.reshape(SHEET_ROWS * SIDE, SHEET_COLUMNS * SIDE)).save(folder / "digits.png", optimize=True)
    facts = {
        "source": "the first 20 images of each digit in the MNIST test set, by Yann LeCun and Corinna Cortes",
        "licence": "CC BY-SA 3.0",
        "side": SIDE,
        "columns": SHEET_COLUMNS,
        "indices": chosen.tolist(),
        "labels": labels[chosen].tolist(),
    }
    (folder / "digits.json").write_text(json.dumps(facts) + "\n", encoding="utf-8")


CARD = common.Card(
    name="digits",
    family="ViT with a CLS head, 6 layers",
    task="image-classification",
    what="handwritten digits, 28 x 28, patches of 4 x 4",
    data="MNIST, 60,000 training and 10,000 test images",
    metric="accuracy on the MNIST test set",
    licence="Apache-2.0 (weights); MNIST itself is CC BY-SA 3.0",
    seed=SEED,
    recipe="training/digits.py",
    text=f"""
# digits

Which digit is it? A vision transformer of 6 layers (width 96, 4 heads) over 7 x 7 patches and a CLS token.

**Data.** MNIST by Yann LeCun and Corinna Cortes (CC BY-SA 3.0). The test images were used for measuring only.

**Recipe.** {EPOCHS} epochs from random weights with AdamW, batches of {BATCH_SIZE}, images turned by up to 10 degrees,
scaled by up to a tenth and shifted by up to two pixels; the running mean of the weights is kept. Weights are stored in
half precision and load as float32. `python -m training digits --data FOLDER` repeats it.

**Accuracy.** {{accuracy}} on the 10,000 test images, measured with the files in this folder.

**Licence.** Apache-2.0 for the weights.

**Limits.** White strokes on black, one digit, centred, as in MNIST. Black strokes on white must be inverted first, and
pictures that show no digit get one all the same.
""",
)
