"""Systems that cannot start workers: these say so, and the devices in this process compute."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from patience import WAIT_S

EMULATED = Path(__file__).parents[1] / "support" / "without_posix.py"
NEEDED = {"cpu": "numpy", "compiled": "numba", "ort": "onnxruntime"}
HERE = [device for device, package in NEEDED.items() if find_spec(package)]
RUN = """
import sys
import numpy as np, plait as pl
b = pl.GraphBuilder("conv")
x = b.input("x", "float32", (1, 2, 8, 8))
b.output("y", b.op("Relu", b.op("Conv", x, np.ones((3, 2, 3, 3), "float32"))))
graph = b.build()
feeds = {"x": np.ones((1, 2, 8, 8), "float32")}
for device in sys.argv[1:]:
    with pl.BlockingSession(pl.plan(graph, [device], max_in_flight=2)) as session:
        assert [item["y"].max() for item in session.stream([feeds] * 3)] == [18] * 3
    pl.save(graph, "conv.plait")
    assert pl.run(pl.load("conv.plait"), feeds, devices=[device])["y"].min() == 18
print("done")
"""


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EMULATED), *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=WAIT_S)


def test_workers_are_said_to_be_missing_and_why(tmp_path: Path) -> None:
    done = run(tmp_path, "plait", "devices", "--json", "worker:0", *HERE)
    assert "Traceback" not in done.stderr
    found = {status["name"]: status for status in json.loads(done.stdout)}
    assert found["worker:0"]["reason"].startswith("'worker:0' takes what this system lacks: ")
    assert {name: found[name]["found"] for name in HERE} == dict.fromkeys(HERE, True)


def test_all_devices_are_listed_without_a_traceback(tmp_path: Path) -> None:
    done = run(tmp_path, "plait", "devices")
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stdout
    assert "cannot be made" not in done.stdout


def test_devices_in_this_process_run_and_stream(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(RUN)
    done = run(tmp_path, str(script), *HERE)
    assert done.stdout == "done\n", done.stderr
