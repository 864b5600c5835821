"""Cost of an item that reads the state of the item before, while all else overlaps.

A stage that waits 10 ms on four lanes, and a running average after it: with one item in flight,
with eight, and by hand in a pool of four threads and a loop over its results. Then a stream of
short items, also with keys, beside a loop with a dict. At last a wait of 10 ms between reading and
assigning the state: of one key, of eight, and by hand in four threads with two keys each.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import plait as pl
from measure import alternate, save
from plait.graph.values.tensor import Array

SPEC = pl.TensorSpec("float32", (4,))


@pl.operator(SPEC, inputs=[SPEC], ordered=False)
def wait(x: Array) -> Array:
    time.sleep(0.01)
    return x + 0


def make_graph(*, waits: bool = False, waits_in_cycle: bool = False) -> pl.Graph:
    b = pl.GraphBuilder("average")
    x = b.input("x", "float32", (4,))
    last = b.call(wait, x, name="wait") if waits else x
    mean = b.variable("mean", np.zeros(4, "float32"))
    following = mean * 0.9 + last
    if waits_in_cycle:
        following = b.call(wait, following, name="wait")
    b.output("y", mean.assign(following))
    return b.build()


def stream(session: pl.BlockingSession, items: int) -> None:
    for item in session.stream({"x": np.ones(4, "float32")} for _ in range(items)):
        _ = item["y"]


def stream_keys(session: pl.BlockingSession, items: int, keys: int) -> None:
    source = ({"x": np.ones(4, "float32"), "key": index % keys} for index in range(items))
    for item in session.stream(source, key="key"):
        _ = item["y"]


def average_keys(items: int, keys: int) -> None:
    means: dict[int, Array] = {}
    for index in range(items):
        key = index % keys
        mean = means.get(key, np.zeros(4, "float32"))
        means[key] = mean * np.float32(0.9) + np.ones(4, "float32")


def average_slowly(items: int) -> None:
    mean = np.zeros(4, "float32")
    for _ in range(items):
        mean = wait(mean * np.float32(0.9) + np.ones(4, "float32"))


def average_in_threads(pool: ThreadPoolExecutor, items: int) -> None:
    list(pool.map(average_slowly, [items // 4] * 4))


def average_over_pool(pool: ThreadPoolExecutor, items: int) -> None:
    mean = np.zeros(4, "float32")
    for made in pool.map(wait, (np.ones(4, "float32") for _ in range(items))):
        mean = mean * np.float32(0.9) + made


def average(items: int) -> None:
    mean = np.zeros(4, "float32")
    for _ in range(items):
        mean = mean * np.float32(0.9) + np.ones(4, "float32")


def compare(ways: Mapping[str, Callable[[], object]], items: int, rounds: int) -> dict[str, float]:
    """Return the median milliseconds per item of each way."""
    found = alternate(ways, rounds=rounds)
    return {name: round(seconds / items * 1e3, 4) for name, seconds in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=7)
    asked = parser.parse_args()
    pins = {"wait": "cpu:0..3"}
    slow, short = make_graph(waits=True), make_graph()
    cycle = pl.plan(make_graph(waits_in_cycle=True), "cpu:0..3", max_in_flight=8)
    overlapping = pl.plan(slow, ["cpu:0..3", "cpu:9"], pin=pins, max_in_flight=8)
    with (
        pl.BlockingSession(pl.plan(slow, "cpu")) as one,
        pl.BlockingSession(overlapping) as eight,
        pl.BlockingSession(pl.plan(short, "cpu")) as short_one,
        pl.BlockingSession(pl.plan(short, "cpu", max_in_flight=8)) as short_eight,
        pl.BlockingSession(cycle) as cycled,
        ThreadPoolExecutor(4) as pool,
    ):
        waiting = {
            "one in flight": partial(stream, one, asked.items),
            "eight in flight": partial(stream, eight, asked.items),
            "pool by hand": partial(average_over_pool, pool, asked.items),
        }
        brief = {
            "one in flight": partial(stream, short_one, asked.items),
            "eight in flight": partial(stream, short_eight, asked.items),
            "loop by hand": partial(average, asked.items),
            "one key": partial(stream_keys, short_eight, asked.items, 1),
            "100 keys": partial(stream_keys, short_eight, asked.items, 100),
            "dict by hand": partial(average_keys, asked.items, 100),
        }
        in_cycle = {
            "one key": partial(stream_keys, cycled, asked.items, 1),
            "8 keys": partial(stream_keys, cycled, asked.items, 8),
            "threads by hand": partial(average_in_threads, pool, asked.items),
        }
        figures = {
            "load": os.getloadavg()[0],
            "wait 10 ms, ms": compare(waiting, asked.items, asked.rounds),
            "short, ms": compare(brief, asked.items, asked.rounds),
            "wait 10 ms in the cycle, ms": compare(in_cycle, asked.items, asked.rounds),
        }
    save("state", figures)


if __name__ == "__main__":
    main()
