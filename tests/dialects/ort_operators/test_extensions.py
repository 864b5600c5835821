"""Tokenizers of onnxruntime-extensions, in graphs with networks behind them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import plait as pl
import pytest
from onnx import TensorProto, helper, numpy_helper
from plait.graph.formats import unknown_operators
from plait.graph.values.tensor import Array

extensions: Any = pytest.importorskip("onnxruntime_extensions")

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "red", "blue", "##ish"]
TEXTS = ("red", "bluish red blueish red", "")
TABLE = np.random.default_rng(0).standard_normal((len(VOCABULARY), 4), np.float32)


def model(*, pools: bool) -> Any:
    """Return a tokenizer with the means of embeddings behind it, or alone."""
    value = helper.make_tensor_value_info
    nodes = [
        helper.make_node(
            "BertTokenizer", ["text"], ["ids", "kinds", "mask"], "split",
            domain="ai.onnx.contrib", vocab_file="\n".join(VOCABULARY).encode(), do_lower_case=1,
        ),
        helper.make_node("Gather", ["table", "ids"], ["rows"]),
        helper.make_node("ReduceMean", ["rows", "axes"], ["y"], keepdims=0),
    ]  # fmt: skip
    constants = {"table": TABLE, "axes": np.array([0])}
    y = value("y", TensorProto.FLOAT, [4]) if pools else value("ids", TensorProto.INT64, None)
    graph = helper.make_graph(
        nodes if pools else nodes[:1],
        "tokens",
        [value("text", TensorProto.STRING, [1])],
        [y],
        [numpy_helper.from_array(a, n) for n, a in constants.items()] if pools else [],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.contrib", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def by_onnxruntime(proto: onnx.ModelProto, text: str) -> Array:
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(extensions.get_library_path())
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return np.asarray(session.run(None, {"text": np.array([text], object)})[0])


@pytest.mark.parametrize("suffix", [".onnx", ".plait"])
def test_a_network_behind_a_tokenizer_takes_text(suffix: str, tmp_path: Path) -> None:
    proto = model(pools=True)
    pl.save(pl.load(proto), tmp_path / f"tokens{suffix}")
    plan = pl.plan(pl.load(tmp_path / f"tokens{suffix}"), ["cpu", "ort"], max_in_flight=2)
    with pl.BlockingSession(plan) as session:
        found = [item["y"].copy() for item in session.stream({"text": [text]} for text in TEXTS)]
    for text, y in zip(TEXTS, found, strict=True):
        np.testing.assert_allclose(y, by_onnxruntime(proto, text), rtol=1e-5, atol=1e-6)


def test_tokens_are_fetched_within_bounds() -> None:
    proto = model(pools=False)
    bounds = dict.fromkeys(("ids.shape[0]", "kinds.shape[0]", "mask.shape[0]"), 32)
    with pytest.raises(pl.PlanError) as caught:  # which says what to bound
        pl.run(pl.load(proto), {"text": ["red"]}, devices=["ort"])
    assert all(symbol in str(caught.value.fix) for symbol in bounds)
    plan = pl.plan(pl.load(proto), ["ort"], bounds=bounds)
    with pl.BlockingSession(plan) as session:
        for text in TEXTS:
            found = session.run({"text": [text]})["ids"]
            assert found.tolist() == by_onnxruntime(proto, text).tolist()


def test_what_the_library_lacks_is_named() -> None:
    proto = model(pools=False)
    proto.graph.node[0].op_type = "NeverHeardOf"
    with pytest.raises(pl.PlaitError, match=r"ai\.onnx\.contrib\.NeverHeardOf"):
        pl.load(proto)


def test_without_the_library_its_extra_is_named() -> None:
    fix = unknown_operators.advise(["ai.onnx.contrib.BertTokenizer"], "wait")
    assert "extensions]" in fix
