"""Graphs to put inside of nodes, and what a plain loop over them gives."""

from __future__ import annotations

import numpy as np
import plait as pl
from plait.graph.core.ir import Graph


def scaled(name: str, by: float, *, of: int = 1) -> Graph:
    """Return x -> by * x, the first of `of` inputs."""
    b = pl.GraphBuilder(name)
    x, *_ = (b.input(f"x{i}", "float32", ("n",)) for i in range(of))
    b.output("y", b.op("Mul", x, np.float32(by), name="scale"))
    return b.build()


def doubling_body(limit: float | None = None, *, rows: bool = True) -> Graph:
    """Return a body of Loop: s -> 2 s + step, while its sum is below a limit; rows are s."""
    b = pl.GraphBuilder("body")
    step, going = b.input("step", "int64", ()), b.input("going", "bool", ())
    state = b.input("state", "float32", ("n",))
    shift = b.op("Cast", step, to="float32")
    following = b.op("Add", b.op("Mul", state, np.float32(2)), shift, name="double")
    if limit is None:
        b.output("goes_on", b.op("Identity", going))
    else:
        total = b.op("ReduceSum", following, keepdims=False)
        b.output("goes_on", b.op("Less", total, np.float32(limit)))
    b.output("next", following)
    if rows:
        b.output("row", b.op("Identity", state))
    return b.build()


def doubled(state: np.ndarray, trips: int, limit: float = np.inf) -> tuple[np.ndarray, np.ndarray]:
    """Return what `doubling_body` comes to: the last state, and the rows."""
    rows = []
    for step in range(trips):
        rows.append(state)
        state = 2 * state + np.float32(step)
        if not state.sum() < limit:
            break
    return state, np.array(rows, np.float32).reshape(-1, *state.shape)


def running_sum_body() -> Graph:
    """Return a body of Scan: the state grows by each slice; puts out its square."""
    b = pl.GraphBuilder("sum")
    state, piece = b.input("state", "float32", ("n",)), b.input("piece", "float32", ("n",))
    total = b.op("Add", state, piece, name="add")
    b.output("total", total)
    b.output("square", b.op("Mul", total, total, name="square"))
    return b.build()


def growing_body() -> Graph:
    """Return a body of Loop whose state gets longer: s -> [s, step]."""
    b = pl.GraphBuilder("grow")
    step, going = b.input("step", "int64", ()), b.input("going", "bool", ())
    state = b.input("state", "float32", ("n",))
    last = b.op("Reshape", b.op("Cast", step, to="float32"), np.array([1]))
    b.output("goes_on", b.op("Identity", going))
    b.output("next", b.op("Concat", state, last, axis=0))
    return b.build()
