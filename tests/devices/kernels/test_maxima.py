"""The places of maxima of windows, in blocks of planes and for windows of any size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from formal_node import formal_node
from plait.devices.kernels import maxima
from single_node import AnyArray, run_node


def check(x: AnyArray, attributes: dict[str, Any]) -> None:
    found, wanted = (run("MaxPool", [x], attributes, 2) for run in (run_node, formal_node))
    np.testing.assert_array_equal(found[0], wanted[0])
    np.testing.assert_array_equal(found[1], wanted[1])


@pytest.mark.parametrize("block", [1, 50, 100, 1000])
@pytest.mark.parametrize("storage_order", [0, 1])
def test_planes_are_taken_some_at_a_time(
    monkeypatch: pytest.MonkeyPatch, block: int, storage_order: int
) -> None:
    monkeypatch.setattr(maxima, "BLOCK", block)
    x = np.random.default_rng(0).integers(0, 5, (2, 3, 7, 6)).astype("float32")
    attributes = {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]}
    check(x, {**attributes, "storage_order": storage_order})


@pytest.mark.parametrize("dtype", ["float64", "int16"])
def test_a_window_may_have_more_cells_than_a_byte_counts(dtype: str) -> None:
    x = np.random.default_rng(0).integers(0, 90, (1, 2, 20, 19)).astype(dtype)
    check(x, {"kernel_shape": [17, 16]})


def test_a_window_of_padding_alone_names_the_first_cell_of_its_plane() -> None:
    x = np.arange(1.0, 5).reshape(1, 2, 2)
    check(x, {"kernel_shape": [2], "pads": [2, 0]})
