"""The template of a package: installed into a folder, without a network, and used from there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from installed_packages import install_project
from patience import WAIT_S

PROJECT = Path(__file__).parents[2] / "examples" / "extension"

SAVE = """
import json, sys
import numpy as np
import plait as pl

table = np.arange(12, dtype=np.float32).reshape(4, 3)
np.save("table.npy", table)
listed = "acme" in pl.devices.names()
before = "plait_acme" in sys.modules
reason = pl.devices.probe("acme").reason

b = pl.GraphBuilder("fetch")
rows = b.input("rows", "int64", ("n",))
fetched = b.op("acme.Fetch", rows, path="table.npy", columns=3, name="fetch")
b.output("y", b.op("acme.Center", fetched, name="center"))
pl.save(b.build(), "fetch.plait")
try:
    b.op("acme.Fetch", rows, path="table.npy", columns=0, name="empty")
except pl.OperatorError as error:
    check = [error.what, error.at]

b = pl.GraphBuilder("wide")
rows = b.input("rows", "int64", ("n",))
b.output("y", b.op("acme.Fetch", rows, path="table.npy", columns=4, name="wide"))
try:
    pl.run(b.build(), {"rows": np.array([0])})
except pl.KernelError as error:
    opening = [error.what, error.at]
print(json.dumps([listed, before, reason, check, opening]))
"""

LOAD = """
import json, sys
import numpy as np
import plait as pl

before = "plait_acme" in sys.modules
graph = pl.load("fetch.plait")
rows = {"rows": np.array([3, 0])}
devices = ("cpu", "worker:0", "acme:1")
results = [pl.run(graph, rows, devices=[name])["y"].tolist() for name in devices]
print(json.dumps([before, results]))
"""


CHAIN = """
import json, sys
import numpy as np
import plait as pl

b = pl.GraphBuilder("chain")
x = b.input("x", "float32", ("n", 3))
b.output("y", b.op("acme.Center", b.op("Neg", x)))
graph = b.build()
before = "plait_acme.files" in sys.modules
pl.save(graph, "chain.acme")
text = open("chain.acme").read().splitlines()
fed = {"x": np.array([[1, 2, 6]], np.float32)}
results = [pl.run(made, fed)["y"].tolist() for made in (
    graph,
    pl.load("chain.acme"),
    pl.load(open("chain.acme", "rb").read()),
    pl.load(open("chain.acme", "rb").read(), format="acme"),
)]
print(json.dumps([before, text, results]))
"""


def script(folder: Path, text: str) -> Any:
    """Return what a script prints that finds the package in a folder."""
    paths = [str(folder / "site"), os.environ.get("PYTHONPATH")]
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", text],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder where scripts find the package installed."""
    made = tmp_path_factory.mktemp("extension")
    install_project(made / "site", PROJECT)
    return made


@pytest.fixture(scope="module")
def saved(folder: Path) -> Any:
    """Return what the script prints that builds and saves a graph of the package's operators."""
    return script(folder, SAVE)


def test_its_device_is_listed_and_imported_when_it_is_checked(saved: Any) -> None:
    listed, imported_before, reason, *_ = saved
    assert (listed, imported_before, reason) == (True, False, "self-check passed")


def test_its_checks_name_the_node(saved: Any) -> None:
    what, where = saved[3]
    assert what == "attribute 'columns' of acme.Fetch must be ≥ 1, got 0"
    assert "node 'empty'" in where


def test_its_files_are_saved_and_loaded_by_suffix_and_content(folder: Path) -> None:
    imported_before, text, results = script(folder, CHAIN)
    assert not imported_before
    assert text == ["# acme chain", "3", "Neg", "acme.Center"]
    assert results == [[[2, 1, -3]]] * 4


def test_what_it_cannot_open_names_the_node(saved: Any) -> None:
    what, where = saved[4]
    assert what == "ValueError: table.npy holds rows of shape (3,)"
    assert "node 'wide'" in where
    assert where.endswith("when it was opened")


def test_a_saved_graph_runs_here_in_a_worker_and_on_its_device(folder: Path, saved: Any) -> None:
    imported_before, results = script(folder, LOAD)
    assert not imported_before
    assert results == [[[-1, 0, 1]] * 2] * 3
