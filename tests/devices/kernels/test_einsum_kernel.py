from __future__ import annotations

import itertools

import numpy as np
import pytest
from arrays import NUMBERS, AnyArray, random_array
from hypothesis import given, settings
from hypothesis import strategies as st
from plait.graph.errors import ShapeError
from single_node import onnx_reference, run_node

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
