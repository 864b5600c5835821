"""The faces: the modules that documents, examples and docstrings import from."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FACES = ("plait.devices", "plait.operators", "plait.passes", "plait.formats")
OTHERS = ("plait", "plait.conformance", "plait.testing")
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])
EXAMPLES = sorted((ROOT / "examples").rglob("*.py"))
PRODUCT = sorted(
    [
        *ROOT.glob("*.py"),
        *(
            one
            for top in ("graph", "devices", "scheduler", "cli")
            for one in (ROOT / top).rglob("*.py")
        ),
    ]
)
IMPORT = re.compile(r"^(?:>>> |\.\.\. )?(?:from (plait[\w.]*) import|import (plait[\w.]*))")
INTERIOR = re.compile(r"plait\.(?:graph|scheduler|dialects|cli)\b|from plait\.devices\.")


def find_imports(lines: list[str]) -> Iterator[tuple[int, str]]:
    """Yield the modules of plait that lines import, in scripts or at prompts."""
    for number, line in enumerate(lines, 1):
        if found := IMPORT.match(line.strip()):
            yield number, found[1] or found[2]


def list_strays(file: Path, lines: list[str]) -> list[str]:
    return [
        f"{file.relative_to(ROOT)}:{number} {module}"
        for number, module in find_imports(lines)
        if module not in (*FACES, *OTHERS)
    ]


def test_an_interior_import_is_found() -> None:
    lines = [
        "import plait as pl",
        ">>> from plait.graph.values.dims import add",
        "from plait.passes import x",
    ]
    assert list_strays(ROOT / "docs", lines) == ["docs:2 plait.graph.values.dims"]
    assert INTERIOR.search("see `plait.graph.values.dims`")


@pytest.mark.parametrize("file", [*PAGES, *EXAMPLES], ids=lambda file: file.name)
def test_pages_and_examples_import_from_faces_alone(file: Path) -> None:
    lines = file.read_text().splitlines()
    assert list_strays(file, lines) == []
    assert [line for line in lines if INTERIOR.search(line)] == []


def test_docstrings_show_imports_from_faces_alone() -> None:
    prompts = {file: file.read_text().splitlines() for file in PRODUCT}
    strays = [
        stray
        for file, lines in prompts.items()
        for stray in list_strays(file, [line if ">>>" in line else "" for line in lines])
    ]
    assert strays == []


@pytest.mark.parametrize("face", FACES)
def test_a_face_offers_its_names(face: str) -> None:
    module = importlib.import_module(face)
    assert set(dir(module)) >= set(module.__all__)
    assert [name for name in module.__all__ if not hasattr(module, name)] == []


@pytest.mark.parametrize("face", FACES)
def test_type_checkers_see_what_a_face_offers(face: str) -> None:
    """The imports for type checkers name the modules that `lazily` takes the names from."""
    module = importlib.import_module(face)
    assert module.__file__ is not None
    found = {
        alias.name
        for node in ast.walk(ast.parse(Path(module.__file__).read_text()))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert set(module.__all__) <= found


@pytest.mark.parametrize("face", ["plait.operators", "plait.passes", "plait.formats"])
def test_a_face_imports_nothing_until_a_name_is_asked_for(face: str) -> None:
    code = f"import {face}, sys; print('numpy' in sys.modules, 'trio' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
