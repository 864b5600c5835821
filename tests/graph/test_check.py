"""Every invariant of a graph, broken one at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plait.graph.building.builder import GraphBuilder
from plait.graph.core.check import check
from plait.graph.core.ir import Graph, Node
from plait.graph.values.errors import GraphError, OperatorError
from plait.graph.values.tensor import TensorSpec

SPEC = TensorSpec("float32", (3,))


def valid() -> Graph:
    """x ─ relu ─ h ─ add(·, c) ─ y."""
    b = GraphBuilder("g")
    x = b.input("x", "float32", (3,))
    c = b.constant(np.ones(3, np.float32), name="c")
    (h,) = b.op("Relu", x, name="relu", outputs=["h"])
    b.output("y", b.op("Add", h, c, name="add"))
    return b.build()


def node(graph: Graph, index: int, **changes: Any) -> Graph:
    """Return the graph with one node changed."""
    nodes = list(graph.nodes)
    nodes[index] = replace(nodes[index], **changes)
    return replace(graph, nodes=tuple(nodes))


def broken(graph: Graph) -> tuple[str, str | None]:
    with pytest.raises(GraphError) as caught:
        check(graph)
    assert caught.value.fix == "build graphs with GraphBuilder, or repair the pass"
    return caught.value.what, caught.value.at


RELU = "node 'relu': Relu(x) -> h"
ADD = "node 'add': Add(h, c) -> y"


def test_a_valid_graph_passes_through_unchanged() -> None:
    graph = valid()
    assert check(graph) is graph


def test_two_nodes_with_one_name_are_found() -> None:
    at = "node 'relu': Add(h, c) -> y"
    assert broken(node(valid(), 1, name="relu")) == ("two nodes are named 'relu'", at)


def test_a_node_without_name_is_found() -> None:
    at = "node '': Relu(x) -> h"
    assert broken(node(valid(), 0, name="")) == ("a node has no name", at)


def test_an_input_defined_twice_is_found() -> None:
    graph = replace(valid(), inputs=("x", "x"))
    assert broken(graph) == ("tensor 'x' is defined twice", "g")


def test_an_input_that_is_also_a_constant_is_found() -> None:
    graph = replace(valid(), inputs=("x", "c"))
    assert broken(graph) == ("tensor 'c' is defined twice", "g")


def test_an_input_without_name_is_found() -> None:
    graph = replace(valid(), inputs=("x", ""))
    assert broken(graph) == ("an input or constant has no name", "g")


@pytest.mark.parametrize("name", ["x", "c"])
def test_an_input_or_constant_without_spec_is_found(name: str) -> None:
    graph = valid()
    tensors = {tensor: spec for tensor, spec in graph.tensors.items() if tensor != name}
    assert broken(replace(graph, tensors=tensors)) == (f"tensor {name!r} has no spec", "g")


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (np.ones(4, np.float32), "does not match its spec"),
        (np.ones(3, np.float64), "does not match its spec"),
        (np.ones((1, 3), np.float32), "does not match its spec"),
        ([1.0, 1.0, 1.0], "is not an array of numbers"),
    ],
)
def test_a_constant_unlike_its_spec_is_found(value: object, what: str) -> None:
    graph = replace(valid(), constants={"c": value})
    assert broken(graph) == (f"constant 'c' {what}", "g")


def test_an_input_that_nobody_writes_is_found() -> None:
    graph = node(valid(), 0, inputs=("z",))
    assert broken(graph) == ("input 'z' is written by no node", "node 'relu': Relu(z) -> h")


def test_nodes_in_the_wrong_order_are_found() -> None:
    graph = valid()
    what = "input 'h' is only written by a later node (wrong order, or a cycle)"
    assert broken(replace(graph, nodes=graph.nodes[::-1])) == (what, ADD)


def test_a_cycle_is_found() -> None:
    what = "input 'y' is only written by a later node (wrong order, or a cycle)"
    assert broken(node(valid(), 0, inputs=("y",)))[0] == what


def test_a_node_that_reads_itself_is_found() -> None:
    what = "input 'h' is only written by a later node (wrong order, or a cycle)"
    assert broken(node(valid(), 0, inputs=("h",)))[0] == what


def test_a_wrong_number_of_inputs_is_found() -> None:
    with pytest.raises(OperatorError) as caught:
        check(node(valid(), 1, inputs=("h",)))
    assert caught.value.at == "node 'add': Add(h) -> y"


def test_an_absent_required_input_is_found() -> None:
    with pytest.raises(OperatorError) as caught:
        check(node(valid(), 1, inputs=("h", "")))
    assert caught.value.at == "node 'add': Add(h, -) -> y"


def test_a_wrong_number_of_outputs_is_found() -> None:
    graph = node(valid(), 0, outputs=("h", "k"))
    with pytest.raises(OperatorError):
        check(replace(graph, tensors={**graph.tensors, "k": SPEC}))


def test_an_unknown_operator_is_found() -> None:
    with pytest.raises(OperatorError) as caught:
        check(node(valid(), 0, op="test.Nothing"))
    assert caught.value.at == "node 'relu': test.Nothing(x) -> h"


def test_attributes_that_the_operator_lacks_are_found() -> None:
    graph = node(valid(), 0, attributes={"axis": 1})
    assert broken(graph) == ("attributes are not complete", RELU)


@pytest.mark.parametrize("name", ["x", "c", "h"])
def test_a_tensor_written_twice_is_found(name: str) -> None:
    at = f"node 'add': Add(h, c) -> {name}"
    assert broken(node(valid(), 1, outputs=(name,))) == (f"tensor {name!r} is written twice", at)


def test_a_written_tensor_without_spec_is_found() -> None:
    graph = valid()
    tensors = {name: spec for name, spec in graph.tensors.items() if name != "h"}
    assert broken(replace(graph, tensors=tensors)) == ("tensor 'h' has no spec", RELU)


def test_an_output_that_nobody_writes_is_found() -> None:
    graph = replace(valid(), outputs=("z",))
    assert broken(graph) == ("graph output 'z' is written by no node", "g")


def test_an_output_listed_twice_is_found() -> None:
    graph = replace(valid(), outputs=("y", "y"))
    assert broken(graph) == ("an output is listed twice", "g")


def test_a_spec_of_nothing_is_found() -> None:
    graph = valid()
    orphan = replace(graph, tensors={**graph.tensors, "z": SPEC})
    assert broken(orphan) == ("tensor 'z' has a spec but no origin", "g")


def _is_topological(nodes: Sequence[Node], given: set[str]) -> bool:
    seen = set(given)
    for one in nodes:
        if not seen.issuperset(one.inputs):
            return False
        seen.update(one.outputs)
    return True


@given(st.data())
def test_an_order_passes_exactly_when_it_is_topological(data: st.DataObject) -> None:
    b = GraphBuilder("random")
    tensors = [b.input("x", "float32", (3,))]
    for _ in range(data.draw(st.integers(1, 5))):
        pair = data.draw(st.tuples(st.sampled_from(tensors), st.sampled_from(tensors)))
        tensors.append(b.op("Add", *pair))
    b.output(tensors[-1], tensors[-1])
    graph = b.build()
    nodes = data.draw(st.permutations(graph.nodes))
    if _is_topological(nodes, {"x"}):
        check(replace(graph, nodes=tuple(nodes)))
    else:
        with pytest.raises(GraphError, match="later node"):
            check(replace(graph, nodes=tuple(nodes)))


@pytest.mark.parametrize(
    "spec",
    [TensorSpec("int8", (3,)), TensorSpec("float32", (4,)), TensorSpec("float32", (3, 1))],
)
def test_an_inner_spec_that_its_node_does_not_give_is_found(spec: TensorSpec) -> None:
    graph = replace(valid(), tensors={**valid().tensors, "h": spec})
    assert broken(graph) == (f"tensor 'h' is {spec}, but its node gives {SPEC}", RELU)


def test_a_spec_may_say_more_or_less_than_its_node() -> None:
    for shape in (None, ("n",)):
        graph = replace(valid(), tensors={**valid().tensors, "h": TensorSpec("float32", shape)})
        assert check(graph) is graph


@pytest.mark.parametrize("value", [2, "much", (0.5,), True])
def test_an_attribute_of_another_type_is_found(value: object) -> None:
    b = GraphBuilder("g")
    b.output("y", b.op("Elu", b.input("x", "float32", (3,)), name="elu", alpha=0.5))
    with pytest.raises(GraphError, match="alpha"):
        check(node(b.build(), 0, attributes={"alpha": value}))


def test_an_attribute_out_of_range_is_found() -> None:
    b = GraphBuilder("g")
    x = b.input("x", "float32", (3, 2))
    b.output("y", b.op("Softmax", x, name="softmax", axis=1))
    with pytest.raises(GraphError, match="axis"):
        check(node(b.build(), 0, attributes={"axis": 2}))


def test_what_is_wrong_inside_of_a_nested_graph_is_found() -> None:
    inner = valid()
    b = GraphBuilder("outer")
    condition, x = b.input("condition", "bool", ()), b.input("x", "float32", (3,))
    b.output("y", b.op("If", condition, x, name="if", then_branch=inner, else_branch=inner))
    wrong = replace(inner, tensors={**inner.tensors, "h": TensorSpec("int8", (3,))})
    branches = {"then_branch": wrong, "else_branch": inner}
    graph = node(b.build(), 0, attributes={**branches, "whole": False})
    assert broken(graph) == (f"tensor 'h' is int8[3], but its node gives {SPEC}", RELU)
