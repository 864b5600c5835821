from __future__ import annotations

import itertools
from itertools import permutations
from math import prod
from typing import Any

import arrays
import numpy as np
import pytest
from arrays import FLOATS, NUMBERS, AnyArray, random_array
from hypothesis import given, settings
from hypothesis import strategies as st
from plait.graph.values.errors import ShapeError
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


LETTERS = "abCd"


def contract(
    terms: list[str], output: str, inputs: list[AnyArray], sizes: dict[str, int]
) -> AnyArray:
    """Sum products over all values of all letters, one by one, in Python numbers."""
    y = np.zeros([sizes[c] for c in output], object)
    for values in itertools.product(*(range(sizes[c]) for c in sizes)):
        place = dict(zip(sizes, values, strict=True))
        product = 1
        for term, x in zip(terms, inputs, strict=True):
            product *= x[tuple(place[c] for c in term)].item()
        y[tuple(place[c] for c in output)] += product
    return y


@given(
    lengths=st.lists(st.integers(0, 3), min_size=4, max_size=4),
    terms=st.lists(st.text(LETTERS, max_size=3), min_size=1, max_size=3),
    dtype=st.sampled_from(["float32", "float64", "int32", "int64"]),
    data=st.data(),
)
@settings(max_examples=100)
def test_einsum_sums_products_over_unnamed_axes(
    lengths: list[int], terms: list[str], dtype: str, data: st.DataObject
) -> None:
    used = sorted(set("".join(terms)))
    sizes = {
        letter: length for letter, length in zip(LETTERS, lengths, strict=True) if letter in used
    }
    output = "".join(data.draw(st.permutations(used))[: data.draw(st.integers(0, len(used)))])
    inputs = [
        random_array(dtype, [sizes[c] for c in term], i, -3, 3) for i, term in enumerate(terms)
    ]

    (y,) = run_node("Einsum", inputs, {"equation": f"{','.join(terms)} -> {output}"})

    wanted = contract(terms, output, inputs, sizes)
    assert y.shape == wanted.shape
    np.testing.assert_allclose(y, wanted.astype(dtype), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk", [(2, 3), (3, 4)]),
        ("bA", [(2, 3)]),
        ("...ij,...jk->...ik", [(5, 2, 3), (5, 3, 4)]),
        ("...ij,...jk", [(5, 1, 2, 3), (1, 6, 3, 4)]),
        ("...ii->...i", [(2, 3, 3)]),
        ("i...->...", [(2, 3, 4)]),
        ("bhqd,bhkd->bhqk", [(2, 3, 4, 5), (2, 3, 6, 5)]),
        ("...,...", [(2, 3), (2, 3)]),
    ],
)
def test_einsum_fills_in_dots_and_output_as_onnx_says(
    equation: str, shapes: list[tuple[int, ...]]
) -> None:
    inputs = [random_array("float64", shape, i) for i, shape in enumerate(shapes)]

    (y,) = run_node("Einsum", inputs, {"equation": equation})

    (wanted,) = onnx_reference("Einsum", inputs, {"equation": equation})
    np.testing.assert_allclose(y, wanted, rtol=1e-12)
    assert y.shape == wanted.shape


@pytest.mark.parametrize("dtype", NUMBERS)
def test_einsum_takes_all_numbers(dtype: str) -> None:
    a, b = np.full((2, 3), 2, dtype), np.full((3, 2), 3, dtype)

    (y,) = run_node("Einsum", [a, b], {"equation": "ij,jk->ik"})

    np.testing.assert_array_equal(y, np.full((2, 2), 18, dtype), strict=True)


@pytest.mark.parametrize(
    ("equation", "shapes", "message"),
    [
        ("ij,jk->ik", [(2, 3)], "2 terms for 1 inputs"),
        ("ij->i", [(2, 3, 4)], "does not name 3 axes"),
        ("ij->k", [(2, 3)], "no input has"),
        ("ij->ii", [(2, 3)], "twice"),
        ("i1->i", [(2, 3)], "is not an equation"),
        ("i.j->i", [(2, 3, 4)], "is not an equation"),
        ("...i,...j->...", [(2, 3), (4,)], "different numbers of axes"),
        ("ij,jk->ik", [(2, 3), (4, 5)], "broadcast"),
    ],
)
def test_a_wrong_equation_is_refused(
    equation: str, shapes: list[tuple[int, ...]], message: str
) -> None:
    with pytest.raises(ShapeError, match=message):
        run_node("Einsum", [np.ones(shape) for shape in shapes], {"equation": equation})


DETERMINANTS_TOLERANCE = {"float16": 2e-3, "float32": 1e-5, "float64": 1e-12}


def leibniz(matrix: AnyArray) -> float:
    """Return the signed sum of the products over all permutations."""
    total = 0.0
    for places in permutations(range(len(matrix))):
        swapped = sum(a > b for i, a in enumerate(places) for b in places[i + 1 :])
        total += (-1) ** swapped * prod(
            float(row[p]) for row, p in zip(matrix, places, strict=True)
        )
    return total


@given(
    batch=arrays.shapes(max_rank=2, max_length=3),
    size=st.integers(0, 4),
    dtype=st.sampled_from(FLOATS),
    seed=arrays.SEEDS,
)
@settings(max_examples=60)
def test_det_is_the_sum_over_permutations(
    batch: tuple[int, ...], size: int, dtype: str, seed: int
) -> None:
    x = random_array(dtype, (*batch, size, size), seed, -2, 2)

    (y,) = run_node("Det", [x])

    assert (y.dtype.name, y.shape) == (dtype, batch)
    for index in np.ndindex(batch):
        bound = prod(float(abs(row).sum()) for row in x[index].astype(float)) + 1
        assert abs(float(y[index]) - leibniz(x[index])) <= DETERMINANTS_TOLERANCE[dtype] * bound


@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 2, 1)])
def test_det_refuses_what_is_not_square(shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError):
        run_node("Det", [np.ones(shape, np.float32)])


@given(size=st.integers(1, 4), dtype=st.sampled_from(FLOATS), seed=arrays.SEEDS)
@settings(max_examples=25)
def test_cofactors_are_determinants_of_what_is_left(size: int, dtype: str, seed: int) -> None:
    x = random_array(dtype, (2, size, size), seed, -2, 2)
    x[1, -1] = x[1, 0]  # which has no inverse, but for a size of 1

    (y,) = run_node("Cofactors", [x])

    assert (y.dtype.name, y.shape) == (dtype, x.shape)
    for index in np.ndindex(x.shape):
        stack, row, column = index
        rest = np.delete(np.delete(x[stack], row, 0), column, 1)
        sign = (-1) ** (row + column)
        bound = max(float(np.linalg.norm(x[stack].astype(float))), 1.0) ** size
        assert (
            abs(float(y[index]) - sign * leibniz(rest)) <= 4 * DETERMINANTS_TOLERANCE[dtype] * bound
        )


def test_cofactors_of_what_is_no_number_are_not_either() -> None:
    x = np.stack([np.eye(2), np.full((2, 2), np.inf)]).astype(np.float32)

    (y,) = run_node("Cofactors", [x])

    np.testing.assert_array_equal(y[0], np.eye(2))
    assert np.isnan(y[1]).all()
