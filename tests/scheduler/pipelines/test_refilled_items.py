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
