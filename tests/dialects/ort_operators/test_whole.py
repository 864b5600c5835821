"""Nodes between which values decide lengths: one for the planner, themselves to ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import plait as pl
import pytest
from plait.graph.core.whole import WHOLE, with_lengths_held
from plait.graph.formats.onnx.writer import to_onnx
from plait.graph.values.tensor import Array

VOCABULARY = ("red", "blue", "ö")
TEXTS = np.array([["red blue red"], ["ö"], [""], ["blue " * 40]], object)


def split(b: pl.GraphBuilder, texts: str, tokenexp: str = r"\S+", mark: int = 0) -> str:
    """Tokenize texts, of which nobody knows how many words they have."""
    words: dict[str, Any] = {"mark": mark, "mincharnum": 1, "pad_value": "#", "tokenexp": tokenexp}
    return str(b.op("com.microsoft.Tokenizer", texts, name="split", **words))


def count(b: pl.GraphBuilder, words: str) -> str:
    counting: dict[str, Any] = {
        "mode": "TF",
        "min_gram_length": 1,
        "max_gram_length": 1,
        "max_skip_count": 0,
        "ngram_counts": (0,),
        "ngram_indexes": range(len(VOCABULARY)),
        "pool_strings": VOCABULARY,
    }
    return str(b.op("TfIdfVectorizer", words, name="count", **counting))


def counting() -> pl.Graph:
    b = pl.GraphBuilder("counting")
    counts = count(b, b.op("Flatten", split(b, b.input("texts", "str", ("n", 1)))))
    b.output("y", b.op("Mul", counts, 2.0))
    return b.build()


@pytest.mark.parametrize(("tokenexp", "mark"), [("[a-z]+", 0), ("[a-z]+", 1), ("[ก-๛]+", 0)])
@pytest.mark.parametrize("n", [2, "n"])
def test_the_number_of_words_is_open_whatever_a_word_is(
    tokenexp: str, mark: int, n: int | str
) -> None:
    b = pl.GraphBuilder("words")
    b.output("words", split(b, b.input("texts", "str", (n, 1)), tokenexp, mark))
    assert str(b.build().tensors["words"]) == f"str[{n}, 1, words.shape[2]]"


def wanted(texts: Array) -> list[list[float]]:
    return [[2.0 * text.split().count(word) for word in VOCABULARY] for (text,) in texts]


def test_onnxruntime_agrees_about_the_words() -> None:
    session = onnxruntime.InferenceSession(
        to_onnx(counting()).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    assert session.run(None, {"texts": TEXTS})[0].tolist() == wanted(TEXTS)


@pytest.mark.parametrize("devices", [["ort"], ["cpu", "ort"], ["worker:0", "ort"]])
@pytest.mark.parametrize("bounds", [None, {"n": 4}])
def test_texts_of_any_number_of_words_stream(
    devices: list[str], bounds: dict[str, int] | None
) -> None:
    pins = {"mul*": devices[0]}
    plan = pl.plan(counting(), devices, pin=pins, max_in_flight=2, bounds=bounds)
    items = [TEXTS[: 1 + n % 4] for n in range(6)] + [TEXTS[3:]]
    with pl.BlockingSession(plan) as session:
        found = [item["y"].tolist() for item in session.stream({"texts": item} for item in items)]
    assert found == list(map(wanted, items))


def test_reports_and_saved_plans_have_one_node(tmp_path: Path) -> None:
    plan = pl.plan(counting(), ["ort"], shapes={"texts": (4, 1)})
    assert [node.op for node in plan.graph.nodes] == [WHOLE, "Mul"]
    assert "1 ort.Whole" in plan.report()
    plan.save(tmp_path / "counting.plan")
    again = pl.load_plan(tmp_path / "counting.plan")
    assert pl.run(again, {"texts": TEXTS})["y"].tolist() == wanted(TEXTS)
    pl.save(plan.graph, tmp_path / "written.onnx")
    written = pl.load(tmp_path / "written.onnx")
    assert {node.op for node in written.nodes} >= {"com.microsoft.Tokenizer", "TfIdfVectorizer"}
    assert pl.run(written, {"texts": TEXTS}, devices=["ort"])["y"].tolist() == wanted(TEXTS)


def test_what_lies_between_two_of_them_is_held_too() -> None:
    b = pl.GraphBuilder("between")
    texts = b.input("texts", "str", (4, 1))
    words = split(b, texts)
    # What these yield has known lengths, and who reads it is held.
    none = b.op("Mul", count(b, b.op("Flatten", words, name="flat")), 0.0, name="none")
    so = b.op("Equal", b.op("ReduceSum", none, keepdims=False, name="sum"), 0.0, name="so")
    b.output("y", none)
    b.output("z", b.op("Size", b.op("Where", so, words, words, name="both"), name="size"))
    graph = b.build()
    (whole, *rest) = with_lengths_held(graph).nodes
    assert whole.op == WHOLE
    held = {node.name for node in whole.attributes["body"].nodes}
    assert held == {"split", "flat", "count", "none", "sum", "so", "both", "size"}
    assert not rest
    found = pl.run(graph, {"texts": TEXTS}, devices=["ort"])
    assert found["z"] == 4 * 40
    assert not found["y"].any()


def test_lengths_that_are_fetched_are_not_held() -> None:
    b = pl.GraphBuilder("fetched")
    b.output("words", split(b, b.input("texts", "str", (1, 1))))
    graph = b.build()
    assert with_lengths_held(graph) is graph
    with pytest.raises(pl.PlanError, match="is not known before the run"):
        pl.run(graph, {"texts": TEXTS[:1]}, devices=["ort"])


@pl.operator(lambda words: pl.TensorSpec("int64", ()))
def measure(words: Array) -> Array:
    return np.array(words.size)


def test_functions_are_not_held() -> None:
    b = pl.GraphBuilder("function")
    b.output("y", b.call(measure, split(b, b.input("texts", "str", (1, 1)))))
    graph = b.build()
    assert with_lengths_held(graph) is graph


def test_lengths_that_are_fetched_may_have_bounds() -> None:
    b = pl.GraphBuilder("fetched")
    words = split(b, b.input("texts", "str", ("n", 1)))
    b.output("words", words)
    b.output("y", b.call(measure, words))
    graph = b.build()
    bounds = {"words.shape[2]": 8, "n": 4}
    plan = pl.plan(graph, ["cpu", "ort"], bounds=bounds, max_in_flight=2)
    with pl.BlockingSession(plan) as session:
        source = ({"texts": TEXTS[:count]} for count in (1, 3, 2))
        for result, count in zip(session.stream(source), (1, 3, 2), strict=True):
            rows = [text.split() for text in TEXTS[:count, 0]]
            padded = [[[*row, "#", "#", "#"][:3]] for row in rows]
            assert result["words"].tolist() == padded
            assert result["y"] == 3 * count
        with pytest.raises(pl.KernelError, match="is 40 in output 0"):
            session.run({"texts": TEXTS[3:]})
        assert session.run({"texts": TEXTS[1:2]})["words"].tolist() == [[["ö"]]]


def test_numbers_that_are_distinct_may_be_as_many_as_they_are() -> None:
    b = pl.GraphBuilder("distinct")
    b.output("y", b.op("com.microsoft.Unique", b.input("x", "float32", ("n",)), outputs=3)[0])
    graph = b.build()
    bounds = {"n": 200, "y.shape[0]": 200, "unique.0.2.shape[0]": 200}
    plan = pl.plan(graph, ["ort"], bounds=bounds)
    with pl.BlockingSession(plan) as session:
        for values in (np.arange(100) % 7, np.arange(150)):
            found = session.run({"x": values.astype(np.float32)})["y"]
            assert found.tolist() == list(dict.fromkeys(values.tolist()))


def test_words_that_a_node_leaves_out_decide_its_length() -> None:
    b = pl.GraphBuilder("left out")
    words = b.input("words", "str", ("n",))
    kept = b.op("StringNormalizer", words, stopwords=("red",), is_case_sensitive=1)
    b.output("y", b.op("Size", kept))
    graph = b.build()
    with pl.BlockingSession(pl.plan(graph, ["ort"])) as session:
        for listed in (["red", "blue", "red"], ["blue"], ["red", "blue", "ö"]):
            expected = sum(word != "red" for word in listed)
            assert session.run({"words": listed})["y"] == expected
