"""Generated kernels keep to their buffers, and their threads out of each other's way."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from generated_cases import onnx_cases
from patience import WAIT_S

SUPPORT = Path(__file__).parents[2] / "support"
COMPLAINTS = ("Invalid read", "Invalid write", "data race", "Error", "diverge")


def complaints(log: str) -> dict[str, list[str]]:
    """Return what Oclgrind says about each case that it complains of."""
    found: dict[str, list[str]] = {}
    name = ""
    for line in log.splitlines():
        if line.startswith("case: "):
            name = line.removeprefix("case: ")
        elif any(complaint in line for complaint in COMPLAINTS):
            found.setdefault(name, []).append(line.strip())
    return found


@pytest.mark.extended
def test_oclgrind_finds_nothing_wrong_with_any_generated_kernel(tmp_path: Path) -> None:
    cl = pytest.importorskip("pyopencl", reason="pyopencl is not installed")
    try:
        platforms = [platform.name for platform in cl.get_platforms()]
    except cl.Error:
        platforms = []
    if "Oclgrind" not in platforms:
        pytest.skip("Oclgrind is not installed")
    file = tmp_path / "onnx_cases"
    file.write_bytes(pickle.dumps(onnx_cases()))
    done = subprocess.run(
        [sys.executable, "on_oclgrind.py", str(file)],
        cwd=SUPPORT,
        # Optimized, unlike in other tests: an interpreter takes four times as long otherwise.
        env={**os.environ, "OCLGRIND_DATA_RACES": "1", "PYOPENCL_BUILD_OPTIONS": ""},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert done.returncode == 0, done.stderr
    found = complaints(done.stderr)
    broken = " ".join(found.pop("broken", []))
    assert "Invalid write" in broken
    assert "data race" in broken
    assert found == {}
