"""Steps that use their arrays, lists and dicts again for the next item or row."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import plait as pl
import pytest
from patience import WAIT_S

WRAPS: dict[str, Callable[[Any], Any]] = {
    "array": lambda x: x,
    "view": lambda x: x[:2],
    "dict": lambda x: {"mean": x},
    "list": lambda x: [1, x],
    "results": lambda x: (x, x),
    "tracks": lambda x: {"mean": [{"mean": x}]},
}


def find_value(*given: Any) -> float:
    (value, *_) = given
    while not isinstance(value, np.ndarray):
        value = value["mean"] if isinstance(value, dict) else value[-1]
    return float(value[0])


IS_CALLED_AGAIN = threading.Event()


def note_call(result: Any, value: float) -> Any:
    if value == 1:
        IS_CALLED_AGAIN.set()
    return result


class Filler:
    """Returns its only array, with another value."""

    def __init__(self, wrap: Callable[[Any], Any]) -> None:
        self.array, self.wrap = np.zeros(3), wrap

    def __call__(self, value: float) -> Any:
        self.array[:] = value
        return self.wrap(note_call(self.array, value))


class Log:
    """Returns its only list or dict, with one more entry."""

    def __init__(self, kind: type) -> None:
        self.log, self.kind = list[int](), kind
        self.by_value = dict[int, int]()

    def __call__(self, value: int) -> Any:
        self.log.append(value)
        self.by_value[value] = value
        note_call(None, value)
        return self.log if self.kind is list else self.by_value


KEPT = np.zeros(3)


def fill_global(value: float) -> Any:
    KEPT[:] = value
    return note_call(KEPT, value)


def check_overlap(step: Any, read: Callable[..., Any], expected: list[Any]) -> None:
    """Compare results if item 0 is read after the call of `step` for item 1."""

    def wait_and_read(*given: Any) -> Any:
        assert IS_CALLED_AGAIN.wait(WAIT_S)
        return read(*given)

    IS_CALLED_AGAIN.set()
    with pl.pipeline(step, wait_and_read, example=0) as pipe:
        pipe.open(pipe.plan(["cpu:0..1"], max_in_flight=4))
        IS_CALLED_AGAIN.clear()
        assert pipe.map(range(4)) == expected


@pytest.mark.parametrize("wrap", WRAPS)
def test_a_step_may_fill_an_array_of_its_own_again(wrap: str) -> None:
    for target in partial(Filler, WRAPS[wrap]), Filler(WRAPS[wrap]):
        check_overlap(target, find_value, [0.0, 1.0, 2.0, 3.0])


@pytest.mark.parametrize("wrap", WRAPS)
def test_a_step_for_rows_may_fill_an_array_of_its_own_again(wrap: str) -> None:
    def find_values(rows: Any) -> list[float]:
        return [find_value(*row) if wrap == "results" else find_value(row) for row in rows]

    with pl.pipeline(pl.each(Filler(WRAPS[wrap])), find_values, example=[0]) as pipe:
        assert pipe.map([[1, 2], [], [3]]) == [[1.0, 2.0], [], [3.0]]


def test_a_function_may_fill_a_global_array_again() -> None:
    check_overlap(fill_global, find_value, [0.0, 1.0, 2.0, 3.0])


@pytest.mark.parametrize("kind", [list, dict])
def test_a_step_may_return_its_list_or_dict_again(kind: type) -> None:
    many = list(range(100))

    class LongLog(Log):
        def __init__(self) -> None:
            super().__init__(kind)
            self.log += many

    check_overlap(Log(kind), len, [1, 2, 3, 4])
    check_overlap(LongLog, len, [101, 102, 103, 104] if kind is list else [1, 2, 3, 4])


@pytest.mark.parametrize("wrap", WRAPS)
@pytest.mark.parametrize("is_async", [False, True])
def test_a_generator_may_yield_the_same_array_again(wrap: str, is_async: bool) -> None:
    array = np.zeros(3)

    def fill(count: int) -> Iterator[Any]:
        for number in range(count):
            array[:] = number
            yield WRAPS[wrap](array)

    async def fill_later(count: int) -> AsyncIterator[Any]:
        for number in range(count):
            array[:] = number
            yield WRAPS[wrap](array)

    made = fill_later if is_async else fill
    read = pl.each(lambda row: find_value(*row) if wrap == "results" else find_value(row))
    with pl.pipeline(made, read, example=2) as pipe:
        assert pipe.map([3, 0, 2]) == [[0.0, 1.0, 2.0], [], [0.0, 1.0]]


def test_arrays_that_a_step_does_not_keep_are_not_copied() -> None:
    class Maker:
        def __init__(self) -> None:
            self.places = list[int]()

        def __call__(self, frame: Any) -> Any:
            made = [np.full(1000, n) for n in range(2)]
            self.places = [one.ctypes.data for one in (frame, *made)]
            return {"frame": frame, "made": made}, tuple(self.places)

    def compare(found: Any, places: Any) -> bool:
        return bool(places == tuple(one.ctypes.data for one in (found["frame"], *found["made"])))

    def cut(frame: Any) -> Iterator[Any]:
        for start in range(2):
            yield frame[start:], np.arange(3)

    def are_views(rows: Any) -> list[bool]:
        return [np.shares_memory(rows[0][0], row) for row, _ in rows]

    frames = [np.zeros(1000) for _ in range(4)]
    with pl.pipeline(Maker, compare, example=frames[0]) as pipe:
        assert pipe.map(frames) == [True] * 4
    with pl.pipeline(cut, are_views, example=frames[0]) as pipe:
        assert pipe.map(frames) == [[True, True]] * 4
