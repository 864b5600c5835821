from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plait.graph.building.builder import GraphBuilder
from plait.graph.core.check import check
from plait.graph.core.ir import Graph, Node, topological_layers
from plait.graph.values.errors import GraphError, OperatorError
from plait.graph.values.tensor import TensorSpec

SPEC = TensorSpec("float32", (2,))


def graph_of(*nodes: Node, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> Graph:
    names = {*inputs, *(name for node in nodes for name in node.outputs if name)}
    return Graph("g", inputs, outputs, nodes, dict.fromkeys(sorted(names), SPEC), {})


def diamond() -> Graph:
    b = GraphBuilder("diamond")
    x = b.input("x", "float32", ("batch", 2))
    top = b.op("Relu", x, name="top")
    left = b.op("Relu", top, name="left")
    right = b.op("Add", top, np.ones(2, np.float32), name="right")
    b.output("y", b.op("Add", left, right, name="bottom"))
    return b.build()


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Random graphs of Add and Relu nodes over two inputs and constants."""
    b = GraphBuilder("random")
    tensors = [b.input("x0", "float32", ("n", 3)), b.input("x1", "float32", (3,))]
    tensors.append(b.constant(np.arange(3, dtype=np.float32)))
    for _ in range(draw(st.integers(1, 8))):
        picked = draw(st.lists(st.sampled_from(tensors), min_size=1, max_size=2))
        tensors.append(b.op("Add" if len(picked) == 2 else "Relu", *picked))
    made = tensors[3:]
    for tensor in draw(st.sets(st.sampled_from(made), min_size=1)):
        b.output(tensor, tensor)
    return b.build()


def test_equal_graphs_are_equal() -> None:
    assert diamond() == diamond()


@pytest.mark.parametrize(
    "change",
    [
        {"name": "other"},
        {"outputs": ("top",)},
        {"nodes": ()},
        {"tensors": {}},
        {"constants": {}},
    ],
)
def test_graphs_that_differ_anywhere_are_not_equal(change: dict[str, Any]) -> None:
    assert replace(diamond(), **change) != diamond()


def test_graphs_whose_constants_differ_in_value_are_not_equal() -> None:
    graph = diamond()
    (name,) = graph.constants
    assert replace(graph, constants={name: np.zeros(2, np.float32)}) != graph


def test_a_constant_that_is_not_a_number_equals_itself() -> None:
    graph = diamond()
    (name,) = graph.constants
    one, other = (replace(graph, constants={name: np.full(2, np.nan, "f4")}) for _ in range(2))
    assert one == other


def test_a_graph_equals_nothing_else() -> None:
    assert diamond() != "diamond"


def test_a_node_is_looked_up_by_its_name() -> None:
    b = GraphBuilder("net")
    b.output(
        "y", b.op("Exp", b.op("Neg", b.input("x", "float32", (2,)), name="first"), name="last")
    )
    graph = b.build()
    assert graph.node("last") is graph.nodes[1]
    with pytest.raises(GraphError, match="there is no node 'frist'") as caught:
        graph.node("frist")
    assert (caught.value.at, caught.value.fix) == ("net", "did you mean 'first'?")
    with pytest.raises(GraphError, match="there is no node 'x'"):
        graph.node("x")  # a tensor, and no node
    with pytest.raises(GraphError, match=r"there is no node \['last'\]"):
        graph.node(["last"])  # type: ignore[arg-type]


def test_a_tensor_knows_its_producer() -> None:
    graph = diamond()
    assert graph.producers["left"].name == "left"
    assert "x" not in graph.producers


def test_a_tensor_knows_its_consumers_in_order() -> None:
    graph = diamond()
    assert [node.name for node in graph.consumers["top"]] == ["left", "right"]


def test_a_node_that_reads_a_tensor_twice_consumes_it_once() -> None:
    graph = graph_of(Node("a", "Add", ("x", "x"), ("y",)), inputs=("x",), outputs=("y",))
    assert [node.name for node in graph.consumers["x"]] == ["a"]


def test_an_output_nobody_reads_has_no_consumers() -> None:
    assert diamond().consumers["y"] == ()


@given(graphs())
def test_producers_and_consumers_mirror_each_other(graph: Graph) -> None:
    edges = {(t, node.name) for t, nodes in graph.consumers.items() for node in nodes}
    assert edges == {(t, node.name) for node in graph.nodes for t in node.inputs}
    assert set(graph.producers) == set(graph.tensors) - {*graph.inputs, *graph.constants}


def test_a_graph_with_a_symbol_is_not_static() -> None:
    assert not diamond().is_static
    fixed = graph_of(Node("r", "Relu", ("x",), ("y",)), inputs=("x",), outputs=("y",))
    assert fixed.is_static


def test_a_call_holds_specs_values_and_attributes() -> None:
    graph = diamond()
    call = graph.call(graph.producers["right"])
    assert call.inputs == (TensorSpec("float32", ("batch", 2)), SPEC)
    assert call.value(0) is None
    np.testing.assert_array_equal(call.value(1), np.ones(2, np.float32))


def test_absent_inputs_and_outputs_have_no_specs() -> None:
    node = Node("n", "Clip", ("x", "", "x"), ("y", ""))
    graph = graph_of(node, inputs=("x",), outputs=("y",))
    assert graph.call(node).inputs == (SPEC, None, SPEC)
    assert graph.call(node).n_outputs == 2
    assert graph.output_specs(node) == (SPEC,)


def test_a_node_prints_as_a_call() -> None:
    node = Node("n", "Clip", ("x", "", "high"), ("y", ""))
    assert str(node) == "node 'n': Clip(x, -, high) -> y, -"


def test_a_node_of_an_unknown_operator_is_named() -> None:
    node = Node("n", "test.Nothing", ("x",), ("y",))
    with pytest.raises(OperatorError) as caught:
        _ = node.operator
    assert caught.value.at == "node 'n': test.Nothing(x) -> y"


def test_extracting_cuts_at_the_tensors_that_cross() -> None:
    graph = diamond()
    part = graph.extract(graph.nodes[1:3], "middle")
    assert (part.name, part.inputs, part.outputs) == ("middle", ("top",), ("left", "right"))
    assert list(part.constants) == [graph.nodes[2].inputs[1]]


def test_extracting_keeps_what_is_fetched_though_nobody_reads_it() -> None:
    graph = diamond()
    assert graph.extract(graph.nodes[3:], "end").outputs == ("y",)


def test_extracting_hides_what_only_the_inside_reads() -> None:
    graph = diamond()
    assert graph.extract(graph.nodes, "all").outputs == ("y",)


@given(graphs(), st.data())
def test_an_extracted_subgraph_is_a_valid_graph_with_the_same_specs(
    graph: Graph, data: st.DataObject
) -> None:
    names = [node.name for node in graph.nodes]
    picked = data.draw(st.sets(st.sampled_from(names), min_size=1))
    part = check(graph.extract([node for node in graph.nodes if node.name in picked], "part"))
    assert part.tensors.items() <= graph.tensors.items()
    inside = {name for node in part.nodes for name in node.outputs}
    outside = [node for node in graph.nodes if node.name not in picked]
    seen_outside = {name for node in outside for name in node.inputs}
    assert set(part.outputs) == inside & (seen_outside | set(graph.outputs))


def test_a_diamond_has_three_layers() -> None:
    layers = [[node.name for node in layer] for layer in topological_layers(diamond())]
    assert layers == [["top"], ["left", "right"], ["bottom"]]


def test_an_absent_output_does_not_hold_back_an_absent_input() -> None:
    first = Node("first", "Pool", ("x",), ("y", ""))
    other = Node("other", "Clip", ("x", ""), ("z",))
    graph = graph_of(first, other, inputs=("x",), outputs=("y", "z"))
    assert topological_layers(graph) == ((first, other),)


def test_what_is_absent_is_read_from_nobody() -> None:
    first = Node("first", "Pool", ("x",), ("y", ""))
    other = Node("other", "Clip", ("y", "", "y"), ("z",))
    graph = graph_of(first, other, inputs=("x",), outputs=("z",))
    assert graph.producer_indices == [[], [0]]


@given(graphs())
def test_a_node_stands_one_layer_below_its_lowest_producer(graph: Graph) -> None:
    layers = topological_layers(graph)
    layer_of = {node.name: index for index, layer in enumerate(layers) for node in layer}
    assert sorted(layer_of) == sorted(node.name for node in graph.nodes)
    for node in graph.nodes:
        above = [layer_of[graph.producers[t].name] for t in node.inputs if t in graph.producers]
        assert layer_of[node.name] == max(above, default=-1) + 1


def test_nodes_and_graphs_can_be_pickled() -> None:
    builder = GraphBuilder("pickled")
    builder.output("y", builder.op("Relu", builder.input("x", "float32", (2,))))
    graph = builder.build()
    assert pickle.loads(pickle.dumps(graph)) == graph
