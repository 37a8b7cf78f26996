"""The recipe of `photos`: a vision transformer that sorts real photos into 16 classes of things."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoImageProcessor, AutoModelForImageClassification, ViTConfig, ViTForImageClassification
from transformers import ViTImageProcessorPil as ViTImageProcessor

from training import common, mobilenet

EPOCHS, BATCH_SIZE, RATE, SEED = 64, 64, 1e-3, 0
SIDE, PATCH, LAYERS, WIDTH, HEADS = 64, 8, 6, 192, 6
PATCHES = (SIDE // PATCH) ** 2
KEPT, KEPT_UNTIL = 40, 0.75  # patches that the student sees, and until which share of the training; it saves time
VIEWS, FOLDS = 3, 4  # of the teacher: views of a picture; parts of the data, each left out of one fit of its last layer
TEACHER_SHARE = 0.7  # the teacher's share of the targets; the rest is the label


def run(data: Path | None) -> None:
    """Learn from labels and from a teacher's opinions and features, on views drawn anew every epoch; ship the model."""
    if data is None:
        raise SystemExit("photos needs --data FOLDER with tiny_imagenet16 in it; training/README.md says more")
    pictures, labels, names = read(data / "tiny_imagenet16" / "train.tar")
    held_out, held_out_labels, _ = read(data / "tiny_imagenet16" / "val.tar")
    opinions, features = teacher(as_shares(pictures), labels, len(names))
    targets = TEACHER_SHARE * opinions + (1 - TEACHER_SHARE) * functional.one_hot(labels, len(names))
    steps_per_epoch = len(pictures) // BATCH_SIZE
    plan = common.Plan(
        steps=EPOCHS * steps_per_epoch, rate=RATE, weight_decay=0.05, average=0.999, seed=SEED, report=steps_per_epoch
    )

    def loss(student: nn.Module, step: int) -> Tensor:
        epoch, batch = divmod(step, steps_per_epoch)
        order = torch.from_numpy(np.random.default_rng((SEED, epoch)).permutation(len(pictures)))
        rows = order[batch * BATCH_SIZE : (batch + 1) * BATCH_SIZE]
        kept = KEPT if step < KEPT_UNTIL * plan.steps else PATCHES
        return batch_loss(student, varied(as_shares(pictures[rows])), targets[rows], features[rows], kept)

    student = Student(make_model(names))
    student = common.train(
        "photos", student, loss, plan, lambda it: accuracy(it.model, as_pixels(as_shares(held_out)), held_out_labels)
    )
    processor = ViTImageProcessor(
        size={"height": SIDE, "width": SIDE}, image_mean=[0.5] * 3, image_std=[0.5] * 3, do_convert_rgb=True
    )
    common.save(
        student.model,
        processor,
        CARD,
        lambda folder: shipped_accuracy(folder, held_out, held_out_labels),
        at_least=0.68,
        at_most_mb=12,
    )


def read(file: Path) -> tuple[Tensor, Tensor, list[str]]:
    """Pictures (picture, y, x, 3) uint8, the numbers of their labels, and the labels in the order of the alphabet."""
    found: list[tuple[str, np.ndarray]] = []
    with tarfile.open(file) as archive:
        for member in archive:
            content = archive.extractfile(member)
            if content is not None:
                with Image.open(io.BytesIO(content.read())) as picture:
                    found.append((member.name.split("/")[0], np.asarray(picture.convert("RGB"))))
    names = sorted({name for name, _ in found})
    pictures = torch.from_numpy(np.stack([picture for _, picture in found]))
    return pictures, torch.tensor([names.index(name) for name, _ in found]), names


