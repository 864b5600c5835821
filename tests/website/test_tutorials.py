"""Notebooks of tutorials: what is on their pages, and runs in Jupyter's kernel."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from patience import WAIT_S
from tutorials import TUTORIALS, notebook_of

EXECUTE = "from nbclient.cli import main; main()"  # what `jupyter execute` does
DOCS = Path(__file__).parents[2] / "docs"


def page_of(name: str) -> str:
    return (DOCS / f"{name}.md").read_text()


def code_of(page: str) -> list[str]:
    """Return the Python blocks of a page, found line by line."""
    blocks: list[list[str]] = []
    inside = False
    for line in page.splitlines():
        if line.startswith("```"):
            inside = line == "```python"
            if inside:
                blocks.append([])
        elif inside:
            blocks[-1].append(line)
    return ["\n".join(block).strip("\n") for block in blocks]


@pytest.mark.parametrize("name", TUTORIALS)
def test_a_notebook_has_the_code_of_its_page(name: str) -> None:
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
    notebook = nbformat.reads(notebook_of(page_of(name)), as_version=4)
    nbformat.validate(notebook)
    cells = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    assert cells == code_of(page_of(name))
    assert notebook.cells[0].source.startswith("# ")


def test_links_to_pages_are_text_and_those_to_hosts_stay() -> None:
    page = "# T\n\nSee [streams](streams.md#batches) and [trio](https://trio.readthedocs.io).\n"
    assert "See streams and [trio](https://trio.readthedocs.io)." in notebook_of(page)


@pytest.mark.slow
@pytest.mark.parametrize("name", TUTORIALS)
def test_a_notebook_runs(name: str, tmp_path: Path) -> None:
    pytest.importorskip("nbclient", reason="nbclient is not installed")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed")
    file = tmp_path / f"{name}.ipynb"
    file.write_text(notebook_of(page_of(name)))
    ran = subprocess.run(
        [sys.executable, "-c", EXECUTE, "--inplace", file.name],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert ran.returncode == 0, ran.stderr
    cells = json.loads(file.read_text())["cells"]
    assert all(cell["execution_count"] for cell in cells if cell["cell_type"] == "code")
    assert any(cell.get("outputs") for cell in cells)
