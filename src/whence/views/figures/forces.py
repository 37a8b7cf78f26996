"""From the base to f(x), score by score: the waterfall and the force figure of an Attribution."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from whence.core import display
from whence.core.results import Attribution
from whence.core.specs import Between
from whence.views.colours import in_figure, of_sign
from whence.views.content.attribution import of_row, shown
from whence.views.content.written import passages
from whence.views.figures.headings import chosen_row, heading
from whence.views.figures.layout import INCH, Millimetres, new_figure, wrapped_to
from whence.views.figures.letters import inches
from whence.views.text import largest, number, printable, signed

SMALL = 8.0  # points
REST = "0.6"  # the grey of steps that belong to no single feature
NEGLIGIBLE = 1e-4  # a residual below this share of the sum of |scores| is rounding, and has no bar
NAME = 26  # characters of a name
Most = Annotated[int, Between(1, 60)]


@dataclass(frozen=True)
class Step:
    """One step from the base to f(x)."""

    name: str
    value: float
    colour: Any
    hatch: str = ""


def steps_of(a: Attribution, row: int | None, most: int, kind: str) -> list[Step]:
    """The features with the largest |score|, largest first, all others as one step, and what the scores leave over."""
    if a.base is None or not a.signed:
        others = [name for name in display.figure.kinds(Attribution) if name not in ("waterfall", "force")]
        raise ValueError(
            f"a {kind} leads from the base to f(x), and the scores of {a.method} are no shares of f(x); "
            f"draw {' or '.join(map(repr, others[:2]))}"
        )
    scores, residual = of_row(a.scores, row), of_row(a.residual, row)
    seen = np.flatnonzero(np.isfinite(scores) & of_row(a.visible, row))
    order = sorted(seen.tolist(), key=lambda i: -abs(scores[i]))
    first = order[:most] if len(order) > most + 1 else order
    names = feature_names(a, order)
    steps = [Step(names[i], float(scores[i]), in_figure(of_sign(scores[i]))) for i in first]
    rest = order[len(first) :]
    if rest:
        value = float(scores[rest].sum())
        steps.append(Step(f"{len(rest)} others", value, in_figure(of_sign(value)), "////"))
    if residual is not None and np.isfinite(residual) and abs(residual) > NEGLIGIBLE * np.abs(scores[seen]).sum():
        steps.append(Step("residual", float(residual), REST))
    return steps


def feature_names(a: Attribution, indices: Sequence[int]) -> dict[int, str]:
    """Features as they are written; a name that comes several times has its number behind it."""
    written = {p.feature: p.text for passage in passages(a.input, range(len(a.features))) for p in passage.pieces}
    names = {i: written[i] if a.input.grid is None else printable(a.features[i]) for i in indices}
    times = Counter(names.values())
    cut = {i: name if len(name) <= NAME else name[: NAME - 1] + "…" for i, name in names.items()}
    return {i: f"{name} ({i})" if times[names[i]] > 1 else name for i, name in cut.items()}


@display.figure.register(Attribution, "waterfall")
def waterfall(a: Attribution, *, most: Most = 12, width: Millimetres = 130, row: int = 0) -> Any:
    """From the base, above, to f(x), below: a bar per feature, each beginning where the one before ended."""
    a = shown(a)
    row_number, said = chosen_row(a, row)
    steps = steps_of(a, row_number, most, "waterfall")
    base, output = (float(of_row(value, row_number)) for value in (a.base, a.output))
    head = [line for text in (*said, *heading(a, row_number)) for line in wrapped_to(text, width / INCH - 0.1, SMALL)]
    drawn = new_figure(width / INCH, 0.75 + 0.22 * (len(steps) + 2) + 0.15 * len(head))
    drawn.suptitle("\n".join(head), fontsize=SMALL, x=0.01, ha="left", parse_math=False)
    axes = drawn.subplots()
    ends = np.cumsum([base, *(step.value for step in steps)])
    span = float(np.ptp([*ends, output])) or 1.0
    scale = largest(np.array([step.value for step in steps])) if steps else 1.0
    for place, (step, start, end) in enumerate(zip(steps, ends, ends[1:], strict=False), 1):
        _arrow(axes, float(start), float(end), place, span, step)
        axes.plot((end, end), (place - 0.36, place + 1.36), color="0.6", linewidth=0.6, zorder=0)
        outside = max(start, end) + 0.012 * span
        axes.text(outside, place, signed(step.value, scale), fontsize=SMALL, va="center_baseline", parse_math=False)
    for place, value in ((0, base), (len(steps) + 1, output)):
        axes.plot((value, value), (place - 0.4, place + 0.4), color="black", linewidth=1.4)
        axes.text(value + 0.012 * span, place, number(value), fontsize=SMALL, va="center_baseline", fontweight="bold")
    axes.plot((base, base), (0.36, 1.36), color="0.6", linewidth=0.6, zorder=0)
    names = ["base", *(step.name for step in steps), "f(x)"]
    axes.set_yticks(range(len(names)), names, fontsize=SMALL, parse_math=False)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlim(min([*ends, output]) - 0.03 * span, max([*ends, output]) + 0.16 * span)
    _plain(axes)
    axes.set_xlabel("from the base to f(x): blue for, red against the target", fontsize=SMALL)
    return drawn


def _arrow(axes: Any, start: float, end: float, place: float, span: float, step: Step, half: float = 0.34) -> None:
    """A bar whose end points to where it goes, so that its sign shows without colours."""
    from matplotlib.patches import Polygon

    if not end - start:
        return
    tip = min(abs(end - start), 0.012 * span) * np.sign(end - start)
    corners = [
        (start, place - half),
        (end - tip, place - half),
        (end, place),
        (end - tip, place + half),
        (start, place + half),
    ]
    style = {"facecolor": step.colour, "edgecolor": "white" if step.hatch else "none", "hatch": step.hatch or None}
    axes.add_patch(Polygon(corners, closed=True, linewidth=0, **style))


def _plain(axes: Any) -> None:
    """Axes without frame but for the line below."""
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=SMALL)


@display.figure.register(Attribution, "force")
def force(a: Attribution, *, most: Most = 10, width: Millimetres = 180, row: int = 0) -> Any:
    """One line: what speaks for the target pushes f(x) to the right, what speaks against it to the left."""
    a = shown(a)
    row_number, said = chosen_row(a, row)
    steps = steps_of(a, row_number, most, "force figure")
    base, output = (float(of_row(value, row_number)) for value in (a.base, a.output))
    pushing = [[step for step in steps if step.value * sign > 0] for sign in (1, -1)]
    head = [line for text in (*said, *heading(a, row_number)) for line in wrapped_to(text, width / INCH - 0.1, SMALL)]
    scale = largest(np.array([step.value for step in steps])) if steps else 1.0
    names = max([inches(_labelled(step, scale), SMALL) for step in steps] or [0.5])
    below = min(1.6, 0.25 + names)
    drawn = new_figure(width / INCH, 1.0 + below + 0.15 * len(head), layout="none")
    total = drawn.get_figheight()
    for place, line in enumerate(head):
        drawn.text(0.01, 1 - (0.1 + 0.15 * place) / total, line, fontsize=SMALL, va="top", parse_math=False)
    axes = drawn.add_axes((0.02, (below + 0.05) / total, 0.96, 0.62 / total))
    ends = [output - sum(s.value for s in pushing[0]), output - sum(s.value for s in pushing[1])]
    low, high = min(*ends, base), max(*ends, base)
    span = (high - low) or 1.0
    axes.set(xlim=(low - 0.02 * span, high + 0.02 * span), ylim=(0, 1))
    tops = _draw_pushing(axes, pushing, output, span)
    _draw_labels(axes, tops, width / INCH * 0.96, scale)
    for name, value, colour in (("base", base, "0.35"), ("f(x)", output, "black")):
        axes.plot((value, value), (0.05, 1.0), color=colour, linewidth=1.2, linestyle=":" if name == "base" else "-")
    _draw_ends(axes, base, output, span)
    _plain(axes)
    axes.set_yticks([])
    axes.spines["bottom"].set_visible(False)
    axes.tick_params(axis="x", labelbottom=False, length=0)
    return drawn


def _labelled(step: Step, scale: float) -> str:
    """A step with its score."""
    return f"{step.name}  {signed(step.value, scale)}"


def _draw_pushing(
    axes: Any, pushing: Sequence[Sequence[Step]], output: float, span: float
) -> list[tuple[float, float, Step]]:
    """Arrows on both sides of f(x), the largest next to it; returns the middle and the length of each."""
    places = []
    for own in pushing:
        at = output
        for step in sorted(own, key=lambda one: -abs(one.value)):
            start = at - step.value
            _arrow(axes, start, at, 0.4, span, step, half=0.26)
            places.append(((start + at) / 2, abs(step.value), step))
            axes.plot((start, start), (0.14, 0.66), color="white", linewidth=0.8)
            at = start
    return places


def _draw_labels(axes: Any, places: Sequence[tuple[float, float, Step]], wide: float, scale: float) -> None:
    """Names below the arrows, turned, pushed apart where they would lie over each other."""
    low, high = axes.get_xlim()
    step = SMALL * 1.25 / 72 / wide * (high - low)  # the room that a turned line of text takes
    order = sorted(places, key=lambda one: one[0])
    wanted = np.array([place for place, _, _ in order])
    at = wanted.copy()
    for _ in range(200):
        moved = False
        for i in range(len(at) - 1):
            lack = step - (at[i + 1] - at[i])
            if lack > 1e-9 * step:
                at[i], at[i + 1], moved = at[i] - lack / 2, at[i + 1] + lack / 2, True
        at = np.clip(at, low + step / 2, high - step / 2)
        if not moved:
            break
    for label, place, (_, _, one) in zip(at, wanted, order, strict=True):
        axes.plot((place, label), (0.12, -0.06), color="0.7", linewidth=0.6, clip_on=False)
        axes.text(
            label,
            -0.09,
            _labelled(one, scale),
            rotation=90,
            ha="center",
            va="top",
            fontsize=SMALL,
            color=one.colour if one.colour != REST else "0.3",
            parse_math=False,
        )


def _draw_ends(axes: Any, base: float, output: float, span: float) -> None:
    """The numbers of base and f(x) above the line, apart from each other."""
    left = "right" if output < base else "left"
    close = abs(output - base) < 0.25 * span
    sides = {
        "f(x)": left if close else "center",
        "base": ("left" if left == "right" else "right") if close else "center",
    }
    for name, value in (("base", base), ("f(x)", output)):
        weight = "bold" if name == "f(x)" else "normal"
        text = f" {name} {number(value)} "
        axes.text(value, 1.02, text, ha=sides[name], va="bottom", fontsize=SMALL, fontweight=weight)
