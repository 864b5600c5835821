"""Rows of several lengths in the batches of a pipeline's `each`."""

from __future__ import annotations

from typing import Any

import numpy as np
import plait as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from padded_encoder import TABLE, make_encoder
from plait.scheduler.pipelines import examples


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


@pytest.mark.parametrize(("rows", "count"), [([4] * 6, 1), ([3, 9, 4, 9, 3, 6], 2)])
def test_rows_of_the_example_share_sessions_which_are_closed(
    rows: list[int], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[pl.BlockingSession] = []

    def open_session(plan: pl.Plan) -> pl.BlockingSession:
        opened.append(pl.BlockingSession(plan))
        return opened[-1]

    monkeypatch.setattr(examples, "BlockingSession", open_session)
    pl.pipeline(pl.each(tokenize, make_encoder(), batch=4, pad="tokens"), example=rows)
    assert len(opened) == count
    with pytest.raises(pl.GraphError, match="does not take"):
        pl.pipeline(lambda n: (np.arange(n)[None], np.ones((1, n))), make_encoder(), example=2)
    assert len(opened) == count + 1
    assert all(session.is_closed for session in opened)


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


def make_recognizer(kernel: int, stride: int, ends: int, name: str = "t-1") -> pl.Graph:
    b = pl.GraphBuilder("my-recognizer")
    x = b.input("x", "float32", ("rows", name, 2))
    weights = np.arange(6 * kernel, dtype="float32").reshape(3, 2, kernel) / 9
    y = b.op("Conv", x.transpose(0, 2, 1), weights, strides=[stride], pads=[ends, ends])
    # Exporters compute the shape of the rows.
    shape = b.op("Concat", b.op("Shape", y, end=1), np.array([3, -1]), axis=0)
    b.output("scores", b.op("Reshape", y, shape).transpose(0, 2, 1))
    b.output("whole", x.sum(axis=(1, 2)))
    return b.build()


@settings(max_examples=5)
@given(
    kernel=st.integers(1, 4),
    stride=st.integers(1, 4),
    lengths=st.lists(st.integers(4, 30), min_size=1, max_size=6),
    way=st.sampled_from(["each", "step", "stream"]),
)
def test_results_are_cut_where_their_length_follows_from_the_padded_one(
    kernel: int, stride: int, lengths: list[int], way: str
) -> None:
    model = make_recognizer(kernel, stride, min(kernel - 1, 1))
    rows = [np.random.default_rng(n).random((1, n, 2), "float32") for n in lengths]
    examples = [rows[0], np.ones((1, lengths[0] + 3, 2), "float32")]
    if way == "each":
        each = pl.each(model, batch=4, pad="t-1")
        with pl.pipeline(each, example=[one[0] for one in examples]) as pipe:
            found = [(scores[None], whole) for scores, whole in pipe([one[0] for one in rows])]
    elif way == "step":
        step = pl.step(model, batch=4, pad="t-1")
        with pl.pipeline(lambda row: row, step, examples=examples) as pipe:
            found = pipe.map(rows)
    else:
        with pl.BlockingSession(pl.plan(model, max_in_flight=8)) as session:
            with session.stream([{"x": row} for row in rows], batch=4, pad="t-1") as results:
                found = [(item["scores"], item["whole"]) for item in results]
    assert len(found) == len(rows)
    for row, (scores, whole) in zip(rows, found, strict=True):
        wanted = pl.run(model, {"x": row})
        np.testing.assert_allclose(scores, wanted["scores"], rtol=1e-5)
        np.testing.assert_allclose(whole, wanted["whole"][0], rtol=1e-5)


def test_a_length_that_does_not_follow_from_the_padded_one_is_refused() -> None:
    b = pl.GraphBuilder("found")
    x = b.input("x", "float32", ("rows", "t"))
    places = b.op("NonZero", x.sum(axis=0), name="places")
    b.output("y", b.op("Gather", x, places.reshape(-1), axis=1))
    outer = pl.GraphBuilder("outer")
    rows = outer.input("x", "float32", ("r", "r_t"))
    with pytest.raises(pl.GraphError, match=r"not follow from 'r_t' alone(?s:.*)BlockingSession"):
        outer.each(rows, b.build(), batch=1, pad="r_t")
