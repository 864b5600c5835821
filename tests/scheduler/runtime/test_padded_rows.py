"""Rows of several lengths in one batch: filled up with zeros, results cut back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import plait as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from padded_encoder import TABLE, make_encoder

BOUNDS = {"n": (0, 4), "tokens": (1, 20)}


def make_graph(**options: Any) -> pl.Graph:
    b = pl.GraphBuilder("texts")
    shape = "n", "tokens"
    values = b.input("tokens", "int64", shape), b.input("mask", "float32", shape)
    options = {"batch": 4, "pad": "tokens", "name": "encode", **options}
    vector, words = b.each(values, make_encoder(), **options)
    b.output("vector", vector)
    b.output("words", words)
    return b.build()


def make_item(rows: int, length: int) -> dict[str, Any]:
    tokens = (np.arange(length) + np.arange(rows)[:, None]) % 50
    return {"tokens": tokens, "mask": np.ones((rows, length), "float32")}


def check(item: dict[str, Any], outputs: Any) -> None:
    words = TABLE[item["tokens"]]
    np.testing.assert_array_equal(outputs["words"], words)
    np.testing.assert_allclose(outputs["vector"], words.mean(axis=1), atol=1e-6)


@settings(max_examples=10)
@given(shapes=st.lists(st.tuples(st.integers(0, 4), st.integers(1, 20)), min_size=1, max_size=9))
def test_padded_rows_give_the_results_of_each_alone(shapes: list[tuple[int, int]]) -> None:
    items = [make_item(*shape) for shape in shapes]
    plan = pl.plan(make_graph(), "cpu", bounds=BOUNDS, max_in_flight=4)
    with pl.BlockingSession(plan) as session, session.stream(items) as results:
        for item, found in zip(items, results, strict=True):
            check(item, found.outputs)


def test_rows_of_near_lengths_fill_a_batch(tmp_path: Path) -> None:
    pl.save(make_graph(max_delay_s=1000.0), tmp_path / "texts.plait")  # only full batches start
    graph = pl.load(tmp_path / "texts.plait")
    items = [make_item(1, length) for length in (9, 16, 12, 10)]
    plan = pl.plan(graph, "cpu", bounds=BOUNDS, max_in_flight=4)
    with pl.BlockingSession(plan) as session:
        with session.stream(items) as results:
            for item, found in zip(items, results, strict=True):
                check(item, found.outputs)
        assert session.profile().row_batches["encode"].batches == 1


def test_rows_that_a_generator_yields_are_padded(forget_operators: None) -> None:
    row = pl.TensorSpec("int64", ("lines", "length"))

    @pl.operator(row, inputs=[pl.TensorSpec("int64", ("length",))], name="test.shifted")
    def shifted(tokens: Any) -> Any:
        for shift in range(3):
            yield tokens + shift

    b = pl.GraphBuilder("lines")
    lines = b.call(shifted, b.input("tokens", "int64", ("length",)))
    encoder = pl.GraphBuilder("words")
    tokens = encoder.input("tokens", "int64", ("rows", "tokens"))
    encoder.output("words", encoder.op("Gather", encoder.constant(TABLE), tokens))
    b.output("words", b.each(lines, encoder.build(), batch=2, pad="length"))
    plan = pl.plan(b.build(), "cpu", bounds={"lines": 3, "length": 20}, max_in_flight=2)
    with pl.BlockingSession(plan) as session:
        for length in (3, 9, 20):
            fed = np.arange(length)
            wanted = TABLE[fed + np.arange(3)[:, None]]
            np.testing.assert_array_equal(session.run({"tokens": fed})["words"], wanted)


def test_a_model_in_a_pipeline_gets_items_of_several_lengths_in_batches() -> None:
    def tokenize(length: int) -> Any:
        return tuple(make_item(1, length).values())

    def take_apart(vector: Any, words: Any) -> Any:
        return vector, words

    step = pl.step(make_encoder(), batch=4, pad="tokens")
    with pl.pipeline(tokenize, step, take_apart, examples=[3, 5]) as pipe:
        for length, (vector, words) in zip(range(1, 15), pipe.stream(range(1, 15)), strict=True):
            check(make_item(1, length), {"vector": vector, "words": words})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pad": "token"}, r"pad is 'token'(?s:.*)name one of tokens"),
        ({"batch": None}, r"keep and pad are about batches"),
    ],
)
def test_mistakes_of_each_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(pl.GraphError, match=message):
        make_graph(**options)


def test_mistakes_of_steps_are_refused() -> None:
    with pytest.raises(pl.GraphError, match="has pad= without batch="):
        pl.step(make_encoder(), pad="tokens")
    with pytest.raises(pl.GraphError, match="which is for models"):
        pl.step(len, pad="tokens")
    for pad, examples, fix in (
        ("token", [3, 5], "name one of tokens"),
        ("tokens", [3], r"give examples=\[short, long\]"),
    ):
        step = pl.step(make_encoder(), batch=4, pad=pad)
        with pytest.raises(pl.GraphError, match=fix):
            pl.pipeline(lambda n: tuple(make_item(1, n).values()), step, examples=examples)
