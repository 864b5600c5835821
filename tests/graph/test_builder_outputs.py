"""GraphBuilder: outputs, graphs in graphs, and any sequence of calls."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plait.graph.building.builder import GraphBuilder
from plait.graph.core.attribute import Attribute, Kind
from plait.graph.core.check import check
from plait.graph.core.ir import Graph
from plait.graph.core.operator import define
from plait.graph.values.errors import GraphError
from plait.graph.values.tensor import TensorSpec

pytestmark = pytest.mark.usefixtures("forget_operators")


def builder_with_x() -> tuple[GraphBuilder, str]:
    b = GraphBuilder("g")
    return b, b.input("x", "float32", ("n", 3))


def inner_graph() -> Graph:
    b = GraphBuilder("inner")
    x = b.input("a", "float32", ("m", 3))
    b.output("b", b.op("Add", x, b.constant(np.ones(3, np.float32), name="bias"), name="add"))
    return b.build()


def reads(graph: Graph, op: str) -> list[tuple[str, ...]]:
    return [node.inputs for node in graph.nodes if node.op == op]


def test_an_output_renames_the_tensor_behind_it() -> None:
    b, x = builder_with_x()
    h = b.op("Relu", x)
    b.output("y", h)
    b.output("z", b.op("Relu", h))
    graph = b.build()
    assert graph.outputs == ("y", "z")
    assert reads(graph, "Relu") == [("x",), ("y",)]


def test_an_output_may_keep_its_tensor_s_name() -> None:
    b, x = builder_with_x()
    (y,) = b.op("Relu", x, outputs=["y"])
    b.output("y", y)
    assert b.build().outputs == ("y",)


def test_a_tensor_fetched_twice_reaches_the_second_name_by_a_copy() -> None:
    b, x = builder_with_x()
    h = b.op("Relu", x)
    b.output("y", h)
    b.output("z", h)
    graph = b.build()
    assert graph.outputs == ("y", "z")
    assert reads(graph, "Identity") == [("y",)]


def test_a_fed_tensor_is_fetched_by_a_copy() -> None:
    b, x = builder_with_x()
    b.output("y", x)
    graph = b.build()
    assert reads(graph, "Identity") == [("x",)]
    assert graph.tensors["y"] == graph.tensors["x"]


def test_a_constant_is_fetched_by_a_copy() -> None:
    b = GraphBuilder()
    b.output("y", b.constant([1.0], name="c"))
    assert reads(b.build(), "Identity") == [("c",)]


def test_a_tensor_goes_by_the_public_name_that_an_output_gave_it() -> None:
    b, x = builder_with_x()
    h = b.op("Relu", x, name="relu")
    one = b.constant(np.ones(3, np.float32), name="one")
    held = b.variable("held", np.zeros(3, np.float32))
    for name, tensor in (("y", h), ("again", "y"), ("c", one), ("now", held)):
        b.output(name, tensor)
    assert "y" in b
    assert "z" not in b
    assert b.spec("again") == b.spec(h)
    assert b.value("c") is b.value(one)
    assert (b.own_name("again"), b.own_name("now")) == (h, held)
    b.output("z", b.op("Neg", "y", name="neg"))
    b.assign("now", "c", name="assign")
    b.output("w", b.include(inner_graph(), {"a": "again"})["b"])
    nodes = {node.name: node.inputs for node in b.build().nodes}
    assert nodes["neg"] == nodes["output again"] == ("y",)
    assert nodes["assign"] == ("now", "one")
    assert nodes["inner/add"][0] == "y"
    with pytest.raises(GraphError, match="there is no tensor 'v' yet"):
        b.own_name("v")


def test_an_unknown_tensor_cannot_be_an_output() -> None:
    b, _ = builder_with_x()
    with pytest.raises(GraphError) as caught:
        b.output("y", "z")
    assert str(caught.value) == (
        "output 'y' names the tensor 'z', which does not exist\n"
        "  at:  g\n"
        "  fix: pass what input(), op() or call() returned"
    )


@pytest.mark.parametrize("public", ["x", "hidden", "y"])
def test_an_output_cannot_take_a_name_that_is_taken(public: str) -> None:
    b, x = builder_with_x()
    b.op("Relu", x, outputs=["hidden"])
    h = b.op("Relu", x)
    b.output("y", h)
    with pytest.raises(GraphError) as caught:
        b.output(public, h)
    assert str(caught.value) == (f"the name {public!r} is taken\n  at:  g\n  fix: choose another")


def test_a_tensor_cannot_take_an_output_s_name() -> None:
    b, x = builder_with_x()
    b.output("y", b.op("Relu", x))
    with pytest.raises(GraphError, match="the name 'y' is taken"):
        b.op("Relu", x, outputs=["y"])


def test_a_graph_without_outputs_is_not_built() -> None:
    b, _ = builder_with_x()
    with pytest.raises(GraphError) as caught:
        b.build()
    assert str(caught.value) == ("the graph has no output\n  at:  g\n  fix: call output(name, t)")


def test_a_builder_goes_on_after_building() -> None:
    b, x = builder_with_x()
    h = b.op("Relu", x)
    b.output("y", h)
    first = b.build()
    b.output("z", b.op("Relu", h))
    assert first.outputs == ("y",)
    assert b.build().outputs == ("y", "z")


def test_an_included_graph_is_prefixed_with_its_name() -> None:
    b, x = builder_with_x()
    made = b.include(inner_graph(), {"a": x})
    b.output("y", made["b"])
    graph = b.build()
    assert made == {"b": "inner/b"}
    assert [node.name for node in graph.nodes] == ["inner/add"]
    assert list(graph.constants) == ["inner/bias"]


def test_an_included_graph_can_be_prefixed_otherwise_and_come_twice() -> None:
    b, x = builder_with_x()
    once = b.include(inner_graph(), {"a": x}, prefix="first.")
    twice = b.include(inner_graph(), {"a": once["b"]}, prefix="second.")
    b.output("y", twice["b"])
    assert [node.name for node in b.build().nodes] == ["first.add", "second.add"]


def test_an_included_graph_takes_on_the_shapes_here() -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", (7, 3))
    b.output("y", b.include(inner_graph(), {"a": x})["b"])
    assert b.build().tensors["y"] == TensorSpec("float32", (7, 3))


def test_an_included_graph_keeps_attributes_and_absent_names() -> None:
    axis = {"axis": Attribute(Kind.INT, 0)}
    define("test.Pick", inputs="x mask?", outputs="y index?", attributes=axis)(
        lambda call: (call.spec(0), call.spec(0))
    )
    inside, x = builder_with_x()
    _, index = inside.op("test.Pick", x, None, axis=1, outputs=["", "index"])
    inside.output("i", index)
    b, x = builder_with_x()
    b.output("y", b.include(inside.build(), {"x": x})["i"])
    (node,) = b.build().nodes
    assert (node.inputs, node.outputs, node.attributes) == (("x", ""), ("", "y"), {"axis": 1})


@pytest.mark.parametrize(("inputs", "listed"), [({}, "none"), ({"a": "x", "b": "x"}, "a, b")])
def test_an_included_graph_is_fed_completely(inputs: dict[str, str], listed: str) -> None:
    b, _ = builder_with_x()
    with pytest.raises(GraphError) as caught:
        b.include(inner_graph(), inputs)
    assert str(caught.value) == (
        f"graph 'inner' has the inputs a; given: {listed}\n  at:  g\n  fix: feed each of them once"
    )


def test_an_included_graph_is_a_graph_fed_by_names_of_tensors() -> None:
    b = GraphBuilder("net")
    array: Any = np.ones(2, "float32")
    with pytest.raises(GraphError, match="what input\\(\\), constant\\(\\)"):
        b.include(inner_graph(), {"a": array})
    path: Any = "model.onnx"
    with pytest.raises(GraphError, match="load a model first"):
        b.include(path, {"a": array})


def test_an_array_is_no_output() -> None:
    array: Any = np.ones(2, "float32")
    with pytest.raises(GraphError, match="which does not exist"):
        GraphBuilder("net").output("y", array)


def test_an_included_graph_is_fed_by_tensors_that_exist() -> None:
    b, _ = builder_with_x()
    with pytest.raises(GraphError) as caught:
        b.include(inner_graph(), {"a": "z"})
    assert str(caught.value) == (
        "there is no tensor 'z' yet\n"
        "  at:  g\n"
        "  fix: pass what input(), constant(), op() or call() returned"
    )


@pytest.mark.parametrize(("dtype", "shape"), [("float64", (2, 3)), ("float32", (3,))])
def test_an_included_graph_is_fed_what_it_declares(dtype: str, shape: tuple[int, ...]) -> None:
    b = GraphBuilder("g")
    b.input("x", dtype, shape)
    with pytest.raises(GraphError) as caught:
        b.include(inner_graph(), {"a": "x"})
    assert str(caught.value) == (
        "input 'a' of graph 'inner' is float32[m, 3], "
        f"but 'x' is {TensorSpec(dtype, shape)}\n"
        "  at:  g\n"
        "  fix: insert a Cast or Reshape"
    )


@given(st.data())
def test_whatever_is_built_is_a_valid_graph_with_the_outputs_asked_for(data: st.DataObject) -> None:
    b = GraphBuilder()
    tensors = [b.input("x", "float32", ("n", 3)), b.constant(np.ones(3, np.float32))]
    names = st.sampled_from(["a", "b", "relu.1", "constant.1", "y0", "y1"])
    fetched: list[str] = []
    for _ in range(data.draw(st.integers(1, 10))):
        action = data.draw(st.sampled_from(["op", "named", "constant", "output"]))
        try:
            if action == "op":
                tensors.append(b.op("Add", *data.draw(st.tuples(*[st.sampled_from(tensors)] * 2))))
            elif action == "named":
                outputs = [data.draw(names)]
                source = data.draw(st.sampled_from(tensors))
                tensors.extend(b.op("Relu", source, name=data.draw(names), outputs=outputs))
            elif action == "constant":
                tensors.append(b.constant(np.zeros((1, 3), np.float32), name=data.draw(names)))
            else:
                name = data.draw(names)
                b.output(name, data.draw(st.sampled_from(tensors)))
                fetched.append(name)
        except GraphError as error:  # names are chosen so that they often collide
            if "taken" not in error.what and "two nodes" not in error.what:
                raise
    if fetched:
        graph = check(b.build())
        assert graph.outputs == tuple(fetched)
