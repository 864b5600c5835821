"""Copies that several threads make: the same as numpy's."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from threading import Thread
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plait.scheduler.runtime import large_copies
from plait.scheduler.runtime.large_copies import copy_array, copy_side_by_side, duplicate_array

DTYPES = ("uint8", "float32", "float64", "complex128", "U3", object)


@pytest.fixture(autouse=True, scope="module")
def _many_cores() -> Iterator[None]:
    """Small arrays, so that tests are quick, on a machine that has cores to spare."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(large_copies, "count_cores", lambda: 16)
        patch.setattr(large_copies, "LEAST_BYTES", 64)
        patch.setattr(large_copies, "SPLIT_BYTES", 128)
        yield


@settings(max_examples=200)
@given(
    st.sampled_from(DTYPES),
    st.lists(st.integers(0, 40), max_size=3),
    st.sampled_from(["C", "F"]),
    st.booleans(),
)
def test_copies_are_those_of_numpy(
    dtype: str | type, shape: list[int], order: Literal["C", "F"], take_alternate: bool
) -> None:
    values = np.arange(int(np.prod(shape)) * 2) % 251
    array = values.astype(dtype).reshape(*shape, 2).copy(order)
    source = array[..., ::2] if take_alternate else array
    target = np.zeros(source.shape, source.dtype)
    copy_array(target, source)
    np.testing.assert_array_equal(target, source)
    copy = duplicate_array(source)
    np.testing.assert_array_equal(copy, source)
    assert not np.shares_memory(copy, source)
    assert copy.strides == source.copy("K").strides


def test_elements_are_converted_where_dtypes_differ() -> None:
    source, target = np.arange(1000, dtype=">i4"), np.zeros(1000, "<i4")
    copy_array(target, source)
    np.testing.assert_array_equal(target, source)


def test_large_arrays_are_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    class Counted(Thread):
        def start(self) -> None:
            made.append(self)
            super().start()

    monkeypatch.setattr(large_copies, "Thread", Counted)
    source = np.arange(100_000)
    np.testing.assert_array_equal(duplicate_array(source), source)
    assert len(made) == large_copies.MOST_THREADS - 1
    assert not any(thread.is_alive() for thread in made)
    monkeypatch.setattr(large_copies, "count_cores", lambda: 2)
    np.testing.assert_array_equal(duplicate_array(source), source)
    assert len(made) == large_copies.MOST_THREADS - 1


@pytest.mark.parametrize("cores", [1, 16])
def test_copies_side_by_side_are_both_made(cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_copies, "count_cores", lambda: cores)
    first, second, source = np.zeros(9), np.zeros(9), np.arange(9.0)
    copy_side_by_side(partial(copy_array, first, source), partial(copy_array, second, source))
    np.testing.assert_array_equal(first, source)
    np.testing.assert_array_equal(second, source)
