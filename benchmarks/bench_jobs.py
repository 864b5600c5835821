"""How much time do commits add to a stream, if they come every second?

The baseline is the stream of a `BlockingSession`; its results are read and dropped. A job writes
the same results, once at its end, or with a commit every second: the difference of these two is
the cost of commits, that of the first to the stream the cost of rows. Items take a millisecond or
two and yield 16 numbers. Goal: a job with commits takes at most 2 % longer than the stream.

Both the time that passes and the time that this process computes are compared. The latter hears
less of other programs, and leaves out waits for the disk. On a machine with other work both vary
by more than commits cost; so the time in commits is given, too, as a share of the job's time, and
the computing of its thread in them as a share of the job's computing. These shares are upper
bounds: they have the packing of rows, which one commit at the end does as well, and while a commit
waits for the disk, devices go on.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np
import plait as pl
from measure import alternate, save
from plait.scheduler.jobs.run import JobRun

GOAL = 0.02
SIDE, FOUND, TRIVIAL = 192, 16, 20_000


def make_plan(*, is_stateful: bool) -> pl.Plan:
    """Return items of ten products, and a running mean of their results if it has state."""
    b = pl.GraphBuilder("products")
    last = x = b.input("x", "float32", (SIDE, SIDE))
    for _ in range(10):
        last = last @ x
    found = (last @ np.eye(SIDE, FOUND, dtype="float32")).mean(axis=0)
    if is_stateful:
        mean = b.variable("mean", np.zeros(FOUND, "float32"))
        found = mean.assign(mean * 0.9 + found * 0.1)
    b.output("y", found)
    return pl.plan(b.build(), ["cpu"], max_in_flight=2)


def read(items: int) -> Iterator[dict[str, Any]]:
    fed = {"x": np.full((SIDE, SIDE), 1 / SIDE, "float32")}
    for _ in range(items):
        yield fed


def run_stream(plan: pl.Plan, items: int) -> None:
    with pl.BlockingSession(plan) as session, session.stream(read(items)) as results:
        for item in results:
            _ = item["y"]


def run_job(plan: pl.Plan, items: int, sink: str, commit_s: float) -> tuple[int, float, float]:
    """Run a job in a new folder; return its commits, and their shares of time and computing."""
    commits: list[tuple[float, float]] = []
    commit = JobRun._commit

    def note(run: JobRun, **arguments: Any) -> None:
        begun = time.perf_counter(), time.thread_time()
        commit(run, **arguments)
        commits.append((time.perf_counter() - begun[0], time.thread_time() - begun[1]))

    with tempfile.TemporaryDirectory() as folder, mock.patch.object(JobRun, "_commit", note):
        source = pl.jobs.JobSource(lambda position: read(items - position), items)
        job = pl.Job(plan, source, sink, folder, commit_s=commit_s, part_items=1_000_000)
        begun = time.perf_counter(), time.process_time()
        job.run()
        seconds, computing = time.perf_counter() - begun[0], time.process_time() - begun[1]
        passed, computed = (sum(found) for found in zip(*commits, strict=True))
        return len(commits), passed / seconds, computed / computing


def compare(plan: pl.Plan, items: int, sink: str, rounds: int) -> dict[str, Any]:
    """Return the time of each side, in turns, and the medians of the rounds' ratios."""
    jobs: list[tuple[int, float, float]] = []
    sides: dict[str, Callable[[], object]] = {
        "stream": lambda: run_stream(plan, items),
        "job, one commit": lambda: run_job(plan, items, sink, 1e9),
        "job, every second": lambda: jobs.append(run_job(plan, items, sink, 1.0)),
    }
    clocks = {"time": time.perf_counter, "computing": time.process_time}
    spent: dict[str, dict[str, list[float]]] = {one: {name: [] for name in sides} for one in clocks}
    for turn in range(rounds):
        for name in list(sides)[:: -1 if turn % 2 else 1]:
            begun = {one: clock() for one, clock in clocks.items()}
            sides[name]()
            for one, clock in clocks.items():
                spent[one][name].append(clock() - begun[one])
    return {
        "commits": float(np.median([count for count, _, _ in jobs])),
        "share of the time in commits": round(float(np.median([s for _, s, _ in jobs])), 4),
        "share of the computing in commits": [round(one, 4) for _, _, one in jobs],
        "ms per item": {
            name: round(float(np.median(found)) / items * 1e3, 4)
            for name, found in spent["time"].items()
        },
        **{f"added to the {one}": add_up(found) for one, found in spent.items()},
    }


def add_up(spent: dict[str, list[float]]) -> dict[str, Any]:
    """Return the shares that jobs add to the stream, and commits to a job."""
    arrays = {name: np.array(found) for name, found in spent.items()}
    once, often = arrays["job, one commit"], arrays["job, every second"]
    ratios = {"by rows": once / arrays["stream"], "by commits": often / once}
    ratios["by both"] = often / arrays["stream"]
    return {
        name: {
            "median": round(float(np.median(found)) - 1, 4),
            "rounds": np.round(found - 1, 4).tolist(),
        }
        for name, found in ratios.items()
    }


def compare_rows(rounds: int) -> dict[str, float]:
    """Return the microseconds that this process computes for a trivial item, on each side."""
    b = pl.GraphBuilder("twice")
    b.output("y", b.input("x", "float32", (SIDE, SIDE))[0, :FOUND] * 2.0)
    plan = pl.plan(b.build(), ["cpu"])
    sides: dict[str, Callable[[], object]] = {
        "stream": lambda: run_stream(plan, TRIVIAL),
        "job, parquet": lambda: run_job(plan, TRIVIAL, "parquet", 1e9),
        "job, jsonl": lambda: run_job(plan, TRIVIAL, "jsonl", 1e9),
    }
    found = alternate(sides, rounds=rounds, clock=time.process_time)
    return {name: round(seconds / TRIVIAL * 1e6, 1) for name, seconds in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=3_000)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    figures: dict[str, Any] = {"goal": GOAL, "load": os.getloadavg()}
    figures["computing for a trivial item, us"] = compare_rows(arguments.rounds)
    for kind, sink in (("stateless", "parquet"), ("stateful", "jsonl")):
        plan = make_plan(is_stateful=kind == "stateful")
        figures[f"{kind}, {sink}"] = compare(plan, arguments.items, sink, arguments.rounds)
    save("jobs", figures)


if __name__ == "__main__":
    main()
