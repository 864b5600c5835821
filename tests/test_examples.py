"""Every numbered example works as it is: no arguments, and within seconds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("[0-9][0-9]_*.py"))
LIMIT_S = 5.0
MAX_LINES = 80


def test_there_are_examples() -> None:
    assert EXAMPLES


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_an_example_runs_without_arguments_and_prints_something(file: Path, tmp_path: Path) -> None:
    before_s = os.times().children_user
    ran = subprocess.run(
        [sys.executable, "-W", "error", str(file)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip()
    # Processor time, not wall time: what an example needs, whatever else the machine does.
    assert os.times().children_user - before_s < LIMIT_S
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_an_example_is_short(file: Path) -> None:
    assert len(file.read_text().splitlines()) <= MAX_LINES
