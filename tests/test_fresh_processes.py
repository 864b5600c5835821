"""Public calls give the same in a fresh process and after all imports."""

from __future__ import annotations

import subprocess
import sys

import pytest

START = "import numpy as np, plait as pl\n"
NETWORK = """
b = pl.GraphBuilder("g")
x = b.input("x", "float32", (2, 3, 8, 8))
h = x.conv(np.ones((4, 3, 3, 3), "float32"), pads=(1, 1, 1, 1)).relu()
b.output("y", h.mean(axis=(2, 3)) @ np.eye(4, 5, dtype="float32"))
graph = b.build()
"""
EACH = """
r = pl.GraphBuilder("r")
x = r.input("x", "float32", ("rows", 1, 8, 8))
lengths = r.op("Shape", r.constant(np.zeros(4, "float32")))
r.output("codes", x.reshape(r.op("Concat", np.array([-1]), lengths, np.array([16]), axis=0)))
b = pl.GraphBuilder("g")
rows = b.input("x", "float32", ("n", 1, 8, 8))
b.output("codes", b.each(rows, r.build(), name="o", batch=1))
graph = b.build()
"""
LENGTHS = """
b = pl.GraphBuilder("g")
x = b.input("x", "float32", ("n", 4))
half = b.op("Div", b.op("Gather", b.op("Shape", x), np.array(1)), np.array(2))
b.output("y", b.op("Split", x, axis=1, num_outputs=2, outputs=2)[0])
b.output("z", b.op("Expand", half, b.op("Shape", b.constant(np.zeros((2, 3))))))
graph = b.build()
"""
CALLS = {
    "each": EACH + "print(graph.tensors['codes'])",
    "build": LENGTHS + "print(graph)",
    "plan": LENGTHS
    + "plan = pl.plan(graph, bounds={'n': 8})\nprint(plan.graph, plan.assignment, plan.memory)",
    "report": NETWORK + "print(pl.plan(graph, ['ort', 'cpu']).report().split('transfers')[1])",
    "dot": NETWORK + "print(pl.to_dot(graph))",
    "check": NETWORK + "print(pl.check(graph))",
    "save": NETWORK + "pl.save(graph, 'a.onnx')\nprint(pl.load('a.onnx'))",
    "gradients": NETWORK + "print(pl.gradients(graph, ['y'], ['x']))",
    "simulate": NETWORK + "print(pl.simulate(pl.plan(graph, 'sim:a')).makespan_s)",
    "run": LENGTHS + "print(pl.run(graph, {'x': np.ones((3, 4), 'float32')}))",
    "operators": "from plait.operators import list_operators\nprint(sorted(list_operators()))",
}
WARM = """
import contextlib, importlib, io, pkgutil
for module in pkgutil.walk_packages(pl.__path__, "plait."):
    if "__main__" not in module.name and not module.name.startswith("plait.tests"):
        with contextlib.suppress(ImportError, pl.PlaitError):
            importlib.import_module(module.name)
"""


def run(code: str, folder: object) -> str:
    done = subprocess.run(
        [sys.executable, "-P", "-W", "ignore", "-c", START + code],
        cwd=str(folder),
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout or done.stderr


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the output of each call in one process that has imported everything."""
    mark = "\n--- {} ---\n"
    parts = [f"print({mark.format(name)!r})\n{code}" for name, code in CALLS.items()]
    text = run(WARM + "\n".join(parts), tmp_path_factory.mktemp("warm"))
    found = {}
    for name in CALLS:
        found[name] = text.partition(mark.format(name))[2].partition("\n--- ")[0]
    return found


@pytest.mark.parametrize(
    "name",
    [
        name if name in ("each", "plan", "run") else pytest.param(name, marks=pytest.mark.extended)
        for name in CALLS
    ],
)
def test_a_call_gives_in_a_fresh_process_what_it_gives_in_a_warm_one(
    name: str, warm: dict[str, str], tmp_path: object
) -> None:
    fresh = run(CALLS[name], tmp_path)
    assert warm[name].strip()
    assert fresh.split() == warm[name].split()
