"""The editor of graphs: every change as a whole or not at all, and the order kept."""

from __future__ import annotations

import numpy as np
import plait as pl
import pytest
from plait.graph.core.check import check
from plait.graph.core.ir import Graph
from plait.graph.passes.rewriting import Rewriter
from plait.graph.values.errors import GraphError
from plait.graph.values.tensor import Array


@pl.operator(name="test_rewriting.noted", effects=True)
def noted(x: Array) -> Array:
    """Return x; somebody may have listened."""
    return x


def row(*ops: str) -> Graph:
    """Return y = f(g(x)), nodes called after their place: 0, 1 and so on."""
    b = pl.GraphBuilder("row")
    x = b.input("x", "float32", (2, 3))
    for index, op in enumerate(ops):
        x = b.op(op, x, name=str(index))
    b.output("y", x)
    return b.build()


def two_halves(*read: int) -> Graph:
    """Return a graph with a Split, called halves, one Neg for each output that is read."""
    b = pl.GraphBuilder("halves")
    x = b.input("x", "float32", (4,))
    halves = b.op("Split", x, outputs=["left", "right"], name="halves", num_outputs=2)
    for index, place in enumerate(read):
        b.output(f"y{index}", b.op("Neg", halves[place], name=f"neg{index}"))
    return b.build()


def test_a_graph_that_is_not_changed_is_the_same_object() -> None:
    graph = row("Neg", "Abs")
    rewriter = Rewriter(graph)
    rewriter.drop_dead()
    assert rewriter.result() is graph


def test_a_consumer_of_the_second_output_alone_is_the_only_one() -> None:
    rewriter = Rewriter(two_halves(1))
    only = rewriter.only_consumer(rewriter.node("halves"))
    assert only is not None
    assert only.name == "neg0"


def test_consumers_of_two_outputs_are_not_one() -> None:
    rewriter = Rewriter(two_halves(0, 1))
    assert rewriter.only_consumer(rewriter.node("halves")) is None
    assert [node.name for node in rewriter.consumers(rewriter.node("halves"))] == ["neg0", "neg1"]


def test_a_node_whose_output_is_fetched_has_no_only_consumer() -> None:
    b = pl.GraphBuilder("fetched")
    tensor = b.op("Neg", b.input("x", "float32", (2,)), name="neg")
    b.output("seen", tensor)
    b.output("y", b.op("Abs", tensor))
    rewriter = Rewriter(b.build())
    assert rewriter.only_consumer(rewriter.node("neg")) is None


def test_two_nodes_are_replaced_by_one() -> None:
    rewriter = Rewriter(row("Neg", "Abs", "Exp"))
    old = [rewriter.node("0"), rewriter.node("1")]
    rewriter.replace(old, [rewriter.make("Abs", ("x",), old[1].outputs, name="1")])
    graph = check(rewriter.result())
    assert [(node.name, node.op) for node in graph.nodes] == [("1", "Abs"), ("2", "Exp")]


def test_one_node_is_replaced_by_two_in_its_place() -> None:
    rewriter = Rewriter(row("Neg", "Abs", "Exp"))
    old = rewriter.node("1")
    first = rewriter.make("Mul", (old.inputs[0], old.inputs[0]), name="square")
    second = rewriter.make("Sqrt", first.outputs, old.outputs, name="1")
    rewriter.replace([old], [first, second])
    graph = check(rewriter.result())
    assert [node.op for node in graph.nodes] == ["Neg", "Mul", "Sqrt", "Exp"]


def test_nodes_are_inserted_behind_another() -> None:
    rewriter = Rewriter(row("Neg", "Abs"))
    added = rewriter.make("Exp", rewriter.node("0").outputs, name="new")
    rewriter.insert(rewriter.node("0"), [added])
    rewriter.reread(rewriter.node("1"), {rewriter.node("0").outputs[0]: added.outputs[0]})
    assert [node.op for node in check(rewriter.result()).nodes] == ["Neg", "Exp", "Abs"]


def test_a_tensor_that_is_read_must_still_be_written() -> None:
    rewriter = Rewriter(row("Neg", "Abs"))
    old = rewriter.node("0")
    with pytest.raises(GraphError, match="nothing would write"):
        rewriter.replace([old], [rewriter.make("Exp", ("x",), name="new")])
    assert [node.op for node in rewriter.find()] == ["Neg", "Abs"]


def test_another_shape_is_refused_and_nothing_is_changed() -> None:
    graph = row("Neg", "Abs")
    rewriter = Rewriter(graph)
    old = rewriter.node("0")
    with pytest.raises(GraphError, match="would be"):
        rewriter.replace([old], [rewriter.make("Transpose", ("x",), old.outputs, name="0")])
    assert rewriter.result() is graph


def test_a_place_ahead_of_what_is_read_is_refused() -> None:
    rewriter = Rewriter(row("Neg", "Abs", "Exp"))
    old, last = rewriter.node("0"), rewriter.node("2")
    with pytest.raises(GraphError, match="wrong order"):
        rewriter.replace([old], [rewriter.make("Neg", last.outputs, old.outputs, name="0")])


