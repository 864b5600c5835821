"""bfloat16 and floats of 8 bits, against float32 that is rounded at last."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import arrays
import numpy as np
import plait as pl
import pytest
from arrays import AnyArray, random_array
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper
from plait.graph.values.dtypes import EXTENSIONS, FLOATS_OF_8_BITS, dtype_of
from plait.graph.values.errors import ShapeError
from single_node import onnx_reference, run_node

BFLOAT16 = dtype_of("bfloat16")
STEP = 2**-7
"""The relative distance between neighbours in bfloat16."""

X, W = (2, 4, 5, 6), (4, 4, 3, 3)
NODES: Mapping[str, tuple[list[tuple[int, ...]], dict[str, Any]]] = {
    **{op: ([X, X], {}) for op in ("Add", "Sub", "Mul", "Div", "Max", "Mean")},
    **{op: ([X], {}) for op in ("Relu", "Sigmoid", "Tanh", "Erf", "Softmax", "LogSoftmax", "Sqrt")},
    **{op: ([X], {}) for op in ("Gelu", "ReduceSum", "ReduceMean", "ReduceMax", "ReduceL2")},
    **{op: ([X], {}) for op in ("GlobalAveragePool", "CumSum")},
    "MatMul": ([(3, 8), (8, 5)], {}),
    "Gemm": ([(3, 8), (8, 5), (5,)], {"alpha": 0.5, "beta": 2.0}),
    "Einsum": ([(3, 8), (8, 5)], {"equation": "ij,jk->ki"}),
    "Conv": ([X, W, (4,)], {"pads": (1, 1, 1, 1)}),
    "ConvTranspose": ([X, W], {}),
    "MaxPool": ([X], {"kernel_shape": (2, 2)}),
    "AveragePool": ([X], {"kernel_shape": (2, 2)}),
    "LayerNormalization": ([X, (6,)], {}),
    "BatchNormalization": ([X, *[(4,)] * 4], {}),
    "Cofactors": ([(2, 3, 3)], {}),
    "Det": ([(2, 3, 3)], {}),
}


@pytest.mark.parametrize("op", NODES)
def test_bfloat16_is_computed_like_float32(op: str) -> None:
    shapes, attributes = NODES[op]
    given_: list[AnyArray | None] = [
        (abs(random_array("float32", shape, seed, -2, 2)) + 0.1).astype(BFLOAT16)
        for seed, shape in enumerate(shapes)
    ]
    wide: list[AnyArray | None] = [x.astype(np.float32) for x in given_ if x is not None]
    if op == "CumSum":
        given_.append(np.array(1))
        wide.append(np.array(1))
    constant = (1,) if op == "CumSum" else ()

    (y,) = run_node(op, given_, attributes, constant=constant)

    (wanted,) = run_node(op, wide, attributes, constant=constant)
    assert y.dtype == BFLOAT16
    tolerance = STEP * (8 if op == "CumSum" else 2)
    np.testing.assert_allclose(
        y.astype(np.float32), wanted, tolerance, tolerance * float(abs(wanted).max())
    )


@given(
    source=st.sampled_from(("float16", "float32", "float64", "int8", "int64", "bool", *EXTENSIONS)),
    target=st.sampled_from(EXTENSIONS),
    saturate=st.booleans(),
    seed=arrays.SEEDS,
)
@settings(max_examples=100)
def test_casts_to_small_floats_round_and_saturate(
    source: str, target: str, saturate: bool, seed: int
) -> None:
    beyond = [1e5, -1e5, np.inf, -np.inf, np.nan, 0.0, 447, 241, 1e-4]
    wide = np.append(random_array("float32", (30,), seed, -500, 500), np.array(beyond, np.float32))
    with np.errstate(all="ignore"):
        x = wide[: None if dtype_of(source).kind in "fV" else 30].astype(dtype_of(source))

    (y,) = run_node("Cast", [x], {"to": target, "saturate": saturate})

    element_type = helper.np_dtype_to_tensor_dtype(dtype_of(target))
    (wanted,) = onnx_reference("Cast", [x], {"to": element_type, "saturate": int(saturate)})
    assert y.dtype == wanted.dtype
    np.testing.assert_array_equal(y.astype(np.float32), wanted.astype(np.float32))


@pytest.mark.parametrize("source", EXTENSIONS)
@pytest.mark.parametrize("target", ["float16", "float32", "float64", "int32", "bool"])
def test_casts_from_small_floats_are_those_of_their_values(source: str, target: str) -> None:
    x = random_array("float32", (40,), 3, -200, 200).astype(dtype_of(source))

    (y,) = run_node("Cast", [x], {"to": target})

    np.testing.assert_array_equal(y, x.astype(np.float32).astype(target), strict=True)


@pytest.mark.parametrize("dtype", FLOATS_OF_8_BITS)
@pytest.mark.parametrize("saturate", [True, False])
def test_quantizing_to_8_bits_divides_and_saturates(dtype: str, saturate: bool) -> None:
    x = np.array([0, 1, 2.3, -2.3, 1e6, -1e6, 900], np.float32)
    scale, zero = np.array(2, np.float32), np.zeros((), dtype_of(dtype))

    (y,) = run_node("QuantizeLinear", [x, scale, zero], {"saturate": saturate})
    (back,) = run_node("DequantizeLinear", [y, scale])

    (wanted,) = onnx_reference("QuantizeLinear", [x, scale, zero], {"saturate": int(saturate)})
    assert y.tobytes() == wanted.tobytes()
    np.testing.assert_array_equal(back, y.astype(np.float32) * 2)


def test_floats_of_8_bits_are_not_computed_with() -> None:
    x = np.ones(3, dtype_of("float8_e4m3fn"))

    with pytest.raises(ShapeError, match="insert a Cast"):
        run_node("Relu", [x])


@pytest.mark.parametrize("devices", [["cpu"], ["cpu", "worker:0"]])
def test_a_session_takes_and_gives_small_floats(devices: list[str]) -> None:
    b = pl.GraphBuilder("small")
    x = b.input("x", "bfloat16", (2, 3))
    halved = b.op("Mul", x, b.constant(np.full((3,), 0.5, BFLOAT16)), name="halve")
    b.output("y", b.op("Cast", halved, to="float8_e4m3fn", name="narrow"))
    pins = {"narrow": devices[-1]}
    values = np.arange(6).reshape(2, 3).astype(BFLOAT16)

    y = pl.run(pl.plan(b.build(), devices=devices, pin=pins), {"x": values})["y"]

    assert y.dtype == dtype_of("float8_e4m3fn")
    assert y.astype(np.float32).tolist() == [[0, 0.5, 1], [1.5, 2, 2.5]]
