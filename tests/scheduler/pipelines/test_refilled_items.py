"""Sources that use the arrays of an item again for the next one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import plait as pl
import pytest
from patience import WAIT_S


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
