"""Tiling: broadcast operands in blocks, each a run of the output."""

from __future__ import annotations

import math

import hypothesis.extra.numpy as hnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from plait.devices.kernels.tiling import Tiling

SHAPES = hnp.mutually_broadcastable_shapes(num_shapes=3, min_side=0, max_side=6, max_dims=4)


@given(SHAPES, st.integers(1, 64))
def test_blocks_compute_what_the_whole_would(shapes: hnp.BroadcastableShapes, size: int) -> None:
    arrays = [np.arange(math.prod(one)).reshape(one) for one in shapes.input_shapes]
    whole = arrays[0] * 10000 + arrays[1] * 100 + arrays[2]
    tiling = Tiling(shapes.result_shape, shapes.input_shapes, size)
    made = np.full_like(whole, -1)
    for index in tiling:
        a, b, c = (
            tiling.part(array, index, dims)
            for array, dims in zip(arrays, tiling.operands, strict=True)
        )
        y = tiling.part(made, index, tiling.dims)
        assert y.flags.c_contiguous
        assert y.shape == tiling.shape_at(index, tiling.dims)
        assert a.shape == tiling.shape_at(index, tiling.operands[0])
        y[...] = a * 10000 + b * 100 + c
    np.testing.assert_array_equal(made, whole)


@given(SHAPES, st.integers(4, 64))
def test_blocks_are_neither_too_long_nor_much_shorter_than_others(
    shapes: hnp.BroadcastableShapes, size: int
) -> None:
    tiling = Tiling(shapes.result_shape, shapes.input_shapes, size)
    lengths = [int(np.prod(tiling.shape_at(index, tiling.dims))) for index in tiling]
    assert all(length <= size for length in lengths)
    if len(lengths) > 1 and np.prod(shapes.result_shape):
        assert min(lengths) >= size / 4


def test_the_longest_block_is_one_of_them() -> None:
    tiling = Tiling((7, 10), [(7, 1)], 30)
    lengths = [tiling.shape_at(index, tiling.dims) for index in tiling]
    assert lengths == [(2, 10), (2, 10), (3, 10)]
    assert tiling.shape_at(tiling.longest, tiling.dims) == (3, 10)


def test_axes_that_are_broadcast_alike_become_one() -> None:
    tiling = Tiling((1, 3, 40, 50), [(1, 3, 40, 50), (3, 1, 1), ()], 1000)
    assert tiling.dims == (3, 2000)
    assert tiling.operands == [(3, 2000), (3, 1), (1, 1)]
