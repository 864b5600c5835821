from __future__ import annotations

import re
import shutil
import subprocess
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plait import Graph, GraphBuilder, TensorSpec
from plait.graph.core.attribute import Attribute, Kind
from plait.graph.core.operator import define, unregister_operator
from plait.graph.core.printing import COLOURS, format_bytes, to_dot, to_text
from plait.graph.values.errors import GraphError, escape_unprintable

pytestmark = pytest.mark.usefixtures("forget_operators")


@pytest.fixture
def affine() -> Graph:
    b = GraphBuilder("affine")
    x = b.input("x", "float32", ("batch", 2))
    b.output("y", b.op("Relu", b.op("Add", x, np.array([1, 0.5], "float32"), name="shift")))
    return b.build()


def test_a_listing_shows_every_part(affine: Graph) -> None:
    assert to_text(affine).splitlines() == [
        "graph 'affine': 2 nodes, 1 constant of 8 bytes",
        "  input     x: float32[batch, 2]",
        "  constant  constant.1: float32[2] = [1, 0.5]",
        "  shift: float32[batch, 2] = Add(x, constant.1)",
        "  y: float32[batch, 2] = Relu(shift)  # relu.1",
        "  output    y",
    ]


def test_a_graph_prints_as_its_listing(affine: Graph) -> None:
    assert str(affine) == to_text(affine)


def node_line(**attributes: Any) -> str:
    define(
        "test.Many",
        inputs="a? b?",
        outputs="y z?",
        attributes={
            "axes": Attribute(Kind.INTS, (0, 1)),
            "alpha": Attribute(Kind.FLOAT, 0.01),
            "mode": Attribute(Kind.STRING, "plain"),
        },
    )(lambda call: [TensorSpec("bool", None)] * 2)
    b = GraphBuilder()
    outputs = b.op("test.Many", None, b.input("b", "int8", ()), outputs=["y", ""], **attributes)
    b.output("y", outputs[0])
    return to_text(b.build()).splitlines()[2]


def test_absent_inputs_and_outputs_are_dashes() -> None:
    assert node_line() == "  y: bool[*], - = test.Many(-, b)  # many.0"


def test_attributes_are_shown_where_they_differ_from_their_defaults() -> None:
    assert node_line(axes=[0, 1], alpha=1 / 3, mode="bent") == (
        "  y: bool[*], - = test.Many(-, b, alpha=0.333333, mode='bent')  # many.0"
    )


def test_long_sequences_are_cut() -> None:
    assert "axes=[0, 1, 2, 3, 4, 5, ...]" in node_line(axes=list(range(100)))


def test_a_node_of_an_operator_that_is_gone_is_still_shown() -> None:
    define("test.Gone", inputs="x", attributes={"a": Attribute(Kind.INT, 1)})(
        lambda call: [call.spec(0)]
    )
    b = GraphBuilder()
    b.output("y", b.op("test.Gone", b.input("x", "int8", ())))
    graph = b.build()
    unregister_operator("test.Gone")

    assert "test.Gone(x, a=1)" in to_text(graph)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (np.float32(0.1), "float32[] = 0.1"),
        (np.array(3), "int64[] = 3"),
        (np.array([], "int8"), "int8[0] = []"),
        (np.array([True, False]), "bool[2] = [True, False]"),
        (np.arange(7, dtype="uint8"), "uint8[7] = [0, 1, 2, 3, 4, 5, ...]"),
        (np.arange(4.0).reshape(2, 2).T, "float64[2, 2] = [0, 2, 1, 3]"),
        (np.array([1 / 3, np.inf, np.nan]), "float64[3] = [0.33333, inf, nan]"),
        (np.array([1 + 2j]), "complex128[1] = [1+2j]"),
    ],
)
def test_constants_show_their_first_elements(value: Any, shown: str) -> None:
    b = GraphBuilder()
    b.output("y", b.op("Identity", b.constant(value, "c")))

    assert f"  constant  c: {shown}" in to_text(b.build()).splitlines()


def test_a_large_constant_is_not_read_to_be_printed() -> None:
    huge = np.broadcast_to(np.float32(1), (2**20, 2**20))  # 4 TB, were it ever copied
    graph = Graph("g", (), ("c",), (), {"c": TensorSpec("float32", huge.shape)}, {"c": huge})

    assert "[1, 1, 1, 1, 1, 1, ...]" in to_text(graph)
    assert "4.4 TB" in to_text(graph)


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (999, "999 bytes"),
        (1000, "1 KB"),
        (36_864, "36.9 KB"),
        (4_200_000, "4.2 MB"),
        (7e9, "7 GB"),
        (12e12, "12 TB"),
        (5e15, "5e+03 TB"),
    ],
)
def test_bytes_are_written_in_a_unit_that_fits(nbytes: float, text: str) -> None:
    assert format_bytes(nbytes) == text


