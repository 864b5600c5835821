"""Functions that a model brings along."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import plait as pl
import pytest
from onnx import TensorProto, helper
from plait.graph.formats.onnx import functions, read_model

OPSETS = [helper.make_opsetid("", 21), helper.make_opsetid("mine", 1)]
X = np.array([1.0, -2.0], np.float32)


def function(name: str, *calls: str) -> Any:
    """Return a function of one input that calls others, one after the other."""
    names = ["x", *(f"t{i}" for i in range(len(calls) - 1)), "y"]
    nodes = [
        helper.make_node(
            call, [source], [target], domain="" if call in ("Neg", "Abs", "Relu") else "mine"
        )
        for call, source, target in zip(calls, names[:-1], names[1:], strict=True)
    ]
    return helper.make_function("mine", name, ["x"], ["y"], nodes, OPSETS)


def model(*made: Any, call: str = "f") -> Any:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])
    node = helper.make_node(call, ["x"], ["y"], domain="mine", name="call")
    graph = helper.make_graph([node], "g", [x], [y])
    return helper.make_model(graph, opset_imports=OPSETS, functions=list(made))


def test_functions_are_written_out() -> None:
    graph = read_model(model(function("f", "Neg", "g"), function("g", "Relu", "Abs")), "m")
    assert [node.op for node in graph.nodes] == ["Neg", "Relu", "Abs"]
    np.testing.assert_array_equal(pl.run(graph, {"x": X})["y"], [0, 2])


def test_functions_that_call_themselves_are_refused() -> None:
    with pytest.raises(pl.ParseError, match="calls itself"):
        read_model(model(function("f", "Neg", "g"), function("g", "f")), "m")


def test_functions_that_grow_without_bound_are_refused() -> None:
    bomb = [function("f0", "Neg", "Neg")]
    bomb += [function(f"f{i}", *[f"f{i - 1}"] * 10) for i in range(1, 40)]
    with pytest.raises(pl.ParseError, match="come to more than"):
        read_model(model(*bomb, call="f39"), "m")


def test_a_constant_counts_wherever_it_is_written_out() -> None:
    value = helper.make_tensor("v", TensorProto.FLOAT, [300_000], bytes(1_200_000), raw=True)
    nodes = [
        helper.make_node("Constant", [], ["c"], value=value),
        helper.make_node("ReduceSum", ["c"], ["s"]),
        helper.make_node("Add", ["x", "s"], ["y"]),
    ]
    heavy = helper.make_function("mine", "heavy", ["x"], ["y"], nodes, OPSETS)
    read_model(model(heavy, call="heavy"), "m")
    with pytest.raises(pl.ParseError, match="come to more than"):
        read_model(model(heavy, function("f", *["heavy"] * 100)), "m")


def branch(*nodes: Any) -> Any:
    out = helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, None)
    return helper.make_graph(list(nodes), "branch", [], [out])


def either(name: str) -> Any:
    """Return an If of which both branches are the graph that the function around it was given."""
    node = helper.make_node("If", ["c"], [name])
    for attribute in ("then_branch", "else_branch"):
        node.attribute.add(name=attribute, ref_attr_name="body", type=onnx.AttributeProto.GRAPH)
    return node


def doubling(levels: int) -> Any:
    """Return functions that give each other graphs which hold what they were given, twice."""
    made = []
    for level in range(levels):
        nodes = [either("y")]
        if level:
            call = helper.make_node(f"f{level - 1}", ["c"], ["y"], domain="mine")
            call.attribute.append(helper.make_attribute("body", branch(either(f"u{level}"))))
            nodes = [call]
        made.append(
            helper.make_function("mine", f"f{level}", ["c"], ["y"], nodes, OPSETS, ["body"])
        )
    leaf = branch(helper.make_node("Identity", ["x"], ["v"]))
    outer = model(*made, call=f"f{levels - 1}")
    node = outer.graph.node[0]
    node.input[:] = ["c"]
    node.attribute.append(helper.make_attribute("body", leaf))
    outer.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    return outer


def test_graphs_that_functions_are_given_count_wherever_they_are_put() -> None:
    graph = read_model(doubling(3), "m")
    np.testing.assert_array_equal(pl.run(graph, {"x": X, "c": np.array(True)})["y"], X)
    with pytest.raises(pl.ParseError, match="come to more than"):
        read_model(doubling(22), "m")


def test_calls_that_are_too_deep_for_those_who_write_them_out_are_refused() -> None:
    chain = [function("f0", "Neg"), *(function(f"f{i}", f"f{i - 1}") for i in range(1, 200))]
    with pytest.raises(pl.ParseError, match="over 100 deep"):
        read_model(model(*chain, call="f199"), "m")


def test_a_function_is_defined_once() -> None:
    with pytest.raises(pl.ParseError, match="'f' is defined twice"):
        read_model(model(function("f", "Neg"), function("f", "Abs")), "m")


@pytest.mark.parametrize("called", [False, True])
def test_functions_that_nobody_calls_may_not_call_themselves_either(called: bool) -> None:
    made = [function("f", "Neg"), function("g", "g")]
    with pytest.raises(pl.ParseError, match="calls itself"):
        read_model(model(*made, call="g" if called else "f"), "m")


def test_unknown_operators_in_functions_are_named() -> None:
    with pytest.raises(pl.UnknownOperatorError, match=r"mine\.Zap"):
        read_model(model(function("f", "Neg", "Zap")), "m")


def test_a_model_without_functions_is_taken_as_it_is() -> None:
    plain = model()
    assert functions.inline_functions(plain, "m") is plain
