"""The page of a method or metric: what the registry knows, what is noted in `docs/notes`, what was measured."""

from __future__ import annotations

import html
import inspect
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from website import formulas, pictures
from whence.cli.listing import markdown_text
from whence.core.registry import Record
from whence.core.tasks import NAMES as ALL_TASKS

DOCS = Path(__file__).parents[1] / "docs"
MEASURED = ("truth", "faithfulness", "vision")  # pages whose tables have rows of methods
METRICS = """What is measured of an explanation; `whence evaluate` and `whence score` take these names. `random` is in
every picture: a metric that cannot tell a method from it has not shown anything. The page of
each metric says when it misleads."""
PASSES = {
    "gradient": "one forward and one backward pass, shared with other methods of the call that need one",
    "forward": "one forward pass, shared with other methods of the call",
    "": "its own passes: features hidden, or parts of states carried along",
}


@cache
def notes(kind: str) -> dict[str, str]:
    """What is noted about every method or metric: its formula, and when it misleads."""
    text = (DOCS / "notes" / f"{kind}.md").read_text(encoding="utf-8")
    return {
        name: body.strip() for name, body in re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    }


def misleads(record: Record) -> str:
    """When the method or metric misleads, in words; empty where nobody has written it yet."""
    return re.sub(r"^\$\$.*\$\$$", "", notes(f"{record.kind}s").get(record.name, ""), flags=re.MULTILINE).strip()