def test_a_drawing_has_a_box_per_node_and_an_arrow_per_edge(affine: Graph) -> None:
    dot = to_dot(affine)

    assert dot.startswith('digraph "affine" {')
    assert r'n0 [label="Add\nshift\nconstant.1: float32[2]"]' in dot
    assert r'n1 [label="Relu\nrelu.1"]' in dot
    assert re.findall(r"(\w+) -> (\w+)", dot) == [("in0", "n0"), ("n0", "n1"), ("n1", "out0")]
    assert dot.count('label="float32[batch, 2]"') == 3


def test_a_tensor_that_is_read_twice_by_a_node_is_one_arrow() -> None:
    b = GraphBuilder()
    x = b.input("x", "int8", ())
    b.output("y", b.op("Add", x, x))

    assert re.findall(r"(\w+) -> (\w+)", to_dot(b.build())) == [("in0", "n0"), ("n0", "out0")]


def test_a_constant_that_is_read_twice_by_a_node_is_named_once() -> None:
    b = GraphBuilder()
    c = b.constant(np.int8(1), "c")
    b.output("y", b.op("Add", c, c))

    assert to_dot(b.build()).count("c: int8[]") == 1


def test_a_constant_output_has_no_arrow() -> None:
    c = np.float32(1)
    graph = Graph("g", (), ("c",), (), {"c": TensorSpec("float32", ())}, {"c": np.asarray(c)})

    assert "->" not in to_dot(graph)


def test_groups_become_boxes_with_a_colour_each(affine: Graph) -> None:
    dot = to_dot(affine, {"shift": "cpu", "relu.1": "cuda:0"})

    first, second = re.findall(r"subgraph cluster_\d \{\n(.*?)\n  \}", dot, re.DOTALL)
    assert 'label="cpu"' in first
    assert "n0 [" in first
    assert COLOURS[0] in first
    assert 'label="cuda:0"' in second
    assert "n1 [" in second
    assert COLOURS[1] in second


def test_nodes_without_a_group_stay_outside(affine: Graph) -> None:
    dot = to_dot(affine, {"shift": "cpu"})

    assert dot.count("subgraph") == 1
    assert dot.index("n1 [") < dot.index("subgraph")


def test_colours_start_over_when_they_run_out() -> None:
    b = GraphBuilder()
    x = b.input("x", "int8", ())
    for i in range(len(COLOURS) + 1):
        x = b.op("Relu", x, name=f"n{i}")
    b.output("y", x)
    dot = to_dot(b.build(), {f"n{i}": f"device {i}" for i in range(len(COLOURS) + 1)})

    assert dot.count(COLOURS[0]) == 2
    assert dot.count(COLOURS[1]) == 1


def test_a_group_for_a_node_that_is_not_there_is_refused(affine: Graph) -> None:
    with pytest.raises(GraphError, match="not in the graph: 'ghost'") as caught:
        to_dot(affine, {"ghost": "cpu"})
    assert caught.value.at == "affine"


def unquoted(text: str) -> list[str]:
    """Return the strings of a DOT text with their escapes undone, as Graphviz reads labels."""
    strings = re.findall(r'"((?:[^"\\]|\\.)*)"', text, re.DOTALL)
    escapes = {"n": "\n", "\\": "\\", '"': '"'}
    return [re.sub(r"\\(.)", lambda m: escapes[m[1]], each, flags=re.DOTALL) for each in strings]


@given(st.text(st.characters(codec="utf-8"), min_size=1, max_size=8))
def test_any_name_survives_in_a_drawing(name: str) -> None:
    b = GraphBuilder(name)
    y = b.op("Relu", b.input(f"{name}!", "int8", (f"{name}?",)), name=name)
    b.output(f"{name}.", y)
    strings, shown = unquoted(to_dot(b.build(), {name: name})), escape_unprintable(name)

    assert strings.count(shown) == 2  # the graph and the group
    assert f"Relu\n{shown}" in strings
    assert f"{shown}!\nint8[{shown}?]" in strings


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")
def test_graphviz_draws_it(affine: Graph) -> None:
    drawn = subprocess.run(
        ["dot", "-Tsvg"],
        input=to_dot(affine, {"shift": 'a "b" \\N'}),
        capture_output=True,
        text=True,
    )
    assert drawn.returncode == 0, drawn.stderr
    assert "a &quot;b&quot; \\N" in drawn.stdout
