"""Rows of several lengths in the batches of a pipeline's `each`."""

from __future__ import annotations

from typing import Any

import numpy as np
import plait as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from padded_encoder import TABLE, make_encoder


def tokenize(length: int) -> Any:
    """Return tokens and their mask, as a row without and with an axis for rows."""
    return np.arange(length) % 50, np.ones(length, "float32")


def tokenize_whole(length: int) -> Any:
    return tuple(one[None] for one in tokenize(length))


def check_words(length: int, vector: Any, words: Any) -> None:
    wanted = TABLE[np.arange(length) % 50]
    np.testing.assert_array_equal(words.reshape(wanted.shape), wanted)
    np.testing.assert_allclose(vector.reshape(8), wanted.mean(axis=0), atol=1e-6)


@settings(max_examples=10)
@given(
    items=st.lists(st.lists(st.integers(1, 30), max_size=5), min_size=1, max_size=6),
    tokens=st.sampled_from([tokenize, tokenize_whole]),
)
def test_rows_of_any_lengths_give_the_results_of_each_alone(
    items: list[list[int]], tokens: Any
) -> None:
    each = pl.each(tokens, make_encoder(), batch=4, pad="tokens")
    with pl.pipeline(each, example=[3, 9]) as pipe:
        for item, found in zip(items, pipe.stream(items), strict=True):
            assert len(found) == len(item)
            for length, (vector, words) in zip(item, found, strict=True):
                check_words(length, vector, words)


def test_callables_and_models_behind_get_rows_without_padding() -> None:
    b = pl.GraphBuilder("sums")
    halves = b.input("halves", "float32", ("rows", "tokens", 8))
    b.output("sums", halves.sum(axis=2))

    def halve(vector: Any, words: Any) -> Any:
        return words[: len(words) // 2 + 1]

    each = pl.each(tokenize, make_encoder(), halve, b.build(), batch=4, pad="tokens")
    with pl.pipeline(each, example=[2, 7]) as pipe:
        for length, sums in zip([5, 1, 30], pipe([5, 1, 30]), strict=True):
            wanted = TABLE[np.arange(length // 2 + 1)].sum(axis=1)
            np.testing.assert_allclose(sums, wanted, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pad": "token", "batch": 4}, r"pad is 'token'(?s:.*)name one of tokens"),
        ({"pad": "tokens"}, r"pad= without batch="),
    ],
)
def test_mistakes_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(pl.GraphError, match=message):
        pl.each(tokenize, make_encoder(), **options)


def test_inputs_of_a_row_with_different_lengths_are_refused() -> None:
    def tokenize_badly(length: int) -> Any:
        return np.arange(length) % 50, np.ones(min(length, 9), "float32")

    each = pl.each(tokenize_badly, make_encoder(), batch=4, pad="tokens")
    with pl.pipeline(each, example=[3, 9]) as pipe:
        with pytest.raises(pl.KernelError, match="different lengths of 'tokens'"):
            pipe([10])
