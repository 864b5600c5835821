"""Passes in the branches of If and the bodies of Loop and Scan."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import plait as pl
import pytest
from nested_graphs import doubled, doubling_body, growing_body, running_sum_body
from plait.graph.core.ir import Graph
from plait.graph.passes import PASSES, simplify
from plait.graph.passes.pipeline import run_passes

N = 130
"""Iterations: too many for a plan to write them out."""


def swish_body() -> Graph:
    """Return a body of Loop: s -> s · sigmoid(identity(s))."""
    b = pl.GraphBuilder("body")
    b.input("step", "int64", ())
    going, state = b.input("going", "bool", ()), b.input("state", "float32", ("n",))
    copy = b.op("Identity", state, name="copy")
    b.output("goes_on", b.op("Identity", going, name="on"))
    b.output("next", b.op("Mul", copy, b.op("Sigmoid", copy, name="gate"), name="product"))
    return b.build()


def looped(body: Graph, lengths: tuple[int | str, ...] = (4,), trips: int = N) -> Graph:
    """Return a graph with the body in a node called loop."""
    b = pl.GraphBuilder("around")
    x = b.input("x", "float32", lengths)
    count = len(body.outputs) - 1
    results = b.op(
        "Loop", np.array(trips), None, b.op("Neg", x), body=body, name="loop", outputs=count
    )
    b.output("y", results if isinstance(results, str) else results[0])
    return b.build()


def ops_inside(graph: Graph) -> list[str]:
    (loop,) = (node for node in graph.nodes if node.op == "Loop")
    return [node.op for node in loop.attributes["body"].nodes]


def test_a_body_is_simplified_and_its_nodes_are_told_by_their_paths() -> None:
    graph, applied = run_passes(looped(swish_body()), PASSES, checked=True)
    assert ops_inside(graph) == ["Identity", "Swish"]
    assert [(one.name, one.inside) for one in applied] == [
        ("bypass_identities", "loop"),
        ("fuse_activation", "loop"),
    ]
    assert applied[0].removed == ("loop/copy",)
    assert applied[1].rewritten == ("loop/product: Mul -> Swish",)
    assert str(applied[1]).startswith("fuse_activation in loop: 3 -> 2 nodes")


def test_a_second_run_finds_nothing_inside() -> None:
    graph = simplify(looped(swish_body()))
    assert simplify(graph) is graph


def test_a_loop_computes_what_it_did() -> None:
    graph = looped(swish_body())
    x = np.linspace(-9, 9, 4, dtype=np.float32)
    before, after = (pl.run(pl.plan(graph, passes=p), {"x": x})["y"] for p in ((), PASSES))
    np.testing.assert_allclose(after, before, rtol=1e-5)


def test_both_branches_are_simplified() -> None:
    b = pl.GraphBuilder("choice")
    x = b.input("x", "float32", (3,))
    branches = []
    for name, op in (("then", "Relu"), ("else", "Neg")):
        inner = pl.GraphBuilder(name)
        copied = inner.op("Identity", inner.input("v", "float32", (3,)), name=f"{name}_copy")
        inner.output("w", inner.op(op, copied, name=op.lower()))
        branches.append(inner.build())
    chosen = b.op(
        "If", b.input("c", "bool", ()), x, then_branch=branches[0], else_branch=branches[1]
    )
    b.output("y", chosen)
    graph, applied = run_passes(b.build(), PASSES)
    assert {name for one in applied for name in one.removed} == {
        "if.0/then_copy",
        "if.0/else_copy",
    }
    fed = np.array([-1, 0, 2], np.float32)
    assert pl.run(graph, {"x": fed, "c": np.array(True)})["y"].tolist() == [0, 0, 2]
    assert pl.run(graph, {"x": fed, "c": np.array(False)})["y"].tolist() == [1, 0, -2]


def branch(name: str, lengths: list[int]) -> Graph:
    """Return a branch of If that reshapes, to lengths that only folding tells, and adds a row."""
    b = pl.GraphBuilder(name)
    x = b.input("v", "float32", (4,))
    column = b.op("Reshape", x, b.op("Abs", np.array(lengths)))
    b.output("w", b.op("Identity", b.op("Add", column, np.ones((1, 4), np.float32))))
    return b.build()


def test_a_branch_that_does_not_fit_stays_as_it_is() -> None:
    b = pl.GraphBuilder("choice")
    x, c = b.input("x", "float32", (4,)), b.input("c", "bool", ())
    then, other = branch("then", [1, 4]), branch("else", [2, 2])
    b.output("y", b.op("If", c, x, then_branch=then, else_branch=other))
    graph = simplify(b.build())
    (chosen,) = graph.nodes
    assert len(chosen.attributes["then_branch"].nodes) == 2
    assert chosen.attributes["else_branch"] == other
    fed = {"x": np.zeros(4, np.float32), "c": np.array(True)}
    assert pl.run(graph, fed)["y"].tolist() == [[1, 1, 1, 1]]


def test_loops_in_loops_are_simplified() -> None:
    b = pl.GraphBuilder("outer")
    b.input("step", "int64", ())
    going, state = b.input("going", "bool", ()), b.input("state", "float32", ("n",))
    b.output("goes_on", b.op("Identity", going))
    inner = b.op("Loop", np.array(N), None, state, body=swish_body(), name="inner")
    b.output("next", inner)
    _, applied = run_passes(looped(b.build()), PASSES)
    assert {one.inside for one in applied} == {"loop/inner"}
    assert applied[0].removed == ("loop/inner/copy",)


def test_what_a_body_says_of_a_state_that_grows_is_not_believed() -> None:
    """The body says that the state has one element, which is true of the first iteration."""
    b = pl.GraphBuilder("growing")
    step, going = b.input("step", "int64", ()), b.input("going", "bool", ())
    state = b.input("state", "float32", (1,))
    last = b.op("Reshape", b.op("Cast", step, to="float32"), np.array([1]))
    b.output("goes_on", b.op("Identity", going))
    total = b.op("Mul", state, b.op("Cast", b.op("Size", state), to="float32"))
    b.output("next", b.op("Concat", total, last, axis=0))
    graph = looped(b.build(), (1,), 3)
    simple = simplify(graph)
    assert "Size" in ops_inside(simple)
    fed = {"x": np.array([-5], np.float32)}
    assert pl.run(simple, fed)["y"].tolist() == [30, 0, 3, 2]


def test_pins_inside_keep_nodes_apart() -> None:
    pins = {"loop/copy": "sim:0", "loop/gate": "cpu"}
    plan = pl.plan(looped(swish_body()), ["cpu", "sim:0"], pin=pins)
    assert "Identity" in ops_inside(plan.graph)[:1]
    assert "Swish" not in ops_inside(plan.graph)


@pytest.mark.parametrize("trips", [3, N])
def test_loops_with_conditions_and_rows_compute_what_they_did(trips: int) -> None:
    b = pl.GraphBuilder("rows")
    x = b.input("x", "float32", (4,))
    y, rows = b.op("Loop", np.array(trips), None, x, body=doubling_body(1e3), outputs=2)
    b.output("y", y)
    b.output("rows", rows)
    fed = np.arange(4, dtype=np.float32)
    found, (state, wanted) = pl.run(simplify(b.build()), {"x": fed}), doubled(fed, trips, 1e3)
    np.testing.assert_array_equal(found["y"], state)
    np.testing.assert_array_equal(found["rows"], wanted)


def test_bodies_of_scans_compute_what_they_did() -> None:
    b = pl.GraphBuilder("scan")
    x = b.input("x", "float32", (N, 2))
    start = np.zeros(2, np.float32)
    total, squares = b.op("Scan", start, x, body=running_sum_body(), num_scan_inputs=1, outputs=2)
    b.output("y", total)
    b.output("rows", squares)
    fed = np.ones((N, 2), np.float32)
    found = pl.run(simplify(b.build()), {"x": fed})
    np.testing.assert_array_equal(found["y"], [N, N])
    np.testing.assert_array_equal(found["rows"][:, 0], np.arange(1, N + 1) ** 2)


def test_states_that_grow_do_so_after_passes() -> None:
    graph = simplify(looped(growing_body(), (1,), 3))
    assert pl.run(graph, {"x": np.array([-7], np.float32)})["y"].tolist() == [7, 0, 1, 2]


def test_a_plan_tells_what_was_done_inside_and_keeps_it_in_its_file(tmp_path: Path) -> None:
    plan = pl.plan(looped(swish_body(), ("n",)))
    assert "passes: 4 -> 2 nodes" in plan.report()
    assert "fuse_activation in loop" in plan.report()
    plan.save(tmp_path / "loop.plan")
    assert pl.load_plan(tmp_path / "loop.plan").applied == plan.applied
