"""What does a first use take beside importing numpy, and a tiny graph that is run again?

Each import is a process of its own, alternated with one that imports nothing and one that imports
numpy alone; what counts is its CPU time beyond Python's own start, numpy's = 1. numpy and trio
together are the least that a session can take. A first session is a tiny graph that is built,
planned for ``cpu``, opened and run once. Goals: ``import plait`` at most 1.2, `Session` at most 1.5
times numpy and trio together, a tiny graph run again at most 1.5 ms, and at most 10 packages.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, requires

import numpy as np
import plait as pl
import trio
from measure import save
from plait.version import DISTRIBUTION

GRAPH = """
import numpy as np, plait as pl
b = pl.GraphBuilder("tiny")
w = np.eye(16, dtype="float32")
b.output("y", b.op("Relu", b.op("MatMul", b.input("x", "float32", (16, 16)), w)))
graph, feeds = b.build(), {"x": w}
"""
SCRIPTS = {
    "nothing": "pass",
    "numpy": "import numpy",
    "numpy and trio": "import numpy, trio",
    "plait": "import plait",
    "plait.Session": "import plait; plait.Session",
    "a first session": f"{GRAPH}\nwith pl.BlockingSession(pl.plan(graph)) as s: s.run(feeds)",
    "a first run": f"{GRAPH}\npl.run(graph, feeds)",
}
TOLD = "\nimport sys, time; print(time.process_time(), len(sys.modules))"
ROUNDS = 15
CALLS = 40


def start(script: str) -> tuple[float, int]:
    """Return the CPU seconds of a process, and how many modules it has."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [sys.executable, "-c", script + TOLD],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    seconds, modules = done.stdout.split()
    return float(seconds), int(modules)


def first_use() -> dict[str, dict[str, float]]:
    """Return for each script what it takes beyond nothing, and of numpy's, round by round."""
    for script in SCRIPTS.values():  # bytecode is there from now on
        start(script)
    rounds = [{name: start(script) for name, script in SCRIPTS.items()} for _ in range(ROUNDS)]
    figures = {}
    for name in SCRIPTS:
        beyond = [each[name][0] - each["nothing"][0] for each in rounds]
        ratios = [
            seconds / (each["numpy"][0] - each["nothing"][0])
            for seconds, each in zip(beyond, rounds, strict=True)
        ]
        figures[name] = {
            "cpu_s": min(beyond),
            "of_numpy": statistics.median(ratios),
            "of_numpy_least": min(ratios),
            "of_numpy_most": max(ratios),
            "modules": rounds[0][name][1],
        }
    return figures


def again() -> dict[str, dict[str, float]]:
    """Return the seconds of a tiny graph that is run again, and of what that is made of."""
    scope: dict[str, object] = {}
    exec(GRAPH, scope)
    graph, feeds = scope["graph"], {"x": np.eye(16, dtype=np.float32)}
    assert isinstance(graph, pl.Graph)

    async def nothing() -> None:
        pass

    sides: dict[str, Callable[[], object]] = {
        "an event loop": lambda: trio.run(nothing),
        "planning": lambda: pl.plan(graph),
        "run again": lambda: pl.run(graph, feeds),
    }
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    cpu: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(CALLS):
        for name, call in sides.items():
            started, used = time.perf_counter(), time.process_time()
            call()
            cpu[name].append(time.process_time() - used)
            seconds[name].append(time.perf_counter() - started)
    return {
        name: {
            "median_s": statistics.median(times),
            "least_s": min(times),
            "cpu_median_s": statistics.median(cpu[name]),
            "cpu_least_s": min(cpu[name]),
        }
        for name, times in seconds.items()
    }


def packages(name: str, found: set[str]) -> set[str]:
    """Return a package and what it needs here, extras left out."""
    try:
        listed = requires(name) or []
    except PackageNotFoundError:
        return found
    found.add(name)
    for requirement in listed:
        wanted = re.split(r"[\s<>=!~;\[]", requirement, maxsplit=1)[0].lower()
        if "extra ==" not in requirement and wanted not in found:
            packages(wanted, found)
    return found


def main() -> None:
    found = sorted(packages(DISTRIBUTION, set()))
    save(
        "import_time",
        {
            "first_use": first_use(),
            "tiny_graph": again(),
            "packages": found,
            "package_count": len(found),
        },
    )


if __name__ == "__main__":
    main()
