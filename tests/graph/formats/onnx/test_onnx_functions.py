"""Functions that a model brings along."""

from __future__ import annotations

from typing import Any

import numpy as np
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
    with pytest.raises(pl.ParseError, match=f"come to {2 * 10**39} nodes"):
        read_model(model(*bomb, call="f39"), "m")


def test_unknown_operators_in_functions_are_named() -> None:
    with pytest.raises(pl.UnknownOperatorError, match=r"mine\.Zap"):
        read_model(model(function("f", "Neg", "Zap")), "m")


def test_a_model_without_functions_is_taken_as_it_is() -> None:
    plain = model()
    assert functions.without_functions(plain, "m") is plain
