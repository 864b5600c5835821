"""Measure the minimum effective task granularity (METG) of task graphs, by Task Bench's patterns.

Slaughter et al., Task Bench: A Parameterized Benchmark for Evaluating Parallel Runtime Performance,
SC 2020. A grid of `STEPS` times `WIDTH` tasks; a task depends on tasks of the step before: its
neighbours (stencil), its partner in a butterfly (fft), a task that halves its index, while the
width doubles (tree), or some at random. Every task computes for the same time. METG(50 %) is the
least granularity, wall time times cores over tasks, at which a run takes twice as long as the same
work in one call for each core, in the same round: lower is better.

Sides: threads of a `ThreadPoolExecutor` that submit a task when its last dependency is done, Dask's
threaded scheduler and Ray where they are installed, and plait with nodes pinned to a `cpu` for each
core. Work is one call of a hash, which releases the interpreter. Sides take turns; medians of runs.

    python benchmarks/bench_metg.py [--rounds 5] [--busy 0] [--keep]
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import plait as pl
from measure import save
from plait.graph.values.tensor import Array

CORES = 2
WIDTH, STEPS = 4, 24
SPIN = "while True: pass"
IDEAL = "ideal"
LENGTHS_US = (5, 10, 20, 40, 80, 160, 320, 640, 1280, 2560, 5120)
"""The times of a task that are tried, in turn, until half of the time is work."""

Graph = Sequence[Sequence[Sequence[int]]]
"""For every step and task, the tasks of the step before that it depends on."""

Work = Callable[..., Array]


def make_pattern(name: str) -> Graph:
    chance = random.Random(7)
    steps: list[list[list[int]]] = [[[] for _ in range(WIDTH)]]
    for step in range(1, STEPS):
        bit = 1 << (step - 1) % (WIDTH.bit_length() - 1)
        for_task: Mapping[str, Callable[[int], list[int]]] = {
            "stencil": lambda i: [j for j in (i - 1, i, i + 1) if 0 <= j < WIDTH],
            "fft": partial(find_partners, bit),
            "tree": lambda i: [i // 2],
            "random": lambda _: sorted(chance.sample(range(WIDTH), chance.randint(1, 3))),
        }
        steps.append([for_task[name](i) for i in range(WIDTH)])
    return steps


def find_partners(bit: int, task: int) -> list[int]:
    return sorted({task, task ^ bit})


def make_work(us: float) -> tuple[Work, int]:
    """Return a task of about `us`, and its rounds of a hash: one call, in which others may run."""

    def measure(rounds: int) -> float:
        times = []
        for _ in range(25):
            start = time.perf_counter()
            compute(rounds)
            times.append(time.perf_counter() - start)
        return min(times)

    each = measure(20_000) / 20_000
    rounds = max(1, round(us * 1e-6 / each))

    def work(*values: Array) -> Array:
        compute(rounds)
        return sum(values[1:], start=values[0]) / np.float32(len(values))

    return work, rounds


def compute(rounds: int) -> None:
    hashlib.pbkdf2_hmac("sha1", b"task", b"bench", rounds)


def run_ideal(pool: ThreadPoolExecutor, rounds: int) -> list[Array]:
    """Compute as much as all tasks do, with one call for each core."""
    list(pool.map(compute, [rounds * WIDTH * STEPS // CORES] * CORES))
    return []


def run_pool(pool: ThreadPoolExecutor, graph: Graph, work: Work, x: Array) -> list[Array]:
    """Run the graph on threads: the one that ends the last dependency of a task submits it."""
    values: list[list[Any]] = [[None] * WIDTH for _ in graph]
    left = [[len(needs) for needs in row] for row in graph]
    readers: list[list[list[int]]] = [[[] for _ in range(WIDTH)] for _ in graph]
    for step, row in enumerate(graph):
        for i, needs in enumerate(row):
            for j in needs:
                readers[step - 1][j].append(i)
    lock, ended = threading.Lock(), threading.Event()
    rest = [len(graph) * WIDTH]

    def run(step: int, i: int) -> None:
        needs = graph[step][i]
        values[step][i] = work(*[values[step - 1][j] for j in needs]) if needs else work(x)
        ready = []
        with lock:
            rest[0] -= 1
            if not rest[0]:
                ended.set()
            for reader in readers[step][i]:
                left[step + 1][reader] -= 1
                if not left[step + 1][reader]:
                    ready.append(reader)
        for reader in ready:
            pool.submit(run, step + 1, reader)

    for i in range(WIDTH):
        pool.submit(run, 0, i)
    ended.wait()
    return values[-1]


def run_dask(graph: Graph, work: Work, x: Array) -> list[Array]:
    tasks: dict[Any, Any] = {}
    for step, row in enumerate(graph):
        for i, needs in enumerate(row):
            tasks[step, i] = (work, *[(step - 1, j) for j in needs]) if needs else (work, x)
    found = import_module("dask.threaded").get(
        tasks, [(len(graph) - 1, i) for i in range(WIDTH)], num_workers=CORES
    )
    return list(found)


def run_ray(remote: Any, graph: Graph, x: Array) -> list[Array]:
    row: list[Any] = []
    for needs_of in graph:
        row = [
            remote.remote(*[row[j] for j in needs]) if needs else remote.remote(x)
            for needs in needs_of
        ]
    found: list[Array] = import_module("ray").get(row)
    return found


def plan_graph(pattern: str, us: float, graph: Graph, work: Work) -> pl.Plan:
    spec = pl.TensorSpec("float32", (1,))
    calls = {
        count: pl.operator(spec, inputs=[spec] * count, name=f"metg.{pattern}.{us}.{count}")(
            make_function(work, count)
        )
        for count in {len(needs) or 1 for row in graph for needs in row}
    }
    b = pl.GraphBuilder(pattern)
    x = b.input("x", "float32", (1,))
    row: list[Any] = []
    pins = {}
    devices = ["cpu", *(f"cpu:{n}" for n in range(1, CORES))]
    for step, needs_of in enumerate(graph):
        following = []
        for i, needs in enumerate(needs_of):
            name = f"task_{step}_{i}"
            following.append(
                b.call(calls[len(needs) or 1], *([row[j] for j in needs] or [x]), name=name)
            )
            pins[name] = devices[i * CORES // WIDTH]
        row = following
    for i, value in enumerate(row):
        b.output(f"y{i}", value)
    return pl.plan(b.build(), devices, pin=pins)


def make_function(work: Work, count: int) -> Work:
    """Return work with a signature of `count` inputs, as operators need it."""
    names = ", ".join(f"x{n}" for n in range(count))
    found: Work = eval(f"lambda {names}: work({names})", {"work": work})
    return found


def measure_length(
    pattern: str, us: float, rounds: int, names: Sequence[str], pool: ThreadPoolExecutor
) -> dict[str, tuple[float, float]]:
    """Return the granularity in µs and the efficiency of each side for tasks of `us`."""
    graph, x = make_pattern(pattern), np.ones(1, "float32")
    work, work_rounds = make_work(us)
    with pl.BlockingSession(plan_graph(pattern, us, graph, work)) as session:
        sides: dict[str, Callable[[], Sequence[Array]]] = {
            IDEAL: partial(run_ideal, pool, work_rounds),
            "pool": partial(run_pool, pool, graph, work, x),
            "dask": partial(run_dask, graph, work, x),
            "plait": lambda: list(session.run({"x": x}).values()),
        }
        if "ray" in names:
            remote = import_module("ray").remote(work)
            sides["ray"] = partial(run_ray, remote, graph, x)
        times: dict[str, list[float]] = {name: [] for name in (IDEAL, *names)}
        for turn in range(rounds + 2):
            for name in times:
                start = time.perf_counter()
                found = sides[name]()
                spent = time.perf_counter() - start
                assert all(np.allclose(one, 1) for one in found), name
                if turn > 1:
                    times[name].append(spent)
    return {
        name: (
            statistics.median(times[name]) * CORES / (WIDTH * STEPS) * 1e6,
            statistics.median(a / b for a, b in zip(times[IDEAL], times[name], strict=True)),
        )
        for name in names
    }


def measure_pattern(pattern: str, rounds: int, names: Sequence[str]) -> dict[str, float | None]:
    """Return METG(50 %) in µs of each side; None if no task that was tried is long enough."""
    found: dict[str, float | None] = dict.fromkeys(names)
    with ThreadPoolExecutor(CORES) as pool:
        for us in LENGTHS_US:
            left = [name for name in names if found[name] is None]
            if not left:
                break
            for name, (granularity, efficiency) in measure_length(
                pattern, us, rounds, left, pool
            ).items():
                if efficiency >= 0.5:
                    found[name] = round(granularity, 1)
    return found


def find_sides() -> list[str]:
    return ["plait", "pool", *(name for name in ("dask", "ray") if find_spec(name) is not None)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--busy", type=int, default=0, help="busy processes per core beside it")
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results")
    arguments = parser.parse_args()
    names = find_sides()
    if "ray" in names:
        import_module("ray").init(num_cpus=CORES, log_to_driver=False, logging_level="error")
    count = arguments.busy * CORES
    busy = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(count)]
    rows: dict[str, Mapping[str, Any]] = {}
    try:
        for pattern in ("stencil", "fft", "tree", "random"):
            load = os.getloadavg()[0]
            rows[pattern] = {"load": load, **measure_pattern(pattern, arguments.rounds, names)}
            print(pattern, rows[pattern], flush=True)
    finally:
        for one in busy:
            one.kill()
            one.wait()
    if arguments.keep:
        save(f"metg_busy_{arguments.busy}" if arguments.busy else "metg", rows)


if __name__ == "__main__":
    main()