def teacher(pictures: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Probabilities (picture, class) by a layer fitted without that picture, and features (picture, 1280) of length 1.

    The features are the mean over some varied views of a picture. Probabilities and features are kept in a file, since
    they take minutes.
    """
    file = common.OUT / "photos" / "teacher.pt"
    if not file.exists():
        network = mobilenet.Teacher()
        common.seed_everything(SEED)
        views = [torch.cat([network(varied(part)) for part in pictures.split(50)]) for _ in range(VIEWS)]
        file.parent.mkdir(parents=True, exist_ok=True)
        torch.save(torch.stack(views).mean(0), file)
    features = torch.load(file, weights_only=True)
    features = (features - features.mean(0)) / features.std(0)
    fold = torch.from_numpy(np.random.default_rng(SEED).permutation(len(pictures))) % FOLDS
    opinions = torch.empty(len(pictures), classes)
    for k in range(FOLDS):
        layer = fitted(features[fold != k], labels[fold != k], classes)
        opinions[fold == k] = layer(features[fold == k]).softmax(-1).detach()
    right = (opinions.argmax(-1) == labels).float().mean().item()
    print(f"photos: the teacher is right about {right:.3f} of the pictures")
    return opinions, functional.normalize(features, dim=-1)


def fitted(features: Tensor, labels: Tensor, classes: int) -> nn.Linear:
    """A linear layer that gives the labels, by 300 full steps of gradient descent with decay."""
    common.seed_everything(SEED)
    layer = nn.Linear(features.shape[-1], classes)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=3e-3, weight_decay=0.3)
    for _ in range(300):
        optimizer.zero_grad()
        functional.cross_entropy(layer(features), labels).backward()
        optimizer.step()
    return layer


class Student(nn.Module):
    """The model, and a layer that guesses the teacher's features from its CLS state and is not shipped."""

    def __init__(self, model: ViTForImageClassification) -> None:
        super().__init__()
        self.model = model
        self.guess = nn.Linear(WIDTH, mobilenet.FEATURES)

    def forward(self, pixels: Tensor, kept: int) -> tuple[Tensor, Tensor]:
        """Logits and guessed features, from CLS and a random choice of `kept` patches of each picture."""
        states = self.model.vit.embeddings(pixels)
        if kept < PATCHES:
            chosen = 1 + torch.rand(len(pixels), PATCHES).argsort(1)[:, :kept, None]
            states = torch.cat([states[:, :1], states.gather(1, chosen.expand(-1, -1, WIDTH))], 1)
        for layer in self.model.vit.layers:
            states = layer(states, None)
        state = self.model.vit.layernorm(states)[:, 0]
        return self.model.classifier(state), self.guess(state)


def make_model(names: list[str]) -> ViTForImageClassification:
    """A vision transformer with random weights."""
    common.seed_everything(SEED)
    config = ViTConfig(
        image_size=SIDE,
        patch_size=PATCH,
        num_channels=3,
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=4 * WIDTH,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        id2label=dict(enumerate(names)),
        label2id={name: i for i, name in enumerate(names)},
    )
    model = ViTForImageClassification(config)
    model.set_attn_implementation("eager")  # the fused kernel takes twice as long to train so few tokens on a CPU
    return model


def batch_loss(student: nn.Module, pictures: Tensor, targets: Tensor, features: Tensor, kept: int) -> Tensor:
    """Cross entropy with the targets, plus how far the guessed features point away from the teacher's.

    Every other batch consists of mixtures of two pictures and of their targets (mixup, Zhang et al. 2018).
    """
    if torch.rand(()) < 0.5:
        share = float(np.random.beta(0.8, 0.8))
        mixed = [share * part + (1 - share) * part.flip(0) for part in (pictures, targets, features)]
        pictures, targets, features = mixed
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits, guess = student(as_pixels(pictures), kept)
    away = 1 - functional.cosine_similarity(guess.float(), features, dim=-1)
    return functional.cross_entropy(logits.float(), targets) + away.mean()


def varied(pictures: Tensor) -> Tensor:
    """Pictures cut, moved, turned, mirrored, and with other light, contrast and colours, each by numbers of its own."""
    n = len(pictures)

    def between(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(n, *shape)

    scale, angle = between(0.6, 1.0).sqrt(), between(-0.2, 0.2)
    mirrored = torch.where(torch.rand(n) < 0.5, -1.0, 1.0)
    room = 1 - scale  # a view that stays within the picture may move by this much
    turn = torch.stack([angle.cos() * mirrored, -angle.sin(), angle.sin() * mirrored, angle.cos()], 1).view(n, 2, 2)
    move = room[:, None] * between(-1, 1, 2)
    grid = functional.affine_grid(
        torch.cat([turn * scale[:, None, None], move[:, :, None]], 2), list(pictures.shape), align_corners=False
    )
    views = functional.grid_sample(pictures, grid, padding_mode="reflection", align_corners=False)
    grey = views.mean(1, keepdim=True)
    views = grey + between(0.6, 1.4, 1, 1, 1) * (views - grey)
    middle = views.mean((1, 2, 3), keepdim=True)
    views = middle + between(0.7, 1.3, 1, 1, 1) * (views - middle)
    return (views * between(0.8, 1.2, 1, 1, 1) * between(0.92, 1.08, 3, 1, 1)).clamp(0, 1)


def as_shares(pictures: Tensor) -> Tensor:
    """Values between 0 and 1: (picture, 3, y, x)."""
    return pictures.permute(0, 3, 1, 2).float() / 255


def as_pixels(shares: Tensor) -> Tensor:
    """Values between -1 and 1, as the image processor gives them."""
    return shares * 2 - 1


def accuracy(model: nn.Module, pixels: Tensor, labels: Tensor, batch_size: int = 200) -> float:
    """The share of pictures whose label the model finds."""
    found = torch.cat([model(pixel_values=part).logits.argmax(-1) for part in pixels.split(batch_size)])
    return (found == labels).float().mean().item()


def shipped_accuracy(folder: Path, pictures: Tensor, labels: Tensor) -> float:
    """The accuracy of the files in a folder, on pictures that went through its image processor."""
    processor = AutoImageProcessor.from_pretrained(folder)
    model = AutoModelForImageClassification.from_pretrained(folder)
    pixels = processor(images=list(pictures.numpy()), return_tensors="pt")["pixel_values"]
    return common.measured(lambda model: accuracy(model, pixels, labels), model)


CARD = common.Card(
    name="photos",
    family=f"ViT with a CLS head, {LAYERS} layers",
    task="image-classification",
    what=f"16 kinds of animals and things on photos, {SIDE} x {SIDE}, patches of {PATCH} x {PATCH}",
    data="16 classes of Tiny ImageNet (ImageNet's photos, for research)",
    metric="accuracy on the 800 validation photos",
    licence="weights Apache-2.0; trained on ImageNet's photos, whose terms allow research and teaching",
    seed=SEED,
    recipe="training/photos.py",
    text=f"""
# photos

Which of 16 things does a photo show: African elephant, Egyptian cat, bee, brain coral, brown bear, golden retriever,
goldfish, jellyfish, king penguin, ladybug, lesser panda, monarch butterfly, orange, pizza, school bus or sports car?
A vision transformer of {LAYERS} layers (width {WIDTH}, {HEADS} heads) over {SIDE // PATCH} x {SIDE // PATCH} patches
and a CLS token.

**Data.** 8,000 photos of 16 classes of Tiny ImageNet (64 x 64 pixels), and 800 to measure with. No photo of it ships.

**Recipe.** {EPOCHS} epochs from random weights with AdamW in batches of {BATCH_SIZE}. Targets are
{1 - TEACHER_SHARE:.1f} of the label and {TEACHER_SHARE} of a teacher's probabilities: a MobileNetV2 with ImageNet
weights under a linear layer that was fitted without the photo in question; a layer that is not shipped also learns to
guess the teacher's features. Photos are cut, turned, mirrored and recoloured anew every epoch, half of the batches mix
two of them, and until three quarters of the training each is seen through {KEPT} of its {PATCHES} patches. The running
mean of the weights is kept. Weights are stored in half precision and load as float32.
`python -m training photos --data FOLDER` repeats it.

**Accuracy.** {{accuracy}} on the 800 validation photos, measured with the files in this folder. They chose nothing: the
last weights are shipped. The teacher's own training on ImageNet may have held some of them.

**Licence.** The weights: Apache-2.0. ImageNet's photos were made available for research and teaching.

**Limits.** It knows 16 things, and calls everything else one of them. One photo in four or so is called wrongly.
""",
)
