"""Functions that are told lengths: each item its own, whatever was bound for others before."""

from __future__ import annotations

from typing import Any

import numpy as np
import plait as pl
from hypothesis import given, settings
from hypothesis import strategies as st
from plait.graph.values.tensor import Array

WIDTH, MOST, DEVICES = 3, 32, ("cpu", "cpu:1")
ROWS = pl.TensorSpec("float32", ("n", WIDTH))


@pl.operator(ROWS, inputs=[ROWS], name="functions_of_lengths.doubled")
def doubled(x: Any) -> Any:
    return x * np.float32(2)


@pl.operator(
    ROWS, inputs=[ROWS, pl.TensorSpec("int64", (2,))], name="functions_of_lengths.with_shape"
)
def with_shape(x: Any, shape: Any) -> Any:
    return x + np.float32(10 * shape[0] + shape[1])


@pl.operator(
    ROWS, inputs=[ROWS, pl.TensorSpec("int64", ("n",))], name="functions_of_lengths.with_rows"
)
def with_rows(x: Any, rows: Any) -> Any:
    return x + rows[:, None].astype(np.float32)


def add_step(b: pl.GraphBuilder, kind: str, x: Any, name: str) -> Any:
    shape = b.op("Shape", x)
    if kind == "with_shape":
        return b.call(with_shape, x, shape, name=name)
    if kind == "with_rows":
        rows = b.op("Range", np.int64(0), b.op("Gather", shape, np.int64(0)), np.int64(1))
        return b.call(with_rows, x, rows, name=name)
    if kind == "doubled":
        return b.call(doubled, x, name=name)
    return b.op("Add", x, b.op("Cast", b.op("Gather", shape, np.int64(0)), to="float32"), name=name)


def computed(kinds: list[str], x: Array) -> Array:
    """Return what the steps make of an array."""
    for kind in kinds:
        added = {
            "with_shape": np.float32(10 * len(x) + WIDTH),
            "with_rows": np.arange(len(x), dtype=np.float32)[:, None],
            "doubled": x,
            "node": np.float32(len(x)),
        }
        x = x + added[kind]
    return x


KINDS = st.sampled_from(["with_shape", "with_rows", "doubled", "node"])


@settings(max_examples=20)
@given(
    st.lists(KINDS, min_size=1, max_size=4),
    st.lists(st.integers(1, MOST), min_size=2, max_size=12),
    st.integers(1, 3),
    st.booleans(),
    st.data(),
)
def test_each_item_is_told_its_own_lengths(
    kinds: list[str], lengths: list[int], in_flight: int, bounds: bool, data: Any
) -> None:
    b = pl.GraphBuilder("told")
    x: Any = b.input("x", "float32", ("n", WIDTH))
    for number, kind in enumerate(kinds):
        x = add_step(b, kind, x, f"step{number}")
    b.output("y", x)
    pins = {f"step{n}": data.draw(st.sampled_from(DEVICES)) for n in range(len(kinds))}
    plan = pl.plan(
        b.build(),
        DEVICES,
        pin=pins,
        bounds={"n": MOST} if bounds else None,
        max_in_flight=in_flight,
    )
    feeds = [np.arange(n * WIDTH, dtype=np.float32).reshape(n, WIDTH) for n in lengths]
    with pl.BlockingSession(plan) as session, session.stream({"x": fed} for fed in feeds) as found:
        for fed, item in zip(feeds, found, strict=True):
            np.testing.assert_array_equal(item["y"], computed(kinds, fed))
