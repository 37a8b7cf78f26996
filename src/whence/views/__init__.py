"""Views of results: plain text, the coloured terminal, HTML, figures. They read results, never a model."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from functools import partial
from html import escape
from typing import Any

import numpy as np

from whence.core.results import Attribution, Comparison
from whence.views import image, tokens
from whence.views.tokens import largest, number, printable, signed

WIDTH = 100  # of plain text; a wider table takes what it needs


def plain(result: Attribution | Comparison) -> str:
    """Text without colour codes, the same on every machine."""
    return uncoloured(coloured(result), WIDTH)


def uncoloured(shown: Any, width: int) -> str:
    """What rich would print, without colour codes; wider where a table with a header needs it."""
    from rich.console import Console
    from rich.measure import Measurement
    from rich.table import Table

    file = io.StringIO()
    console = Console(file=file, width=10_000, color_system=None, force_jupyter=False, legacy_windows=False)
    tables = [part for part in shown.renderables if isinstance(part, Table) and part.show_header]
    console.width = max([width, *(Measurement.get(console, console.options, part).maximum for part in tables)])
    console.print(shown)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


def coloured(result: Attribution | Comparison) -> Any:
    """What rich prints: blue is for the target, red against it."""
    from rich.console import Group

    parts = _attribution_parts(result) if isinstance(result, Attribution) else _comparison_parts(result)
    return Group(*parts)


def html(*results: Attribution | Comparison) -> str:
    """A page that needs nothing else and follows the notebook's colours or the reader's light or dark mode."""
    return page("".join(_attribution_html(r) if isinstance(r, Attribution) else _comparison_html(r) for r in results))


def page(body: str) -> str:
    """The whole of a page."""
    meta = '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    head = f"<!doctype html>{meta}<title>whence</title>\n<style>{_css()}</style>"
    return f'{head}\n<div class="whence">{body}</div>\n'


def figure(a: Attribution) -> Any:
    """A matplotlib Figure: bars for tokens, a matrix for generated text, the picture under its scores."""
    Figure = figure_class()
    facts = [f"{label}: {text}" for label, text in _facts(a)]
    if _only_special_beside_picture(a):
        beside = (f"{printable(a.features[i])} {number(a.scores[i])}" for i in _off_picture(a))
        facts.append(f"not on the picture: {', '.join(beside)}")
    widths, heights, draw = zip(*_panels(a), strict=True)
    drawn = Figure(figsize=(sum(widths), max(heights) + 0.2 * len(facts)), layout="constrained")
    drawn.suptitle("\n".join(facts), fontsize="small", parse_math=False)
    for axes, draw_on in zip(drawn.subplots(1, len(draw), squeeze=False, width_ratios=widths)[0], draw, strict=True):
        draw_on(axes)
    return drawn


def figure_class() -> Any:
    """matplotlib's Figure, or one sentence where it is missing."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("plot() needs matplotlib, which is not installed; run: pip install whence[plot]") from None
    return Figure


def _panels(a: Attribution) -> Iterator[tuple[float, float, Callable[[Any], None]]]:
    """Width and height in inches of every panel, and what draws it."""
    others, scale = _off_picture(a), largest(a.scores)
    for name, grid in _pictures(a):
        yield 4.5, 4.5, partial(image.draw_overlay, a=a, grid=grid, title=name)
    if a.scores.ndim == 2 and others:
        drawn = partial(tokens.draw_matrix, a=a, indices=others, scale=scale)
        yield 5 + 0.35 * len(others), 1.5 + 0.3 * len(a.scores), drawn
    elif others and not _only_special_beside_picture(a):
        yield 6.0, 0.8 + 0.24 * len(others), partial(tokens.draw_bars, a=a, indices=others)


def _off_picture(a: Attribution) -> list[int]:
    """The features that are shown as tokens."""
    on_picture = set(image.patches(a.input))
    return [i for i in range(len(a.features)) if i not in on_picture]


def _only_special_beside_picture(a: Attribution) -> bool:
    """Whether no bars are needed: a bar alone, on a scale of its own, would look strong whatever it is."""
    others = _off_picture(a)
    return a.scores.ndim == 1 and 0 < len(others) < len(a.features) and bool(a.special[others].all())


def _pictures(a: Attribution) -> list[tuple[str, np.ndarray]]:
    """The patch grid of every row of scores, by the row's name; empty without a picture."""
    if not image.patches(a.input).size:
        return []
    grids = image.grid_scores(a.input, a.scores)
    return [("", grids)] if grids.ndim == 2 else list(zip(tokens.row_names(a), grids, strict=True))


