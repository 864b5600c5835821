from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from patience import WAIT_S

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "03_plan_ahead.py"


@pytest.mark.slow
def test_the_example_compares_plans_and_runs_a_saved_one() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT)], capture_output=True, text=True, timeout=WAIT_S, check=True
    )
    assert done.stderr == ""
    assert "to a plan for   'two branches' on gpu, cpu" in done.stdout
    assert "moved: " in done.stdout
    rows = re.findall(r"^ +(\d+) +([\d.]+) MB", done.stdout, re.MULTILINE)
    counts, sizes = [int(row[0]) for row in rows], [float(row[1]) for row in rows]
    assert counts == [1, 2, 4, 8]
    assert sizes[0] <= sizes[-1] < 8 * sizes[0]
    assert "saved, loaded and run: y is float32[64, 256]" in done.stdout
