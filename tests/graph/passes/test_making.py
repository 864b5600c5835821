"""Passes made of rules: what each does with them, and what it refuses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import plait as pl
import pytest
from plait.graph.core.ir import Graph, Node
from plait.graph.passes.making import combiner, expander, preprocess, schedule, subgraph
from plait.graph.passes.pipeline import name_of, run_passes
from plait.graph.passes.rewriting import Rewriter, allow_any
from plait.graph.values.tensor import Array

X = np.array([-1.5, 0.25, 3], np.float32)


def negated(count: int) -> Graph:
    """Return x -> neg -> neg -> ... -> y."""
    b = pl.GraphBuilder("negated")
    tensor = b.input("x", "float32", (3,))
    for index in range(count):
        (tensor,) = b.op("Neg", tensor, name=f"neg{index}", outputs=[f"t{index}"])
    b.output("y", tensor)
    return b.build()


def ops(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes]


def run(graph: Graph) -> Array:
    return pl.run(graph, {"x": X})["y"]


def doubled(rewriter: Rewriter, node: Node) -> Sequence[Node] | None:
    """Neg(x) -> Neg(Neg(Neg(x)))."""
    if node.op != "Neg":
        return None
    first = rewriter.make("Neg", node.inputs, name=f"{node.name}/a")
    second = rewriter.make("Neg", first.outputs, name=f"{node.name}/b")
    return [first, second, replace(node, inputs=second.outputs)]


def test_an_expander_asks_about_each_node_once() -> None:
    graph = expander(doubled)(negated(2), allow_any)
    assert ops(graph) == ["Neg"] * 6
    np.testing.assert_array_equal(run(graph), X)


def test_a_made_pass_is_called_as_its_rule() -> None:
    assert name_of(expander(doubled)) == "doubled"
    _, applied = run_passes(negated(1), [combiner(2, pair)])
    assert applied == ()


def test_a_pass_of_a_rule_that_never_matches_returns_the_very_graph() -> None:
    graph = negated(3)
    for one in (expander(lambda *_: None), combiner(2, lambda *_: None), subgraph(lambda _: None)):
        assert one(graph, allow_any) is graph


def pair(rewriter: Rewriter, nodes: Sequence[Node]) -> Sequence[Node] | None:
    """Neg(Neg(x)) -> Identity(x)."""
    first, last = nodes
    if [node.op for node in nodes] != ["Neg", "Neg"] or last.inputs != first.outputs:
        return None
    return [rewriter.make("Identity", first.inputs, last.outputs, name=last.name)]


def test_a_combiner_replaces_windows_of_nodes() -> None:
    graph = combiner(2, pair)(negated(5), allow_any)
    assert ops(graph) == ["Identity", "Identity", "Neg"]
    np.testing.assert_array_equal(run(graph), -X)


def test_a_combiner_looks_again_at_what_it_wrote() -> None:
    def single(rewriter: Rewriter, nodes: Sequence[Node]) -> Sequence[Node] | None:
        """Neg(x), Neg -> Neg(x): each round halves the chain."""
        first, last = nodes
        return [rewriter.make("Neg", first.inputs, last.outputs, name=last.name)]

    assert ops(combiner(2, single)(negated(8), allow_any)) == ["Neg"]


def endless(rewriter: Rewriter, nodes: Sequence[Node]) -> Sequence[Node]:
    (node,) = nodes
    return [rewriter.make(node.op, node.inputs, node.outputs, name=node.name)]


def test_a_rule_that_always_matches_is_stopped_and_named() -> None:
    """LightNet only warns, and goes on for ever (seeds L47)."""
    with pytest.raises(pl.GraphError, match="the rule 'endless' still matches after 10 rounds"):
        combiner(1, endless)(negated(2), allow_any)


def test_as_many_rounds_as_are_needed_can_be_allowed() -> None:
    left = [3]

    def thrice(rewriter: Rewriter, nodes: Sequence[Node]) -> Sequence[Node] | None:
        left[0] -= 1
        return endless(rewriter, nodes) if left[0] >= 0 else None

    with pytest.raises(pl.GraphError, match="after 3 rounds"):
        combiner(1, thrice, rounds=3)(negated(1), allow_any)
    left[0] = 3
    assert ops(combiner(1, thrice, rounds=4)(negated(1), allow_any)) == ["Neg"]


def test_an_empty_window_is_refused() -> None:
    with pytest.raises(pl.GraphError, match="a window of 0 nodes"):
        combiner(0, pair)


@pytest.mark.parametrize("make", [lambda: expander(doubled), lambda: combiner(2, pair)])
def test_nodes_that_may_not_become_one_stay(make: object) -> None:
    graph = negated(2)
    assert make()(graph, lambda *_: False) is graph  # type: ignore[operator]


def test_a_subgraph_pass_exchanges_nodes_and_orders_the_rest() -> None:
    def reversed_pair(graph: Graph) -> tuple[Sequence[Node], Sequence[Node]]:
        """What is added comes last, and is put where it belongs."""
        (old,) = (node for node in graph.nodes if node.name == "neg0")
        return [old], [replace(old, op="Abs", name="abs")]

    graph = subgraph(reversed_pair)(negated(3), allow_any)
    assert ops(graph) == ["Abs", "Neg", "Neg"]
    np.testing.assert_array_equal(run(graph), np.abs(X))


def test_a_subgraph_pass_refuses_a_cycle() -> None:
    def looped(graph: Graph) -> tuple[Sequence[Node], Sequence[Node]]:
        first, last = graph.nodes
        return [first], [replace(first, inputs=last.outputs)]

    with pytest.raises(pl.GraphError, match="cycle"):
        subgraph(looped)(negated(2), allow_any)


def test_a_subgraph_pass_refuses_to_lose_what_is_read() -> None:
    with pytest.raises(pl.GraphError, match="dangles"):
        subgraph(lambda graph: (graph.nodes[:1], []))(negated(2), allow_any)


def test_a_subgraph_pass_keeps_what_has_effects() -> None:
    b = pl.GraphBuilder("counter")
    held = b.variable("held", np.zeros(2, np.float32))
    b.assign(held, b.op("Add", held, 1.0), name="assign")
    b.output("y", b.op("Neg", held))
    graph = b.build()
    gone = [node for node in graph.nodes if node.name == "assign"]
    with pytest.raises(pl.GraphError, match="takes away what has effects"):
        subgraph(lambda _: (gone, []))(graph, allow_any)


def test_a_subgraph_pass_runs_in_a_plan_with_variables() -> None:
    def flipped(graph: Graph) -> tuple[Sequence[Node], Sequence[Node]] | None:
        found = [node for node in graph.nodes if node.op == "Neg"]
        return (found, [replace(node, op="Abs") for node in found]) if found else None

    b = pl.GraphBuilder("held")
    held = b.variable("held", X)
    b.output("y", b.op("Neg", b.op("Add", held, b.input("x", "float32", (3,))), name="neg"))
    plan = pl.plan(b.build(), devices=["cpu"], passes=[subgraph(flipped)])
    assert [node.op for node in plan.graph.nodes] == ["Add", "Abs"]


def branches() -> Graph:
    b = pl.GraphBuilder("branches")
    x = b.input("x", "float32", (3,))
    left, right = b.op("Neg", x, name="left"), b.op("Abs", x, name="right")
    b.output("y", b.op("Add", left, right, name="add"))
    return b.build()


def test_a_schedule_puts_nodes_in_another_order() -> None:
    def swapped(graph: Graph) -> Sequence[Node]:
        left, right, add = graph.nodes
        return right, left, add

    graph = schedule(swapped)(branches(), allow_any)
    assert [node.name for node in graph.nodes] == ["right", "left", "add"]


@pytest.mark.parametrize(
    ("rule", "complaint"),
    [
        (lambda graph: graph.nodes[1:], "leaves out a node"),
        (lambda graph: (*graph.nodes, graph.nodes[0]), "adds a node"),
        (lambda graph: graph.nodes[::-1], "only written by a later node"),
    ],
)
def test_a_schedule_must_be_the_same_nodes_in_a_topological_order(
    rule: object, complaint: str
) -> None:
    with pytest.raises(pl.GraphError, match=complaint):
        schedule(rule)(branches(), allow_any)  # type: ignore[arg-type]


def test_what_follows_from_constants_alone_comes_first() -> None:
    b = pl.GraphBuilder("mixed")
    x = b.input("x", "float32", (3,))
    fed = b.op("Neg", x, name="fed")
    known = b.op("Exp", b.constant(X, name="c"), name="known")
    both = b.op("Add", fed, known, name="both")
    b.output("y", b.op("Mul", both, b.op("Sqrt", known, name="too"), name="mul"))
    graph = b.build()
    after = preprocess(graph)
    assert [node.name for node in after.nodes] == ["known", "too", "fed", "both", "mul"]
    assert preprocess(after) is after
    np.testing.assert_array_equal(run(after), run(graph))


def test_made_passes_run_among_the_others_of_a_plan() -> None:
    plan = pl.plan(negated(5), devices=["cpu"], passes=[combiner(2, pair)])
    assert [one.name for one in plan.applied] == ["pair"]