def of_method(record: Record, folder: Path) -> str:
    """The page of a method; its picture is written into the folder, `pictures/` below it."""
    parts = [
        f"# {record.name}",
        f"<p class='kicker'>{record.family}</p>\n\n{markdown_text(record.summary)}",
        _picture(record, folder),
        _try(record),
        "## Definition\n\n" + _definition(record),
        "## Options\n\n" + _options(record),
        "## What it promises\n\n" + _promises(record),
        "## Cost\n\n" + _cost(record),
        "## When it misleads\n\n" + (misleads(record) or _nothing(record)),
        _measured(record),
        "## Paper\n\n" + _paper(record),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def of_metric(record: Record) -> str:
    """The page of a metric."""
    circular = ", ".join(f"`{name}`" for name in record.circular)
    direction = f"{record.better.capitalize()} is better."
    never = f" It never judges {circular}, whose scores are what it compares with." if circular else ""
    parts = [
        f"# {record.name}",
        f"<p class='kicker'>{record.family}; {record.better} is better</p>\n\n{markdown_text(record.summary)}",
        _board(record),
        f"```console\n$ whence evaluate reviews.tsv --method lrp,gae,random --metric {record.name} --limit 20\n```"
        if record.family == "faithfulness" and "perturbation" not in record.name
        else "",
        "## Definition\n\n" + _definition(record),
        "## Options\n\n" + _options(record),
        "## What it promises\n\n" + direction + never,
        "## When it misleads\n\n" + (misleads(record) or _nothing(record)),
        "## Paper\n\n" + _paper(record),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def overview(records: Sequence[Record]) -> str:
    """All methods on one sentence, as rows of coloured text that lead to their pages."""
    families: dict[str, list[Record]] = {}
    for record in records:
        families.setdefault(record.family, []).append(record)
    rows = []
    for family, own in families.items():
        shown = [(record, facts(record)) for record in own]
        if any(fact for _, fact in shown):
            rows.append(f'<p class="family">{html.escape(family)}</p>')
        rows += [_named_row(record.name, fact, "methods/") for record, fact in shown if fact]
    return "\n".join(rows)


def some_rows(names: Sequence[str]) -> str:
    """The rows of some methods, for the front page."""
    known = pictures.kept("methods")
    return "\n".join(_named_row(name, known[name], "methods/") for name in names)


def _named_row(name: str, fact: dict[str, Any], where: str) -> str:
    return f'<div class="row"><a href="{where}{name}.html"><code>{name}</code></a>{coloured(fact)}</div>'


def coloured(fact: dict[str, Any]) -> str:
    """Words under the colours of their scores: blue for, red against, grey-blue by size where there is no sign."""
    usual = [abs(score) for score, special in zip(fact["scores"], fact["special"], strict=True) if not special]
    scale = max(usual) or 1.0
    spans = []
    for word, special, score in zip(fact["words"], fact["special"], fact["scores"], strict=True):
        if special:
            continue
        share = round(100 * min(1.0, abs(score) / scale))
        side = "against" if fact["signed"] and score < 0 else "for"
        spans.append(f'<span class="{side}" style="--share:{share}%" title="{score:+.3g}">{html.escape(word)}</span>')
    return f'<span class="words">{" ".join(spans)}</span>'


@cache
def _made(name: str, function: Any) -> dict[str, Any]:
    from whence.core import registry

    return pictures.of_method(registry.find("method", name))


def facts(record: Record) -> dict[str, Any]:
    """The scores of the sentence: those kept in `docs/pictures`, else computed now, as for a method that is new."""
    known = pictures.kept("methods")
    return known[record.name] if record.name in known else _made(record.name, record.function)


def _picture(record: Record, folder: Path) -> str:
    """The sentence and the photo under the method's scores."""
    parts = []
    fact = facts(record)
    if fact:
        said = "blue speaks for *positive*, red against" if fact["signed"] else "the stronger, the higher the score"
        parts.append(f'<div class="card">{coloured(fact)}</div>\n\n*`sst2` says positive. Words: {said}.*')
    file = folder / "pictures" / f"photo-{record.name}.jpg"
    if file.exists() or pictures.photo(record, file):
        parts.append(
            f"![The drawing of a ladybug under the scores of {record.name}](../pictures/{file.name}){{ .photo }}\n\n"
            "*A drawing that `photos` takes for a ladybug: where its scores lie.*"
        )
    return "\n\n".join(parts)


def _try(record: Record) -> str:
    words = ["A slow start, but I could not stop laughing.", ""]
    if "text-classification" not in record.tasks:
        words = ["ladybug.png", " --model photos"]
    command = f'whence explain "{words[0]}" --method {record.name}{words[1]}'
    return f"```console\n$ {command}\n$ whence methods {record.name}\n```"


def _definition(record: Record) -> str:
    formula = "\n".join(re.findall(r"^\$\$.*\$\$$", notes(f"{record.kind}s").get(record.name, ""), re.MULTILINE))
    text = inspect.getdoc(record.function) or ""
    rest = text.partition("\n\n")[2] or text
    return f"{formulas.drawn(formula)}\n\n{markdown_text(rest)}".strip()


def _options(record: Record) -> str:
    if not record.options:
        return "None."
    rows = [f"| `{o.name}` | {markdown_text(o.takes)} | `{_default(o.default)}` |" for o in record.options.values()]
    return "\n".join(["| option | takes | default |", "|---|---|---|", *rows])


def _default(value: Any) -> str:
    return repr(value).replace("|", "\\|")


def _promises(record: Record) -> str:
    signs = (
        "The scores have signs: positive ones speak for the target, negative ones against."
        if record.signed
        else "The scores have no sign: they say how much, not whether for or against."
    )
    sums = (
        "They sum to f(x) - f(baseline); the residual says how nearly."
        if record.complete
        else "They need not sum to the target."
    )
    where = "all kinds of model" if record.tasks == ALL_TASKS else ", ".join(record.tasks)
    return f"- {signs}\n- {sums}\n- It works on {where}.\n\n`whence.testing` checks what is promised."


def _cost(record: Record) -> str:
    key = "gradient" if any("gradient" in need for need in record.needs) else "forward" if record.needs else ""
    needs = f" (needs {', '.join(f'`{need}`' for need in record.needs)})" if record.needs else ""
    fact = facts(record)
    ratio = (
        f" On the sentence above it took about {fact['cost']:g} times as long as `gradient_x_input`." if fact else ""
    )
    return f"It takes {PASSES[key]}{needs}.{ratio if fact else ''} More in [the costs](../benchmarks.md)."


def _nothing(record: Record) -> str:
    return f"Nobody has written this down for `{record.name}` yet. `whence evaluate` measures it on your model."


def _measured(record: Record) -> str:
    """Every row of the measured tables that is about the method, under the head of its table."""
    found = []
    for page in MEASURED:
        for title, head, row in _tables(page):
            if re.match(rf"\| `{record.name}(\(|`)", row):
                found.append((page, title, head, row))
    if not found:
        return ""
    blocks, last = ["## Measured\n\nIts rows in the tables of our own models; the pages say how they were made."], None
    for page, title, head, row in found:
        if (page, title, head) == last:
            blocks[-1] += f"\n{row}"
        else:
            blocks.append(f"[{title}](../{page}.md)\n\n{head}\n{row}")
        last = (page, title, head)
    return "\n\n".join(blocks)


@cache
def _tables(page: str) -> list[tuple[str, str, str]]:
    """Every row of the tables of a page, with the title of its section and the head of its table."""
    title, head, rows = page, "", []
    lines = (DOCS / f"{page}.md").read_text(encoding="utf-8").splitlines()
    for line, after in zip(lines, [*lines[1:], ""], strict=True):
        if line.startswith("#"):
            title = line.lstrip("# ")
        elif line.startswith("**") and line.endswith("**"):
            title = line.strip("*")
        elif after.startswith("|---"):
            head = f"{line}\n{after}"
        elif line.startswith("| "):
            rows.append((title, head, re.sub(r"\]\((\w+\.md)", r"](../\1", line)))
    return rows


def _paper(record: Record) -> str:
    if not record.paper:
        return "None."
    kind, _, number = record.paper.partition(":")
    site = {"arXiv": "https://arxiv.org/abs/", "doi": "https://doi.org/"}.get(kind)
    title = re.search(r"title = \{(.*)\},", record.bibtex)
    name = re.sub(r"[{}]", "", title[1]).replace("``", '"').replace("''", '"') if title else record.paper
    link = f"[{name}]({site}{number})" if site else f"{name} ({record.paper})"
    return f"{link}\n\n```bibtex\n{record.bibtex}\n```\n\n`whence {record.kind}s {record.name} --bibtex` prints this."


def _board(record: Record) -> str:
    """Bars: the values of a few methods by the metric."""
    fact = pictures.kept("metrics").get(record.name, {})
    if not fact:
        return ""
    top = max(abs(own["mean"]) for own in fact["methods"].values()) or 1.0
    best = (max if record.better == "higher" else min)(own["mean"] for own in fact["methods"].values())
    bars = []
    for method, own in fact["methods"].items():
        marked = " best" if own["mean"] == best else ""
        share = round(100 * abs(own["mean"]) / top)
        bars.append(
            f'<div class="bar{marked}"><a href="../methods/{method}.html"><code>{method}</code></a>'
            f'<span class="track"><span style="width:{share}%"></span></span>'
            f'<span class="value">{own["mean"]:.3g}</span></div>'
        )
    said = f"*Means over {fact['examples']} examples of `{fact['model']}`: an illustration, too few to choose by.*"
    return f'<div class="card bars">{"".join(bars)}</div>\n\n{_curves(record, fact)}{said}'


def _curves(record: Record, fact: dict[str, Any]) -> str:
    """The curves of a metric that has any, as lines in the page itself."""
    curves = {method: own["curve"] for method, own in fact["methods"].items() if own["curve"]}
    if not curves:
        return ""
    top = max(y for curve in curves.values() for _, y in curve) or 1.0
    lines = "".join(
        f'<polyline class="line{number}" points="{_points(curve, top)}"/>'
        f'<text class="line{number}" x="400" y="{20 + 20 * number}">{method}</text>'
        for number, (method, curve) in enumerate(curves.items())
    )
    grows, watched = record.axes_of({})
    label = html.escape(f"Curves of {', '.join(curves)}: {watched} against {grows}", quote=True)
    return (
        f'<svg class="curves" viewBox="0 0 560 175" role="img" aria-label="{label}"><path d="M10 10V150H390"/>{lines}'
        f'<text x="200" y="170" text-anchor="middle">{html.escape(grows)}</text></svg>\n\n'
    )


def _points(curve: list[list[float]], top: float) -> str:
    return " ".join(f"{10 + 380 * x:.0f},{150 - 140 * y / top:.0f}" for x, y in curve)


def list_of_metrics(records: Sequence[Record]) -> str:
    """The page that lists all metrics."""
    rows = [
        f"| [`{r.name}`](metrics/{r.name}.md) | {r.family} | {markdown_text(r.summary)} | {r.better} | {r.paper} |"
        for r in records
    ]
    head = ["| metric | family | what it is | better | paper |", "|---|---|---|---|---|"]
    return "\n".join(["# The metrics", "", METRICS, "", *head, *rows, ""])
