"""Passes in a row: which run, what is told of them, and which one broke a graph."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import plait as pl
import pytest
from plait.graph.core.ir import Graph
from plait.graph.passes import PASSES, select_passes
from plait.graph.passes.fold_constants import decode_constants
from plait.graph.passes.pipeline import CHECKED, ROUNDS, Pass, gate, name_of, run_passes
from plait.graph.passes.rewriting import MayMerge
from plait.graph.values.errors import GraphError


def identities(count: int = 1) -> Graph:
    """Return y = -x with Identity nodes, called id0 and so on, ahead of the Neg."""
    b = pl.GraphBuilder("identities")
    x = b.input("x", "float32", (2,))
    for index in range(count):
        x = b.op("Identity", x, name=f"id{index}")
    b.output("y", b.op("Neg", x, name="neg"))
    return b.build()


def drop_last_output(graph: Graph, may_merge: MayMerge) -> Graph:
    return replace(graph, nodes=graph.nodes[:-1])


def rename_output(graph: Graph, may_merge: MayMerge) -> Graph:
    last = replace(graph.nodes[-1], outputs=("z",))
    tensors = {**graph.tensors, "z": graph.tensors["y"]}
    del tensors["y"]
    return replace(graph, nodes=(*graph.nodes[:-1], last), tensors=tensors, outputs=("z",))


def test_what_a_pass_did_is_told_with_names() -> None:
    _, (one,) = run_passes(identities(), PASSES)
    assert (one.name, one.before, one.after) == ("bypass_identities", 2, 1)
    assert (one.rewritten, one.added, one.removed) == (("neg: Neg",), (), ("id0",))
    assert one.seconds > 0
    assert str(one) == "bypass_identities: 2 -> 1 nodes (1 rewritten, 1 removed)"


def test_another_operator_under_the_same_name_is_told() -> None:
    b = pl.GraphBuilder("swish")
    x = b.input("x", "float32", (2,))
    b.output("y", b.op("Mul", x, b.op("Sigmoid", x, name="gate"), name="product"))
    _, (one,) = run_passes(b.build(), PASSES)
    assert one.rewritten == ("product: Mul -> Swish",)


def test_nothing_is_told_of_passes_that_find_nothing() -> None:
    graph = identities(0)
    after, applied = run_passes(graph, PASSES)
    assert after is graph
    assert applied == ()


def test_a_pass_whose_operators_are_absent_is_not_called() -> None:
    calls: list[str] = []

    @gate("Conv")
    def counted(graph: Graph, may_merge: MayMerge) -> Graph:
        calls.append(graph.name)
        return graph

    run_passes(identities(), [counted])
    assert calls == []


def test_passes_run_again_for_as_long_as_one_finds_something() -> None:
    calls: list[int] = []

    def restless(graph: Graph, may_merge: MayMerge) -> Graph:
        calls.append(1)
        return replace(graph)

    run_passes(identities(), [restless])
    assert len(calls) == ROUNDS


@pytest.mark.parametrize("broken", [drop_last_output, rename_output], ids=name_of)
def test_a_pass_that_breaks_a_graph_is_named(broken: Pass) -> None:
    with pytest.raises(GraphError, match=f"the pass '{name_of(broken)}' broke the graph"):
        run_passes(identities(), [broken], checked=True)


def test_the_environment_has_graphs_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CHECKED, "1")
    with pytest.raises(GraphError, match="drop_last_output"):
        run_passes(identities(), [drop_last_output])


def test_names_stand_for_passes() -> None:
    assert select_passes(["fuse_softmax", drop_last_output]) == (
        next(one for one in PASSES if name_of(one) == "fuse_softmax"),
        drop_last_output,
    )


def test_names_behind_a_minus_are_left_out() -> None:
    names = [name_of(one) for one in select_passes(["-fold_scale"])]
    assert names == [name_of(one) for one in PASSES if name_of(one) != "fold_scale"]
    assert select_passes([*PASSES, "-fold_scale"]) == select_passes(["-fold_scale"])


def test_names_behind_a_plus_run_ahead_of_all_others() -> None:
    assert select_passes(["+decode_constants"]) == (decode_constants, *PASSES)
    assert select_passes(["+decode_constants", "fuse_softmax"])[0] is decode_constants
    assert len(select_passes(["+decode_constants", "-fold_scale"])) == len(PASSES)


def test_an_unknown_name_is_an_error_that_names_the_closest() -> None:
    with pytest.raises(GraphError, match="did you mean 'fold_scale'"):
        select_passes(["fold_scales"])


def test_no_passes_are_no_passes() -> None:
    assert select_passes([]) == ()


def chain(count: int) -> Graph:
    """Return one long chain with something for most passes in each layer."""
    b = pl.GraphBuilder("chain")
    x = b.input("x", "float32", (4, 4))
    for index in range(count // 8):
        x = b.op("Mul", b.op("Identity", x), np.float32(index % 7))
        x = b.op("Mul", x, b.op("Sigmoid", x))
        turned = b.op("Transpose", b.op("Relu", b.op("Transpose", x)))
        x = b.op("Add", turned, np.float32(index))
    b.output("y", x)
    return b.build()


def wide(count: int) -> Graph:
    """Return a graph in which one tensor is read by all, and all of them by one node."""
    b = pl.GraphBuilder("wide")
    x = b.input("x", "float32", (4, 4))
    rows = []
    for index in range(count // 4):
        turned = b.op("Transpose", b.op("Identity", x))
        rows.append(b.op("Div", b.op("Relu", turned), np.float32(2 ** (index % 9))))
    b.output("y", b.op("Concat", *rows, axis=0))
    return b.build()


def alike(count: int) -> Graph:
    """Return a graph that computes the same again and again, from constants, too."""
    b = pl.GraphBuilder("alike")
    x = b.input("x", "float32", (4, 4))
    for _ in range(count // 4):
        bias = b.op("Mul", np.float32(2), np.float32(3))
        x = b.op("Add", b.op("Exp", x), b.op("Mul", b.op("Exp", x), bias))
    b.output("y", x)
    return b.build()


def steps_taken(graph: Graph) -> int:
    """Return how many functions the passes call for a graph."""
    calls = 0

    def count_calls(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count_calls)
    try:
        _, applied = run_passes(graph, PASSES)
    finally:
        sys.setprofile(before)
    assert len(applied) >= 3
    return calls


@pytest.mark.slow
@pytest.mark.parametrize("graph_of", [chain, wide, alike])
def test_work_grows_with_the_nodes_and_no_faster(graph_of: Callable[[int], Graph]) -> None:
    assert steps_taken(graph_of(800)) <= 2.2 * steps_taken(graph_of(400))


@pytest.mark.parametrize("graph_of", [chain, wide, alike])
def test_a_second_run_changes_nothing_in_many_layers(graph_of: Callable[[int], Graph]) -> None:
    graph, _ = run_passes(graph_of(160), PASSES)
    again, applied = run_passes(graph, PASSES)
    assert again is graph, [str(one) for one in applied]
