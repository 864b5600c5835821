"""Serve models from an asyncio program and from threads, beside ONNX Runtime.

Some tasks or threads request items without a pause, as clients of a web server do. Sides of tasks:
`run_in_executor` on a `ThreadPoolExecutor` with a thread for each core and an ONNX Runtime session
of one thread, and `AsyncioSession.run` on a plan for ``"auto"``; of threads: `run` of that
inference session, and of a `BlockingSession`. Sides take turns; medians over the rounds, and the
median of the ratio to ONNX Runtime in one round.

    python benchmarks/bench_serving.py [--rounds 7] [--requests 400]
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import statistics
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import onnxruntime
import plait as pl
from measure import save
from plait.graph.values.tensor import Array
from real_models import REAL_MODELS

CORES = 2
TASKS = (1, 4, 16)
THREADS = (1, 2, 8)
SAMPLES = 8
MODELS = ("PP-OCR direction", "shufflenet, made-up weights", "magika")
S = TypeVar("S")
Feeds = Mapping[str, Array]
Serve = Callable[[Feeds], Awaitable[Any]]


class Figures(NamedTuple):
    """The rate of some requests, their times and their processor time."""

    per_s: float
    p50_ms: float
    p99_ms: float
    cpu_ms: float


class Meter:
    """Measures requests from its making on."""

    def __init__(self) -> None:
        self.times_ms: list[float] = []
        self._begun, self._busy = time.perf_counter(), time.process_time()

    def figures(self) -> Figures:
        wall_s, cpu_s = time.perf_counter() - self._begun, time.process_time() - self._busy
        requests = len(self.times_ms)
        centiles = statistics.quantiles(self.times_ms, n=100)
        return Figures(requests / wall_s, centiles[49], centiles[98], 1e3 * cpu_s / requests)


async def measure(serve: Serve, feeds: Sequence[Feeds], tasks: int, requests: int) -> Figures:
    meter, numbers = Meter(), iter(range(requests))

    async def request() -> None:
        for number in numbers:
            begun = time.perf_counter()
            await serve(feeds[number % len(feeds)])
            meter.times_ms.append(1e3 * (time.perf_counter() - begun))

    await asyncio.gather(*(request() for _ in range(tasks)))
    return meter.figures()


def measure_threads(
    run: Callable[[Feeds], Any], feeds: Sequence[Feeds], threads: int, requests: int
) -> Figures:
    meter, numbers = Meter(), iter(range(requests))

    def request() -> None:
        for number in numbers:
            begun = time.perf_counter()
            run(feeds[number % len(feeds)])
            meter.times_ms.append(1e3 * (time.perf_counter() - begun))

    callers = [threading.Thread(target=request) for _ in range(threads)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    return meter.figures()


def compare(name: str, rounds: int, requests: int) -> dict[str, Any]:
    model = REAL_MODELS[name]
    feeds: list[Feeds] = [model.feeds(1) for _ in range(SAMPLES)]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    inference = onnxruntime.InferenceSession(model.path(), options)
    shapes = {name: array.shape for name, array in feeds[0].items()}
    plan = pl.plan(pl.load(model.path()), shapes=shapes, max_in_flight=2 * CORES)
    rows = asyncio.run(compare_tasks(inference, plan, feeds, rounds, requests))
    return rows | compare_threads(inference, plan, feeds, rounds, requests)


def list_turns(
    counts: Sequence[int], rounds: int, sides: Mapping[str, S]
) -> list[tuple[int, str, S]]:
    """Return the turns of all sides by number of tasks or threads, with a first round to learn."""
    turns = itertools.product(counts, range(rounds + 1), sides.items())
    return [(count, side, run) for count, _, (side, run) in turns]


async def compare_tasks(
    inference: onnxruntime.InferenceSession,
    plan: pl.Plan,
    feeds: Sequence[Feeds],
    rounds: int,
    requests: int,
) -> dict[str, Any]:
    loop = asyncio.get_running_loop()
    found: dict[int, dict[str, list[Figures]]] = {}
    with ThreadPoolExecutor(CORES) as pool:
        async with pl.AsyncioSession(plan) as session:
            sides: dict[str, Serve] = {
                "pool": lambda one: loop.run_in_executor(pool, inference.run, None, one),
                "plait": session.run,
            }
            for tasks, side, serve in list_turns(TASKS, rounds, sides):
                figures = await measure(serve, feeds, tasks, requests)
                found.setdefault(tasks, {}).setdefault(side, []).append(figures)
    return {f"{tasks} tasks": summarize(sides) for tasks, sides in found.items()}


def compare_threads(
    inference: onnxruntime.InferenceSession,
    plan: pl.Plan,
    feeds: Sequence[Feeds],
    rounds: int,
    requests: int,
) -> dict[str, Any]:
    found: dict[int, dict[str, list[Figures]]] = {}
    with pl.BlockingSession(plan) as session:
        sides: dict[str, Callable[[Feeds], Any]] = {
            "pool": lambda one: inference.run(None, one),
            "plait": session.run,
        }
        for threads, side, run in list_turns(THREADS, rounds, sides):
            figures = measure_threads(run, feeds, threads, requests)
            found.setdefault(threads, {}).setdefault(side, []).append(figures)
    return {f"{threads} threads": summarize(sides) for threads, sides in found.items()}


def summarize(sides: Mapping[str, Sequence[Figures]]) -> dict[str, Any]:
    """Return medians over all rounds but the first, in which plait learns."""
    kept = {side: figures[1:] for side, figures in sides.items()}
    medians = {
        side: Figures(*(round(statistics.median(each), 3) for each in zip(*figures, strict=True)))
        for side, figures in kept.items()
    }
    pairs = list(zip(kept["plait"], kept["pool"], strict=True))
    return {
        **{side: figures._asdict() for side, figures in medians.items()},
        "requests of pool": round(statistics.median(a.per_s / b.per_s for a, b in pairs), 3),
        "p99 of pool": round(statistics.median(a.p99_ms / b.p99_ms for a, b in pairs), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results")
    arguments = parser.parse_args()
    rows: dict[str, Any] = {}
    for name in MODELS:
        load = os.getloadavg()[0]
        rows[name] = compare(name, arguments.rounds, arguments.requests)
        print(f"{name}: load {load:.1f}")
        for tasks, found in rows[name].items():
            pool, own = found["pool"], found["plait"]
            print(
                f"  {tasks:10} pool {pool['per_s']:7.0f}/s, plait {own['per_s']:7.0f}/s,"
                f" {found['requests of pool']:.2f} x; p99 {pool['p99_ms']:.2f} ms,"
                f" {own['p99_ms']:.2f} ms, {found['p99 of pool']:.2f} x",
                flush=True,
            )
        rows[name]["load"] = load
    if arguments.keep:
        save("serving", rows)


if __name__ == "__main__":
    main()
