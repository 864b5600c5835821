"""Kernels that move elements, against numpy's."""

from __future__ import annotations

import re
from dataclasses import replace

import generated_movement_cases as cases
import numpy as np
import plait as pl
import pytest
from generated_cases import CASES
from generated_code import run_generated
from generated_network_cases import Nodes
from plait.devices.codegen.pieces import Launch, make_piece
from plait.devices.codegen.registry import find_refusal

OWN = [name for name, make in CASES.items() if make.__module__ == cases.__name__]


@pytest.mark.parametrize("name", OWN)
def test_kernels_give_what_numpy_does(name: str) -> None:
    graph, feeds = CASES[name]()
    found, wanted = run_generated(graph, feeds), pl.run(graph, feeds)
    for output, expected in wanted.items():
        if expected.dtype.kind == "f":
            np.testing.assert_allclose(found[output], expected, 1e-3, 1e-3, err_msg=output)
        else:
            np.testing.assert_array_equal(found[output], expected, output)


def test_random_numbers_have_the_same_bits() -> None:
    graph, feeds = cases.random_numbers()
    found, wanted = run_generated(graph, feeds), pl.run(graph, feeds)
    for output, expected in wanted.items():
        assert found[output].tobytes() == expected.tobytes(), output


def test_a_range_counts_in_its_own_numbers() -> None:
    b = pl.GraphBuilder("ranges")
    for dtype, numbers in (
        ("int8", (3, -20, -4)),
        ("uint64", (1, 9, 2)),
        ("float16", (0.1, 1, 0.1)),
    ):
        b.output(dtype, b.op("Range", *(np.array(n, dtype) for n in numbers)))
    graph = b.build()
    found, wanted = run_generated(graph, {}), pl.run(graph, {})
    for name, expected in wanted.items():
        np.testing.assert_array_equal(found[name], expected)


def test_indices_outside_an_axis_are_reported() -> None:
    """A kernel cannot raise; it must not read or write beside its tensors."""
    index = np.array([[4, -5, 2**40 + 1, -(2**40)]])
    nodes = Nodes("outside")
    nodes.add("Gather", cases.bits(4), index)
    nodes.add("GatherElements", cases.bits(1, 4), index, axis=1)
    nodes.add("GatherND", cases.bits(4, 2), index.T)
    nodes.add("ScatterElements", cases.bits(1, 4), index[:, :2], -cases.bits(1, 2) - 5, axis=1)
    graph, feeds = nodes.build()
    traps: list[str] = []
    gathered, elements, rows, scattered = run_generated(graph, feeds, traps).values()
    assert gathered.tolist() == elements.tolist() == [[0, 0, 0, 0]]
    assert rows.tolist() == [[0, 1]] * 4
    assert scattered.tolist()[0][1:] == [1, 2, 3]
    said = r"index (4|-5|1099511627777|-1099511627776) is outside "
    assert len(traps) == 4
    assert all(re.match(said, trap) for trap in traps), traps


def test_nothing_is_read_where_there_is_nothing() -> None:
    nodes = Nodes("empty")
    nodes.add("Gather", cases.bits(0, 3), np.array([], "int64"))
    nodes.add("Transpose", cases.bits(0, 3))
    nodes.add("ScatterND", cases.bits(3), cases.bits(0, 1, dtype="int64"), cases.bits(0))
    graph, feeds = nodes.build()
    gathered, turned, scattered = run_generated(graph, feeds).values()
    assert gathered.shape == (0, 3)
    assert turned.shape == (3, 0)
    assert scattered.tolist() == [0, 1, 2]


@pytest.mark.parametrize("op", ["Gather", "GatherElements", "GatherND", "ScatterND"])
def test_data_without_elements_have_no_places_to_name(op: str) -> None:
    b = pl.GraphBuilder("nowhere")
    x, rest = b.input("x", "float32", (0, 3)), [np.zeros((1, 3), "float32")] * (op == "ScatterND")
    b.output("y", b.op(op, x, np.zeros((1, 1), "int64"), *rest))
    graph = b.build()
    reason = find_refusal(graph.nodes[0], graph.call(graph.nodes[0]))
    assert reason == "no index is within data without elements"


def test_an_output_that_nobody_wants_is_not_written() -> None:
    b = pl.GraphBuilder("parts")
    kept, _ = b.op("Split", b.input("x", "float32", (2, 6)), outputs=2, axis=1)
    b.output("y", kept)
    graph = b.build()
    (node,) = graph.nodes
    graph = replace(graph, nodes=(replace(node, outputs=("y", "")),))
    piece = make_piece(graph, graph.nodes[0], {})
    assert piece is not None
    (launch,) = piece.queued
    assert isinstance(launch, Launch)
    assert launch.buffers == ("x", "y")


def test_updates_that_are_combined_are_refused() -> None:
    nodes = Nodes("combined")
    nodes.add("ScatterND", cases.bits(4), np.array([[1]]), cases.bits(1), reduction="add")
    graph, _ = nodes.build()
    assert find_refusal(graph.nodes[0], graph.call(graph.nodes[0])) is not None
