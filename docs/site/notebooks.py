"""Notebooks as pages of the site: run at small size, then written as Markdown with what their cells
returned."""

from __future__ import annotations

import base64
import re
import tempfile
from pathlib import Path
from typing import Any

NOTE = (
    "This notebook was run at small size while the site was built, so its numbers say nothing; "
    "[its file]({address}) has the right size."
)


def executed(path: Path, folder: Path) -> Any:
    """A notebook with its outputs, run in a folder, with the small parameters that its metadata
    hold."""
    import nbformat
    from nbclient import NotebookClient

    notebook: Any = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if cell.metadata.get("tags") == ["parameters"]:
            cell.source = notebook.metadata["askew"]["small"]
    where = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources=where).execute()
    return notebook


def notebook_page(path: Path, folder: Path, *, quick: bool) -> None:
    """Write a notebook's page and its pictures into a folder; without outputs if it is to be
    `quick`."""
    import nbformat

    folder.mkdir(exist_ok=True)
    if quick:
        notebook: Any = nbformat.read(path, as_version=4)
    else:
        with tempfile.TemporaryDirectory(prefix="askew-notebook-") as scratch:
            notebook = executed(path, Path(scratch))
    (folder / path.name).write_bytes(path.read_bytes())
    parts = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        for number, output in enumerate(cell.outputs):
            if shown := _shown(output, folder / f"{cell.id}-{number}.png"):
                parts.append(shown)
    parts.insert(1, NOTE.format(address=path.name))
    (folder / f"{path.stem}.md").write_text("\n\n".join(parts) + "\n")


def _shown(output: Any, picture: Path) -> str:
    """One output as Markdown; bars, which have come and gone, are left out."""
    data = output.get("data", {})
    if "image/png" in data:
        picture.write_bytes(base64.b64decode(data["image/png"]))
        return f"![output]({picture.name})"
    if "application/vnd.jupyter.widget-view+json" in data:
        return ""
    if "text/html" in data:
        return f'<div class="output">{_one_block(data["text/html"])}</div>'
    text = output.get("text") or data.get("text/plain", "")
    return f"```text\n{text.rstrip()}\n```" if text.strip() else ""


def _one_block(html: str) -> str:
    """HTML without empty lines, which would end it, and without the styles that pandas brings."""
    rest = re.sub(r"<style.*?</style>", "", html, flags=re.S)
    return "\n".join(line.strip() for line in rest.splitlines() if line.strip())
