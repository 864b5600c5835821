"""Sources that use the arrays of an item again for the next one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import plait as pl
import pytest
from patience import WAIT_S
from plait.scheduler.runtime.items.input_staging import InputStagingPool


@pytest.mark.parametrize(
    "wrap", [lambda x: x, lambda x: {"frame": x}, lambda x: (1, [x])], ids=["array", "dict", "list"]
)
def test_a_source_may_fill_its_arrays_again(wrap: Callable[[Any], Any]) -> None:
    buffer, is_filled = np.zeros(3, "float32"), threading.Event()

    def fill() -> Iterator[Any]:
        for number in range(12):
            buffer[:] = number
            yield wrap(buffer)
            if number == 2:
                is_filled.set()

    def find_mean(item: Any) -> float:
        assert is_filled.wait(WAIT_S)
        while not isinstance(item, np.ndarray):
            item = item["frame"] if isinstance(item, dict) else item[-1]
        return float(item.mean())

    is_filled.set()
    with pl.pipeline(find_mean, example=wrap(np.ones(3, "float32"))) as pipe:
        is_filled.clear()
        assert pipe.map(fill(), max_in_flight=4) == list(range(12))


def test_arrays_that_a_source_does_not_keep_are_not_copied() -> None:
    places = []

    def make(number: int) -> Any:
        made = np.full(1000, number)
        places.append(made.ctypes.data)
        return made

    with pl.pipeline(lambda x: x.ctypes.data, example=np.zeros(1000, int)) as pipe:
        found = pipe.map(map(make, range(20)))
    assert found == places


class Frame:
    """An array of another library."""

    def __init__(self, values: Any) -> None:
        self.values = values

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self.values


@pytest.mark.parametrize(
    ("make_source", "are_own"),
    [(list, True), (iter, True), (lambda frames: map(Frame, frames), False)],
    ids=["list", "iterator", "arrays of others"],
)
def test_inputs_that_nobody_fills_again_are_not_copied_while_they_wait(
    make_source: Callable[[Any], Any], are_own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks, stream = list[bool](), pl.BlockingSession.stream

    def note(session: pl.BlockingSession, source: Any, **options: Any) -> Any:
        fed = list(source)
        marks.extend(one.are_own for one in fed)
        staging = InputStagingPool(session.plan)
        copies = [staging.copy_into(one, staging.room_for(one)) for one in fed]
        assert [one is copy for one, copy in zip(fed, copies, strict=True)] == [are_own] * 5
        return stream(session, fed, **options)

    monkeypatch.setattr(pl.BlockingSession, "stream", note)
    b = pl.GraphBuilder("double")
    b.output("y", b.op("Mul", b.input("x", "float32", (3,)), 2.0))
    frames = [np.full(3, number, "float32") for number in range(5)]
    with pl.pipeline(b.build(), lambda y: float(y[1]), example=frames[0]) as pipe:
        assert pipe.map(make_source(frames)) == [0.0, 2.0, 4.0, 6.0, 8.0]
    assert marks == [are_own] * 5
