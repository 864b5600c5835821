"""The copies of what is fed to where an item's steps read it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from arrays import any_bits
from hypothesis import given
from hypothesis import strategies as st
from plait.scheduler.runtime.opened.copying import GIVES_UP_SIZE, KEEPS_BYTES, Feeds

MOST = KEEPS_BYTES // 4
SHAPES = [(), (0, 3), (GIVES_UP_SIZE,), (GIVES_UP_SIZE + 1,), (3, 7, 50), (MOST,), (MOST + 1,)]
DTYPES = ["float32", "int8", "bool", "float16", "complex64", "bfloat16"]


def laid_out(array: Any, layout: str) -> Any:
    """Return the same values, differently in memory."""
    if layout == "reversed":
        return array[::-1].copy()[::-1] if array.ndim else array
    if layout == "columns":
        return np.asfortranarray(array)
    if layout == "swapped":
        return array.astype(array.dtype.newbyteorder())
    if layout == "locked":
        array.flags.writeable = False
    return array


@given(
    data=st.data(),
    shape=st.sampled_from(SHAPES),
    dtype=st.sampled_from(DTYPES),
    layout=st.sampled_from(["plain", "reversed", "columns", "swapped", "locked"]),
)
def test_what_is_fed_is_written_whatever_its_layout(
    data: st.DataObject, shape: tuple[int, ...], dtype: str, layout: str
) -> None:
    source = data.draw(any_bits(dtype, shape))
    target, expected = np.zeros_like(source), np.zeros_like(source)
    expected[...] = source
    Feeds({"x": target}).write({"x": laid_out(source.copy(), layout)})
    assert target.tobytes() == expected.tobytes()


def test_inputs_are_written_to_their_own_targets() -> None:
    targets = {name: np.zeros(600, np.float32) for name in "ab"}
    feeds = Feeds(targets)
    feeds.write({"b": np.full(600, 2, np.float32), "a": np.ones(600, np.float32)})
    assert feeds.nbytes == 4800
    assert targets["a"].max() == 1
    assert targets["b"].min() == 2


@pytest.mark.parametrize("shape", [(600,), (3, 200)])
def test_an_item_may_be_fed_what_lies_where_it_goes(shape: tuple[int, ...]) -> None:
    target = np.arange(600, dtype=np.float32).reshape(shape)
    before = target.copy()
    Feeds({"x": target}).write({"x": target})
    assert np.array_equal(target, before)