def _target_text(a: Attribution) -> str:
    targets = tokens.row_targets(a)
    if a.scores.ndim == 2:
        kinds = {x.name if x.kind == "function" else x.kind.replace("_", "-") for x in targets}
        return f"{', '.join(sorted(kinds))} of {len(a.scores)} generated tokens, one row each"
    return f"{targets[0]}, as the model predicts" if targets[0].predicted else str(targets[0])


def _facts(a: Attribution) -> list[tuple[str, str]]:
    """What every view says before it shows scores."""
    facts = [("method", a.method), ("target", _target_text(a))]
    facts += _row_facts(a) if a.scores.ndim == 1 else [("scale", _scale_text(a.scores))]
    broken = int((~np.isfinite(a.scores)).sum())
    if broken:
        facts.append(("warning", f"{broken} of {a.scores.size} scores are not finite"))
    facts += [("note", note) for note in dict.fromkeys((*a.notes, *a.input.notes))]
    return [(label, printable(text)) for label, text in facts]


def _row_facts(a: Attribution, row: int | None = None) -> list[tuple[str, str]]:
    """f(x), base, residual and scale of one row of scores."""
    output, base, residual, scores = (_of_row(value, row) for value in (a.output, a.base, a.residual, a.scores))
    facts = [("f(x)", number(output))]
    if base is not None:
        facts.append(("base", number(base)))
    facts += [("residual", _residual_text(residual, scores)), ("scale", _scale_text(scores))]
    return facts


def _of_row(value: Any, row: int | None) -> Any:
    return value if row is None or value is None else value[row]


def _residual_text(residual: float | None, scores: np.ndarray) -> str:
    if residual is None:
        return "none: these scores are not shares of f(x)"
    total = float(np.abs(scores).sum())
    if not total or not np.isfinite(total):
        return number(residual)
    return f"{number(residual)} ({abs(residual) / total:.2%} of the sum of |scores|)"


def _scale_text(scores: np.ndarray) -> str:
    scale = largest(scores)
    return f"largest |score| {number(scale)}" if scale or not np.isfinite(scores).all() else "all scores are 0"


def facts_table(facts: list[tuple[str, str]]) -> Any:
    """Facts for the terminal, one per line."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2), pad_edge=False)
    for label, text in facts:
        table.add_row(Text(label, style="dim"), Text(text))
    return table


def _attribution_parts(a: Attribution) -> Iterator[Any]:
    from rich.text import Text

    yield facts_table(_facts(a))
    scale, others, pictures = largest(a.scores), _off_picture(a), _pictures(a)
    rows = a.scores.reshape(-1, len(a.features))
    visible = a.visible.reshape(rows.shape)
    names, targets = tokens.row_names(a), tokens.row_targets(a)
    for row, scores in enumerate(rows):
        yield Text()
        if a.scores.ndim == 2:
            yield Text(f"{row + 1}. {names[row]} ({printable(str(targets[row]))})", style="bold")
            yield Text(
                " · ".join(text if label == "scale" else f"{label} {text}" for label, text in _row_facts(a, row)),
                style="dim",
            )
        if pictures:
            yield from image.grid_lines(a.input, pictures[row][1], largest(image.grid_scores(a.input, a.scores)))
            yield Text()
        yield from tokens.strips(a, scores, [i for i in others if visible[row, i]], scale)


def _comparison_facts(c: Comparison) -> list[tuple[str, str]]:
    facts = [("target", _target_text(c[0]))]
    if c[0].scores.ndim == 1:
        facts.append(("f(x)", number(c[0].output)))
    facts.append(("scale", c.scale_note))
    shared = [note for note in c[0].notes if all(note in a.notes for a in c)]  # said once, not by every method
    facts += [("note", note) for note in shared]
    for a in c:
        kept = (fact for fact in _facts(a) if fact[0] in ("warning", "note") or fact[1] == "all scores are 0")
        own = [(label, text) for label, text in kept if text not in shared]
        facts += [(label if label != "scale" else "warning", f"{a.method}: {text}") for label, text in own]
    return [(label, printable(text)) for label, text in facts]


def _comparison_rows(c: Comparison) -> list[tuple[str, list[np.ndarray], list[int]]]:
    """Per table: its title, every method's scores, and the features to show."""
    others = _off_picture(c[0])
    if c[0].scores.ndim == 1:
        return [("", [a.scores for a in c], others)] if others else []
    names = tokens.row_names(c[0])
    return [
        (name, [a.scores[row] for a in c], [i for i in others if any(a.visible[row, i] for a in c)])
        for row, name in enumerate(names)
    ]


