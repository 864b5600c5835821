"""The Python blocks of each document, in order, run as one script of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from scripts import ScriptRunner

ROOT = Path(__file__).parents[1]
MOST_BYTES = 150_000
DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])


def script_of(document: str) -> str:
    """Return the Python blocks with everything else blanked, so that line numbers stay."""
    return "\n".join(_python_lines(document)) + "\n"


def _python_lines(document: str) -> Iterator[str]:
    inside = False
    for line in document.splitlines():
        if line.startswith("```"):
            inside = line == "```python"
            yield ""
        else:
            yield line if inside else ""


WITH_CODE = [file for file in DOCUMENTS if script_of(file.read_text()).strip()]


def test_a_script_keeps_the_line_numbers_of_its_document() -> None:
    document = "# Title\n\n```python\nx = 1\n```\n\n```sh\nls\n```\n\n```python\ny = 2\n```\n"
    lines = script_of(document).splitlines()
    assert (lines[3], lines[11]) == ("x = 1", "y = 2")
    assert [line for line in lines if line] == ["x = 1", "y = 2"]


def test_the_readme_has_code() -> None:
    assert ROOT / "README.md" in WITH_CODE


@pytest.mark.parametrize(
    ("code", "status", "said"),
    [
        ("import warnings; warnings.warn('old', DeprecationWarning)", 1, "DeprecationWarning: old"),
        ("def twice(x):\n    return y\n\ntwice(2)", 1, 'script.py", line 4, in <module>'),
        ("import sys; assert __name__ == '__main__'; print('here'); sys.exit(7)", 7, ""),
    ],
)
def test_a_script_ends_as_it_would_alone(
    code: str, status: int, said: str, tmp_path: Path, scripts: ScriptRunner
) -> None:
    script = tmp_path / "script.py"
    script.write_text(code)
    ran = scripts.run(script, tmp_path)
    assert ran.returncode == status
    assert said in ran.stderr
    assert ran.stdout == ("here\n" if status == 7 else "")


@pytest.mark.slow
@pytest.mark.parametrize("file", WITH_CODE, ids=lambda file: file.name)
def test_the_code_in_a_document_runs(file: Path, tmp_path: Path, scripts: ScriptRunner) -> None:
    script = tmp_path / f"{file.stem}_document.py"  # no name of a package that it imports
    script.write_text(script_of(file.read_text()))
    ran = scripts.run(script, tmp_path)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("file", DOCUMENTS, ids=lambda file: file.name)
def test_links_between_files_lead_somewhere(file: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", file.read_text())
    missing = [
        target for target in targets if "://" not in target and not (file.parent / target).exists()
    ]
    assert missing == []


def test_every_document_has_its_place_in_the_navigation_of_the_site() -> None:
    navigation = (ROOT / "docs" / "site" / "zensical.toml").read_text()
    files = [file.name for file in (ROOT / "docs").glob("*.md")]
    assert [name for name in files if f'"{name}"' not in navigation] == []


def test_pictures_are_small_and_all_of_them_are_shown() -> None:
    pictures = {file.name: file.stat().st_size for file in (ROOT / "docs/pictures").iterdir()}
    text = "".join(file.read_text() for file in DOCUMENTS)
    assert pictures
    assert [name for name, nbytes in pictures.items() if nbytes > MOST_BYTES] == []
    assert [name for name in pictures if f"pictures/{name})" not in text] == []


def test_the_paths_that_documents_of_the_house_name_are_there() -> None:
    """From the root, or from the scheduler, whose folders are often named alone."""
    files = [ROOT / "CONTRIBUTING.md", *(ROOT / "docs" / f"{n}.md" for n in ("design", "glossary"))]
    named = {
        path
        for file in files
        for path in re.findall(r"`((?:[a-z_]+/)+(?:\w+\.(?:py|md))?)`", file.read_text())
    }
    assert len(named) > 30
    missing = [
        path
        for path in named
        if not any((folder / path).exists() for folder in (ROOT, ROOT / "scheduler"))
    ]
    assert missing == []
