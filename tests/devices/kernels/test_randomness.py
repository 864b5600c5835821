"""Philox and the normal quantiles against known answers, numpy's generator and statistics."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from plait.devices.formal.randomness import generate_block
from plait.devices.kernels.randomness import compute_normal_quantiles
from plait.graph.operators.normal_quantile import normal_quantile
from single_node import run_node

AnyArray = NDArray[Any]
ONES = 2**64 - 1
PI = (
    (0x452821E638D01377, 0xBE5466CF34E90C6C),
    (0x243F6A8885A308D3, 0x13198A2E03707344, 0xA4093822299F31D0, 0x082EFA98EC4E6C89),
)


@pytest.mark.parametrize(
    ("key", "counter", "words"),
    [
        (
            (0, 0),
            (0, 0, 0, 0),
            "16554d9eca36314c db20fe9d672d0fdc d7e772cee186176b 7e68b68aec7ba23b",
        ),
        (
            (ONES, ONES),
            (ONES, ONES, ONES, ONES),
            "87b092c3013fe90b 438c3c67be8d0224 9cc7d7c69cd777b6 a09caebf594f0ba0",
        ),
        (*PI, "a528f45403e61d95 38c72dbd566e9788 a5a1610e72fd18b5 57bd43b5e52b7fe6"),
    ],
)
def test_blocks_are_the_known_answers(
    key: tuple[int, int], counter: tuple[int, int, int, int], words: str
) -> None:
    """Those of the authors' own test vectors, for philox4x64 of ten rounds."""
    assert " ".join(f"{word:016x}" for word in generate_block(key, counter)) == words


def drawn(
    distribution: str, dtype: str, shape: tuple[int, ...], key: tuple[int, int], **given: Any
) -> AnyArray:
    inputs = [np.array(key, np.uint64), np.array(shape, np.int64)]
    given = {"distribution": distribution, "dtype": dtype, **given}
    (y,) = run_node("Philox", inputs, given, constant={1})
    return y


def test_words_are_those_of_numpy_s_generator_in_order() -> None:
    generator = np.random.Philox(key=[3, 8], counter=np.array([0, ONES, 0, 0], np.uint64))
    words = generator.random_raw(10_000)
    found = drawn("integer", "uint64", (100, 100), (3, ONES), sequence=8)
    np.testing.assert_array_equal(found, words.reshape(100, 100))
    halves = words[:7].astype("<u8").view("<u4")[:13]
    uniform = drawn("uniform", "float32", (13,), (3, ONES), sequence=8)
    np.testing.assert_array_equal(uniform * 2.0**24, halves >> 8)
    wide = drawn("uniform", "float64", (7,), (3, ONES), sequence=8)
    np.testing.assert_array_equal(wide * 2.0**53, words[:7] >> np.uint64(11))


def test_a_node_that_is_seeded_does_not_depend_on_the_seed_of_the_session() -> None:
    one, other = (drawn("integer", "uint64", (5,), (s, 4), seeded=True, sequence=2) for s in (1, 2))
    assert one.tolist() == other.tolist()
    assert one.tolist() != drawn("integer", "uint64", (5,), (1, 4), sequence=2).tolist()


@given(st.floats(0, 1, exclude_min=True, exclude_max=True))
def test_quantiles_are_those_of_the_standard_library(p: float) -> None:
    """Its implementation of the same paper takes logarithms from the C library."""
    found = normal_quantile(p)
    assert math.isclose(found, NormalDist().inv_cdf(p), rel_tol=4e-15, abs_tol=1e-16)
    assert compute_normal_quantiles(np.array([p]))[0] == found


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_numbers_have_the_distribution_that_they_should(dtype: str) -> None:
    """By the largest distance of distribution functions, and by the correlation of neighbours."""
    count = 200_000
    uniform = drawn("uniform", dtype, (count,), (1, 2)).astype("float64")
    normal = drawn("normal", dtype, (count,), (1, 2)).astype("float64")
    assert uniform.min() >= 0
    assert uniform.max() < 1
    below = np.array([NormalDist().cdf(float(z)) for z in np.sort(normal)])
    ranks = (np.arange(count) + 0.5) / count
    most = 1.95 / math.sqrt(count)  # Kolmogorov and Smirnov: once in a thousand
    assert np.abs(np.sort(uniform) - ranks).max() < most
    assert np.abs(below - ranks).max() < most
    for numbers in (uniform - 0.5, normal):
        assert abs(np.corrcoef(numbers[1:], numbers[:-1])[0, 1]) < 5 / math.sqrt(count)


def test_streams_items_and_seeds_have_nothing_to_do_with_each_other() -> None:
    keys = [((0, 0), 0), ((1, 0), 0), ((0, 1), 0), ((0, 0), 1)]
    found = [drawn("normal", "float64", (4000,), key, sequence=number) for key, number in keys]
    correlations = np.corrcoef(np.stack(found)) - np.eye(4)
    assert np.abs(correlations).max() < 5 / math.sqrt(4000)
