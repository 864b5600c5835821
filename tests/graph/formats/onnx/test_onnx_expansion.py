from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import plait as pl
import pytest
from onnx import TensorProto, helper
from plait.formats import load_onnx
from plait.graph.formats.onnx import read_model
from plait.graph.formats.onnx.expansion import expand
from releases import newest_onnx


def model(op: str, opset: int = 21, **attributes: Any) -> Any:
    size = helper.make_tensor_value_info("size", TensorProto.INT64, [])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    node = helper.make_node(op, ["size"], ["y"], **attributes)
    graph = helper.make_graph([node], "window", [size], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


def test_an_operator_with_a_body_becomes_the_nodes_of_it() -> None:
    ops = {node.op_type for node in expand(model("HannWindow"), "here").graph.node}
    assert "HannWindow" not in ops
    assert "Cos" in ops


def test_defaults_that_a_body_refers_to_are_filled_in() -> None:
    (cast, *_) = (
        node for node in expand(model("HannWindow"), "here").graph.node if node.op_type == "Cast"
    )
    assert cast.attribute[0].name == "to"


def test_a_model_of_known_operators_is_left_alone() -> None:
    known = model("Identity")
    assert expand(known, "here") is known


def test_the_given_model_is_not_changed() -> None:
    given = model("HannWindow")
    before = given.SerializeToString()
    expand(given, "here")
    assert given.SerializeToString() == before


def test_a_window_that_is_written_out_has_the_values_of_its_formula(tmp_path: Path) -> None:
    given = model("HannWindow", periodic=0)
    constant = helper.make_node("Constant", [], ["size"], value_int=9)
    given.graph.node.insert(0, constant)
    del given.graph.input[:]
    onnx.save(given, tmp_path / "window.onnx")
    (y,) = pl.run(load_onnx(tmp_path / "window.onnx"), {}).values()
    np.testing.assert_allclose(y, np.hanning(9), atol=1e-6)


def test_what_cannot_be_written_out_is_named() -> None:
    broken = model("SwiGLU", opset=21)  # which has no such operator
    broken.graph.node[0].input.append("size")
    with pytest.raises(pl.UnknownOperatorError, match="SwiGLU"):
        read_model(broken, "broken.onnx")


def test_an_operator_that_takes_sequences_is_named_and_not_written_out() -> None:
    body = helper.make_graph([], "body", [helper.make_tensor_value_info("x", 1, None)], [])
    with pytest.raises(pl.UnknownOperatorError, match="SequenceMap"):
        read_model(model("SequenceMap", body=body), "m")


MISCALLED: dict[str, dict[str, Any]] = {
    "of another type": {"periodic": 0.5},
    "unknown": {"perodic": 1},
}


@pytest.mark.parametrize("attributes", MISCALLED.values(), ids=MISCALLED)
def test_nothing_is_written_out_that_is_called_wrongly(attributes: dict[str, Any]) -> None:
    with pytest.raises(pl.ParseError, match="HannWindow is not called as ONNX defines it"):
        read_model(model("HannWindow", **attributes), "m")


def test_nothing_is_written_out_that_lacks_an_input() -> None:
    lacking = model("HannWindow")
    lacking.graph.node[0].input[:] = [""]
    with pytest.raises(pl.ParseError, match="HannWindow is not called as ONNX defines it"):
        read_model(lacking, "m")


def test_a_failure_of_the_writing_out_is_no_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("inliner.cc: no type")

    monkeypatch.setattr("onnx.inliner.inline_selected_functions", fail)
    with pytest.raises(pl.ParseError, match=r"HannWindow cannot be written out.*no type"):
        read_model(model("HannWindow"), "broken.onnx")


def flex_attention(shape: list[int]) -> Any:
    """Return a model of attention that takes 0.5 off each score which is over 1."""
    scores = helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["b", "h", "l", "s"])
    changed = helper.make_tensor_value_info("changed", TensorProto.FLOAT, ["b", "h", "l", "s"])
    nodes = [
        helper.make_node("Greater", ["scores", "one"], ["large"]),
        helper.make_node("Sub", ["scores", "half"], ["less"]),
        helper.make_node("Where", ["large", "less", "scores"], ["changed"]),
    ]
    numbers = [
        helper.make_tensor(name, TensorProto.FLOAT, [], [value])
        for name, value in (("one", 1.0), ("half", 0.5))
    ]
    score_mod = helper.make_graph(nodes, "score_mod", [scores], [changed], numbers)
    node = helper.make_node(
        "FlexAttention", ["q", "k", "v"], ["y"], domain="ai.onnx.preview", score_mod=score_mod
    )
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "qkv"]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)
    opsets = [helper.make_opsetid("", 26), helper.make_opsetid("ai.onnx.preview", 1)]
    return helper.make_model(helper.make_graph([node], "flex", inputs, [y]), opset_imports=opsets)


@newest_onnx
def test_operators_in_preview_are_written_out_with_the_graphs_inside_of_them() -> None:
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((1, 2, 3, 4)).astype(np.float32) * 2 for _ in range(3))
    graph = read_model(flex_attention([1, 2, 3, 4]), "flex.onnx")
    (y,) = pl.run(graph, {"q": q, "k": k, "v": v}).values()
    scores = q @ k.swapaxes(2, 3) / 2
    assert (scores > 1).any()
    odds = np.exp(np.where(scores > 1, scores - 0.5, scores))
    np.testing.assert_allclose(y, odds / odds.sum(-1, keepdims=True) @ v, 1e-4, 1e-5)
