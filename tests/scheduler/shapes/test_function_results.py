"""Lengths of what Python functions return: known to their rules, bounded, or refused."""

from __future__ import annotations

import numpy as np
import plait as pl
import pytest

FOUR = [pl.TensorSpec("float32", ("rows", 4))]


@pl.operator(pl.TensorSpec("float32", ("likely", 4)), inputs=FOUR, name="results.likely")
def likely(candidates: np.ndarray) -> np.ndarray:
    return candidates[candidates[:, 0] > 0.5]


@pl.operator(pl.TensorSpec("float32", ("best", 4)), inputs=FOUR, name="results.best")
def best(candidates: np.ndarray) -> np.ndarray:
    return candidates[candidates[:, 1] > 0.5]


@pl.operator(
    (pl.TensorSpec("float32", ("kept", 4)), pl.TensorSpec("float32", ())),
    inputs=FOUR,
    name="results.summed",
)
def summed(candidates: np.ndarray) -> tuple[np.ndarray, np.float32]:
    kept = candidates[candidates[:, 0] > 0.5]
    return kept, kept.sum(dtype="float32")


@pl.operator(
    # An odd rule, which tells nothing before numbers are known, and refuses some of them.
    lambda x: pl.TensorSpec("float32", (checked(x.shape[0]), 4)),
    name="results.halved",
)
def halved(x: np.ndarray) -> np.ndarray:
    return x[::2]


def checked(length: int | str) -> int | str:
    if isinstance(length, str):
        return "half"
    if length > 48:
        raise ValueError("too long")
    return (length + 1) // 2


def cascade(rows: int | str) -> pl.Graph:
    builder = pl.GraphBuilder("cascade")
    found = builder.call(likely, builder.input("candidates", "float32", (rows, 4)), name="likely")
    found = builder.call(best, builder.op("Relu", found), name="best")
    builder.output("sizes", builder.op("ReduceProd", found, np.array([1]), keepdims=False))
    return builder.build()


@pytest.mark.parametrize(
    ("rows", "bounds", "node", "symbol"),
    [
        (32, None, "likely", "likely"),
        (32, {"likely": 8}, "best", "best"),
        (32, {"best": 8}, "likely", "likely"),
        ("n", None, "likely", "likely"),
        ("n", {"n": 32}, "likely", "likely"),
        ("n", {"n": 32, "likely": 8}, "best", "best"),
        ("n", {"likely": 8}, "best", "best"),
    ],
)
def test_a_function_of_whose_result_nothing_tells_the_length_is_refused_when_planning(
    rows: int | str, bounds: dict[str, int] | None, node: str, symbol: str
) -> None:
    with pytest.raises(pl.PlanError, match="not known before the run") as raised:
        pl.plan(cascade(rows), bounds=bounds)
    assert f"node {node!r}" in (raised.value.at or "")
    assert f"bounds={{{symbol!r}: 64}}" in (raised.value.fix or "")


@pytest.mark.parametrize("rows", [32, "n"])
def test_the_bounds_that_errors_ask_for_are_enough(rows: int | str) -> None:
    bounds: dict[str, int] = {} if rows == 32 else {"n": 32}
    for symbol in ("likely", "best"):
        bounds[symbol] = 32
    with pl.BlockingSession(pl.plan(cascade(rows), bounds=bounds)) as session:
        assert len(session.run({"candidates": np.ones((32, 4), "float32")})["sizes"]) == 32


def test_a_rule_that_tells_a_length_from_numbers_needs_no_bound() -> None:
    builder = pl.GraphBuilder("halved")
    builder.output("y", builder.call(halved, builder.input("x", "float32", ("n", 4))))
    for bounds in (None, {"n": 5}):
        with pl.BlockingSession(pl.plan(builder.build(), bounds=bounds)) as session:
            assert session.run({"x": np.ones((5, 4), "float32")})["y"].shape == (3, 4)


def test_a_length_that_an_operator_counts_may_stay_open() -> None:
    builder = pl.GraphBuilder("counted")
    places = builder.op("NonZero", builder.input("x", "float32", ("n",)), name="kept")
    rows = builder.op("Cast", builder.op("Transpose", places, perm=[1, 0]), to="float32")
    found = builder.call(likely, builder.op("Concat", rows, rows, rows, rows, axis=1))
    builder.output("y", found)
    plan = pl.plan(builder.build(), bounds={"likely": 8})
    with pl.BlockingSession(plan) as session:
        assert session.run({"x": np.ones(5, "float32")})["y"].shape == (4, 4)


def test_numbers_may_stand_behind_rows_of_any_count() -> None:
    builder = pl.GraphBuilder("summed")
    rows, total = builder.call(summed, builder.input("x", "float32", (5, 4)))
    builder.output("rows", rows)
    builder.output("total", total)
    x = np.linspace(0, 1, 20, dtype="float32").reshape(5, 4)
    found = pl.run(pl.plan(builder.build(), bounds={"kept": 5}), {"x": x})
    np.testing.assert_array_equal(found["rows"], x[3:])
    assert found["total"] == x[3:].sum(dtype="float32")
