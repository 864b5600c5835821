from __future__ import annotations

import itertools
from typing import Any

import arrays
import numpy as np
import pytest
from arrays import FLOATS, NUMBERS, AnyArray, random_array
from hypothesis import given, settings
from hypothesis import strategies as st
from single_node import onnx_reference, run_node

WIDE = (*FLOATS, "int32", "int64", "uint32", "uint64")
LENGTHS = st.integers(0, 4)
TOLERANCE = {"float16": 2e-3, "float32": 1e-5, "float64": 1e-13}


def product(a: AnyArray, b: AnyArray) -> AnyArray:
    """Multiply stacks of matrices by the schoolbook rule, in Python numbers."""
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = (np.broadcast_to(m, (*batch, *m.shape[-2:])).astype(object) for m in (a, b))
    y = np.empty((*batch, a.shape[-2], b.shape[-1]), object)
    for place in itertools.product(*map(range, y.shape)):
        row, column = a[place[:-1]].tolist(), b[place[:-2]][:, place[-1]].tolist()
        y[place] = sum(p * q for p, q in zip(row, column, strict=True))
    return y


def assert_close(y: AnyArray, wanted: AnyArray) -> None:
    assert y.shape == wanted.shape
    tolerance = TOLERANCE.get(y.dtype.name, 0)
    np.testing.assert_allclose(y, wanted.astype(y.dtype), rtol=tolerance, atol=tolerance)


@given(
    batches=arrays.broadcastable(2, max_rank=2),
    lengths=st.tuples(LENGTHS, LENGTHS, LENGTHS),
    dtype=st.sampled_from(NUMBERS),
    seed=arrays.SEEDS,
)
@settings(max_examples=100)
def test_stacks_of_matrices_multiply(
    batches: list[tuple[int, ...]], lengths: tuple[int, int, int], dtype: str, seed: int
) -> None:
    rows, inner, columns = lengths
    a = random_array(dtype, (*batches[0], rows, inner), seed, -3, 3)
    b = random_array(dtype, (*batches[1], inner, columns), seed + 1, -3, 3)

    (y,) = run_node("MatMul", [a, b])

    assert_close(y, product(a, b))


@pytest.mark.parametrize("dtype", WIDE)
@pytest.mark.parametrize(
    ("left", "right"),
    [((3,), (3,)), ((3,), (3, 2)), ((2, 3), (3,)), ((5, 2, 3), (3,)), ((3,), (5, 3, 2))],
)
def test_vectors_multiply_as_rows_and_columns(
    dtype: str, left: tuple[int, ...], right: tuple[int, ...]
) -> None:
    a, b = random_array(dtype, left, 1, -3, 3), random_array(dtype, right, 2, -3, 3)

    (y,) = run_node("MatMul", [a, b])

    assert_close(y, onnx_reference("MatMul", [a, b])[0])


def test_large_integers_multiply_exactly() -> None:
    a = np.array([[2**40 + 1, 1]], "int64")

    (y,) = run_node("MatMul", [a, np.array([[2**20], [3]], "int64")])

    assert y.item() == (2**40 + 1) * 2**20 + 3


@given(
    lengths=st.tuples(LENGTHS, LENGTHS, LENGTHS),
    dtype=st.sampled_from(WIDE),
    transposed=st.tuples(st.booleans(), st.booleans()),
    scales=st.tuples(st.sampled_from([0, 1, 2.0, 3.0]), st.sampled_from([0, 1, 2.0])),
    bias=st.sampled_from(["absent", "scalar", "row", "column", "matrix"]),
    seed=arrays.SEEDS,
)
@settings(max_examples=150)
def test_gemm_scales_transposes_and_adds(
    lengths: tuple[int, int, int],
    dtype: str,
    transposed: tuple[bool, bool],
    scales: tuple[float, float],
    bias: str,
    seed: int,
) -> None:
    rows, inner, columns = lengths
    a, b = random_array(dtype, (rows, inner), seed), random_array(dtype, (inner, columns), seed + 1)
    shapes = {"scalar": (), "row": (columns,), "column": (rows, 1), "matrix": (rows, columns)}
    c = random_array(dtype, shapes[bias], seed + 2) if bias != "absent" else None
    attributes: dict[str, Any] = {
        "alpha": scales[0],
        "beta": scales[1],
        "transA": transposed[0],
        "transB": transposed[1],
    }

    (y,) = run_node(
        "Gemm",
        [
            np.ascontiguousarray(a.T) if transposed[0] else a,
            np.ascontiguousarray(b.T) if transposed[1] else b,
            *([] if c is None else [c]),
        ],
        attributes,
    )

    wanted = product(a, b) * scales[0] + (0 if c is None else c.astype(object) * scales[1])
    if np.dtype(dtype).kind == "f":
        tolerance = 40 * TOLERANCE[dtype]  # sums of up to four products of up to 81
        np.testing.assert_allclose(y, wanted.astype("float64"), rtol=tolerance, atol=tolerance)
    else:
        np.testing.assert_array_equal(y, wanted.astype(dtype), strict=True)


@pytest.mark.parametrize("dtype", ["uint8", "int32", "int64"])
def test_whole_factors_of_integers_are_exact_and_wrap(dtype: str) -> None:
    most = np.full((1, 1), np.iinfo(dtype).max, dtype)

    (y,) = run_node("Gemm", [most, most, most], {"alpha": -3.0, "beta": 2.0})

    number = int(most[0, 0])
    wanted = (-3 * number * number + 2 * number) % 2 ** (8 * most.itemsize)
    assert int(y[0, 0]) % 2 ** (8 * most.itemsize) == wanted
