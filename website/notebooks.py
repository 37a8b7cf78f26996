"""The notebooks of `examples/notebooks`, run from top to bottom and written as pages with their outputs."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "examples" / "notebooks"
SECONDS = 300  # the most seconds that a cell may take


def files() -> list[Path]:
    """The notebooks, in the order of their names."""
    return sorted(FOLDER.glob("*.ipynb"))


def run(file: Path, folder: Path) -> Any:
    """The notebook with its outputs; it runs in `folder`, and a cell that raises is an error."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(file, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=SECONDS,
        startup_timeout=SECONDS,
        kernel_name="python3",
        extra_arguments=["--log-level=40"],  # log errors only
        resources={"metadata": {"path": str(folder)}},
    )
    return client.execute()


def page(notebook: Any, name: str, folder: Path) -> str:
    """A notebook that was run, as Markdown; its pictures and pages are written into the folder."""
    parts = []
    for number, cell in enumerate(notebook.cells):
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        parts += [_output(output, f"{name}-{number}-{place}", folder) for place, output in enumerate(cell.outputs)]
    source = f"*This page is the notebook `examples/notebooks/{name}.ipynb`, run when the site was built.*"
    return "\n\n".join([parts[0], source, *filter(None, parts[1:])]) + "\n"


def _output(output: Any, name: str, folder: Path) -> str:
    """The output of a cell: text as it is, pictures and pages as files beside the page."""
    if output.output_type == "stream" and output.name == "stderr":
        return ""  # stderr: progress, and advice of other packages
    if output.output_type == "stream":
        return f"```text\n{output.text.rstrip()}\n```"
    data = output.data
    if "image/png" in data:
        (folder / f"{name}.png").write_bytes(base64.b64decode(data["image/png"]))
        return f"![What the cell above draws]({name}.png)"
    if "text/html" in data:
        (folder / f"{name}.html").write_text(
            f"<!doctype html><meta charset=utf-8>{data['text/html']}", encoding="utf-8"
        )
        return f'<iframe class="output" src="{name}.html" title="What the cell above shows" loading="lazy"></iframe>'
    return f"```text\n{data['text/plain']}\n```"
