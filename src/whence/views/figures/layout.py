"""What figures share: making one, names at axes as plain text, bars of means with their intervals."""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any

import numpy as np

from whence.core.specs import Between
from whence.views.content.scoreboard import Row, Style, bar_range, cells
from whence.views.figures.letters import fallback_fonts, inches, missing_letters_said_once
from whence.views.text import printable

REAL_TEXT: Any = {"svg.fonttype": "none", "pdf.fonttype": 42, "ps.fonttype": 42}  # letters stay letters in files
RANDOM = "#404040"  # colour of the method `random`; pages use the colour of their text instead
NAME = 34  # characters of a name in a line
TICK = 24  # characters of a name at an axis
LINES = 6  # most lines of a text
INCH = 25.4  # millimetres
NOTEBOOK = 144  # dots per inch of a figure in a notebook, which shows it at half that size
Millimetres = Annotated[float, Between(40, 1000)]  # the width of a figure: a column of a journal has about 85


def new_figure(width: float, height: float, layout: str = "constrained") -> Any:
    """An empty matplotlib Figure, sizes in inches; a one-sentence error if matplotlib is missing."""
    try:
        return figure_class()(figsize=(width, height), layout=layout)
    except ImportError:
        raise ImportError("plot() needs matplotlib, which is not installed; run: pip install whence[plot]") from None


def __getattr__(name: str) -> Any:
    """The class of figures, under a name that pickled figures can find; asking for it loads matplotlib."""
    if name == "ResultFigure":
        return figure_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@lru_cache(maxsize=1)
def figure_class() -> Any:
    """The class of figures: a Figure that notebooks show without pyplot, and whose letters stay letters in files."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    class ResultFigure(Figure):
        """The figure of a result, in no registry of pyplot's."""

        def draw(self, renderer: Any) -> None:
            """Draw with the fonts that hold the letters of this figure."""
            if fallback_fonts():
                for text in self.findobj(Text):
                    if not text.get_text().isascii():
                        text.set_fontfamily(list(dict.fromkeys([*text.get_fontfamily(), *fallback_fonts()])))
            super().draw(renderer)

        def savefig(self, fname: Any, **options: Any) -> None:
            """Save the figure; vector graphics hold real text."""
            named = options.get("format") or str(fname)
            with rc_context(REAL_TEXT), missing_letters_said_once(str(named).lower().endswith("svg")):
                super().savefig(fname, **options)

        def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
            """The picture that a notebook shows, with the size it should have there."""
            from PIL import Image

            file = io.BytesIO()
            self.savefig(file, format="png", dpi=NOTEBOOK, bbox_inches="tight", pad_inches=0.05)
            width, height = Image.open(file).size
            return file.getvalue(), {"width": width // 2, "height": height // 2}

    ResultFigure.__qualname__ = ResultFigure.__name__
    return ResultFigure


def colour_of(style: Style) -> str:
    """The colour of a method; a figure has no text colour of its own to inherit."""
    return RANDOM if style.colour == "currentColor" else style.colour


def legend_beside(axes: Any) -> None:
    """A legend to the right of the axes; its names are plain text, also where they hold dollar signs."""
    legend = axes.legend(fontsize="x-small", loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    for text in legend.get_texts():
        text.set_parse_math(False)


def tick(name: str) -> str:
    """A name at an axis, printable, cut where it would leave no room for what is drawn."""
    shown = printable(name)
    return shown if len(shown) <= TICK else shown[: TICK - 1] + "…"


def wrapped(text: str, letters: int) -> str:
    """The text in lines of so many letters, cut where it would leave no room for what is drawn."""
    lines = textwrap.wrap(printable(text), max(letters, 10), max_lines=LINES, placeholder="…")
    return "\n".join(lines) or printable(text)


def wrapped_to(text: str, width: float, size: float) -> list[str]:
    """The text in lines of so many inches, in letters of so many points."""
    lines = [""]
    for word in re.split(r"(?<= )|(?=\()", printable(text) if text else ""):  # after spaces, and before options
        if lines[-1] and inches((lines[-1] + word).rstrip(), size) > width:
            lines.append(word)
        else:
            lines[-1] += word
        while len(lines[-1]) > 1 and inches(lines[-1], size) > width:  # a word that is too long for a line
            fitting = max(1, int(len(lines[-1]) * width / inches(lines[-1], size)))
            lines[-1:] = [lines[-1][:fitting], lines[-1][fitting:]]
    return [line.strip() for line in lines if line.strip()]


def draw_means(axes: Any, rows: Sequence[Row], styles: Mapping[str, Style]) -> None:
    """A bar for every mean with the whiskers of its interval; a dot where a scale from zero would hide differences."""
    axes.spines[["top", "right", "left"]].set_visible(False)
    written = cells(rows)
    labels = [f"{wrapped(row.method, NAME)}  {mean.strip()}{row.star}{row.defined_for}" for row, mean, _ in written]
    axes.set_yticks(range(len(rows)), labels, fontsize="small", parse_math=False)
    for label, row in zip(axes.get_yticklabels(), rows, strict=True):
        label.set_fontweight("bold" if row.best else "normal")
    axes.set_ylim(len(rows) - 0.4, -0.6)
    span = bar_range(rows)
    if span is None:
        axes.text(0.5, 0.5, "not defined for any method", transform=axes.transAxes, ha="center", fontsize="small")
        axes.set_xticks([])
        return
    axes.set_xlim(span.low, span.high)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize="small")
    axes.grid(axis="x", alpha=0.3, linewidth=0.6)
    axes.set_axisbelow(True)
    tied = [place for place, row in enumerate(rows) if row.star]
    for place in tied if len(tied) > 1 else ():  # one background for all that are not told apart from the best
        axes.axhspan(place - 0.5, place + 0.5, color="0.93", linewidth=0, zorder=-1)
    for place, row in enumerate(rows):
        if np.isfinite(row.score.value):
            _draw_mean(axes, place, row, colour_of(styles[row.method]), span.from_zero)


def _draw_mean(axes: Any, place: int, row: Row, colour: str, from_zero: bool) -> None:
    value = row.score.value
    if from_zero:
        axes.barh(place, value, 0.65, color=colour, alpha=0.65)
    else:
        axes.plot(value, place, "o", color=colour, markersize=6)
    if row.score.interval:
        start, end = row.ends
        axes.errorbar(
            (start + end) / 2, place, xerr=(end - start) / 2, fmt="none", ecolor="0.25", elinewidth=1, capsize=2.5
        )
