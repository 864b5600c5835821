"""Every numbered example works as it is: no arguments, and within seconds."""

from __future__ import annotations

from pathlib import Path

import pytest
from scripts import ScriptRunner

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("[0-9][0-9]_*.py"))
MAX_LINES = 80


def test_there_are_examples() -> None:
    assert EXAMPLES


@pytest.mark.slow
@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_an_example_runs_without_arguments_and_prints_something(
    file: Path, tmp_path: Path, scripts: ScriptRunner
) -> None:
    ran = scripts.run(file, tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_an_example_is_short(file: Path) -> None:
    assert len(file.read_text().splitlines()) <= MAX_LINES
