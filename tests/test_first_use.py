"""Modules that a first use imports: counted, since times depend on the machine."""

from __future__ import annotations

import subprocess
import sys

GRAPH = """
import numpy as np, plait as pl, sys
b = pl.GraphBuilder("first")
b.output("y", b.op("Relu", b.op("MatMul", b.input("x", "float32", (2, 2)), np.eye(2, dtype="f4"))))
graph = b.build()
"""
OWN = "[name for name in sys.modules if name.startswith('plait')]"


def imported(code: str) -> list[str]:
    """Return plait's modules after some code, in a process of their own."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", f"{code}\nprint(*{OWN})"],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


def test_importing_plait_imports_what_gives_its_names_alone() -> None:
    found = imported("import plait, sys\nassert 'numpy' not in sys.modules")
    assert sorted(found) == ["plait", "plait.lazily", "plait.version"]


def test_a_builder_brings_a_tenth_of_it() -> None:
    found = imported("import plait, sys; plait.GraphBuilder")
    assert len(found) < 50
    assert not [name for name in found if ".kernels" in name or ".formats" in name]


def test_a_session_brings_neither_formats_nor_what_plans_are_read_and_told_with() -> None:
    found = imported("import plait, sys; plait.Session")
    assert len(found) < 340
    parts = {"formats", "reports", "quantization", "bridges", "ray"}
    assert not [name for name in found if parts.intersection(name.split(".")[2:3])]


def test_a_first_run_imports_the_kernels_of_its_graph() -> None:
    found = imported(f"{GRAPH}print(pl.run(graph, {{'x': np.ones((2, 2), 'f4')}})['y'].sum())")
    kernels = {name.rpartition(".")[2] for name in found if ".kernels." in name}
    assert {"linear_algebra", "elementwise"} <= kernels
    assert kernels.isdisjoint({"convolution", "recurrent", "resize", "pooling", "signal"})


def test_finding_the_devices_of_auto_imports_no_kind_that_is_not_used() -> None:
    code = "from plait.devices.automatic import find_automatic_devices\nimport os, sys"
    found = imported(f"{code}\nos.environ.pop('PLAIT_DEVICES', 0); find_automatic_devices()")
    assert "plait.devices.automatic" in found
    assert not {"plait.devices.codegen", "plait.devices.opencl"}.intersection(found)


def test_a_loop_that_is_not_there_is_not_imported() -> None:
    code = f"{GRAPH}pl.run(graph, {{'x': np.ones((2, 2), 'f4')}})"
    done = f"{code}\nassert 'asyncio' not in sys.modules"
    assert imported(done)
