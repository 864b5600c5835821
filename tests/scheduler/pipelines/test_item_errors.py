"""Errors of items name the item, the step and the types of values, never the values."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import plait as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_functions import refuse_negative


def make_net(lengths: tuple[int | str, ...] = (1, 3)) -> pl.Graph:
    b = pl.GraphBuilder("net")
    b.output("y", b.input("x", "float32", lengths) * 2.0)
    return b.build()


def to_row(value: int) -> Any:
    return np.full((1, 3), value, "float32")


async def wait_and_refuse(value: Any) -> Any:
    return refuse_negative(value)


def yield_until_negative(value: Any) -> Any:
    yield refuse_negative(value)


STEPS: dict[str, tuple[list[Any], str]] = {
    "function": ([refuse_negative], "step 'refuse_negative' called with int"),
    "async": ([wait_and_refuse], "step 'wait_and_refuse' called with int"),
    "generator": ([yield_until_negative], "step 'yield_until_negative' called with int"),
    "after a model": (
        [to_row, make_net(), refuse_negative],
        "step 'refuse_negative' called with float32[1, 3]",
    ),
    "worker": (
        [pl.step(refuse_negative, workers=1)],
        "step 'refuse_negative' called with int",
    ),
}
"""Steps of all kinds, and where they fail."""


@pytest.mark.parametrize("kind", STEPS)
def test_an_error_names_its_item_and_step(kind: str) -> None:
    @settings(max_examples=15)
    @given(values=st.lists(st.integers(-1, 3), max_size=20))
    def check(values: list[int]) -> None:
        found = list(pipe.stream(values, return_exceptions=True))
        assert len(found) == len(values)
        for number, (value, result) in enumerate(zip(values, found, strict=True)):
            assert isinstance(result, pl.KernelError) == (value < 0)
            if value < 0:
                assert f"ValueError: negative\n  at:  item {number}, {place}, node " in str(result)

    steps, place = STEPS[kind]
    with pl.pipeline(*steps, example=1) as pipe:
        check()


@pytest.mark.parametrize("options", [{}, {"batch": 4}, {"ordered": False}], ids=str)
def test_streams_of_sessions_number_their_items(options: dict[str, Any]) -> None:
    feeds = [{"x": np.zeros((1, 2 if n % 3 == 1 else 3), "float32")} for n in range(50)]
    with pl.BlockingSession(pl.plan(make_net(("n", 3)), max_in_flight=8)) as session:
        for item in session.stream(feeds, **options):
            assert isinstance(item.error, pl.PlaitError) == (item.index % 3 == 1)
            if item.error is not None:
                assert f"  at:  item {item.index}" in str(item.error).splitlines()[1]


@pytest.mark.parametrize("batch", [None, 4])
def test_an_error_of_a_row_names_the_row_and_its_own_step(batch: int | None) -> None:
    def halve(row: Any) -> Any:
        return row / 2

    each = pl.each(to_row, refuse_negative, make_net(), halve, batch=batch, name="rows")
    with pl.pipeline(each, example=[1]) as pipe:
        pipe.map([[1, 2]])
        with pytest.raises(pl.KernelError) as caught:
            pipe.map([[1], [1, 2, -1]])
    place = "item 1, row 2, step 'refuse_negative' called with float32[1, 3], node 'rows/"
    assert place in str(caught.value)


def test_values_are_not_told() -> None:
    with pl.pipeline(lambda text: text.index("a"), example="a") as pipe:
        with pytest.raises(pl.KernelError, match="called with str") as caught:
            pipe.map(["secret"])
    assert "secret" not in str(caught.value)


def test_a_copied_or_sent_error_keeps_what_it_should() -> None:
    error = pl.KernelError("it failed", at="node 'y'")
    error.item = 3
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert str(error) == "it failed\n  at:  item 3, node 'y'"
    assert error.again().item is None  # a copy is for another item
    plain = pl.KernelError("it failed")
    plain.item = 0
    assert str(plain) == "it failed\n  at:  item 0"


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda n: None if n > 1 else to_row(n), "row 1 is None\n"),
        (lambda n: float(n) if n > 1 else to_row(n), "row 1 is float\n"),
    ],
)
def test_a_row_that_is_no_array_is_named(function: Callable[[int], Any], message: str) -> None:
    with pl.pipeline(pl.each(function, make_net()), example=[1]) as pipe:
        with pytest.raises(pl.KernelError, match=message):
            pipe.map([[1, 2]])
        with pytest.raises(pl.KernelError, match="the value is int, which has no rows"):
            pipe.map([3])