def _footer(c: Comparison, row: int | None) -> Iterator[tuple[str, list[str]]]:
    """What stands below every method's column."""
    scores = [_of_row(a.scores, row) for a in c]
    yield "sum", [number(s.sum()) for s in scores]
    for label, name in (("base", "base"), ("residual", "residual"), ("f(x)", "output")):
        values = (_of_row(getattr(a, name), row) for a in c)
        yield label, ["none" if value is None else number(value) for value in values]
    yield "largest |score|", [number(largest(s)) for s in scores]


def _comparison_parts(c: Comparison) -> Iterator[Any]:
    from rich.text import Text

    yield facts_table(_comparison_facts(c))
    for a in c:
        for name, grid in _pictures(a):
            yield Text(f"\n{printable(a.method)}  {name}".rstrip(), style="bold")
            yield from image.grid_lines(a.input, grid, largest(image.grid_scores(a.input, a.scores)))
    for row, (name, scores, indices) in enumerate(_comparison_rows(c)):
        yield Text(f"\n{row + 1}. {name}" if name else "", style="bold")
        yield _comparison_table(c, scores, indices, row if c[0].scores.ndim == 2 else None)


def _comparison_table(c: Comparison, scores: list[np.ndarray], indices: list[int], row: int | None) -> Any:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("feature", overflow="fold")
    scales = [largest(a.scores) for a in c]
    for a in c:
        table.add_column(Text(printable(a.method)), justify="right", overflow="fold")
    parts = tokens.sections(c[0].input, indices)
    for label, members in parts:
        if len(parts) > 1:
            table.add_row(Text(printable(label), style="italic"))
        for i in members:
            dim = "dim" if c[0].special[i] else ""
            cells = [
                Text(signed(s[i], scale), style=tokens.terminal_style(s[i], scale))
                for s, scale in zip(scores, scales, strict=True)
            ]
            table.add_row(Text(printable(c[0].features[i]), style=dim), *cells)
        table.add_section()
    for label, values in _footer(c, row):
        table.add_row(Text(label, style="dim"), *(Text(value, style="dim") for value in values))
    return table


def facts_html(facts: list[tuple[str, str]]) -> str:
    """Facts for a page, one per line."""
    rows = (f'<tr class="{label}"><th>{label}</th><td dir="auto">{escape(text)}</td></tr>' for label, text in facts)
    return f'<table class="facts">{"".join(rows)}</table>'


def _legend_html(scale: float, hidden: bool = False) -> str:
    if not scale:
        return ""
    note = '<i class="hidden"></i> could not be seen' if hidden else ""
    limit = number(scale)
    return f'<p class="legend">against <span>-{limit}</span><i class="bar"></i><span>+{limit}</span> for {note}</p>'


def _attribution_html(a: Attribution) -> str:
    scale, others, pictures = largest(a.scores), _off_picture(a), _pictures(a)
    body = [facts_html(_facts(a))]
    if pictures:
        patch_scale = largest(image.grid_scores(a.input, a.scores))
        shown = (image.overlay_html(a.input, grid, patch_scale, name or "scores") for name, grid in pictures)
        body += ['<div class="pictures">', image.picture_html(a.input), *shown, "</div>", _legend_html(patch_scale)]
    if a.scores.ndim == 2:
        body.append(tokens.matrix_html(a, others, scale))
    else:
        body.append(tokens.tokens_html(a, a.scores, others, scale))
    if others and not (pictures and patch_scale == scale):
        body.append(_legend_html(scale, hidden=not a.visible.all()))
    return "\n".join(body)


def _comparison_html(c: Comparison) -> str:
    body = [facts_html(_comparison_facts(c))]
    if _pictures(c[0]):
        body += ['<div class="pictures">', image.picture_html(c[0].input)]
        for a in c:
            scale = largest(image.grid_scores(a.input, a.scores))
            full = f"full colour at {number(scale)}"
            body += [
                image.overlay_html(a.input, grid, scale, f"{printable(a.method)} {name} ({full})")
                for name, grid in _pictures(a)
            ]
        body.append("</div>")
    for row, (name, scores, indices) in enumerate(_comparison_rows(c)):
        heading = f'<h4 dir="auto">{row + 1}. {escape(name)}</h4>' if name else ""
        body.append(heading + _comparison_table_html(c, scores, indices, row if c[0].scores.ndim == 2 else None))
    body.append('<p class="legend">against <i class="bar"></i> for, every column on its own scale</p>')
    return "\n".join(body)