def test_nodes_with_effects_are_not_replaced() -> None:
    b = pl.GraphBuilder("effects")
    x = b.input("x", "float32", (2,))
    b.output("y", b.op("Neg", x, name="neg"))
    b.call(noted, x, name="noted")
    rewriter = Rewriter(b.build())
    with pytest.raises(GraphError, match="effects"):
        rewriter.replace([rewriter.node("noted")], [])


def test_a_bypassed_output_keeps_its_name() -> None:
    rewriter = Rewriter(row("Neg", "Identity"))
    node = rewriter.node("1")
    assert rewriter.bypass(node, {node.outputs[0]: node.inputs[0]})
    graph = check(rewriter.result())
    assert graph.outputs == ("y",)
    assert [node.outputs for node in graph.nodes] == [("y",)]


def test_an_input_that_is_fetched_keeps_the_node_between() -> None:
    rewriter = Rewriter(row("Identity"))
    node = rewriter.node("0")
    assert not rewriter.bypass(node, {node.outputs[0]: "x"})
    assert rewriter.result().nodes == (node,)


def test_an_output_that_nothing_stands_for_keeps_the_node() -> None:
    rewriter = Rewriter(two_halves(0, 1))
    node = rewriter.node("halves")
    assert not rewriter.bypass(node, {"left": "x"})


def test_readers_are_known_after_a_bypass() -> None:
    rewriter = Rewriter(row("Identity", "Abs", "Exp"))
    node = rewriter.node("0")
    rewriter.bypass(node, {node.outputs[0]: "x"})
    assert [reader.name for reader in rewriter.readers("x")] == ["1"]
    assert "0" not in rewriter.names


def test_chains_without_readers_go_in_one_sweep() -> None:
    rewriter = Rewriter(row("Neg", "Abs", "Exp"))
    last = rewriter.node("2")
    rewriter.reread(last, {last.inputs[0]: "x"})
    rewriter.drop_dead()
    assert [node.name for node in check(rewriter.result()).nodes] == ["2"]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (np.float32(0), np.int32(0)),
        (np.float32(0), np.float32(-0.0)),
        (np.float32(1), np.float64(1)),
        (np.float32(1), np.ones(1, np.float32)),
        (np.arange(99), np.arange(99) + (np.arange(99) == 50)),
    ],
    ids=["dtype", "sign", "width", "shape", "one of many"],
)
def test_constants_of_other_bits_are_others(first: object, second: object) -> None:
    rewriter = Rewriter(row("Neg"))
    assert rewriter.constant(first, "a") != rewriter.constant(second, "a")


def test_constants_of_the_same_bits_are_one() -> None:
    rewriter = Rewriter(row("Neg"))
    first = rewriter.constant(np.arange(99.0), "a")
    assert rewriter.constant(np.arange(99.0), "b") == first


def test_new_names_are_free_ones() -> None:
    rewriter = Rewriter(row("Neg", "Abs"))
    first, second = (rewriter.make("Exp", ("x",), name="new") for _ in range(2))
    assert first.name != second.name
    assert first.outputs != second.outputs


def test_what_a_node_that_goes_wrote_cannot_be_read() -> None:
    graph = row("Neg", "Abs")
    rewriter = Rewriter(graph)
    first, last = rewriter.node("0"), rewriter.node("1")
    with pytest.raises(GraphError, match="nothing would write"):
        rewriter.replace(
            [first, last], [rewriter.make("Abs", first.outputs, last.outputs, name="1")]
        )
    assert rewriter.result() is graph


@pytest.mark.parametrize(
    ("to", "what"),
    [
        ("0", "'0' is written by '0', which is no earlier"),
        ("1", "'1' is written by '1', which is no earlier"),
        ("nothing", "there is no tensor 'nothing'"),
    ],
)
def test_a_bypass_to_what_is_no_earlier_is_refused_and_nothing_is_changed(
    to: str, what: str
) -> None:
    graph = row("Neg", "Abs", "Exp")
    rewriter = Rewriter(graph)
    with pytest.raises(GraphError) as caught:
        rewriter.bypass(rewriter.node("0"), {"0": to})
    assert (caught.value.what, caught.value.at) == (what, "in place of '0'")
    assert rewriter.result() is graph


def test_a_graph_that_doubles_with_each_change_is_stopped() -> None:
    rewriter = Rewriter(row("Neg", "Abs", "Exp"))
    inputs: tuple[str, ...] = ("0",)
    with pytest.raises(GraphError, match="in place of 6; at most 100,384"):
        for _ in range(40):
            inputs *= 2
            last = rewriter.node("1")
            rewriter.replace([last], [rewriter.make("Sum", inputs, last.outputs, name="1")])
    assert len(rewriter.node("1").inputs) < 100_384


def test_an_only_consumer_may_have_to_read_nothing_but_constants() -> None:
    b = pl.GraphBuilder("alone")
    x, other = b.input("x", "float32", (2,)), b.input("other", "float32", (2,))
    b.output("y", b.op("Add", b.op("Neg", x, name="neg"), np.ones(2, "float32"), name="sum"))
    b.output("z", b.op("Mul", b.op("Abs", x, name="abs"), other, name="product"))
    rewriter = Rewriter(b.build())
    for name, alone, expected in (
        ("neg", True, "sum"),
        ("abs", True, None),
        ("abs", False, "product"),
    ):
        found = rewriter.only_consumer(rewriter.node(name), alone=alone)
        assert (found and found.name) == expected
