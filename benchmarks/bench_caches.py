"""Cost of a step of attention in short and long caches.

The keys and values of each step are written to caches that are variables, and the query attends to
those of all steps so far; then as many steps of 20 keys in turn. Beside it by hand: numpy, caches
written in place, and views of their filled part. In milliseconds for a step, from the first
position on. Goal: the longest cache costs no more than the shortest, within the noise.
"""

from __future__ import annotations

import argparse
import os
from contextlib import ExitStack
from functools import partial

import numpy as np
import plait as pl
from measure import alternate, save
from plait.graph.values.tensor import Array

HEADS, DEPTH = 8, 64
KEYS = 20
STEP = (1, HEADS, 1, DEPTH)


def make_graph(capacity: int) -> pl.Graph:
    b = pl.GraphBuilder("attends")
    query, key, value = (b.input(name, "float32", STEP) for name in ("q", "k", "v"))
    empty = np.zeros((1, HEADS, capacity, DEPTH), "float32")
    keys, values = b.variable("keys", empty), b.variable("values", empty)
    count = b.variable("count", np.zeros(1, "int64"))
    all_keys = keys.assign(b.op("TensorScatter", keys, key, count))
    all_values = values.assign(b.op("TensorScatter", values, value, count))
    used = count.assign(count + np.int64(1))
    b.output("y", b.op("Attention", query, all_keys, all_values, None, None, None, used))
    return b.build()


def run_session(session: pl.BlockingSession, fed: dict[str, Array], steps: int) -> None:
    session.assign({"count": np.zeros(1, "int64")})
    for _ in range(steps):
        session.run(fed)


def stream_keys(session: pl.BlockingSession, fed: dict[str, Array], steps: int) -> None:
    for key in session.list_keys():
        session.assign({"count": np.zeros(1, "int64")}, key=key)
    items = ({**fed, "key": number % KEYS} for number in range(steps * KEYS))
    for item in session.stream(items, key="key"):
        assert item.error is None


class ByHand:
    """Computes these steps in numpy."""

    def __init__(self, capacity: int) -> None:
        self._keys, self._values = np.zeros((2, HEADS, capacity, DEPTH), "float32")

    def run(self, fed: dict[str, Array], steps: int) -> None:
        for count in range(steps):
            self._keys[:, count] = fed["k"][0, :, 0]
            self._values[:, count] = fed["v"][0, :, 0]
            keys, values = self._keys[:, : count + 1], self._values[:, : count + 1]
            scores = fed["q"][0] * np.float32(DEPTH**-0.5) @ keys.swapaxes(1, 2)
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            weights @ values / weights.sum(-1, keepdims=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--capacities", type=int, nargs="+", default=[256, 4096, 16_384])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=9)
    asked = parser.parse_args()
    random = np.random.default_rng(0)
    fed = {name: random.normal(size=STEP).astype("float32") for name in "qkv"}
    with ExitStack() as stack:
        ways = {}
        for capacity in asked.capacities:
            plan = pl.plan(make_graph(capacity), ["cpu"])
            session = stack.enter_context(pl.BlockingSession(plan))
            ways[f"plait, {capacity}"] = partial(run_session, session, fed, asked.steps)
            other = stack.enter_context(pl.BlockingSession(plan))
            keyed = partial(stream_keys, other, fed, max(1, asked.steps // KEYS))
            ways[f"by key, {capacity}"] = keyed
            ways[f"by hand, {capacity}"] = partial(ByHand(capacity).run, fed, asked.steps)
        found = alternate(ways, rounds=asked.rounds)
    figures = {name: round(seconds / asked.steps * 1e3, 4) for name, seconds in found.items()}
    save("caches", {"load": os.getloadavg()[0], "ms": figures})


if __name__ == "__main__":
    main()
