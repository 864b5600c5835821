"""Every numbered example works as it is: no arguments, and within seconds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from patience import WAIT_S

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("[0-9][0-9]_*.py"))
MAX_LINES = 80


def test_there_are_examples() -> None:
    assert EXAMPLES


@pytest.mark.slow
@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_an_example_runs_without_arguments_and_prints_something(file: Path, tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "error", str(file)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_an_example_is_short(file: Path) -> None:
    assert len(file.read_text().splitlines()) <= MAX_LINES
