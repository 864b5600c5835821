"""Variables of graphs: how they are built and checked, and how they become tensors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import plait as pl
import pytest
from hypothesis import given, settings
from plait.graph.core.check import check
from plait.graph.core.ir import Graph
from plait.graph.core.state import find_variables, restore_variables, set_aside
from plait.graph.passes import PASSES
from plait.graph.passes.pipeline import run_passes
from stateful_graphs import stateful

Builder = pl.GraphBuilder


def stepping() -> Graph:
    b = Builder("stepping")
    w = b.variable("w", np.ones(3, np.float32))
    b.output("w.before", w)
    b.output("train", b.assign(w, b.op("Add", w, b.input("x", "float32", (3,)))))
    return b.build()


def test_a_variable_has_the_dtype_and_shape_of_its_first_value() -> None:
    b = Builder()
    assert str(b.spec(b.variable("w", [[1, 2]], dtype="float16"))) == "float16[1, 2]"
    assert str(b.spec(b.variable("n", np.int64(3)))) == "int64[]"


def test_a_variable_keeps_a_copy_of_its_first_value() -> None:
    value = np.ones(2)
    b = Builder()
    b.output("y", b.op("Neg", b.variable("w", value)))
    value[:] = 7
    (node,) = find_variables(b.build()).values()
    assert node.attributes["initial"].constants["value"].tolist() == [1, 1]


def test_what_is_assigned_has_the_variables_spec() -> None:
    b = Builder()
    w = b.variable("w", np.ones((2, 3), np.float32))
    assert str(b.spec(b.assign(w, 2 * np.ones((2, 3), np.float32)))) == "float32[2, 3]"


def test_a_group_is_empty_and_after_is_what_it_hands_on() -> None:
    b = Builder()
    x = b.input("x", "float32", ("n", 2))
    assert str(b.spec(b.group(x, x))) == "bool[0]"
    assert b.spec(b.after(x, x)) == b.spec(x)


def first(value: Callable[[Builder], None]) -> Graph:
    b = Builder("first")
    value(b)
    return b.build()


MISTAKES: dict[str, tuple[Callable[[Builder, str], object], str]] = {
    "no variable": (lambda b, w: b.assign("x", w), "'x' is not a variable"),
    "twice": (lambda b, w: (b.assign(w, w), b.assign(w, w)), "assigned to 'w' already, by node"),
    "name": (lambda b, w: b.variable("w", 1.0), "two nodes are named 'w'"),
    "dtype": (lambda b, w: b.assign(w, np.zeros(3)), r"the variable is float32\[3\], the value"),
    "shape": (lambda b, w: b.assign(w, np.zeros(2, np.float32)), r"the value float32\[2\]"),
    "fed": (
        lambda b, w: b.variable("v", first(lambda f: f.output("y", f.input("z", "bool", ())))),
        "1 inputs and 1 outputs",
    ),
    "symbolic": (
        lambda b, w: b.variable(
            "v", first(lambda f: f.output("y", f.op("NonZero", np.ones(3, np.float32))))
        ),
        "the initial value is",
    ),
}


@pytest.mark.parametrize(("mistake", "what"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_surface_at_the_call(mistake: Callable[[Builder, str], object], what: str) -> None:
    b = Builder()
    b.input("x", "float32", (3,))
    w = b.variable("w", np.ones(3, np.float32))
    with pytest.raises(pl.PlaitError, match=what):
        mistake(b, w)


def test_a_loop_holds_no_variables() -> None:
    body = Builder("body")
    body.variable("w", np.float32(1))
    body.output("y", body.op("Neg", body.input("x", "float32", ())))
    inside = body.build()
    b = Builder()
    x = b.input("x", "float32", ())
    branches: dict[str, Any] = {"then_branch": inside, "else_branch": inside}
    b.output("y", b.op("If", b.input("c", "bool", ()), x, **branches))
    with pytest.raises(pl.GraphError, match=r"'w'.* is in the graph 'body', which runs any number"):
        b.build()


@settings(max_examples=30)
@given(graph=stateful())
def test_setting_variables_aside_and_taking_them_back_keeps_what_is_computed(graph: Graph) -> None:
    aside = set_aside(graph)
    assert not any(node.op == "Variable" for node in check(aside).nodes)
    assert aside.prepared <= aside.variables.keys()
    assert aside.prepared.isdisjoint(aside.outputs)
    back = check(restore_variables(aside))
    assert find_variables(back).keys() == find_variables(graph).keys()
    assert (back.inputs, back.outputs) == (graph.inputs, graph.outputs)
    assert set_aside(back) == aside


@settings(max_examples=30)
@given(graph=stateful())
def test_passes_neither_merge_nor_drop_variables_and_assignments(graph: Graph) -> None:
    after, _ = run_passes(graph, PASSES)
    kept = [[n.name for n in g.nodes if n.op in ("Variable", "Assign")] for g in (graph, after)]
    assert sorted(kept[0]) == sorted(kept[1])


def test_variables_of_an_included_graph_have_its_prefix() -> None:
    b = Builder()
    made = b.include(stepping(), {"x": b.input("x", "float32", (3,))}, "part/")
    b.output("train", made["train"])
    assert [*find_variables(b.build())] == ["part/w"]


def test_files_hold_variables(tmp_path: Path) -> None:
    graph, path = stepping(), tmp_path / "stepping.plait"
    pl.save(graph, path)
    assert pl.load(path) == graph
