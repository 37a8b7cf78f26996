"""From `docs/` to the site: copy the pages, add those of methods, metrics and notebooks, and run Zensical on them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

import whence
from website import notebooks, pages

ROOT = Path(__file__).parents[1]
COPIED = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md", "NOTICE": "notice.md"}
FENCED = {"NOTICE"}  # plain texts


def build(out: Path, executed: bool = True) -> Path:
    """Build the site below `out` and return its folder; a warning is an error."""
    out = out.resolve()
    sources = stage(out / "site-sources", executed)
    site = out / "site"
    shutil.rmtree(site, ignore_errors=True)
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean", "-f", str(sources / "mkdocs.yml")]
    done = subprocess.run(command, cwd=sources, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"the site was not built:\n{done.stdout}{done.stderr}")
    shutil.move(sources / "site", site)  # Zensical writes only below its own folder
    return site


def stage(sources: Path, executed: bool = True) -> Path:
    """Write everything that the site is built from into a folder; without notebooks unless they are executed."""
    shutil.rmtree(sources, ignore_errors=True)
    folder = sources / "docs"
    shutil.copytree(ROOT / "docs", folder, ignore=shutil.ignore_patterns("notes"))
    for name, page in COPIED.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        (folder / page).write_text(f"# {name}\n\n```text\n{text}```\n" if name in FENCED else text, encoding="utf-8")
    shutil.copy(Path(__file__).with_name("site.css"), folder / "site.css")
    write_methods(folder)
    write_metrics(folder)
    titles = write_notebooks(folder) if executed else []
    for file in folder.rglob("*.md"):
        file.write_text(_finished(file.read_text(encoding="utf-8"), len(file.relative_to(folder).parts) - 1))
    (sources / "mkdocs.yml").write_text(yaml.safe_dump(_configuration(titles), sort_keys=False), encoding="utf-8")
    return sources


def write_methods(folder: Path) -> None:
    """A page per method of the registry, and below the table of methods.md all methods on one sentence."""
    (folder / "methods").mkdir(exist_ok=True)
    (folder / "pictures").mkdir(exist_ok=True)
    for record in whence.list_methods():
        (folder / "methods" / f"{record.name}.md").write_text(pages.of_method(record, folder), encoding="utf-8")


def write_metrics(folder: Path) -> None:
    """A page per metric of the registry, and a page that lists them."""
    (folder / "metrics").mkdir(exist_ok=True)
    for record in whence.list_metrics():
        (folder / "metrics" / f"{record.name}.md").write_text(pages.of_metric(record), encoding="utf-8")
    (folder / "metrics.md").write_text(pages.list_of_metrics(whence.list_metrics()), encoding="utf-8")


def write_notebooks(folder: Path) -> list[tuple[str, str]]:
    """Run the notebooks and write their pages; returns title and file of each."""
    (folder / "notebooks").mkdir(exist_ok=True)
    titles = []
    with tempfile.TemporaryDirectory() as place:
        for file in notebooks.files():
            text = notebooks.page(notebooks.run(file, Path(place)), file.stem, folder / "notebooks")
            (folder / "notebooks" / f"{file.stem}.md").write_text(text, encoding="utf-8")
            titles.append((text.splitlines()[0].lstrip("# "), f"notebooks/{file.stem}.md"))
    return titles


def _finished(text: str, depth: int) -> str:
    """The page with links to files outside of docs/ turned to their pages, and computed parts put in their places."""
    up = "../" * depth
    for name, page in COPIED.items():
        text = text.replace(f"](../{name}", f"]({up}{page}")
    text = re.sub(r"\]\(docs/(.*?)\)", r"](\1)", text)  # CONTRIBUTING.md links to files below docs/
    text = re.sub(r"<!-- rows: (.*?) -->", lambda found: pages.some_rows(found[1].split()), text)
    text = re.sub(r"<!-- all methods -->", lambda _: pages.overview(whence.list_methods()), text)
    return re.sub(r"\| `(\w+)` \|", lambda found: _linked(found[1], up), text)


def _linked(name: str, up: str) -> str:
    """A cell of a table that names a method, as a link to its page."""
    known = {record.name for record in whence.list_methods()}
    return f"| [`{name}`]({up}methods/{name}.md) |" if name in known else f"| `{name}` |"


def _configuration(notebook_titles: list[tuple[str, str]]) -> dict[str, Any]:
    """mkdocs.yml with the pages of the registry and of the notebooks put into its navigation."""
    found = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    sections = {title: content for entry in found["nav"] for title, content in entry.items()}
    named = {path for content in sections.values() for path in _paths(content)}
    own = sorted(path.name for path in (ROOT / "docs").glob("*.md"))
    sections["Evidence"] += [name for name in own if name not in named]
    sections["Methods"] += _by_family("methods", whence.list_methods())
    sections["Metrics"] += _by_family("metrics", whence.list_metrics())
    sections["Examples"] += [{title: file} for title, file in notebook_titles]
    found["nav"] = [{title: content} for title, content in sections.items()]
    return found | {"docs_dir": "docs", "site_dir": "site"}


def _paths(content: list[Any]) -> list[str]:
    """The pages of a section of the navigation."""
    return [entry if isinstance(entry, str) else next(iter(entry.values())) for entry in content]


def _by_family(folder: str, records: list[Any]) -> list[dict[str, Any]]:
    families: dict[str, list[dict[str, str]]] = {}
    for record in records:
        families.setdefault(record.family, []).append({record.name: f"{folder}/{record.name}.md"})
    return [{family: entries} for family, entries in families.items()]
