"""What does a request of its own cost, run alone and in micro-batches?

So many tasks ask at the same moment, again and again, for one row of a small network on `ort`: by
`Session.run`, and by `MicroBatches.run` with several sizes. Sides take turns in one process. It is
processor time per request that counts, of all threads, so that others on the machine matter little.
A ratio is that of two sides in one round; its median, least and greatest are kept.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import plait as pl
import trio
from measure import save

NETWORKS = {"wake word": (1536, 128, 128, 1), "four layers of 512": (512, 512, 512, 512, 512)}
SIZES = (1, 4, 8, 32)
TASKS = 64

Run = Callable[[Mapping[str, Any]], Awaitable[Any]]


def network(widths: tuple[int, ...]) -> pl.Graph:
    random = np.random.default_rng(0)
    builder = pl.GraphBuilder("layers")
    last = builder.input("x", "float32", ("batch", widths[0]))
    for rows, columns in pairwise(widths):
        weights = random.standard_normal((rows, columns), np.float32) / np.float32(rows**0.5)
        last = builder.op("Relu", builder.op("MatMul", last, weights))
    builder.output("y", last)
    return builder.build()


async def time_requests(run: Run, feeds: Mapping[str, Any], turns: int) -> float:
    """Return the processor time of a request, where `TASKS` ask at a time."""
    start = time.process_time()
    for _ in range(turns):
        async with trio.open_nursery() as nursery:
            for _ in range(TASKS):
                nursery.start_soon(run, feeds)
    return (time.process_time() - start) / (turns * TASKS)


async def compare(widths: tuple[int, ...], rounds: int, turns: int) -> dict[str, Any]:
    """Return the time of requests run alone, and of those in batches as multiples of it."""
    plan = pl.plan(network(widths), ["ort"], bounds={"batch": (1, max(SIZES))}, max_in_flight=2)
    feeds = {"x": np.ones((1, widths[0]), "float32")}
    async with pl.Session(plan) as session, trio.open_nursery() as nursery:
        sides: dict[str, Run] = {"alone": session.run}
        for size in SIZES:
            batches = pl.MicroBatches(session, size=size)
            await nursery.start(hold, batches)
            sides[f"size {size}"] = batches.run
        seconds: dict[str, list[float]] = {name: [] for name in sides}
        for number in range(rounds + 1):
            for name, run in sides.items():
                taken = await time_requests(run, feeds, turns)
                if number:  # the first turn opens plans
                    seconds[name].append(taken)
        nursery.cancel_scope.cancel()
    found: dict[str, Any] = {"alone_us": 1e6 * statistics.median(seconds["alone"])}
    for size in SIZES:
        ratios = [
            one / alone
            for one, alone in zip(seconds[f"size {size}"], seconds["alone"], strict=True)
        ]
        found[f"size {size}"] = {
            "ratio": statistics.median(ratios),
            "least": min(ratios),
            "greatest": max(ratios),
        }
    return found


async def hold(batches: pl.MicroBatches, task_status: Any) -> None:
    async with batches:
        task_status.started()
        await trio.sleep_forever()


def main() -> None:
    """Time all networks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--turns", type=int, default=20)
    arguments = parser.parse_args()
    figures = {
        name: trio.run(compare, widths, arguments.rounds, arguments.turns)
        for name, widths in NETWORKS.items()
    }
    save("micro_batches", {"tasks": TASKS, "clock": "process_time", **figures})


if __name__ == "__main__":
    main()
