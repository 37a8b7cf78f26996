"""Scores of methods and values of metrics on the embedded models, kept in `docs/pictures` by `make docs-pictures`."""

from __future__ import annotations

import json
import math
import time
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import whence
from whence.core.registry import Record

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "docs" / "pictures"
SENTENCE = "A slow start, but I could not stop laughing."
JUDGED = ("lrp", "leave_one_out", "integrated_gradients", "gae", "attention", "random")
DRAWN = ("gae", "attnlrp", "integrated_gradients", "rise", "attention")
FEW = {"rise": "rise(samples=2000)"}  # enough masks for a map without speckles


@cache
def _subject(name: str) -> Any:
    return whence.load(name)


def kept(kind: str) -> dict[str, Any]:
    """The facts kept in `docs/pictures` about "methods" or "metrics", by name."""
    file = KEPT / f"{kind}.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def of_method(record: Record) -> dict[str, Any]:
    """The words of the sentence with their scores, and the cost beside gradient x input; {} if it takes no texts."""
    if "text-classification" not in record.tasks:
        return {}
    s = _subject("sst2")
    a = whence.explain(s, SENTENCE, record.name, "positive").words()
    base = min(_seconds(s, "gradient_x_input") for _ in range(5))
    cost = min(_seconds(s, record.name) for _ in range(3)) / base
    words = [f.strip() for f in a.features]
    return {
        "words": words,
        "special": a.special.tolist(),
        "scores": [float(f"{score:.4g}") for score in a.scores],
        "signed": a.signed,
        "cost": float(f"{cost:.2g}"),
    }


def _seconds(subject: Any, method: str) -> float:
    start = time.process_time()
    whence.explain(subject, SENTENCE, method, "positive")
    return time.process_time() - start


def photo(record: Record, file: Path) -> bool:
    """Draw the scores of the method over the ladybug, or nothing where it takes no pictures."""
    if "image-classification" not in record.tasks:
        return False
    a = whence.explain(_subject("photos"), whence.zoo.samples()["ladybug.png"], FEW.get(record.name, record.name))
    save_overlay(a, file)
    return True


def save_overlay(a: whence.Attribution, file: Path) -> None:
    """The picture under its scores, without the words around it."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot
    from PIL import Image

    figure = a.plot()
    pixels = max((image.get_array() for axes in figure.axes for image in axes.images), key=lambda array: array.size)
    pyplot.close(figure)
    array = np.asarray(pixels)
    array = array if array.dtype == np.uint8 else (array * 255).round().astype(np.uint8)
    picture = Image.fromarray(array[..., :3])
    picture.thumbnail((400, 400))
    picture.save(file, quality=82)


def of_metric(record: Record) -> dict[str, Any]:
    """The means and curves of a few methods by the metric: on sentences, else on planted texts or drawings."""
    for model in ("sst2", "planted", "photos"):
        data = [_row(model, example) for example in whence.zoo.examples(model, 8, seed=1)]
        judged = [method for method in JUDGED if not record.compares_with(method)]
        try:
            board = whence.evaluate(_subject(model), data, judged, [record.name], seed=0)
        except ValueError:
            continue  # the metric does not take such inputs, or needs a truth
        means = {method: board.score(method, record.name).value for method in judged}
        found = {
            method: {"mean": float(f"{mean:.3g}"), "curve": _curve(board, method, record)}
            for method, mean in means.items()
            if math.isfinite(mean)
        }
        if found:
            return {"model": model, "examples": len(data), "methods": found}
    return {}


def _row(model: str, example: Any) -> dict[str, Any]:
    row = {"image" if model == "photos" else "text": example.input, "label": example.label}
    return row | ({} if example.truth is None else {"truth": example.truth})


def _curve(board: Any, method: str, record: Record) -> list[list[float]]:
    if not record.axes:
        return []
    shares, values = board.curve(method, record.name)
    return [[round(float(x), 3), round(float(y), 3)] for x, y in zip(shares, values, strict=True)]


def make_methods() -> None:
    """The scores of every method, and its map over the photo."""
    facts = {record.name: of_method(record) for record in whence.list_methods()}
    (KEPT / "methods.json").write_text(_written(facts), encoding="utf-8")
    for record in whence.list_methods():
        photo(record, KEPT / f"photo-{record.name}.jpg")


def make_metrics() -> None:
    """The values of a few methods by every metric."""
    facts = {record.name: of_metric(record) for record in whence.list_metrics()}
    (KEPT / "metrics.json").write_text(_written(facts), encoding="utf-8")


def make_gallery() -> None:
    """A figure of every kind of result, and the kinds of figures that a result has."""
    s, v = _subject("sst2"), _subject("photos")
    ladybug, reviews = whence.zoo.samples()["ladybug.png"], whence.zoo.samples()["reviews.tsv"]
    a = whence.explain(s, SENTENCE, "integrated_gradients", "positive").words()
    c = whence.compare(s, SENTENCE, list(JUDGED), "positive")
    maps = whence.attention_maps(s, SENTENCE)
    figures: dict[str, tuple[Any, str | None]] = {
        "bars.svg": (a, "bars"),
        "waterfall.svg": (a, "waterfall"),
        "force.svg": (a, "force"),
        "comparison.svg": (c, "text"),
        "agreement.svg": (c, "agreement"),
        "generated.svg": (whence.explain(_subject("dates"), "3 March 2014", "gae"), "matrix"),
        "heads.svg": (maps.view(layer=3, head=5), "heads"),
        "model.png": (maps, "model"),
        "grid.jpg": (whence.PictureGrid(tuple(whence.compare(v, [ladybug], list(DRAWN))), ("ladybug",)), None),
        "board.svg": (whence.evaluate(s, reviews, list(JUDGED), ["auac"], limit=16), None),
        "conservation.svg": (whence.conservation(s, SENTENCE, "lrp", "positive"), None),
        "audit.svg": (whence.audit(s, reviews, ["agreement", "permutation", "uniform"], limit=6), None),
        "concept.svg": (whence.concept(_subject("textures"), ["striped", "red"], "striped"), None),
        "units.png": (whence.maximize(_subject("textures"), ["striped", "dotted", "mlp:2:17"]), None),
    }
    for name, (result, kind) in figures.items():
        _draw(result, kind, KEPT / f"gallery-{name}")


def _draw(result: Any, kind: str | None, file: Path) -> None:
    """Write the figure of a result; as JPEG, which results do not write themselves, where it holds photos."""
    if file.suffix != ".jpg":
        result.write(file, kind=kind)
        return
    from PIL import Image

    drawn = file.with_suffix(".png")
    result.write(drawn, kind=kind)
    Image.open(drawn).convert("RGB").save(file, quality=85)
    drawn.unlink()


MAKERS = {"methods": make_methods, "metrics": make_metrics, "gallery": make_gallery}


def make(kinds: list[str]) -> None:
    """Make the named kinds of kept files anew, or all kinds."""
    KEPT.mkdir(exist_ok=True)
    for kind in kinds or MAKERS:
        MAKERS[kind]()


def _written(facts: dict[str, Any]) -> str:
    lines = [f"{json.dumps(name)}: {json.dumps(fact)}" for name, fact in facts.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"
