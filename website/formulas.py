"""Formulas as pictures in the page itself: matplotlib sets them, so that a reader needs no network and no script."""

from __future__ import annotations

import html
import io
import re
import zlib
from functools import cache


@cache
def svg(formula: str) -> str:
    """A TeX formula as an inline SVG in the colour and size of the text around it."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib.font_manager import FontProperties
    from matplotlib.mathtext import math_to_image

    file = io.BytesIO()
    with mpl.rc_context({"svg.fonttype": "path", "mathtext.fontset": "stix", "svg.hashsalt": formula}):
        math_to_image(f"${_roomy(formula)}$", file, prop=FontProperties(size=10), format="svg")
    drawn = file.getvalue().decode()
    drawn = re.sub(r"<metadata>.*?</metadata>", "", drawn[drawn.index("<svg") :], flags=re.DOTALL)
    drawn = re.sub(r'<g id="patch_1">.*?</g>', "", drawn, count=1, flags=re.DOTALL)  # the white page below the formula
    drawn = re.sub(r"<!--.*?-->|\n\s*", lambda found: "" if found[0].startswith("<!") else " ", drawn, flags=re.DOTALL)
    wide, high = (float(size) / 10 for size in re.findall(r'(?:width|height)="([\d.]+)pt"', drawn)[:2])
    label = html.escape(formula, quote=True)
    shape = f'class="formula" role="img" aria-label="{label}" style="width:{wide:.2f}em;height:{high:.2f}em"'
    box = re.search(r'viewBox="[^"]*"', drawn)
    assert box is not None
    unique = f"m{zlib.crc32(formula.encode())}-"
    body = re.sub(r'(id="|href="#)', lambda found: found[1] + unique, drawn[drawn.index(">") + 1 :])
    return f'<svg {shape} {box[0]} fill="currentColor" xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink">{body}'


def drawn(text: str) -> str:
    """Markdown with every `$$ ... $$` that stands alone replaced by its picture."""
    return re.sub(
        r"^\$\$ (.*?) \$\$$",
        lambda found: f'<div class="formulas">{"".join(svg(part) for part in _parts(found[1]))}</div>',
        text,
        flags=re.MULTILINE,
    )


def _parts(formula: str) -> list[str]:
    r"""The equations of a formula: `\qquad` stands between them, so that a narrow page can break the line there."""
    return [part.strip().removesuffix(",") for part in formula.split(r"\qquad") if part.strip()]


def _roomy(formula: str) -> str:
    """The formula with fractions in full size, and a little room after sums."""
    return re.sub(r"(\\sum_(?:\{[^}]*\}|\w)(?:\^\{[^}]*\})?)", r"\1\\,", formula.replace(r"\frac", r"\dfrac"))
