from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from plait.graph.building.builder import GraphBuilder
from plait.graph.core.infer import LONGEST_DIM, describe, get_cost, infer_node, infer_shapes
from plait.graph.core.ir import Graph, Node
from plait.graph.core.operator import Call, Cost, Specs, define
from plait.graph.values.dims import UNKNOWN
from plait.graph.values.errors import ShapeError
from plait.graph.values.tensor import Dim, TensorSpec

pytestmark = pytest.mark.usefixtures("forget_operators")

SPEC = TensorSpec("float32", (2, 3))


def chain() -> Graph:
    b = GraphBuilder("chain")
    x = b.input("x", "float32", ("batch", 3))
    b.output("y", b.op("Relu", b.op("Add", x, np.ones(3, np.float32), name="add"), name="relu"))
    return b.build()


def test_inference_carries_numbers_through_the_graph() -> None:
    graph = chain()
    fixed = replace(graph, tensors={**graph.tensors, "x": TensorSpec("float32", (5, 3))})
    inferred = infer_shapes(fixed)
    assert inferred.tensors["y"] == TensorSpec("float32", (5, 3))
    assert inferred.is_static


def test_inference_again_changes_nothing() -> None:
    graph = chain()
    assert infer_shapes(graph).tensors == graph.tensors


def test_inference_trusts_only_inputs_and_constants() -> None:
    graph = chain()
    wrong = replace(graph, tensors={**graph.tensors, "add": TensorSpec("int8", (1,))})
    assert infer_shapes(wrong).tensors == graph.tensors


def test_absent_outputs_get_no_spec() -> None:
    @define("test.Twin", inputs="x", outputs="a b")
    def twin(call: Call) -> tuple[TensorSpec, ...]:
        return call.spec(0), call.spec(0)

    node = Node("n", "test.Twin", ("x",), ("", "b"))
    graph = Graph("g", ("x",), ("b",), (node,), {"x": SPEC}, {})
    assert infer_shapes(graph).tensors == {"x": SPEC, "b": SPEC}


def test_a_misfit_names_the_node_and_the_specs_of_its_inputs() -> None:
    graph = chain()
    misfit = replace(graph, tensors={**graph.tensors, "x": TensorSpec("float32", (5, 4))})
    with pytest.raises(ShapeError) as caught:
        infer_shapes(misfit)
    constant = graph.nodes[0].inputs[1]
    assert str(caught.value) == (
        "shapes [5, 4] and [3] do not broadcast together\n"
        f"  at:  node 'add': Add(x, {constant}) -> add, inputs float32[5, 4], float32[3]\n"
        "  fix: make the lengths equal, or 1 where one is to be repeated"
    )


def test_a_place_that_the_rule_gave_is_kept() -> None:
    @define("test.Picky", inputs="x")
    def picky(call: Call) -> tuple[TensorSpec, ...]:
        raise ShapeError("wrong", at="the second dimension")

    with pytest.raises(ShapeError) as caught:
        infer_node(Node("n", "test.Picky", ("x",), ("y",)), Call((SPEC,), (None,), {}))
    assert caught.value.at == "the second dimension"


def test_a_rule_may_yield_more_outputs_than_are_asked_for() -> None:
    @define("test.Many", inputs="x", outputs="ys+")
    def many(call: Call) -> tuple[TensorSpec, ...]:
        return (call.spec(0),) * 3

    node = Node("n", "test.Many", ("x",), ("a", "b"))
    assert infer_node(node, Call((SPEC,), (None,), {}, 2)) == (SPEC, SPEC)


def test_a_rule_that_yields_too_few_outputs_is_an_error() -> None:
    @define("test.Few", inputs="x", outputs="ys+")
    def few(call: Call) -> tuple[TensorSpec, ...]:
        return (call.spec(0),)

    node = Node("n", "test.Few", ("x",), ("a", "b"))
    with pytest.raises(ShapeError) as caught:
        infer_node(node, Call((SPEC,), (None,), {}, 2))
    assert str(caught.value) == (
        "test.Few yields 1 outputs here, 2 are asked for\n"
        "  at:  node 'n': test.Few(x) -> a, b, inputs float32[2, 3]\n"
        "  fix: ask for fewer outputs"
    )


@pytest.mark.parametrize("dim", [UNKNOWN, "n" * (LONGEST_DIM + 1)])
def test_unknown_and_unwieldy_lengths_are_called_after_their_tensor(dim: Dim) -> None:
    define("test.Found", inputs="x")(lambda call: (TensorSpec("int64", (2, dim)),))
    node = Node("n", "test.Found", ("x",), ("found",))
    (spec,) = infer_node(node, Call((SPEC,), (None,), {}))
    assert spec == TensorSpec("int64", (2, "found.shape[1]"))


@pytest.mark.parametrize("shape", [("n" * LONGEST_DIM,), (2, "n"), None])
def test_other_shapes_stay_as_the_rule_gave_them(shape: tuple[Dim, ...] | None) -> None:
    given = TensorSpec("int64", shape)
    define("test.Found", inputs="x")(lambda call: (given,))
    node = Node("n", "test.Found", ("x",), ("found",))
    assert infer_node(node, Call((SPEC,), (None,), {})) == (given,)


def test_an_absent_input_is_described_by_a_dash() -> None:
    node = Node("n", "Clip", ("x", ""), ("y",))
    assert describe(node, Call((SPEC, None), (None, None), {})) == (
        "node 'n': Clip(x, -) -> y, inputs float32[2, 3], -"
    )


def test_a_node_costs_its_arithmetic_and_all_bytes_that_it_touches() -> None:
    b = GraphBuilder()
    x = b.input("x", "float32", (2, 3))
    b.output("y", b.op("Add", x, np.ones(3, np.float32), name="add"))
    graph = b.build()
    assert get_cost(graph, graph.nodes[0]) == (6, 4 * (6 + 3 + 6))


def test_a_symbolic_node_has_no_cost_yet() -> None:
    graph = chain()
    with pytest.raises(ShapeError):
        get_cost(graph, graph.nodes[0])


def test_the_cost_of_a_node_is_found_once() -> None:
    asked = []

    def cost(call: Call, outputs: Specs) -> int:
        asked.append(call)
        return 7

    define("Counted", inputs="x", cost=cost)(lambda call: [call.spec(0)])
    b = GraphBuilder("counted")
    b.output("y", b.op("Counted", b.input("x", "float32", (4,)), name="one"))
    graph = b.build()
    node = graph.node("one")
    assert get_cost(graph, node) == get_cost(graph, node) == Cost(7, 32)
    assert len(asked) == 1
    assert get_cost(graph, replace(node)) == Cost(7, 32), "another one of that name"
    assert len(asked) == 2
