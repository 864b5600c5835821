"""Graphs inside of nodes, in files of both formats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import plait as pl
import pytest
from nested_graphs import doubled, doubling_body, scaled
from onnx import TensorProto, helper, numpy_helper
from plait.graph.core.ir import Graph
from plait.graph.formats.header import DEEPEST
from plait.graph.formats.native import dump_bytes, load_bytes
from plait.graph.formats.onnx import read_model

X = np.array([1.0, 2.0], np.float32)


def looping() -> Graph:
    b = pl.GraphBuilder("looping")
    x, trips = b.input("x", "float32", ("n",)), b.input("trips", "int64", ())
    last, rows = b.op("Loop", trips, None, x, body=doubling_body(limit=99), outputs=2)
    b.output("last", last)
    b.output("rows", rows)
    return b.build()


def float_info(name: str, *shape: int | str) -> Any:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape))


def capturing_if() -> Any:
    """Return a model whose branches use a weight, an input and a tensor of the graph around."""
    branches = {
        f"{name}_branch": helper.make_graph(
            [
                helper.make_node(op, ["x", "w"], [f"{name}_first"]),
                helper.make_node("Add", [f"{name}_first", "z"], [f"{name}_out"]),
            ],
            name,
            [],
            [float_info(f"{name}_out", "n")],
        )
        for name, op in (("then", "Mul"), ("else", "Sub"))
    }
    nodes = [
        helper.make_node("Neg", ["x"], ["z"]),
        helper.make_node("If", ["cond"], ["y"], name="choose", **branches),
    ]
    cond = helper.make_tensor_value_info("cond", TensorProto.BOOL, [])
    weights = [numpy_helper.from_array(np.array([3, 5], np.float32), "w")]
    graph = helper.make_graph(
        nodes, "capturing", [float_info("x", 2), cond], [float_info("y", 2)], weights
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])


# .plait


def test_nested_graphs_survive_a_stay_in_a_file() -> None:
    graph = looping()
    loaded = load_bytes(dump_bytes(graph))
    assert loaded == graph
    found = pl.run(loaded, {"x": X, "trips": np.array(9)})
    np.testing.assert_array_equal(found["last"], doubled(X, 9, limit=99)[0])


def test_constants_of_nested_graphs_lie_in_the_file() -> None:
    data = dump_bytes(looping())
    body = load_bytes(data).nodes[0].attributes["body"]
    for value in body.constants.values():
        assert not value.flags.writeable
        assert not value.flags.owndata


def test_operators_of_nested_graphs_have_to_be_known() -> None:
    data = dump_bytes(looping())
    assert load_bytes(data)
    damaged = data.replace(b"ReduceSum", b"ReduceZum")
    with pytest.raises(pl.ParseError):
        load_bytes(damaged)


def test_graphs_nested_without_end_are_refused() -> None:
    graph = scaled("leaf", 2)
    for _ in range(DEEPEST + 2):
        b = pl.GraphBuilder("around")
        x, cond = b.input("x", "float32", ("n",)), np.bool_(True)
        b.output("y", b.op("If", cond, x, then_branch=graph, else_branch=scaled("leaf", 3)))
        graph = b.build()
    with pytest.raises(pl.ParseError, match="nested deeper than"):
        load_bytes(dump_bytes(graph))


# ONNX


@pytest.mark.parametrize("cond", [True, False])
def test_what_a_branch_uses_of_the_graph_around_is_captured(cond: bool) -> None:
    graph = read_model(capturing_if(), "model.onnx")
    node = graph.nodes[-1]
    assert node.inputs == ("cond", "x", "w", "z")
    w = np.array([3, 5], np.float32)
    wanted = (X * w if cond else X - w) - X
    found = pl.run(graph, {"x": X, "cond": np.array(cond)})
    np.testing.assert_array_equal(found["y"], wanted)


def test_missing_operators_of_nested_graphs_are_named() -> None:
    model = capturing_if()
    model.graph.node[1].attribute[0].g.node[0].op_type = "Zap"
    with pytest.raises(pl.UnknownOperatorError, match="Zap"):
        read_model(model, "model.onnx")


def test_old_forms_inside_of_nested_graphs_are_upgraded(tmp_path: Path) -> None:
    inner = helper.make_graph(
        [helper.make_node("Squeeze", ["x"], ["then_out"], axes=[0])],
        "then",
        [],
        [float_info("then_out", 2)],
    )
    other = helper.make_graph(
        [helper.make_node("ReduceSum", ["x"], ["else_out"], axes=[0], keepdims=0)],
        "else",
        [],
        [float_info("else_out", 2)],
    )
    node = helper.make_node("If", ["cond"], ["y"], then_branch=inner, else_branch=other)
    cond = helper.make_tensor_value_info("cond", TensorProto.BOOL, [])
    graph = helper.make_graph([node], "old", [float_info("x", 1, 2), cond], [float_info("y", 2)])
    path = tmp_path / "old.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)]), path)
    found = pl.run(pl.load(path), {"x": X[np.newaxis], "cond": np.array(True)})
    np.testing.assert_array_equal(found["y"], X)


def test_a_name_that_no_graph_around_has_is_refused() -> None:
    model = capturing_if()
    model.graph.node[1].attribute[0].g.node[0].input[0] = "nowhere"
    with pytest.raises(pl.ParseError, match="'nowhere'"):
        read_model(model, "model.onnx")


def test_scan_of_before_opset_9_is_refused() -> None:
    body = helper.make_graph([], "body", [], [float_info("out", 2)])
    node = helper.make_node("Scan", ["", "x"], ["y"], body=body, num_scan_inputs=1)
    graph = helper.make_graph([node], "old", [float_info("x", 1, 2)], [float_info("y", 2)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 8)])
    with pytest.raises(pl.ParseError, match="Scan"):
        read_model(model, "model.onnx")


def test_a_constant_may_be_captured_and_an_output_as_well() -> None:
    model = capturing_if()
    model.graph.output.append(float_info("w", 2))
    graph = read_model(model, "model")
    found = pl.run(graph, {"x": X, "cond": np.array(True)})
    np.testing.assert_array_equal(found["y"], X * [3, 5] - X)
    np.testing.assert_array_equal(found["w"], [3, 5])


def test_a_branch_may_put_out_the_same_tensor_twice() -> None:
    model = capturing_if()
    choose = model.graph.node[1]
    choose.output.append("again")
    for attribute in choose.attribute:
        attribute.g.output.append(attribute.g.output[0])
    model.graph.output.append(float_info("again", 2))
    found = pl.run(read_model(model, "model"), {"x": X, "cond": np.array(False)})
    np.testing.assert_array_equal(found["y"], X - [3, 5] - X)
    np.testing.assert_array_equal(found["again"], found["y"])


def test_an_output_of_a_branch_needs_a_name() -> None:
    model = capturing_if()
    model.graph.node[1].attribute[0].g.output[0].name = ""
    with pytest.raises((pl.ParseError, pl.GraphError)):
        read_model(model, "model")
