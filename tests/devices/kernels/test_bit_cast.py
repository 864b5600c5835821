from __future__ import annotations

import arrays
import numpy as np
import plait as pl
import pytest
from arrays import EVERY, random_array
from hypothesis import given, settings
from hypothesis import strategies as st
from plait.graph.values.errors import ShapeError
from single_node import run_node

SAME_SIZE = [
    (one, other)
    for one in EVERY
    for other in EVERY
    if np.dtype(one).itemsize == np.dtype(other).itemsize and other != "bool"
]


@given(pair=st.sampled_from(SAME_SIZE), shape=arrays.shapes(), seed=arrays.SEEDS)
@settings(max_examples=100)
def test_bit_cast_keeps_the_bits(pair: tuple[str, str], shape: tuple[int, ...], seed: int) -> None:
    x = random_array(pair[0], shape, seed)

    (y,) = run_node("BitCast", [x], {"to": pair[1]})

    assert (y.dtype.name, y.shape) == (pair[1], x.shape)
    assert y.tobytes() == x.tobytes()


def test_a_bit_cast_in_a_plan_keeps_the_bits() -> None:
    b = pl.GraphBuilder("bits")
    x = b.input("x", "float32", (3,))
    b.output("y", b.op("Neg", b.op("BitCast", b.op("Abs", x), to="int32")))
    values = np.array([1, -2, -0.0], np.float32)

    y = pl.run(b.build(), {"x": values})["y"]

    np.testing.assert_array_equal(y, -abs(values).view(np.int32), strict=True)


def test_bit_cast_refuses_a_dtype_of_another_size() -> None:
    with pytest.raises(ShapeError, match="cannot be read as int64"):
        run_node("BitCast", [np.ones(2, np.float32)], {"to": "int64"})
