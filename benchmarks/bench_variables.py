"""What does it cost that an item which fails changes no variable?

Steps of training, as items of plans in which variables and their next values change places, and of
plans that copy the values to the variables; beside them the same arithmetic by hand, in place with
numpy, which a failure in the middle would leave half done.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, TypeAlias
from unittest import mock

import numpy as np
import plait as pl
from measure import alternate, save
from plait.graph.values.tensor import Array
from plait.scheduler.planner.memory.prepared import PreparedTensors

Feeds: TypeAlias = Mapping[str, Array]
Step: TypeAlias = Callable[[], object]


def copying(graph: pl.Graph) -> pl.Plan:
    """Return the plan in which what is assigned is copied."""

    def nothing(prepared: PreparedTensors, graph: object, placement: object, buffers: Any) -> Any:
        return prepared, buffers

    with mock.patch.object(PreparedTensors, "with_next", nothing):
        return pl.plan(graph)


def updates(length: int, optimizer: pl.learning.Optimizer) -> tuple[pl.Graph, Feeds]:
    """Return steps of an optimizer alone, for one weight whose gradient stays as it is."""
    random = np.random.default_rng(0)
    b = pl.GraphBuilder("updates")
    w, g = (b.variable(name, random.normal(size=length).astype(np.float32)) for name in "wg")
    b.output("train", pl.learning.apply_gradients(b, optimizer, [w], [g]))
    return b.build(), {}


def digits(rows: int, width: int) -> tuple[pl.Graph, Feeds]:
    """Return steps of Adam for a perceptron of two layers on images of 8 by 8."""
    random = np.random.default_rng(0)
    b = pl.GraphBuilder("digits")
    x, y = b.input("x", "float32", (rows, 64)), b.input("y", "int64", (rows,))
    for inner, outer in ((64, width), (width, 10)):
        w = b.variable(f"w{inner}", (random.normal(size=(inner, outer)) / 8).astype(np.float32))
        x = b.op("MatMul", x if inner == 64 else b.op("Relu", x), w)
    loss = pl.learning.sparse_softmax_cross_entropy(b, x, y)
    b.output("loss", loss)
    b.output("train", pl.learning.minimize(b, loss, pl.learning.Adam(1e-3)))
    fed = {
        "x": random.random((rows, 64), np.float32),
        "y": random.integers(0, 10, rows),
    }
    return b.build(), fed


def adam_by_hand(length: int) -> Step:
    """Return a step of Adam in place."""
    random = np.random.default_rng(0)
    w, g = (random.normal(size=length).astype(np.float32) for _ in range(2))
    m, v, one, other = (np.zeros(length, np.float32) for _ in range(4))
    count = 0

    def step() -> None:
        nonlocal count
        count += 1
        rate = np.float32(1e-3 * (1 - 0.999**count) ** 0.5 / (1 - 0.9**count))
        np.multiply(m, np.float32(0.9), out=m)
        np.multiply(g, np.float32(0.1), out=one)
        np.add(m, one, out=m)
        np.multiply(v, np.float32(0.999), out=v)
        np.multiply(g, g, out=one)
        np.multiply(one, np.float32(0.001), out=one)
        np.add(v, one, out=v)
        np.sqrt(v, out=one)
        np.add(one, np.float32(1e-8), out=one)
        np.divide(m, one, out=other)
        np.multiply(other, rate, out=other)
        np.subtract(w, other, out=w)

    return step


def momentum_by_hand(length: int) -> Step:
    """Return a step of SGD with momentum in place."""
    random = np.random.default_rng(0)
    w, g = (random.normal(size=length).astype(np.float32) for _ in range(2))
    m, one = (np.zeros(length, np.float32) for _ in range(2))

    def step() -> None:
        np.multiply(m, np.float32(0.9), out=m)
        np.add(m, g, out=m)
        np.multiply(m, np.float32(0.1), out=one)
        np.subtract(w, one, out=w)

    return step


def compared(graph: pl.Graph, feeds: Feeds, by_hand: Step | None, rounds: int) -> dict[str, Any]:
    """Return milliseconds a step, and megabytes of the plans."""
    plans = {"places change": pl.plan(graph), "copied": copying(graph)}
    with ExitStack() as stack:
        sides: dict[str, Step] = {}
        for name, plan in plans.items():
            session = stack.enter_context(pl.BlockingSession(plan))
            sides[name] = partial(session.run, feeds)
            sides[name]()
        if by_hand is not None:
            sides["numpy in place"] = by_hand
        seconds = alternate(sides, rounds=rounds)
    return {
        "ms": {name: round(1e3 * one, 3) for name, one in seconds.items()},
        "mb": {
            name: round(one.memory.nbytes / 1e6, 3) for name, one in plans.items() if one.memory
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--length", type=int, default=1 << 22, help="floats of the one weight")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--name", default="variables")
    given = parser.parse_args()
    length, learning = given.length, pl.learning
    cases = {
        f"Adam, {length:,} floats": (
            *updates(length, learning.Adam(1e-3)),
            adam_by_hand(length),
        ),
        f"SGD with momentum, {length:,} floats": (
            *updates(length, learning.SGD(0.1, momentum=0.9)),
            momentum_by_hand(length),
        ),
        "digits, 64-32-10, 32 rows": (*digits(32, 32), None),
        "digits, 64-1024-10, 32 rows": (*digits(32, 1024), None),
    }
    figures = {name: compared(*case, given.rounds) for name, case in cases.items()}
    save(given.name, {"rounds": given.rounds, "cases": figures})


if __name__ == "__main__":
    main()
