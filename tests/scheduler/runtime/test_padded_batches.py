"""Items of several lengths in one batch, filled up with zeros: results are those of each alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import plait as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

TABLE = np.random.default_rng(0).standard_normal((50, 8)).astype("float32")


def make_encoder() -> pl.Graph:
    """Return a mean of embeddings where the mask is one, and the embeddings themselves."""
    b = pl.GraphBuilder("encoder")
    tokens = b.input("tokens", "int64", ("batch", "tokens"))
    mask = b.input("mask", "float32", ("batch", "tokens"))
    found = b.op("Gather", b.constant(TABLE), tokens)
    weights = mask.reshape("batch", "tokens", 1)
    b.output("vector", (found * weights).sum(axis=1) / weights.sum(axis=1))
    b.output("each", found)
    return b.build()


def make_item(length: int) -> dict[str, Any]:
    tokens = np.arange(length)[None] % 50
    return {"tokens": tokens, "mask": np.ones((1, length), "float32")}


@pytest.mark.parametrize("bounds", [None, {"tokens": 20, "batch": 4}])
@given(lengths=st.lists(st.integers(1, 20), min_size=1, max_size=12))
def test_padded_items_give_the_results_of_each_alone(
    bounds: dict[str, int] | None, lengths: list[int]
) -> None:
    with pl.BlockingSession(pl.plan(make_encoder(), "cpu", bounds=bounds)) as session:
        items = [make_item(length) for length in lengths]
        with session.stream(items, batch=4, pad="tokens") as results:
            found = [dict(item.outputs) for item in results]
    for length, outputs in zip(lengths, found, strict=True):
        rows = TABLE[np.arange(length) % 50]
        assert outputs["each"].shape == (1, length, 8)
        assert np.array_equal(outputs["each"][0], rows)
        assert np.allclose(outputs["vector"][0], rows.mean(axis=0), atol=1e-6)


def test_items_of_near_lengths_share_a_batch() -> None:
    with pl.BlockingSession(pl.plan(make_encoder(), "cpu", max_in_flight=2)) as session:
        with session.stream(map(make_item, (9, 16, 12, 10)), batch=4, pad="tokens") as results:
            assert all(item.error is None for item in results)
        assert {row["runs"] for row in session.profile().steps()} == {1}


def test_requests_of_several_lengths_share_a_batch() -> None:
    with (
        pl.BlockingSession(pl.plan(make_encoder(), "cpu")) as session,
        pl.BlockingMicroBatches(session, size=4, pad="tokens") as batches,
    ):
        assert batches.run(make_item(5))["each"].shape == (1, 5, 8)


def test_mistakes_name_the_axis() -> None:
    wrong = make_item(5) | {"mask": np.ones((1, 4), "float32")}
    with pl.BlockingSession(pl.plan(make_encoder(), "cpu")) as session:
        with pytest.raises(pl.SessionError, match=r"other lengths(.|\n)*tokens"):
            with session.stream([make_item(5)], batch=2, pad="token") as results:
                list(results)
        with pytest.raises(pl.SessionError, match="without batch="):
            session.stream([make_item(5)], pad="tokens")
        with session.stream([wrong, make_item(5)], batch=2, pad="tokens") as results:
            failed, right = results
        assert "different lengths of 'tokens'" in str(failed.error)
        assert right.error is None
