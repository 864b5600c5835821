from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from plait.graph.operators.windows import Window, resolve_transposed_window, resolve_window
from plait.graph.values.errors import ShapeError

PLAIN: dict[str, Any] = {
    "auto_pad": "NOTSET",
    "dilations": None,
    "pads": None,
    "strides": None,
    "output_padding": None,
    "output_shape": None,
}

axes = st.fixed_dictionaries(
    {
        "cells": st.integers(1, 12),
        "kernel": st.integers(1, 5),
        "stride": st.integers(1, 4),
        "dilation": st.integers(1, 3),
        "begin": st.integers(0, 4),
        "end": st.integers(0, 4),
    }
)


def attributes_of(axis: Mapping[str, int], **given: Any) -> dict[str, Any]:
    return {
        **PLAIN,
        "strides": (axis["stride"],),
        "dilations": (axis["dilation"],),
        "pads": (axis["begin"], axis["end"]),
        **given,
    }


def last_cell(axis: Mapping[str, int], window: int) -> int:
    """The padded input's cell that a window's last tap reads."""
    return window * axis["stride"] + (axis["kernel"] - 1) * axis["dilation"]


@given(axes)
def test_output_dims_count_the_windows_that_fit(axis: Mapping[str, int]) -> None:
    padded = axis["cells"] + axis["begin"] + axis["end"]
    windows = [w for w in range(padded) if last_cell(axis, w) < padded]
    assume(windows)
    window, outputs = resolve_window((axis["cells"],), attributes_of(axis), (axis["kernel"],))
    assert outputs == (len(windows),)
    assert window is not None
    assert (window.pads_begin, window.pads_end) == ((axis["begin"],), (axis["end"],))
    assert window.span(outputs) == (last_cell(axis, windows[-1]) + 1,)


@given(axes)
def test_ceil_mode_adds_a_window_that_starts_before_the_end_padding(
    axis: Mapping[str, int],
) -> None:
    padded = axis["cells"] + axis["begin"] + axis["end"]
    assume(last_cell(axis, 0) < padded)

    def counts(window: int) -> bool:
        unfinished = last_cell(axis, window - 1) < padded - 1
        return window * axis["stride"] < axis["cells"] + axis["begin"] and unfinished

    wanted = 1
    while counts(wanted):
        wanted += 1
    _, outputs = resolve_window(
        (axis["cells"],), attributes_of(axis), (axis["kernel"],), ceil_mode=True
    )
    assert outputs == (wanted,)


@given(axes, st.sampled_from(["SAME_UPPER", "SAME_LOWER"]))
def test_same_padding_is_the_least_that_gives_a_window_per_stride(
    axis: Mapping[str, int], auto_pad: str
) -> None:
    attributes = attributes_of(axis, auto_pad=auto_pad)
    window, outputs = resolve_window((axis["cells"],), attributes, (axis["kernel"],))
    starts = range(0, axis["cells"], axis["stride"])
    assert outputs == (len(starts),)
    assert window is not None
    (begin,), (end,) = window.pads_begin, window.pads_end
    assert begin + end == max(0, last_cell(axis, len(starts) - 1) + 1 - axis["cells"])
    assert (end if auto_pad == "SAME_UPPER" else begin) - (begin + end) // 2 in (0, 1)
    assert abs(begin - end) <= 1


@given(axes)
def test_valid_ignores_pads(axis: Mapping[str, int]) -> None:
    assume(last_cell(axis, 0) < axis["cells"])
    bare = {**axis, "begin": 0, "end": 0}
    given_pads = resolve_window(
        (axis["cells"],), attributes_of(axis, auto_pad="VALID"), (axis["kernel"],)
    )
    none = resolve_window((axis["cells"],), attributes_of(bare), (axis["kernel"],))
    assert given_pads == none


@given(axes, st.booleans(), st.sampled_from(["NOTSET", "SAME_UPPER", "VALID"]))
def test_symbolic_dims_give_expressions_for_the_same_numbers(
    axis: Mapping[str, int], ceil_mode: bool, auto_pad: str
) -> None:
    attributes = attributes_of(axis, auto_pad=auto_pad)
    try:
        _, exact = resolve_window(
            (axis["cells"],), attributes, (axis["kernel"],), ceil_mode=ceil_mode
        )
    except ShapeError:
        assume(False)
    for spatial, kernel in ((("h",), (axis["kernel"],)), ((axis["cells"],), ("k",))):
        window, outputs = resolve_window(spatial, attributes, kernel, ceil_mode=ceil_mode)
        assert evaluated(outputs, h=axis["cells"], k=axis["kernel"]) == exact
        known = kernel != ("k",) and not auto_pad.startswith("SAME")
        assert (window is not None) == known


