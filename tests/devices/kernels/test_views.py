from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plait.devices.kernels.views import UNROLLED, copy, make_strided

MODULES = st.sampled_from([np, SimpleNamespace(**vars(np))])
SHAPES = st.lists(st.integers(1, 6), min_size=1, max_size=4).map(tuple)


@given(MODULES, SHAPES, st.sampled_from(["float16", "float32", "float64"]))
def test_overlapping_windows_are_copied_cell_by_cell(
    xp: Any, shape: tuple[int, ...], dtype: str
) -> None:
    cells = np.arange(sum(shape) * 3).astype(dtype)
    steps = [len(shape) - axis for axis in range(len(shape))]  # the last axis is a run
    windows = make_strided(np, cells, shape, steps)
    target = np.zeros(shape, dtype)
    copy(xp, target, windows)()
    wanted = [sum(i * step for i, step in zip(at, steps, strict=True)) for at in np.ndindex(shape)]
    assert target.reshape(-1).tolist() == wanted


@pytest.mark.parametrize("rows", [UNROLLED, UNROLLED + 1])
def test_a_short_axis_of_runs_is_copied_place_by_place(rows: int) -> None:
    target, source = np.zeros((2, 9, rows, 5), "f"), np.arange(2 * 9 * rows * 8, dtype="f")
    source = source.reshape(2, 9, rows, 8)[..., :5]
    step = copy(np, target, source)
    assert isinstance(step, partial) == (rows > UNROLLED)
    step()
    assert (target == source).all()
