from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from arrays import SEEDS, AnyArray
from hypothesis import given, settings
from hypothesis import strategies as st
from plait.devices.kernels import sliding
from plait.devices.kernels.sliding import AxisWindow, slide

OTHER = SimpleNamespace(**vars(np))


def by_hand(x: AnyArray, window: AxisWindow) -> AnyArray:
    """Return the maxima over the middle axis's windows, by the definition."""
    y = np.full((x.shape[0], window.outputs, x.shape[2]), -np.inf, x.dtype)
    for output in range(window.outputs):
        for tap in range(window.kernel):
            cell = output * window.stride + tap * window.dilation - window.begin
            if 0 <= cell < window.length:
                np.maximum(y[:, output], x[:, cell], out=y[:, output])
    return y


@st.composite
def windows_with_one_output_per_cell(draw: st.DrawFn) -> AxisWindow:
    length, kernel, dilation = (draw(st.integers(1, most)) for most in (12, 5, 3))
    begin = draw(st.integers(0, (kernel - 1) * dilation))
    return AxisWindow(length, length, kernel, dilation=dilation, begin=begin)


@pytest.mark.parametrize("xp", [np, OTHER], ids=["numpy", "other"])
@given(windows_with_one_output_per_cell(), st.integers(1, 3), st.integers(1, 3), SEEDS)
@settings(max_examples=80)
def test_a_window_for_each_cell_sees_its_own_line_only(
    xp: Any, window: AxisWindow, outer: int, inner: int, seed: int
) -> None:
    x = np.random.default_rng(seed).standard_normal((outer, window.length, inner))
    y = np.empty_like(x)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sliding, "BLOCK", 5)
        steps = slide(xp, np.maximum, x, y, 1, window, -np.inf)
    for step in steps:
        step()
    np.testing.assert_array_equal(y, by_hand(x, window))


@pytest.mark.parametrize(
    ("window", "borders"),
    [
        (AxisWindow(20, 20, 5, begin=2), (2, 2)),
        (AxisWindow(20, 20, 3, dilation=2, begin=1), (1, 3)),
        (AxisWindow(20, 10, 5, stride=2, begin=2), None),
        (AxisWindow(20, 18, 3), None),
        (AxisWindow(4, 4, 5, begin=2), None),
    ],
)
def test_borders_are_told_where_there_is_an_output_for_each_cell(
    window: AxisWindow, borders: tuple[int, int] | None
) -> None:
    assert window.borders == borders


def test_a_tap_that_reads_only_padding_reaches_nothing() -> None:
    assert AxisWindow(length=3, outputs=2, kernel=3, dilation=2).slices(2) == (slice(0), slice(0))
