"""Compare streams of short steps with the same functions in a loop.

Each item goes through two Python functions: trivial ones, array functions of 12 µs, 90 µs and 1 ms,
and functions of 90 µs that hold the interpreter. Sides: a loop, a `ThreadPoolExecutor` with a
thread for each core, and plait on ``cpu`` and on two replicas, through the trio and the blocking
session. Sides take turns; medians of wall and of processor time per item, and the median time from
one result to the next, in which other programs hardly show. The cost of a hand-over
between two threads on this machine, measured in the same run by a lock that goes to and fro, stands
beside them, and so does the load.

Goals: two functions of 90 µs at most 1.1 times the loop on ``cpu``, and on two idle cores 1.5 times
as fast as it; trivial functions at most 30 µs an item, and on replicas no more than on ``cpu``;
functions of 1 ms at 0.97 of the bound on two cores.

    python benchmarks/bench_short_steps.py [--rounds 7] [--busy 0] [--rows trivial,90us]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import plait as pl
import trio
from measure import save
from plait.graph.values.tensor import Array

CORES = 2
AT_LEAST_S = 0.15
"""Seconds of a turn."""
SPIN = "while True: pass"
Function = Callable[[Array], Array]


def add_one(x: Array) -> Array:
    return x + 1


def compute_for(us: float) -> Function:
    """Return a function of four array operations that take `us` in all."""

    def make(length: int) -> Function:
        table = np.linspace(0.0, 1.0, length, dtype="float32")

        def compute(x: Array) -> Array:
            y = np.exp(table)
            np.multiply(y, y, out=y)
            np.sqrt(y, out=y)
            np.exp(y, out=y)
            return x + y[0]

        return compute

    length = 64
    while measure_call(make(length)) < us * 1e-6:
        length = length * 5 // 4
    return make(length)


def hold_for(us: float) -> Function:
    """Return a function that takes `us` in the interpreter alone."""

    def make(rounds: int) -> Function:
        def hold(x: Array) -> Array:
            total = 0
            for number in range(rounds):
                total += number
            return x

        return hold

    rounds = 10
    while measure_call(make(rounds)) < us * 1e-6:
        rounds = rounds * 5 // 4
    return make(rounds)


def measure_call(function: Function) -> float:
    """Return the least seconds of a call: others use the machine, too."""
    x, least = np.ones(4, "float32"), float("inf")
    for _ in range(30):
        start = time.perf_counter()
        function(x)
        least = min(least, time.perf_counter() - start)
    return least


ROWS: dict[str, Callable[[], Function]] = {
    "trivial": lambda: add_one,
    "12us": lambda: compute_for(12),
    "90us": lambda: compute_for(90),
    "90us held": lambda: hold_for(90),
    "1ms": lambda: compute_for(1000),
}


def plan_for(name: str, function: Function, devices: str) -> pl.Plan:
    spec = pl.TensorSpec("float32", (4,))
    operator = pl.operator(spec, inputs=[spec], name=f"bench.{name}.{devices}")(function)
    b = pl.GraphBuilder("two functions")
    first = b.call(operator, b.input("x", "float32", (4,)), name="first")
    b.output("y", b.call(operator, first, name="second"))
    return pl.plan(b.build(), [devices], max_in_flight=4)


def feed(items: int) -> Iterator[dict[str, Array]]:
    x = np.ones(4, "float32")
    for _ in range(items):
        yield {"x": x}


def run_loop(function: Function, items: int) -> list[int]:
    ends = []
    for inputs in feed(items):
        function(function(inputs["x"]))
        ends.append(time.perf_counter_ns())
    return ends


def run_pool(pool: ThreadPoolExecutor, function: Function, items: int) -> list[int]:
    pending: deque[Future[Array]] = deque()
    ends = []
    for inputs in feed(items):
        if len(pending) == 2 * CORES:
            pending.popleft().result()
            ends.append(time.perf_counter_ns())
        pending.append(pool.submit(lambda x: function(function(x)), inputs["x"]))
    for one in pending:
        one.result()
        ends.append(time.perf_counter_ns())
    return ends


def run_blocking(session: pl.BlockingSession, items: int) -> list[int]:
    ends = []
    for item in session.stream(feed(items)):
        item["y"]
        ends.append(time.perf_counter_ns())
    return ends


async def run_trio(session: pl.Session, items: int) -> list[int]:
    ends = []
    async with session.stream(feed(items)) as results:
        async for item in results:
            item["y"]
            ends.append(time.perf_counter_ns())
    return ends


def measure_hand_over(rounds: int = 2000) -> dict[str, float]:
    """Return the µs of wall and of processor time in which a lock goes to a thread and back."""
    there, back = threading.Lock(), threading.Lock()
    there.acquire()
    back.acquire()

    def answer() -> None:
        for _ in range(rounds):
            there.acquire()
            back.release()

    thread = threading.Thread(target=answer)
    thread.start()
    start, cpu = time.perf_counter(), time.process_time()
    for _ in range(rounds):
        there.release()
        back.acquire()
    wall, spent = time.perf_counter() - start, time.process_time() - cpu
    thread.join()
    return {"wall_us": wall / rounds * 1e6, "cpu_us": spent / rounds * 1e6}


class Turn(NamedTuple):
    """Figures of some items, in µs an item."""

    wall_us: float
    cpu_us: float
    between_us: float

    @classmethod
    def since(cls, start: float, cpu: float, ends: list[int]) -> Turn:
        """Return the figures of items that began at a time and ended at these, in ns."""
        spent, cpu_spent = time.perf_counter() - start, time.process_time() - cpu
        between = statistics.median(b - a for a, b in pairwise(ends))
        return cls(spent / len(ends) * 1e6, cpu_spent / len(ends) * 1e6, between / 1e3)


class Sides:
    """The sides of a row, each of which runs a number of items."""

    def __init__(self, name: str, function: Function) -> None:
        self.plans = {devices: plan_for(name, function, devices) for devices in ("cpu", "cpu:0..1")}
        self._function = function
        self._pool = ThreadPoolExecutor(CORES)
        self._sessions = {at: pl.BlockingSession(plan) for at, plan in self.plans.items()}

    def run(self, side: str, items: int) -> Turn:
        if side.startswith("trio "):
            return trio.run(self._time_trio, self.plans[side[5:]], items)
        start, cpu = time.perf_counter(), time.process_time()
        if side == "loop":
            ends = run_loop(self._function, items)
        elif side == "pool":
            ends = run_pool(self._pool, self._function, items)
        else:
            ends = run_blocking(self._sessions[side.removeprefix("blocking ")], items)
        return Turn.since(start, cpu, ends)

    async def _time_trio(self, plan: pl.Plan, items: int) -> Turn:
        async with pl.Session(plan) as session:
            await run_trio(session, 50)
            start, cpu = time.perf_counter(), time.process_time()
            return Turn.since(start, cpu, await run_trio(session, items))

    def close(self) -> None:
        self._pool.shutdown()
        for session in self._sessions.values():
            session.close()


SIDES = ["loop", "pool", "trio cpu", "trio cpu:0..1", "blocking cpu", "blocking cpu:0..1"]


def measure_row(name: str, rounds: int) -> dict[str, Any]:
    sides = Sides(name, ROWS[name]())
    try:
        least = sides.run("loop", 20).wall_us * 1e-6
        items = max(50, int(AT_LEAST_S / least / 4)) if least < 1e-4 else int(AT_LEAST_S / least)
        items = max(30, min(items, 4000))
        turns: dict[str, list[Turn]] = {side: [] for side in SIDES}
        for _ in range(rounds):
            for side in SIDES:
                turns[side].append(sides.run(side, items))
    finally:
        sides.close()
    return {
        "items": items,
        **{side: summarize(found, turns["loop"]) for side, found in turns.items()},
    }


def summarize(found: list[Turn], loop: list[Turn]) -> dict[str, float]:
    """Return the medians of a side, and of its multiples of the loop in the same round."""
    figures = {
        name: round(statistics.median(getattr(turn, name) for turn in found), 1)
        for name in Turn._fields
    }
    pairs = list(zip(found, loop, strict=True))
    for name in ("wall", "cpu"):
        ratios = (getattr(a, f"{name}_us") / getattr(b, f"{name}_us") for a, b in pairs)
        figures[f"{name}_of_loop"] = round(statistics.median(ratios), 2)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--busy", type=int, default=0, help="busy processes per core beside it")
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results")
    arguments = parser.parse_args()
    count = arguments.busy * CORES
    busy = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(count)]
    rows: dict[str, Any] = {}
    try:
        for name in arguments.rows.split(","):
            hand_over, load = measure_hand_over(), os.getloadavg()[0]
            figures = measure_row(name, arguments.rounds)
            rows[name] = {"hand_over": hand_over, "load": load, **figures}
            print(f"{name}: load {load:.1f}, a hand-over {hand_over['wall_us'] / 2:.1f} µs")
            for side in SIDES:
                wall, cpu, between, ratio, cpu_ratio = figures[side].values()
                print(
                    f"  {side:18} {wall:9.1f} µs, {ratio:6.2f} x loop; cpu {cpu:9.1f}, "
                    f"{cpu_ratio:6.2f} x; between results {between:9.1f}",
                    flush=True,
                )
    finally:
        for one in busy:
            one.kill()
            one.wait()
    if arguments.keep:
        save(f"short_steps_busy_{arguments.busy}" if arguments.busy else "short_steps", rows)


if __name__ == "__main__":
    main()
