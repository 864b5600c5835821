from __future__ import annotations

import numpy as np
import plait as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plait.graph.values.errors import escape_unprintable, join_lines

EVIL = "\x1b[2J\x1b]0;t\x07\u202e\r\n\x9b\ud800"


def evil_graph() -> pl.Graph:
    b = pl.GraphBuilder("g" + EVIL)
    x = b.input("x" + EVIL, "float32", ("n" + EVIL.replace("\n", ""),))
    h = b.op("Relu", x, name="r" + EVIL)
    h = b.op("MatMul", h, np.ones((2, 2), "float32"), name="m" + EVIL)
    b.output("y" + EVIL, b.op("Softmax", h, name="s" + EVIL))
    return b.build()


def is_shown(text: str) -> bool:
    """Say whether a terminal shows all of it."""
    return all(line.isprintable() for line in text.split("\n"))


def breaks_lines(text: str) -> bool:
    """Say whether a line begins with what follows a line break in a name."""
    return any(line.startswith("\\x9b") for line in text.split("\n"))


@given(st.text())
def test_what_prints_nothing_is_shown_as_python_writes_it(text: str) -> None:
    shown = escape_unprintable(text)
    assert all(line.isprintable() for part in shown.split("\n") for line in part.split("\t"))
    assert escape_unprintable(shown) == shown
    assert shown.count("\n") == text.count("\n")
    if text.isprintable():
        assert shown == text


def test_a_line_stays_one() -> None:
    assert join_lines(["a\nerror: b", "c"]) == "a\\nerror: b\nc"


def test_names_from_files_are_shown_and_not_obeyed() -> None:
    graph = evil_graph()
    plan = pl.plan(graph, ["cpu"], shapes={graph.inputs[0]: (2,)})
    with pl.BlockingSession(plan, measure=True) as session:
        session.run({graph.inputs[0]: np.ones(2, "float32")})
        profile = session.profile()
    simulation = pl.simulate(plan)
    shown = {
        "graph": str(graph),
        "node": str(graph.nodes[0]),
        "dot": pl.to_dot(graph),
        "report": plan.report(nodes=True),
        "report of any length": pl.plan(graph).report(nodes=True),
        "passes": "\n".join(map(str, plan.applied)),
        "profile": profile.table(),
        "question": str(profile.what_if(plan, {graph.nodes[0].name: 2})),
        "simulation": simulation.table(),
        "diff": str(pl.diff(plan, pl.plan(graph, ["formal"], shapes={graph.inputs[0]: (2,)}))),
        "quantized": pl.quantize(graph, [{graph.inputs[0]: np.ones(2, "float32")}]).report(),
    }
    assert [name for name, text in shown.items() if not is_shown(text) or breaks_lines(text)] == []


def test_errors_show_names_and_do_not_obey_them() -> None:
    graph = evil_graph()
    for act in (
        lambda: pl.run(graph, {}),
        lambda: pl.run(graph, {"\x1b": np.ones(2)}),
        lambda: pl.run(graph, {graph.inputs[0]: np.ones(3, "float32")}),
        lambda: pl.plan(graph, pin={"\x1b": "cpu"}),
        lambda: pl.plan(graph, ["\x1b"]),
        lambda: pl.load("\x1b.onnx"),
    ):
        with pytest.raises(pl.PlaitError) as caught:
            act()
        assert is_shown(str(caught.value))
