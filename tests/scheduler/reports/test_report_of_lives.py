"""Reports of plans with nodes that own something."""

from __future__ import annotations

import plait as pl
from plait.graph.core.ir import Graph
from plait.graph.values.tensor import Array


@pl.operator(name="reported.Counter", outputs=[pl.TensorSpec("float32", (4,))])
class Counter:
    """Counts the items."""

    def open(self, inputs: list[Array | None]) -> None:
        self.seen = 0

    def run(self, x: Array) -> Array:
        self.seen += 1
        return x + x.dtype.type(self.seen)

    def close(self) -> None:
        self.seen = -1


@pl.operator(name="reported.Plain", outputs=[pl.TensorSpec("float32", (4,))])
class Plain:
    """Has nothing to open."""

    def run(self, x: Array) -> Array:
        return x


def counted(count: int) -> Graph:
    b = pl.GraphBuilder("counted")
    tensor = b.input("x", "float32", (4,))
    for index in range(count):
        tensor = b.call(Counter, tensor, name=f"counter{index}")
    b.output("y", b.call(Plain, tensor, name="plain"))
    return b.build()


def owned(plan: pl.Plan) -> list[str]:
    lines = plan.report().splitlines()
    starts = [index for index, line in enumerate(lines) if line.startswith("owned")]
    return [line for start in starts for line in lines[start : lines.index("", start)]]


def test_the_report_lists_what_is_owned_and_where() -> None:
    assert owned(pl.plan(counted(2))) == [
        "owned from opening to closing: 3 instances, one for a node",
        "  2 reported.Counter on cpu, with open, run, close: 'counter0', 'counter1'",
        "  1 reported.Plain on cpu, with run: 'plain'",
    ]


def test_of_many_nodes_some_are_named() -> None:
    line = owned(pl.plan(counted(6)))[1]
    assert line.startswith("  6 reported.Counter on cpu")
    assert line.endswith("'counter3', ...")


def test_replicas_have_instances_of_their_own() -> None:
    pins = {"counter0": "worker:0..2", "plain": "cpu"}
    plan = pl.plan(counted(1), ["cpu", "worker:0..2"], pin=pins)
    assert "2 instances, one for a node, on each of 3 variants" in owned(plan)[0]


def test_a_graph_that_owns_nothing_has_no_such_lines() -> None:
    b = pl.GraphBuilder("plain")
    b.output("y", b.op("Relu", b.input("x", "float32", (4,))))
    plan = pl.plan(b.build())
    assert owned(plan) == []
    assert "\n\n\n" not in plan.report()
