"""Measure the time of a row of a stream in batches, beside rows that are stacked by hand.

A network of two layers over rows, float32[n, 64] to float32[n, 10]. By hand: rows are stacked in
batches of `--batch`, one call of ONNX Runtime with one thread computes them, and the results are
taken apart again. Sides take turns; medians over the rounds, and the median of the ratio to the
version by hand in one round.

    python benchmarks/bench_stream_batches.py [--rounds 9] [--rows 10000] [--batch 256] [--keep]
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import onnxruntime
import plait as pl
import trio
from measure import save
from plait.graph.formats.onnx.writer import to_onnx

Array = np.ndarray[Any, Any]


def make_network() -> pl.Graph:
    random = np.random.default_rng(0)
    b = pl.GraphBuilder("rows")
    hidden = (b.input("x", "float32", ("n", 64)) @ random.standard_normal((64, 64), "f4")).relu()
    b.output("y", hidden @ random.standard_normal((64, 10), "f4"))
    return b.build()


def open_runtime(graph: pl.Graph) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    model = to_onnx(graph).SerializeToString()
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def run_by_hand(
    session: onnxruntime.InferenceSession, rows: Sequence[Array], size: int
) -> list[Array]:
    found: list[Array] = []
    for start in range(0, len(rows), size):
        (y,) = session.run(None, {"x": np.concatenate(rows[start : start + size])})
        found += [y[n : n + 1].copy() for n in range(len(y))]
    return found


def run_one_by_one(session: onnxruntime.InferenceSession, rows: Sequence[Array]) -> list[Array]:
    return [session.run(None, {"x": row})[0] for row in rows]


def feed(rows: Sequence[Array]) -> Iterator[dict[str, Array]]:
    return ({"x": row} for row in rows)


def stream_blocking(session: pl.BlockingSession, rows: Sequence[Array], size: int) -> list[Array]:
    with session.stream(feed(rows), batch=size, max_in_flight=2 * size) as results:
        return [item["y"] for item in results]


def stream_in_trio(plan: pl.Plan, rows: Sequence[Array], size: int) -> list[Array]:
    async def main() -> list[Array]:
        async with pl.Session(plan) as session:
            options = {"batch": size, "max_in_flight": 2 * size}
            async with session.stream(feed(rows), **options) as results:  # type: ignore[arg-type]
                return [item["y"] async for item in results]

    return trio.run(main)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results")
    arguments = parser.parse_args()
    graph, size = make_network(), arguments.batch
    rows = list(np.random.default_rng(1).standard_normal((arguments.rows, 1, 64), "f4"))
    plan = pl.plan(graph, ["ort"], bounds={"n": size}, max_in_flight=2)
    runtime = open_runtime(graph)
    with pl.BlockingSession(plan) as session:
        sides: dict[str, Callable[[], list[Array]]] = {
            "by hand": partial(run_by_hand, runtime, rows, size),
            "one by one": partial(run_one_by_one, runtime, rows),
            "blocking": partial(stream_blocking, session, rows, size),
            "trio": partial(stream_in_trio, plan, rows, size),
        }
        times: dict[str, list[float]] = {name: [] for name in sides}
        for turn in range(arguments.rounds + 2):
            for name, run in sides.items():
                start = time.perf_counter()
                found = run()
                spent_us = (time.perf_counter() - start) * 1e6 / len(rows)
                assert np.allclose(np.concatenate(found), np.concatenate(sides["by hand"]()), 1e-3)
                if turn > 1:
                    times[name].append(spent_us)
    kept: dict[str, Any] = {"load": os.getloadavg()[0], "rows": len(rows), "batch": size}
    for name, spent in times.items():
        ratio = statistics.median(a / b for a, b in zip(spent, times["by hand"], strict=True))
        median = statistics.median(spent)
        kept[name] = {"us_a_row": round(median, 2), "of_by_hand": round(ratio, 2)}
        print(f"{name:12} {median:8.2f} us a row, {ratio:6.2f} x by hand")
    if arguments.keep:
        save("stream_batches", kept)


if __name__ == "__main__":
    main()
