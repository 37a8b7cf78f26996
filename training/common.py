"""What all recipes share: a seeded, resumable training loop, and the folder that a model is shipped in."""

from __future__ import annotations

import copy
import json
import random
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "out" / "training"  # checkpoints, and models that are not shipped yet
ZOO = ROOT / "src" / "whence" / "zoo"
_CHECKPOINT_SECONDS = 60.0


@dataclass(frozen=True)
class Plan:
    """How long and how fast to train: AdamW, a rate that rises linearly and then falls linearly to zero."""

    steps: int
    rate: float  # the highest learning rate
    warmup: float = 0.06  # the share of the steps on which the rate rises
    weight_decay: float = 0.01
    clip: float = 1.0  # the largest norm of the gradient
    average: float = 0.0  # decay of the running mean of the weights, which is what is kept; 0: the last weights
    seed: int = 0
    report: int = 250  # steps between two lines of the log


@dataclass(frozen=True)
class Card:
    """The facts about a shipped model, kept in the header of its README.md; `text` is what follows it."""

    name: str
    family: str
    task: str
    what: str
    data: str
    metric: str
    licence: str
    seed: int
    recipe: str
    text: str


def train(
    name: str,
    model: nn.Module,
    loss: Callable[[nn.Module, int], Tensor],
    plan: Plan,
    evaluate: Callable[[nn.Module], float] | None = None,
) -> nn.Module:
    """Train `model` on `loss(model, step)` and return it in eval mode; another run continues from the last checkpoint.

    Random numbers are seeded anew at every step, so that a training that was interrupted ends as one that was not.
    """
    optimizer = torch.optim.AdamW(_decayed_apart(model, plan.weight_decay), lr=plan.rate, fused=True)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate_share(step, plan))
    mean = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(plan.average)) if plan.average else None
    state = {"model": model, "optimizer": optimizer, "scheduler": scheduler} | ({"mean": mean} if mean else {})
    start = _resume(name, plan, state)
    result = mean.module if mean else model
    total, counted, saved = 0.0, 0, time.monotonic()
    with _progress(name, plan.steps, start) as (advance, log):
        for step in range(start, plan.steps):
            seed_everything(plan.seed, step)
            model.train()
            value = loss(model, step)
            optimizer.zero_grad()
            value.backward()
            nn.utils.clip_grad_norm_(model.parameters(), plan.clip)
            optimizer.step()
            scheduler.step()
            if mean is not None:
                mean.update_parameters(model)
            total, counted = total + value.item(), counted + 1
            done = step + 1
            if done % plan.report == 0 or done == plan.steps:
                score = f", score {measured(evaluate, result):.4f}" if evaluate else ""
                log(f"{name}: step {done} of {plan.steps}, loss {total / counted:.4f}{score}")
                total, counted = 0.0, 0
            if time.monotonic() - saved > _CHECKPOINT_SECONDS or done == plan.steps:
                _checkpoint(name, plan, done, state)
                saved = time.monotonic()
            advance()
    return result.eval()


def save(
    model: Any,
    processor: Any,
    card: Card,
    measure: Callable[[Path], float],
    *,
    at_least: float,
    at_most_mb: float,
) -> None:
    """Ship a model as a Hugging Face folder in half precision, if what is measured with that folder is good enough."""
    folder = OUT / card.name / "shipped"
    shutil.rmtree(folder, ignore_errors=True)
    write_model(model, folder)
    processor.save_pretrained(folder)
    accuracy = measure(folder)
    size = size_mb(folder)
    write_card(folder, card, accuracy, size)
    print(f"{card.name}: {card.metric} {accuracy:.4f}, {size:.2f} MB")
    if accuracy < at_least or size > at_most_mb:
        raise SystemExit(
            f"{card.name} must reach {at_least} within {at_most_mb} MB, but it has {accuracy:.4f} and {size:.2f} MB: "
            f"it was left in {folder} and the shipped model was not replaced"
        )
    shutil.rmtree(ZOO / card.name, ignore_errors=True)
    shutil.copytree(folder, ZOO / card.name)
    shutil.rmtree(OUT / card.name)  # the next run starts anew


