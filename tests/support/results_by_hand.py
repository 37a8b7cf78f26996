"""Small inputs and attributions that are written by hand, without a model."""

from dataclasses import replace
from itertools import pairwise

import numpy as np

from whence.core.inputs import Input, Target
from whence.core.results import Attribution, Comparison

POSITIVE = Target("logit", 1, "positive")


def pieces(text: str, part: str = "text", stream: str = "text") -> list[tuple]:
    """Name, stream, special, word, offsets and part of every piece; words longer than four letters are cut in two."""
    rows, end = [], 0
    for number, word in enumerate(text.split()):
        start = text.index(word, end)
        end = start + len(word)
        cuts = [start, start + 4, end] if len(word) > 4 else [start, end]
        for i, (a, b) in enumerate(pairwise(cuts)):
            rows.append((("##" if i else "") + text[a:b], stream, False, number, (a, b), part))
    return rows


def special(name: str, stream: str = "text") -> tuple:
    return name, stream, True, -1, (-1, -1), ""


def encoded(rows: list[tuple], texts: dict[str, str], **more: object) -> Input:
    names, streams, marks, words, offsets, parts = zip(*rows, strict=True)
    tensors = {"input_ids": np.arange(len(rows)), "attention_mask": np.ones(len(rows), dtype=np.int64)}
    given = {"raw": texts.get("text", texts), "tensors": tensors, **more}
    return Input(
        features=names,
        streams=streams,
        special=np.array(marks),
        words=np.array(words),
        offsets=np.array(offsets),
        parts=parts,
        texts=texts,
        **given,
    )


def attributed(x: Input, scores: object = None, **more: object) -> Attribution:
    """An attribution with a residual of 0.1."""
    if scores is None:
        scores = np.random.default_rng(0).normal(size=len(x.features))
    total = float(np.sum(np.asarray(scores)))
    given = {"method": "lrp(rules='ah')", "target": POSITIVE, "output": total + 0.1, "base": 0.0, "residual": 0.1}
    return Attribution(scores=np.asarray(scores), input=x, **{**given, **more})


def text_example(text: str = "a masterful film", **more: object) -> Attribution:
    return attributed(encoded([special("[CLS]"), *pieces(text), special("[SEP]")], {"text": text}), **more)


def pair_example() -> Attribution:
    texts = {"text": "is it worth watching", "pair": "watching paint dries"}
    rows = [special("[CLS]"), *pieces(texts["text"]), *pieces(texts["pair"], "pair"), special("[SEP]")]
    return attributed(encoded(rows, texts))


def generated_example() -> Attribution:
    """A prompt of three words (four pieces), two generated words (three pieces)."""
    texts = {"prompt": "the capital is", "continuation": "Paris !"}
    rows = pieces(texts["prompt"], "prompt", "source") + pieces(texts["continuation"], "continuation", "target")
    count, start = len(rows), len(pieces(texts["prompt"]))
    visible = np.tril(np.ones((count, count), dtype=bool), -1)[start:]
    scores = np.random.default_rng(1).normal(size=visible.shape) * visible
    return attributed(
        encoded(rows, texts, generated=tuple(range(start, count))),
        scores,
        axes=("generated", "feature"),
        visible=visible,
        target=tuple(Target("log_probability", i, row[0]) for i, row in enumerate(rows[start:])),
        output=scores.sum(axis=1) + 0.1,
        residual=np.full(count - start, 0.1),
    )


def picture_example(rows: int = 2, columns: int = 3, text: str = "", **more: object) -> Attribution:
    """A picture of 8 x 12 pixels, cut from an original of 20 x 10 (width x height)."""
    patches = [(f"patch {r},{c}", "image", False, -1, (-1, -1), "") for r in range(rows) for c in range(columns)]
    image = np.random.default_rng(2).integers(0, 256, size=(8, 12, 3), dtype=np.uint8)
    place = {"grid": (rows, columns), "image": image, "box": (4.0, 1.0, 16.0, 9.0), "size": (20, 10)}
    x = encoded([*pieces(text), special("[CLS]", "image"), *patches], {"text": text}, raw=image, **{**place, **more})
    return attributed(x)


def comparison() -> Comparison:
    a = text_example()
    return Comparison((a, replace(a, method="attention", scores=np.abs(a.scores) * 20, base=None, residual=None)))
