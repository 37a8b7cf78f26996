"""The documentation site is built without a warning, and every method and metric has its page."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest
import torch
import yaml
from website import building, formulas, notebooks, pages, pictures

import whence
from whence.core import registry

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make docs` builds it, notebooks and all."""
    out = tmp_path_factory.mktemp("out")
    done = subprocess.run([sys.executable, "-m", "website", "--out", out], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return out / "site"


@pytest.mark.slow
def test_the_site_is_built_and_every_link_in_it_leads_somewhere(site: Path) -> None:
    broken = []
    for page in site.rglob("*.html"):
        for link in re.findall(r'(?:href|src)="?([^">\s]+)', page.read_text(encoding="utf-8")):
            place = unquote(link.partition("#")[0].partition("?")[0])
            if place and not re.match(r"\w+:|//", place) and page.name != "404.html":
                target = page.parent / place
                if not (target / "index.html" if target.is_dir() else target).exists():
                    broken.append(f"{page.relative_to(site)}: {link}")
    assert broken == []
    names = {f"methods/{record.name}.html" for record in whence.list_methods()}
    names |= {f"metrics/{record.name}.html" for record in whence.list_metrics()}
    names |= {f"notebooks/{file.stem}.html" for file in notebooks.files()}
    assert [name for name in names if not (site / name).exists()] == []


@pytest.mark.slow
def test_the_site_asks_nothing_of_the_network(site: Path) -> None:
    asked = re.compile(r"""<(?:script|link|img|iframe)[^>]*(?:src|href)=["']?(?:https?:)?//""")
    assert [page.name for page in site.rglob("*.html") if asked.search(page.read_text(encoding="utf-8"))] == []
    style = (site / "site.css").read_text(encoding="utf-8")
    assert "url(" not in style and "@import" not in style


@pytest.mark.slow
def test_notebooks_show_what_they_gave(site: Path) -> None:
    for file in notebooks.files():
        page = (site / "notebooks" / f"{file.stem}.html").read_text(encoding="utf-8")
        assert f"{file.stem}-" in page and ".png" in page  # a figure
        assert '"outputs": []' in file.read_text(encoding="utf-8")  # kept without outputs


@pytest.fixture
def added() -> Iterator[registry.Record]:
    """A method that was added a moment ago."""

    @whence.method(family="tomorrow", paper="arXiv:9999.12345")
    def of_tomorrow(subject: object, batch: object, target: object, *, power: float = 1.0) -> torch.Tensor:
        """Scores of tomorrow: x_i to the `power`."""
        return torch.ones(batch.mask.shape)  # type: ignore[attr-defined]

    yield registry.find("method", "of_tomorrow")
    registry.unregister("method", "of_tomorrow")


def test_a_method_added_tomorrow_gets_its_page(
    added: registry.Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pictures, "photo", lambda record, file: False)  # a vision transformer takes seconds to load
    (tmp_path / "pictures").mkdir()
    page = pages.of_method(added, tmp_path)
    assert page.startswith("# of_tomorrow\n") and "x\\_i to the `power`" in page
    assert "| `power` |" in page and "9999.12345" in page and 'class="words"' in page and "## When it misleads" in page
    nav = building._configuration([])["nav"]
    assert {"tomorrow": [{"of_tomorrow": "methods/of_tomorrow.md"}]} in next(
        e["Methods"] for e in nav if "Methods" in e
    )


@pytest.mark.parametrize("kind", ["method", "metric"])
def test_everything_says_when_it_misleads_and_has_a_formula(kind: str) -> None:
    records = registry.records(kind)
    assert [record.name for record in records if len(pages.misleads(record)) < 40] == []
    noted = pages.notes(f"{kind}s")
    assert set(noted) == {record.name for record in records}
    assert [name for name, text in noted.items() if not text.startswith("$$ ")] == []


def test_everything_has_a_picture_that_is_kept() -> None:
    known = pictures.kept("methods")
    for record in whence.list_methods():
        assert ("text-classification" not in record.tasks) or known[record.name]["scores"]
        assert ("image-classification" not in record.tasks) or (pictures.KEPT / f"photo-{record.name}.jpg").exists()
    assert set(pictures.kept("metrics")) == {record.name for record in whence.list_metrics()}


def test_kept_scores_are_those_of_today() -> None:
    made = pictures.of_method(registry.find("method", "lrp"))
    assert made["scores"] == pytest.approx(pictures.kept("methods")["lrp"]["scores"], rel=1e-2, abs=1e-3)


def test_rows_of_a_method_are_found_in_the_measured_tables(tmp_path: Path) -> None:
    text = pages._measured(registry.find("method", "gae"))
    assert "truth.md" in text and "faithfulness.md" in text and "vision.md" in text and "| `gae` |" in text
    assert "| `lrp` |" not in text


def test_a_formula_is_drawn_in_the_page_itself() -> None:
    drawn = formulas.drawn(r"$$ r_i = \frac{a}{b}, \qquad c $$")
    assert drawn.count("<svg") == 2 and 'aria-label="r_i = \\frac{a}{b}"' in drawn and 'fill="currentColor"' in drawn
    assert formulas.drawn("no formula: $5") == "no formula: $5"
    assert formulas.svg("x") == formulas.svg("x")


def test_one_configuration_serves_both_builders() -> None:
    found = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert found["theme"]["name"] == "material" and found["theme"]["font"] is False
    files = {path for entry in found["nav"] for own in entry.values() for path in building._paths(own)}
    made = {"metrics.md", *building.COPIED.values()}
    assert [path for path in files - made if not (ROOT / "docs" / path).exists()] == []


def test_a_page_added_tomorrow_is_in_the_navigation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "tomorrow.md").write_text("# Tomorrow\n", encoding="utf-8")
    (tmp_path / "mkdocs.yml").write_text((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.setattr(building, "ROOT", tmp_path)
    [evidence] = [entry["Evidence"] for entry in building._configuration([])["nav"] if "Evidence" in entry]
    assert evidence[-1] == "tomorrow.md"


def test_the_citation_names_this_version() -> None:
    found = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert (found["version"], found["license"]) == (whence.__version__, "Apache-2.0")