def _comparison_table_html(c: Comparison, scores: list[np.ndarray], indices: list[int], row: int | None) -> str:
    heads = "".join(f"<th>{escape(printable(a.method))}</th>" for a in c)
    scales = [largest(a.scores) for a in c]
    parts, lines = tokens.sections(c[0].input, indices), []
    for label, members in parts:
        if len(parts) > 1:
            lines.append(f'<tr><th colspan="{len(c) + 1}" class="part">{escape(printable(label))}</th></tr>')
        for i in members:
            special = " special" if c[0].special[i] else ""
            cells = "".join(
                f'<td title="{number(s[i])}"{tokens.css_colour(s[i], scale)}>{signed(s[i], scale)}</td>'
                for s, scale in zip(scores, scales, strict=True)
            )
            lines.append(
                f'<tr><th dir="auto" class="name{special}">{escape(printable(c[0].features[i]))}</th>{cells}</tr>'
            )
    for label, values in _footer(c, row):
        lines.append(f'<tr class="foot"><th>{label}</th>{"".join(f"<td>{value}</td>" for value in values)}</tr>')
    head = f"<thead><tr><th>feature</th>{heads}</tr></thead>"
    return f'<div class="wide"><table>{head}\n<tbody>{"".join(lines)}</tbody></table></div>'


def _css() -> str:
    """The style sheet, with the colours of the scale."""
    against, in_favour = (f"rgba({','.join(map(str, c))},{tokens.OPACITY})" for c in (tokens.AGAINST, tokens.FOR))
    return CSS.replace("AGAINST", against).replace("FOR", in_favour)


# Colours are translucent and text inherits its own, so the view is readable in any notebook theme; the first rule
# holds only for a page of its own, never for the notebook around it.
CSS = """
:root:has(> body > .whence) { color-scheme: light dark }
.whence { font: 14px/1.35 system-ui, sans-serif; max-width: 75em }
.whence h4 { margin: .8em 0 .2em; font-weight: 600; font-size: 1em; opacity: .75 }
.whence table { border-collapse: separate; border-spacing: 2px; font-variant-numeric: tabular-nums; margin: .4em 0 }
.whence th { font-weight: 500; text-align: left }
.whence td { text-align: right; padding: .1em .45em; min-width: 2em; border-radius: 3px; font-size: .92em }
.whence .facts th { opacity: .65; padding-right: 1em; vertical-align: top }
.whence .facts td { text-align: start; padding: 0; font-size: 1em }
.whence .facts .warning td { font-weight: 600 }
.whence .tokens { line-height: 1; margin: .6em 0 }
.whence .tokens span { display: inline-flex; flex-direction: column; align-items: center; margin: 0 1px 7px }
.whence .tokens b { font: 400 1.1em/1.3 system-ui, sans-serif; padding: 1px 4px; border-radius: 3px; white-space: pre }
.whence .tokens small { font-size: .68em; opacity: .7; margin-top: 2px; font-variant-numeric: tabular-nums }
.whence .special b, .whence th.special { font-style: italic; color: color-mix(in srgb, currentcolor 60%, transparent) }
.whence .wide { overflow-x: auto }
.whence thead th { text-align: center; opacity: .85; padding: 0 .4em; vertical-align: bottom }
.whence thead th:first-child { text-align: left }
.whence .column { padding: 0 }
.whence .column span { writing-mode: vertical-rl; transform: rotate(180deg); white-space: pre }
.whence .name { white-space: pre; padding-right: .6em }
.whence .part { font-style: italic; opacity: .75; padding-top: .5em }
.whence .foot th, .whence .foot td { opacity: .7 }
.whence tr:not(.foot) + .foot > * { border-top: 1px solid rgba(128,128,128,.6) }
.whence .gap { padding: 0; min-width: .6em }
.whence .hidden { background: repeating-linear-gradient(135deg, rgba(128,128,128,.4) 0 2px, transparent 2px 6px) }
.whence .legend { font-size: .85em; opacity: .85; display: flex; align-items: center; gap: .5em; margin: .3em 0 1em }
.whence .legend i { display: inline-block; width: 1.4em; height: 1em; border-radius: 3px }
.whence .legend .bar { width: 11em; background: linear-gradient(90deg, AGAINST, transparent, FOR) }
.whence .pictures { display: flex; flex-wrap: wrap; gap: 14px; margin: .6em 0 }
.whence figure { margin: 0; width: 300px }
.whence figure > div { position: relative }
.whence figure img { width: 100%; display: block; border-radius: 4px; image-rendering: pixelated }
.whence figcaption { font-size: .85em; opacity: .75; margin-top: .2em }
.whence .cells { position: absolute; inset: 0; display: grid }
.whence .cells i:hover { outline: 2px solid rgba(255,160,0,.9) }
"""
