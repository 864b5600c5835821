"""Steps that nodes are spared whose bytes lie where they belong."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import plait as pl
import pytest
from plait.devices.formal import registry as formal
from plait.devices.formal.program import bind_definitions
from plait.devices.memory import Arena, View, host_arena, host_view
from plait.devices.program import bind_node, bind_steps, is_in_place
from plait.graph.core.ir import Graph

assert formal.list_definitions()

ROW = 64
"""Bytes of 16 float32: as aligned as views must be."""


def graph_of(op: str, inputs: int, **attributes: Any) -> Graph:
    """Return one node: it splits four rows, or joins two of two rows each."""
    b = pl.GraphBuilder("one")
    names = [b.input(f"x{i}", "float32", (4 // inputs, 16)) for i in range(inputs)]
    sizes = [np.array([1, 3])] if op == "Split" else []
    outputs = ["y", "z"] if op == "Split" else ["y"]
    for name in b.op(op, *names, *sizes, axis=0, outputs=outputs, **attributes):
        b.output(name, name)
    return b.build()


def placed(graph: Graph, **rows: int) -> tuple[Arena, dict[str, View]]:
    """Return views at rows of an arena whose bytes count up."""
    arena = host_arena(16 * ROW)
    arena.buffer.view(np.float32)[:] = np.arange(16 * 16)
    return arena, {
        name: host_view(arena, row * ROW, graph.tensors[name]) for name, row in rows.items()
    }


def ran(graph: Graph, views: Mapping[str, View], kind: str) -> None:
    if kind == "formal":
        bind_definitions("formal", graph, views, measure=False)()
        return
    for _, step in bind_steps(np, "cpu", graph, views, graph.constants):
        step()


def noted_copies(graph: Graph, views: Mapping[str, View]) -> list[tuple[int, int]]:
    """Return the places and lengths in elements that a node's step writes."""
    copies = []

    def copyto(target: Any, source: Any) -> None:
        copies.append((int(target.ctypes.data), target.size))

    xp = SimpleNamespace(copyto=copyto, concatenate=None)
    bind_node(xp, "cpu", graph, graph.nodes[0], views, graph.constants)()
    return copies


KINDS = pytest.mark.parametrize("kind", ["cpu", "formal"])


@KINDS
def test_parts_in_place_are_left_alone(kind: str) -> None:
    graph = graph_of("Split", 1)
    arena, views = placed(graph, x0=2, y=2, z=3)
    before = arena.buffer.copy()
    assert is_in_place(graph, graph.nodes[0], views)
    ran(graph, views, kind)
    np.testing.assert_array_equal(arena.buffer, before)


@KINDS
def test_a_part_elsewhere_is_copied_and_the_other_is_not(kind: str) -> None:
    graph = graph_of("Split", 1)
    _, views = placed(graph, x0=2, y=2, z=8)
    x = views["x0"].array.copy()
    assert not is_in_place(graph, graph.nodes[0], views)
    ran(graph, views, kind)
    np.testing.assert_array_equal(views["x0"].array, x)
    np.testing.assert_array_equal(views["z"].array, x[1:])
    assert noted_copies(graph, views) == [(views["z"].array.ctypes.data, 3 * 16)]


@KINDS
def test_a_part_one_row_off_is_copied(kind: str) -> None:
    graph = graph_of("Split", 1)
    _, views = placed(graph, x0=2, y=1, z=8)
    x = views["x0"].array.copy()
    ran(graph, views, kind)
    np.testing.assert_array_equal(views["z"].array, x[1:])
    np.testing.assert_array_equal(views["y"].array, x[:1])


@KINDS
def test_a_concatenation_in_place_is_left_alone(kind: str) -> None:
    graph = graph_of("Concat", 2)
    arena, views = placed(graph, x0=5, x1=7, y=5)
    before = arena.buffer.copy()
    assert is_in_place(graph, graph.nodes[0], views)
    ran(graph, views, kind)
    np.testing.assert_array_equal(arena.buffer, before)


@KINDS
@pytest.mark.parametrize(("x0", "x1"), [(5, 1), (1, 7), (1, 3)])
def test_what_is_not_in_place_is_copied_into_a_concatenation(kind: str, x0: int, x1: int) -> None:
    graph = graph_of("Concat", 2)
    _, views = placed(graph, x0=x0, x1=x1, y=5)
    wanted = np.concatenate([views["x0"].array, views["x1"].array])
    ran(graph, views, kind)
    np.testing.assert_array_equal(views["y"].array, wanted)


def test_an_input_in_place_is_not_written_again() -> None:
    graph = graph_of("Concat", 2)
    _, views = placed(graph, x0=5, x1=1, y=5)
    assert noted_copies(graph, views) == [(views["y"].array.ctypes.data + 2 * ROW, 2 * 16)]


def test_the_same_offset_of_another_arena_is_elsewhere() -> None:
    graph = graph_of("Concat", 2)
    _, views = placed(graph, x0=5, x1=7, y=5)
    _, others = placed(graph, x1=7)
    assert not is_in_place(graph, graph.nodes[0], {**views, **others})


def test_a_part_that_dies_is_not_poisoned_while_the_whole_lives() -> None:
    b = pl.GraphBuilder("dies")
    x = b.input("x", "float32", (4, 16))
    part, _ = b.op("Split", x, np.array([1, 3]), axis=0, outputs=["part", ""])
    b.output("y", b.op("Neg", part))
    graph = b.build()
    _, views = placed(graph, x=2, part=2, y=8)
    before = views["x"].array.copy()
    ran(graph, views, "formal")
    np.testing.assert_array_equal(views["x"].array, before)
    np.testing.assert_array_equal(views["y"].array, -before[:1])


def test_a_part_is_poisoned_together_with_the_whole() -> None:
    b = pl.GraphBuilder("dies")
    whole = b.op("Neg", b.input("x", "float32", (4, 16)), outputs=["whole"])[0]
    part, _ = b.op("Split", whole, np.array([1, 3]), axis=0, outputs=["part", ""])
    b.output("y", b.op("Neg", part))
    graph = b.build()
    _, views = placed(graph, x=2, whole=8, part=8, y=7)
    ran(graph, views, "formal")
    assert np.isnan(views["part"].array).all()
