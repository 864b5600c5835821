"""Graphs and plans as Python shows them: a line, however large they are."""

from __future__ import annotations

import plait as pl


def chain(length: int) -> pl.Graph:
    b = pl.GraphBuilder("chain")
    x = b.input("x", "float32", ("n", 2))
    for _ in range(length):
        x = b.op("Add", x, 1.0)
    b.output("y", x)
    return b.build()


def test_a_graph_is_shown_by_its_counts() -> None:
    shown = "<Graph 'chain': inputs 1, outputs 1, nodes 300, constants 300>"
    assert repr(chain(300)) == shown


def test_a_plan_is_shown_by_its_counts_and_memory() -> None:
    plan = pl.plan(chain(3), passes=())
    assert (
        repr(plan) == "<Plan 'chain': 3 nodes in 1 subgraph on cpu, 1 in flight, memory by shapes>"
    )
    known = pl.plan(chain(1), shapes={"x": (8, 2)}, passes=(), max_in_flight=2)
    assert repr(known).startswith("<Plan 'chain': 1 node in 1 subgraph on cpu, 2 in flight, ")
    assert repr(known).endswith(" in host>")


def test_a_plan_that_holds_plans_is_shown_in_a_line_too() -> None:
    assert len(repr(pl.plan(chain(400), ["cpu", "worker:0"], shapes={"x": (8, 2)}))) < 200
