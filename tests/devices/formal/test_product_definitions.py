"""Sums of products by definition, against results worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from formal_node import formal_node

A, B = [[1, 2, 3], [4, 5, 6]], [[1, 0], [10, 1], [100, 0]]


@pytest.mark.parametrize(
    ("a", "b", "wanted"),
    [
        (A, B, [[321, 2], [654, 5]]),
        ([1, 2, 3], B, [321, 2]),
        (A, [1, 10, 100], [321, 654]),
        ([1, 2, 3], [1, 10, 100], 321),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "int16"])
def test_a_vector_is_a_row_on_the_left_and_a_column_on_the_right(
    a: Any, b: Any, wanted: Any, dtype: str
) -> None:
    (y,) = formal_node("MatMul", [np.array(a, dtype), np.array(b, dtype)])

    assert y.tolist() == wanted


def test_stacks_of_matrices_are_repeated() -> None:
    a = np.array([[[1, 2]], [[3, 4]]], "float64")
    b = np.array([[[[1], [10]]], [[[2], [20]]], [[[0], [1]]]], "float64")

    (y,) = formal_node("MatMul", [a, b])

    assert y.shape == (3, 2, 1, 1)
    assert y[..., 0, 0].tolist() == [[21, 43], [42, 86], [2, 4]]


def test_large_terms_that_cancel_leave_the_small_one() -> None:
    (y,) = formal_node("MatMul", [np.array([1e300, 1, -1e300]), np.array([1e8, 1, 1e8])])

    assert y.tolist() == 1


def test_no_terms_leave_the_bias_as_it_is() -> None:
    inputs = [np.ones((1, 0)), np.ones((0, 1)), np.array([[7.75]])]

    assert formal_node("Gemm", inputs)[0].item() == 7.75


def test_infinities_of_both_signs_have_no_sum() -> None:
    (y,) = formal_node("MatMul", [np.array([np.inf, -np.inf]), np.array([1.0, 1.0])])

    assert np.isnan(y)


@pytest.mark.parametrize("transposed", [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize(
    ("c", "wanted"),
    [
        (None, [[642, 4], [1308, 10]]),
        (10, [[647, 9], [1313, 15]]),
        ([2, 4], [[643, 6], [1309, 12]]),
        ([[2], [4]], [[643, 5], [1310, 12]]),
    ],
)
def test_gemm_transposes_scales_and_adds(transposed: tuple[int, int], c: Any, wanted: Any) -> None:
    a, b = (
        np.array(x, "float64").T.copy() if turned else np.array(x, "float64")
        for x, turned in zip((A, B), transposed, strict=True)
    )
    attributes = {"alpha": 2.0, "beta": 0.5, "transA": transposed[0], "transB": transposed[1]}

    (y,) = formal_node("Gemm", [a, b, None if c is None else np.array(c, "float64")], attributes)

    assert y.tolist() == wanted


def test_gemm_without_c_and_with_a_beta_of_zero_are_the_same() -> None:
    a, b, c = np.array([[1.0]]), np.array([[2.0]]), np.array([[np.nan]])

    (y,) = formal_node("Gemm", [a, b, c], {"beta": 0.0})

    assert y.item() == 2


def test_gemm_of_integers_is_exact_and_rounded_once_toward_zero() -> None:
    large = np.array([[2**53 + 1]])
    halves = [np.array([[x]]) for x in (3, -3, 2)]

    (y,) = formal_node("Gemm", [large, np.array([[1]]), np.array([[1]])])
    (z,) = formal_node("Gemm", halves, {"alpha": 0.5, "beta": 0.25})

    assert y.item() == 2**53 + 2
    assert z.item() == -4


@pytest.mark.parametrize(
    ("equation", "terms", "wanted"),
    [
        ("ij,jk->ik", (A, B), [[321, 2], [654, 5]]),
        ("ij , jk", (A, B), [[321, 2], [654, 5]]),
        ("ba", (A,), [[1, 4], [2, 5], [3, 6]]),
        ("ij->", (A,), 21),
        ("ij->j", (A,), [5, 7, 9]),
        ("ii->i", ([[1, 2], [3, 4]],), [1, 4]),
        ("ii", ([[1, 2], [3, 4]],), 5),
        ("i,j->ji", ([1, 2], [10, 20]), [[10, 20], [20, 40]]),
        ("bi,bi->b", (A, A), [14, 77]),
        ("i,i,i", ([1, 2], [3, 4], [5, 6]), 63),
        ("ij,jk->ik", ([[1, 2, 3]], [[2, 3]]), [[12, 18]]),
        ("...j,j->...", (A, [1, 10, 100]), [321, 654]),
        ("...,...", ([[1], [2]], [[10, 20]]), [[10, 20], [20, 40]]),
        ("i...->...i", ([A],), [[[1], [2], [3]], [[4], [5], [6]]]),
    ],
)
def test_einsum_sums_over_what_the_output_lacks(
    equation: str, terms: tuple[Any, ...], wanted: Any
) -> None:
    inputs = [np.array(term, "float64") for term in terms]

    (y,) = formal_node("Einsum", inputs, {"equation": equation})

    assert y.tolist() == wanted