def write_model(model: Any, folder: Path) -> None:
    """Write weights as float16 beside a config that says float32, so that loading gives float32 weights."""
    half = copy.deepcopy(model).half()
    broken = [name for name, weight in half.named_parameters() if not weight.isfinite().all()]
    if broken:
        raise ValueError(
            f"the weights must fit in half precision, but {', '.join(broken)} do not: train with more decay"
        )
    half.save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)  # it was written readable by its owner only
    file = folder / "config.json"
    config = json.loads(file.read_text(encoding="utf-8")) | {"dtype": "float32"}
    file.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def write_card(folder: Path, card: Card, accuracy: float, size: float, **figures: float) -> None:
    """Write README.md: `key: value` lines between `---` lines, then the text; `figures` are further lines."""
    facts = asdict(card) | {"accuracy": f"{accuracy:.4f}", "size_mb": f"{size:.1f}"}
    facts |= {name: f"{value:.4f}" for name, value in figures.items()}
    text = facts.pop("text").strip().format(**facts)
    header = "\n".join(f"{key}: {value}" for key, value in facts.items())
    (folder / "README.md").write_text(f"---\n{header}\n---\n\n{text}\n", encoding="utf-8")


def size_mb(folder: Path) -> float:
    """The size of the files in a folder, in millions of bytes."""
    return sum(file.stat().st_size for file in folder.iterdir()) / 1e6


def measured(evaluate: Callable[[nn.Module], float], model: nn.Module) -> float:
    """The score of a model in eval mode, without gradients."""
    model.eval()
    with torch.inference_mode():
        return evaluate(model)


def seed_everything(*seeds: int) -> None:
    """Seed all generators with a number that differs for each tuple of seeds."""
    seed = int(np.random.SeedSequence(seeds).generate_state(1)[0])
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def bucketed(lengths: Sequence[int], batch_size: int, epochs: int, seed: int) -> list[list[int]]:
    """Batches of indices for all epochs, examples of similar length together, in random order."""
    rng = random.Random(seed)
    batches: list[list[int]] = []
    for _ in range(epochs):
        order = sorted(range(len(lengths)), key=lambda i: (lengths[i], rng.random()))
        epoch = [order[i : i + batch_size] for i in range(0, len(order), batch_size)]
        rng.shuffle(epoch)
        batches += epoch
    return batches


def _decayed_apart(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Parameter groups: biases and norm weights are not decayed."""
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    return [
        {"params": [weight for weight in trained if weight.ndim > 1], "weight_decay": weight_decay},
        {"params": [weight for weight in trained if weight.ndim <= 1], "weight_decay": 0.0},
    ]


def _rate_share(step: int, plan: Plan) -> float:
    """The share of the highest rate to use at a step."""
    rising = max(1, round(plan.steps * plan.warmup))
    return min((step + 1) / rising, (plan.steps - step) / max(1, plan.steps - rising))


def _checkpoint(name: str, plan: Plan, step: int, state: dict[str, Any]) -> None:
    """Write a checkpoint; an interruption leaves the last complete one."""
    file = OUT / name / "checkpoint.pt"
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_suffix(".new")
    torch.save({"plan": asdict(plan), "step": step} | {key: part.state_dict() for key, part in state.items()}, new)
    new.replace(file)


def _resume(name: str, plan: Plan, state: dict[str, Any]) -> int:
    """Load the checkpoint of the same plan, if there is one, and return the step to continue from."""
    file = OUT / name / "checkpoint.pt"
    if not file.exists():
        return 0
    saved = torch.load(file, weights_only=True)
    if saved["plan"] != asdict(plan):
        print(f"{name}: {file} is of another plan, so the training starts anew")
        return 0
    for key, part in state.items():
        part.load_state_dict(saved[key])
    print(f"{name}: going on from step {saved['step']}")
    return saved["step"]


@contextmanager
def _progress(name: str, steps: int, start: int) -> Iterator[tuple[Callable[[], None], Callable[[str], None]]]:
    """A progress bar that starts where the training does: how to advance it, and how to write above it."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns) as progress:
        task = progress.add_task(name, total=steps, completed=start)
        yield lambda: progress.advance(task), progress.console.print
