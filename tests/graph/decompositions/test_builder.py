"""Nodes that rules write by a builder, and which of several rules is taken."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import plait as pl
import pytest
from plait.graph.core.check import check
from plait.graph.core.ir import Graph, Node
from plait.graph.decompositions.rules import (
    Decomposition,
    DecompositionBuilder,
    decompose,
    decomposition,
    decompositions,
)
from plait.graph.passes.expand import expand_unsupported
from plait.graph.passes.rewriting import Rewriter


def graph_of(op: str, dtype: str = "float32") -> Graph:
    b = pl.GraphBuilder("one")
    b.output("y", b.op(op, b.input("x", dtype, (2, 3)), name="node"))
    return b.build()


def written(graph: Graph, rule: Decomposition) -> Graph:
    rewriter = Rewriter(graph)
    made = decompose(rewriter, graph.nodes[0], rule)
    assert made is not None
    rewriter.replace(graph.nodes, made)
    return check(rewriter.result())


class Has:
    """Says that the nodes of some operators can run."""

    def __init__(self, *ops: str) -> None:
        self.ops = ops

    def __call__(self, graph: Graph, nodes: object, one: Node) -> bool:
        return True

    def why_not(self, graph: Graph, node: Node) -> str | None:
        return None if node.op in self.ops else "nobody has it"

    def inside(self) -> Has:
        return self


@pytest.fixture
def rules() -> Iterator[None]:
    """Take the rules for Abs out again that a test adds."""
    assert "Abs" not in decompositions()
    yield
    del decompositions()["Abs"]  # type: ignore[attr-defined]


def test_numbers_are_constants_of_the_dtype_of_the_tensor_beside_them() -> None:
    rule = Decomposition(lambda builder, x: builder("Add", x, 0.5), wide=False)
    made = written(graph_of("Tanh", "float64"), rule)
    assert [value.dtype for value in made.constants.values()] == [np.float64]


def test_integers_in_a_sequence_are_a_vector_of_int64() -> None:
    rule = Decomposition(lambda builder, x: builder("ReduceSum", x, [1], keepdims=True), wide=False)
    rewriter = Rewriter(graph_of("Tanh"))
    made = decompose(rewriter, rewriter.graph.nodes[0], rule)
    assert made is not None
    axes = rewriter.constants[made[0].inputs[1]]
    assert (axes.dtype, axes.tolist()) == (np.int64, [1])


def test_floats_of_16_bits_are_widened_where_a_rule_is_wide() -> None:
    made = written(graph_of("Softsign", "float16"), decompositions()["Softsign"][0])
    assert [node.op for node in made.nodes] == ["Cast", "Abs", "Add", "Div", "Cast"]
    assert made.tensors["y"].dtype == np.float16


def test_the_last_node_has_the_name_of_the_one_it_stands_for() -> None:
    made = written(graph_of("Softsign"), decompositions()["Softsign"][0])
    assert [node.name for node in made.nodes] == ["node[abs]", "node[add]", "node"]


def test_a_result_that_is_an_input_is_copied() -> None:
    made = written(graph_of("Tanh"), Decomposition(lambda builder, x: x, wide=False))
    assert [(node.op, node.inputs, node.outputs) for node in made.nodes] == [
        ("Identity", ("x",), ("y",))
    ]


@pytest.mark.usefixtures("rules")
def test_the_first_rule_is_taken_whose_nodes_can_run() -> None:
    @decomposition("Abs")
    def by_max(builder: DecompositionBuilder, x: str) -> str:
        return builder("Max", x, builder("Neg", x))

    @decomposition("Abs")
    def by_root(builder: DecompositionBuilder, x: str) -> str:
        return builder("Sqrt", builder("Mul", x, x))

    for has, taken in ((("Max", "Neg"), "Max"), (("Sqrt", "Mul"), "Sqrt")):
        made = expand_unsupported(graph_of("Abs"), Has(*has))
        assert made.nodes[-1].op == taken


@pytest.mark.usefixtures("rules")
def test_a_rule_that_writes_its_own_operator_is_not_used_within_itself() -> None:
    @decomposition("Abs")
    def abs_of_abs(builder: DecompositionBuilder, x: str) -> str:
        return builder("Abs", builder("Abs", x))

    graph = graph_of("Abs")
    assert expand_unsupported(graph, Has("Neg")) is graph


@pytest.mark.usefixtures("rules")
def test_a_rule_that_says_nothing_leaves_the_node() -> None:
    @decomposition("Abs")
    def nothing(builder: DecompositionBuilder, x: str) -> None:
        return None

    graph = graph_of("Abs")
    assert expand_unsupported(graph, Has()) is graph
