"""Small inputs and results of every type that are written by hand, without a model."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from whence.core.attention_maps import AttentionMaps
from whence.core.audits import Audit, Finding, Quantity
from whence.core.guidances import Guidance, Measure
from whence.core.inputs import Input, Target
from whence.core.maximisations import Maximisation
from whence.core.name_audits import GroupTest, NameAudit
from whence.core.picture_grids import PictureGrid
from whence.core.relevance_balance import Conservation, ModuleRelevance
from whence.core.results import Attribution, Comparison, Result
from whence.core.run_summaries import FrequentFeature, RunSummary, Verification, WorkerShare
from whence.core.scoreboards import Arbitration, Score, Scoreboard
from whence.core.sensitivities import Sensitivity
from whence.core.shortcut_audits import ShortcutAudit, WordEffect

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


def maps_example(a: Attribution | None = None, model: str = "tiny") -> AttentionMaps:
    """Random attention of two layers with three heads between all features of an attribution."""
    x = (a or text_example()).input
    count = len(x.features)
    weights = np.random.default_rng(0).dirichlet(np.full(count, 0.3), (2, 3, count))
    return AttentionMaps({("*", "*"): weights}, x, model)


def scoreboard_example(count: int = 3, examples: int = 8, **changes: object) -> Scoreboard:
    """Method 0 is the best by far, the last one `random`; the first of two metrics has curves."""
    noise = np.random.default_rng(0).normal(scale=0.01, size=(count, 2, examples))
    curves = np.full((count, 2, 21), np.nan)
    curves[:, 0] = np.linspace(0, 1, 21) / (1 + np.arange(count))[:, None]
    fields = {
        "methods": (*(f"method_{n}" for n in range(count - 1)), "random"),
        "metrics": ("auac", "au_mse(steps=5)"),
        "better": ("higher", "lower"),
        "values": np.array([1.0, *np.linspace(0.6, 0.5, count - 1)])[:, None, None] + noise,
        "seconds": np.linspace(0.1, 0.123456, count * examples).reshape(count, examples),
        "model": "sst2",
        "seed": 3,
        "hidden": ("unknown", ""),
        "curves": curves,
    }
    return Scoreboard(**{**fields, **changes})


def arbitration_example(examples: int = 1, **changes: object) -> Arbitration:
    """Three candidates; an explanation per example."""
    values = np.random.default_rng(0).normal(size=(3, examples, 1))
    fields = {
        "by": "instance",
        "metric": "rft",
        "better": "higher",
        "candidates": ("gae", "lrp(rules='ah')", "random"),
        "values": values,
        "chosen": values.argmax(0),
        "explanations": (text_example(),) * examples,
        "board": scoreboard_example(examples=examples),
        "notes": ("chosen on the examples that are shown",),
    }
    return Arbitration(**{**fields, **changes})


def conservation_example(**changes: object) -> Conservation:
    """A model of an embedding and two blocks, each with a norm that leaks."""
    rows = [
        ModuleRelevance("", "Model", 0, 0, "", 2.0, 1.4, 0.3, 0.3, 0.01, 2.5),
        ModuleRelevance("words", "Embedding", 0, 1, "", 1.4, 1.2, 0.1, 0.1, 0.1, 2.0, ("layer_norm",)),
    ]
    for block in ("0", "1"):
        rows.append(ModuleRelevance(f"layer.{block}", "Layer", 0, 1, block, 1.8, 1.6, 0.1, 0.1, 0.05, 2.0))
        norm = (f"layer.{block}.norm", "LayerNorm", 0, 2, block, 1.8, 1.6, 0.1, 0.1, 0.1, 2.0, ("layer_norm",))
        rows.append(ModuleRelevance(*norm))
    plain = tuple(replace(row, own_leak=2 * row.own_leak) for row in rows)
    fields = {"rows": tuple(rows), "plain": plain, "input": text_example().input, "method": "lrp", "target": POSITIVE}
    return Conservation(**{**fields, "output": 2.0, "model": "tiny", "notes": ("a note",), **changes})


def score_example(**changes: object) -> Score:
    """A metric of three examples, for one of which it is not defined."""
    fields = {
        "metric": "auac(fractions=10)",
        "value": 0.61234,
        "better": "higher",
        "values": np.array([0.5, np.nan, 0.7]),
        "interval": (0.5, 0.7),
        "hidden": "unknown",
    }
    return Score(**{**fields, **changes})


def grid_example(**changes: object) -> PictureGrid:
    """Two pictures by two methods, one of them without signs."""
    signed = picture_example()
    pair = Comparison(
        (signed, replace(signed, method="attention", scores=np.abs(signed.scores), base=None, residual=None))
    )
    return PictureGrid(**{"comparisons": (pair, pair), "names": ("a.png", "b.png"), **changes})


def names_example(**changes: Any) -> NameAudit:
    """Four names of two origins and two genders in two sentences."""
    rng = np.random.default_rng(5)
    test = GroupTest("change", "origin", "here", 2, 2, 0.25, (-0.5, 1.0), 0.4, 0.3, 0.6)
    told = replace(test, measure="relevance", kind="gender", group="female", effect=float("nan"), corrected=0.01)
    given: dict[str, Any] = {
        "names": ("Ann", "Bo", "Cem", "Dilek"),
        "kinds": {"origin": ("here", "here", "there", "there"), "gender": ("female", "male", "male", "female")},
        "sentences": ("{name} made a film.", "I met {name}."),
        "originals": ("", "Ann"),
        "target": Target(index=1, name="positive"),
        "outputs": rng.normal(size=(2, 4)),
        "relevance": rng.normal(size=(2, 4)),
        "predicted": np.array([[0, 1, 1, 1], [1, 1, 1, 1]]),
        "pieces": np.array([1.0, 1, 1, 2]),
        "tests": (test, told),
        "method": "lrp",
        "model": "sst2",
        "notes": ("2 texts of 2 hold a name or {name}",),
    }
    return NameAudit(**given | changes)


def shortcuts_example(**changes: Any) -> ShortcutAudit:
    """A shortcut, a suspect, a strong word and an ordinary one."""
    tried = {"hidden": 0.4, "hidden_interval": (0.3, 0.5), "flips": 0.6, "contexts": 50, "turned": 0.96}
    tried |= {"turned_interval": (0.86, 1.0), "turned_by_others": 0.04, "turned_p": 1e-9}
    misled = {"contrary": 9, "misled": 1.0, "misled_elsewhere": 0.1, "misled_p": 1e-4}
    both = {"good": 0.5, "bad": -0.1}
    found = WordEffect("zq", 20, "good", both, 0.9, 0.1, 1e-9, 1e-8, 0.95, 0.5, 1e-4, 0.5, **tried, **misled)
    found = replace(found, grade="shortcut", examples=("a zq film",))
    weak = {"turned": 0.3, "turned_interval": (0.2, 0.4)}
    words = (
        found,
        replace(found, word="super", misled_p=1.0, grade="suspect"),
        replace(found, word="fine", misled_p=1.0, **weak, grade="strong"),
        WordEffect("the", 200, "bad", {"bad": 0.01}, 0.1, 0.1, 0.5, 1.0, 0.5, 0.5, 1.0),
    )
    given: dict[str, Any] = {"words": words, "model": "sst2", "method": "lrp", "texts": 300, "labelled": True}
    given |= {"classes": {"bad": 0.5, "good": 0.5}, "accuracy": 0.9, "notes": ("a note",)}
    return ShortcutAudit(**given | changes)


def audit_example(*grades: str, examples: int = 3) -> Audit:
    """A finding for every grade, with one number."""
    found = [
        Finding(f"test{n}", "Why?", "So.", grade, (Quantity("change", "", np.linspace(0, 1, examples)),))
        for n, grade in enumerate(grades)
    ]
    names = ("a",) * examples
    return Audit(tuple(found), "sst2", names, names, ("",) * examples, np.arange(examples))


def sensitivity_example(
    p: float = 0.01, randoms: int = 500, accuracy: float = 0.9, derivative: float = 1.0
) -> Sensitivity:
    """Two concepts at two layers; the second concept is one that probes cannot tell apart."""
    shape, rng = (2, 2), np.random.default_rng(6)
    accuracies = np.full((*shape, 3), accuracy)
    accuracies[1] = 0.5
    return Sensitivity(
        concepts=("striped", "red"),
        layers=("0", "1"),
        target=Target("logit", 1, "tiger"),
        scores=np.full((*shape, 3), 0.9),
        intervals=np.tile([0.8, 1.0], (*shape, 1)),
        derivatives=np.full((*shape, 4), derivative),
        projections=rng.normal(size=(*shape, 4)),
        accuracies=accuracies,
        random_derivatives=rng.normal(size=(*shape, randoms)),
        random_accuracies=np.full((*shape, randoms), 0.5),
        p=np.full(shape, p),
        corrected=np.full(shape, p),
        directions=(np.ones((2, 4)),) * 2,
        examples=("a", "b", "c", "d"),
        probe="difference",
        at="deciding",
    )


def units_example(
    start: list, free: list, real: list, excited: list | None = None, made: Any = "a text"
) -> Maximisation:
    """Units by their values at the start of each search, at its end (free), and of the real picture or text."""
    count = len(start)
    return Maximisation(
        targets=tuple(Target("logit", n, f"class {n}") for n in range(count)),
        made=(made,) * count,
        free=np.array(free),
        real=np.array(real),
        start=np.array(start),
        curves=np.stack([np.linspace(a, b, 5) for a, b in zip(start, free, strict=True)]),
        examples=() if excited is None else (("x", "y"),) * count,
        excited=None if excited is None else np.array(excited),
        model="tiny",
    )


def run_example(**changes: Any) -> RunSummary:
    """A run of two methods over 2,000 sentences on two workers, of which 1,200 are done."""
    lrp, ig = "lrp", "integrated_gradients(steps=50)"
    board = scoreboard_example(2, 8, methods=(lrp, ig), metrics=("auac", "au_mse(steps=5)"), curves=None)
    given: dict[str, Any] = {
        "name": "sst2-dev",
        "state": "running",
        "model": "sst2",
        "weights": "9f2c61d0a4b7e85310cc7f4d2ab9e6673f1d0b5842ce9a7716e0d3b8f5a4c921",
        "data": "dev-0.parquet and dev-1.parquet, column 'sentence'",
        "methods": (lrp, ig),
        "metrics": board.metrics,
        "seed": 3,
        "engine": "ray, 2 workers",
        "examples": 2000,
        "done": 1200,
        "failed": 4,
        "chunks": 63,
        "chunks_done": 38,
        "seconds": 200.4,
        "method_seconds": (61.27, 318.9),
        "failures": {
            "the text has 611 tokens, and the model takes 512; truncate it with --truncate": 1,
            "text is empty: a text needs at least one letter": 3,
        },
        "workers": (WorkerShare("ray 0", 20, 631, 191.3), WorkerShare("ray 1", 18, 569, 188.9)),
        "features": (
            FrequentFeature(lrp, "masterful", 9, 1.31, 0.412),
            FrequentFeature(lrp, "not", 88, -0.842, 0.274),
            FrequentFeature(lrp, "##less", 41, -0.513, 0.191),
            FrequentFeature(lrp, "film", 214, 0.0412, 0.048),
            FrequentFeature(ig, "dull", 17, -0.911, 0.388),
            FrequentFeature(ig, "not", 88, -0.402, 0.203),
            FrequentFeature(ig, "warm", 23, 0.371, 0.177),
        ),
        "board": board,
        "versions": {"whence": "0.1.0", "torch": "2.8.0", "transformers": "5.0.0", "numpy": "2.3.1"},
        "notes": ("columns are separated by tabs, and fields may stand in quotation marks",),
    }
    return RunSummary(**given | changes)


def empty_run(**changes: Any) -> RunSummary:
    """The same run before its first chunk."""
    nothing: dict[str, Any] = {"done": 0, "failed": 0, "chunks_done": 0, "seconds": 0.0, "method_seconds": (0.0, 0.0)}
    none = {"failures": {}, "workers": (), "features": (), "board": None, "versions": None, "weights": ""}
    return run_example(**nothing | none | changes)


def verification_example(**changes: Any) -> Verification:
    """Forty rows computed again: most are equal, some differ a little, one too much."""
    differences = np.zeros(40)
    differences[25:] = 10.0 ** np.linspace(-9, -4, 15)
    given: dict[str, Any] = {
        "name": "sst2-dev",
        "model": "sst2",
        "chunks": (3, 17, 41),
        "rows": 40,
        "equal": 25,
        "differences": differences,
        "tolerance": 2e-5,
        "reasons": ("torch 2.8.0 made the run, and torch 2.9.1 is installed here",),
        "damaged": ("chunk-00017.parquet has another checksum than the manifest says",),
        "notes": ("3 of 63 chunks were drawn with seed 0",),
    }
    return Verification(**given | changes)


def same_again(rows: int = 40) -> Verification:
    """A verification whose rows are all equal."""
    return verification_example(rows=rows, equal=rows, differences=np.zeros(rows), damaged=(), reasons=())


def guidance_example(arms: tuple[str, ...] = ("given", "plain", "guided"), gain: float = 0.2) -> Guidance:
    """Two seeds and four examples: attention that became more plausible, accuracy that did not change."""
    shape = (len(arms), 2, 4)
    examples = 0.5 + 0.01 * np.arange(np.prod(shape), dtype=float).reshape(shape) % 0.03
    examples[-1] += gain
    unknown = np.full(shape, np.nan)
    measures = (
        Measure("accuracy", "higher", np.full(shape[:2], 0.9), np.full(shape, 0.9), "the share of labels predicted"),
        Measure("calibration error", "lower", np.linspace(0.01, 0.05, shape[0] * 2).reshape(shape[:2])),
        Measure("plausibility of attention", "higher", examples.mean(-1), examples),
        Measure("attention between seeds", "lower", unknown.mean(-1), unknown),
    )
    steps = np.array([[0.0 if arm == "given" else 12.0] * 2 for arm in arms])
    curves = {f"{arm}: label": np.array([[0.7, 0.4, 0.2], [0.7, 0.5, np.nan]]) for arm in arms if arm != "given"}
    return Guidance(
        model="tiny",
        losses=("rationale(weight=0.5)",),
        arms=arms,
        seeds=(0, 1),
        measures=measures,
        curves=curves | {"guided: rationale(weight=0.5)": np.array([[1.8, 0.9, 0.1], [1.7, 0.8, np.nan]])},
        trained_on=40,
        marked=30,
        held_out=4,
        steps=steps,
        seconds=steps * 0.25,
        settings={"epochs": 2.0, "rate": 5e-5, "batch size": 32.0},
        folder="guided",
        notes=("Faithfulness is of what each model predicts.",),
    )


def every_result() -> dict[str, Result]:
    """One result of every type, and the kinds of inputs that are drawn differently."""
    generated, picture = generated_example(), picture_example(text="a moon")
    return {
        "text": text_example(),
        "pair": pair_example(),
        "generated": generated,
        "picture": picture_example(),
        "picture and text": picture,
        "comparison": comparison(),
        "comparison of generated text": Comparison((generated, replace(generated, method="attention"))),
        "comparison of pictures": Comparison((picture, replace(picture, method="attention"))),
        "grid of pictures": grid_example(),
        "attention": maps_example(),
        "attention over a picture": maps_example(picture),
        "attention of all heads": maps_example().view(all_heads=True),
        "attention of all layers": maps_example(picture).view(all_layers=True),
        "conservation": conservation_example(),
        "score": score_example(),
        "score without values": Score("auac", 1.0, "lower"),
        "scoreboard": scoreboard_example(),
        "scoreboard without curves": scoreboard_example(curves=None, examples=1),
        "arbitration": arbitration_example(),
        "arbitration of several": arbitration_example(4),
        "names": names_example(),
        "shortcuts": shortcuts_example(),
        "audit": audit_example("explains", "does not", "cannot tell"),
        "concepts": sensitivity_example(),
        "guidance": guidance_example(),
        "guidance without a control": guidance_example(("given", "guided"), 0.0),
        "units": units_example([1.0, 2.0], [9.0, 3.0], [8.0, 2.5], [[4.0, 2.0], [3.0, 2.0]]),
        "run": run_example(),
        "run without anything done": empty_run(),
        "verification": verification_example(),
        "verification of equal rows": same_again(),
        "a picture of a unit": units_example([1.0], [9.0], [8.0], made=np.zeros((8, 8, 3), np.uint8)),
    }
