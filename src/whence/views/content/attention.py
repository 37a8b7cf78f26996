"""What every medium says about selected attention maps: their facts, names, scale, and the table of one map."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from whence.core.attention_maps import AttentionMaps, AttentionSelection, Panel
from whence.core.geometry import patches
from whence.core.interventions import ignored_words
from whence.core.looks import Look
from whence.views.content.attribution import Facts
from whence.views.content.picture import Overlay, check_look, overlays
from whence.views.text import largest, number, printable, weight

NAMED_ELSEWHERE = 6  # how many keys outside the picture are named


@dataclass(frozen=True)
class Shares:
    """Where the weight of a map lies, as shares of its sum; None for a share that has no meaning there."""

    special: float | None  # on special tokens
    first: float | None  # on the first key
    itself: float | None  # of queries on themselves
    before: float | None  # of queries on the token before them, in a text


def shares(maps: AttentionMaps, streams: tuple[str, str], matrix: np.ndarray) -> Shares:
    """Where the weight of a (query, key) matrix between two streams lies."""
    keys = maps.members(streams[1])
    finite = np.where(np.isfinite(matrix), matrix, 0.0)
    total = float(finite.sum())
    if not total > 0:
        return Shares(None, None, None, None)
    special = maps.input.special[list(keys)]
    same = maps.members(streams[0]) == keys
    return Shares(
        float(finite[:, special].sum()) / total if special.any() else None,
        float(finite[:, 0].sum()) / total,
        float(np.trace(finite)) / total if same else None,
        float(np.trace(finite, offset=-1)) / total if same and len(keys) > 1 and not patches(maps.input).size else None,
    )


def parts_of(maps: AttentionMaps) -> list[str]:
    """The part of the input that every feature belongs to: a sentence of a pair, the picture, the continuation.

    A special token belongs to the part before it; the first one to the part after it.
    """
    x = maps.input
    of_text = [part or ("" if stream != "image" else stream) for part, stream in zip(x.parts, x.streams, strict=True)]
    behind = next((part for part in of_text if part), "")
    found = []
    for part in of_text:
        behind = part or behind
        found.append(behind)
    return found


def lead(selection: AttentionSelection) -> str:
    """What a page shows and how to read it, in plain words."""
    names, total = row_names(selection), "less than 1" if _most_to_sink(selection) else "1"
    if selection.over_picture:
        looking = "all queries look, on average" if selection.query is None else f"{names[selection.query]} looks"
        what = (
            "Where patches of the picture look: point at one, or move to it with the arrow keys. "
            f"At first, where {looking}."
        )
    else:
        what = (
            "What looks at what: a line goes from a token that looks (a query, left) to one that it looks at (a key, "
            "right), and a row of the matrix is one query."
        )
    return (
        f"{what} The weights of a query sum to {total}; the stronger the colour, the larger the weight. Attention is "
        "not by itself an explanation of what a model decides: whence audit tests whether it is one here."
    )


def reading(selection: AttentionSelection) -> str:
    """Where the weight lies, in a sentence about all maps that are selected."""
    found = [shares(selection.maps, selection.streams, selection.matrix(panel)) for panel in selection.panels]
    means = {
        where: np.mean(own)
        for where, own in (
            ("special tokens", [one.special for one in found if one.special is not None]),
            ("the first key", [one.first for one in found if one.first is not None]),
            ("the query itself", [one.itself for one in found if one.itself is not None]),
            ("the one before", [one.before for one in found if one.before is not None]),
        )
        if own
    }
    if means.get("the first key") == means.get("special tokens"):
        means.pop("the first key", None)  # it is the only special token
    telling = {where: share for where, share in means.items() if share >= 0.005 or where == "special tokens"}
    said = ", ".join(f"{100 * share:.0f} % on {where}" for where, share in telling.items())
    return f"Of all weight, {said}." if said else "There is no weight to show."


def row_names(selection: AttentionSelection) -> list[str]:
    """The queries, printable."""
    return [printable(name) for name in selection.rows]


def column_names(selection: AttentionSelection) -> list[str]:
    """The keys, printable."""
    return [printable(name) for name in selection.columns]


def panel_name(panel: Panel) -> str:
    """A layer and head, in words."""
    return f"layer {panel[0]}, " + ("mean of heads" if panel[1] is None else f"head {panel[1]}")


def named_matrix(selection: AttentionSelection) -> tuple[list[str], list[str], np.ndarray]:
    """Names of rows and columns, and the weights: of one map, or of one query in several."""
    columns, rows = column_names(selection), row_names(selection)
    if selection.query is None:
        return rows, columns, selection.matrix(selection.panels[0])
    single = len(selection.panels) == 1
    names = [rows[selection.query]] if single else [panel_name(panel) for panel in selection.panels]
    return names, columns, np.stack([selection.row(panel) for panel in selection.panels])


def scale(selection: AttentionSelection) -> float:
    """The largest weight that is shown."""
    if selection.query is not None and not selection.over_picture:
        return largest(named_matrix(selection)[2])
    return max(largest(selection.weights(panel)) for panel in selection.panels)


def over_picture(selection: AttentionSelection, look: Look | None = None) -> list[Overlay]:
    """The weights of the patches over the picture, all on one scale from 0; none where a matrix is shown."""
    if not selection.over_picture:
        check_look(replace(selection.maps.input, grid=None), look)
        return []
    return overlays(selection.maps.input, list(map(selection.weights, selection.panels)), False, look, low=0.0)


def title(selection: AttentionSelection) -> list[str]:
    """The lines above a figure."""
    known = dict(facts(selection))
    named = ", ".join(
        text if text.startswith(("all", "mean")) else f"{what} {text}" for what, text in list(known.items())[1:3]
    )
    return [
        f"{known['model']}: attention, {named}",
        *(f"{name}: {known[name]}" for name in ("query", "elsewhere", "streams", "sink") if name in known),
    ]


def facts(selection: AttentionSelection) -> Facts:
    """What every medium says before it shows weights, printable."""
    layer, head = _layer_and_head(selection)
    found = [("model", selection.maps.model or "not named"), ("layer", layer), ("head", head)]
    if selection.query is not None:
        found.append(("query", f"{row_names(selection)[selection.query]} (number {selection.query})"))
    elif selection.over_picture:
        found.append(("query", f"mean of {len(selection.rows)}"))
    if len(selection.panels) == 1 and selection.over_picture:
        found += [("elsewhere", _elsewhere(selection))]
    found += [("streams", _streams_text(selection)), ("scale", f"largest weight {number(scale(selection))}")]
    if lost := _most_to_sink(selection):
        found.append(("sink", f"rows sum to less than 1: up to {lost:.2f} went to a learned sink"))
    if closed := ignored_words(selection.maps.input):
        found.append(("ignored", f"{', '.join(closed)}: attention to this is closed in every layer"))
    found += [("note", note) for note in selection.maps.input.notes]
    return [(label, printable(text)) for label, text in found if text]


def _most_to_sink(selection: AttentionSelection) -> float:
    """The largest share that a query gives to a learned sink instead of a key; 0 where rows sum to 1 up to rounding."""
    lost = max(float((1 - selection.matrix(panel).sum(-1)).max()) for panel in selection.panels)
    return lost if lost > 1e-2 else 0.0


def _layer_and_head(selection: AttentionSelection) -> tuple[str, str]:
    layers, heads = selection.maps.weights[selection.streams].shape[:2]
    (layer, head), last = selection.panels[0], selection.panels[-1]
    layer_text = f"all {layers} layers" if last[0] != layer else f"{layer} of 0-{layers - 1}"
    chosen = {panel[1] for panel in selection.panels}
    if 1 < len(chosen) < heads:
        return layer_text, f"{', '.join(str(panel[1]) for panel in selection.panels)} of 0-{heads - 1}"
    if len(chosen) > 1:
        return layer_text, f"all {heads} heads"
    return layer_text, f"mean of {heads} heads" if head is None else f"{head} of 0-{heads - 1}"


def _streams_text(selection: AttentionSelection) -> str:
    query, key = selection.streams
    if query == key and len(selection.maps.weights) == 1:
        return ""
    text = f"{query} looks at {key}"
    later = "; a row is the token that is read, and decides the next one" if query == "target" else ""
    return text + (later if selection.query is None else "")


def _elsewhere(selection: AttentionSelection) -> str:
    """The keys beside the picture, the strongest first."""
    row, names = selection.row(selection.panels[0]), column_names(selection)
    others = sorted(set(range(len(row))) - set(selection.patch_columns), key=lambda n: -row[n])
    rest = f", and {len(others) - NAMED_ELSEWHERE} more" if len(others) > NAMED_ELSEWHERE else ""
    return ", ".join(f"{names[n]} {weight(row[n], largest(row))}" for n in others[:NAMED_ELSEWHERE]) + rest