def test_a_window_that_keeps_the_size_keeps_the_symbol() -> None:
    attributes = {**PLAIN, "pads": (1, 1, 1, 1)}
    assert resolve_window(("h", "w"), attributes, (3, 3))[1] == ("h", "w")


def test_a_halving_window_reads_as_such() -> None:
    attributes = {**PLAIN, "pads": (1, 1), "strides": (2,)}
    assert resolve_window(("h",), attributes, (3,))[1] == ("(h+1)//2",)


def test_extents_count_the_cells_between_dilated_taps() -> None:
    window = Window((3, 2), (1, 1), (4, 1), (0, 0), (0, 0))
    assert window.extents == (9, 2)


@given(axes, st.integers(0, 3))
def test_transposed_output_dims_are_those_a_convolution_would_read(
    axis: Mapping[str, int], extra: int
) -> None:
    attributes = attributes_of(axis, output_padding=(extra,))
    wanted = last_cell(axis, axis["cells"] - 1) + 1 + extra - axis["begin"] - axis["end"]
    if wanted < 1:
        with pytest.raises(ShapeError, match="leave nothing"):
            resolve_transposed_window((axis["cells"],), attributes, (axis["kernel"],))
        return
    window, outputs = resolve_transposed_window((axis["cells"],), attributes, (axis["kernel"],))
    assert outputs == (wanted,)
    assert window is not None
    assert window.pads_begin == (axis["begin"],)
    _, symbolic = resolve_transposed_window(("h",), attributes, ("k",))
    assert evaluated(symbolic, h=axis["cells"], k=axis["kernel"]) == (wanted,)


@given(axes, st.integers(1, 20))
def test_a_wanted_output_shape_replaces_the_pads(axis: Mapping[str, int], wanted: int) -> None:
    attributes = attributes_of(axis, output_shape=(wanted,))
    window, outputs = resolve_transposed_window((axis["cells"],), attributes, (axis["kernel"],))
    assert outputs == (wanted,)
    assert window is not None
    total = max(0, last_cell(axis, axis["cells"] - 1) + 1 - wanted)
    assert window.pads_begin[0] + window.pads_end[0] == total
    assert window.pads_begin[0] - window.pads_end[0] in (0, 1)


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER"])
def test_transposed_same_padding_multiplies_dims_by_strides(auto_pad: str) -> None:
    attributes = {**PLAIN, "auto_pad": auto_pad, "strides": (2, 2)}
    window, outputs = resolve_transposed_window((4, "w"), attributes, (3, 3))
    assert outputs == (8, "w*2")
    assert window is None
    window, _ = resolve_transposed_window((4, 4), attributes, (3, 3))
    assert window is not None
    odd_cell = (window.pads_begin, window.pads_end)
    assert odd_cell == (((0, 0), (1, 1)) if auto_pad == "SAME_UPPER" else ((1, 1), (0, 0)))


def test_a_window_larger_than_the_padded_input_is_refused() -> None:
    with pytest.raises(ShapeError, match="a window over 5 cells does not fit in 2 cells") as caught:
        resolve_window((2,), {**PLAIN, "pads": (1, 1), "dilations": (2,)}, (3,))
    assert caught.value.fix is not None


@pytest.mark.parametrize("name", ["strides", "dilations", "pads"])
def test_attributes_of_the_wrong_length_are_refused(name: str) -> None:
    with pytest.raises(ShapeError, match=f"{name} .* has 3 numbers") as caught:
        resolve_window((8, 8), {**PLAIN, name: (1, 1, 1)}, (3, 3))
    assert caught.value.fix is not None


def test_a_kernel_of_another_rank_is_refused() -> None:
    with pytest.raises(ShapeError, match="2 dimensions, the input 1 spatial"):
        resolve_window((8,), PLAIN, (3, 3))


def evaluated(dims: tuple[int | str, ...], **symbols: int) -> tuple[int, ...]:
    from math import ceil

    scope = {"ceil": ceil, "min": min, "max": max}
    return tuple(eval(str(dim), scope, symbols) for dim in dims)
