"""Generated reductions, normalizations, products and windows give what the cpu gives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import generated_network_cases as cases
import numpy as np
import pytest
from bound import Bound
from generated_cases import CASES, numbers
from generated_code import run_generated, run_pieces
from plait.devices.codegen import sweeps, tiles
from plait.devices.codegen.pieces import Launch, Piece, make_piece
from plait.devices.codegen.registry import find_refusal
from plait.devices.cpu import CpuDevice
from plait.graph.core.ir import Graph
from plait.graph.values.dtypes import is_extension, kind_of
from plait.graph.values.tensor import Array
from single_node import single_node_graph

TOLERANCE = {"bfloat16": 3e-2, "float16": 4e-3, "float32": 2e-5, "float64": 1e-12}
"""Relative to the largest number of a tensor: sums are added in another order."""

OWN = sorted(name for name, made in CASES.items() if made.__module__ == cases.__name__)


@pytest.fixture(scope="module")
def cpu() -> Iterator[CpuDevice]:
    device = CpuDevice()
    device.open()
    yield device
    device.close()


def check(cpu: CpuDevice, graph: Graph, feeds: Mapping[str, Array]) -> None:
    """Compare what generated kernels make of a graph with what the cpu does."""
    with np.errstate(all="ignore"), Bound(cpu, graph) as bound:
        wanted = bound.run(feeds)
    found = run_generated(graph, feeds)
    for name, expected in wanted.items():
        if kind_of(expected.dtype) != "f":
            np.testing.assert_array_equal(found[name], expected, name)
            continue
        tolerance = TOLERANCE[expected.dtype.name]
        if is_extension(expected.dtype):
            expected, found[name] = (each.astype(np.float32) for each in (expected, found[name]))
        size = float(np.abs(expected[np.isfinite(expected)]).max(initial=1))
        np.testing.assert_allclose(found[name], expected, tolerance, tolerance * size, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("name", OWN)
def test_a_case_gives_what_the_cpu_gives(cpu: CpuDevice, name: str) -> None:
    graph, feeds = CASES[name]()
    check(cpu, graph, feeds)


@pytest.mark.parametrize(("tile", "splits"), [(tiles.TILES[0], 1), (tiles.TILES[4], 3)])
def test_tiles_that_are_not_full_and_split_depths_give_the_same_product(
    cpu: CpuDevice, monkeypatch: pytest.MonkeyPatch, tile: tiles.Tile, splits: int
) -> None:
    monkeypatch.setattr(tiles, "choose", lambda product: (tile, splits))
    nodes = cases.Nodes("tiles").add("MatMul", numbers(130, 40), numbers(40, 131))
    check(cpu, *nodes.build())


def test_a_large_product_is_computed_by_large_tiles_and_a_deep_one_in_parts() -> None:
    large = _only_launch("MatMul", (4096, 64), (64, 4096)).kernel
    assert (large.groups, large.threads) == (32 * 32, 256)
    deep, total = _launches("MatMul", (32, 100_000), (100_000, 32))
    assert deep.kernel.groups > 16
    assert total.kernel.groups == 4


def _launches(op: str, *shapes: tuple[int, ...], **attributes: Any) -> list[Launch]:
    nodes = cases.Nodes("one").add(op, *(np.zeros(of, np.float32) for of in shapes), **attributes)
    graph, _ = nodes.build()
    piece = make_piece(graph, graph.nodes[0], {})
    assert piece is not None
    return [queued for queued in piece.queued if isinstance(queued, Launch)]


def _only_launch(op: str, *shapes: tuple[int, ...], **attributes: Any) -> Launch:
    (launch,) = _launches(op, *shapes, **attributes)
    return launch


def test_what_may_overwrite_its_input_gives_the_same_there() -> None:
    graph, feeds = CASES["normalizations"]()
    apart = run_generated(graph, feeds)
    onto: dict[str, str] = {}
    for node in graph.nodes:
        for output, index in node.operator.inplace:
            onto[node.inputs[index]] = node.outputs[output]
    assert len(onto) == 8
    pieces = [make_piece(graph, node, {}) for node in graph.nodes]
    moved = [_moved(piece, onto) for piece in pieces if piece is not None]
    found = run_pieces(graph, moved, {onto.get(name, name): x for name, x in feeds.items()})
    for name in onto.values():
        np.testing.assert_array_equal(found[name], apart[name], name)


def _moved(piece: Piece, onto: dict[str, str]) -> Piece:
    """Return a piece that finds some tensors where others are."""
    launches = [queued for queued in piece.queued if isinstance(queued, Launch)]
    return piece._replace(
        queued=tuple(
            launch._replace(buffers=tuple(onto.get(name, name) for name in launch.buffers))
            for launch in launches
        )
    )


def test_sums_of_quantized_products_do_not_overflow(cpu: CpuDevice) -> None:
    one, none = np.float32(1e-4).reshape(()), np.uint8(0).reshape(())
    full = np.full((1, 33_100), 255, np.uint8)
    nodes = cases.Nodes("deep")
    nodes.add("QLinearMatMul", full, one, none, full.T, one, none, np.float32(1).reshape(()), none)
    check(cpu, *nodes.build())


REFUSED: dict[str, tuple[str, tuple[Any, ...], dict[str, Any], str]] = {
    "axes": ("ReduceSum", (numbers(3, 4), np.array([1])), {}, "the axes are computed"),
    "roots": ("ReduceL2", (cases.whole(3, dtype="int64"),), {}, "integers of 64 bits"),
    "halves": (
        *("Gemm", (cases.whole(3, 3), cases.whole(3, 3)), {"alpha": 0.5}),
        "multiplied by a fraction",
    ),
    "k": ("TopK", (numbers(9), np.array([2])), {"outputs": 2}, "k is computed"),
    "many": ("TopK", (numbers(99), (17,)), {"outputs": 2}, "k is over 16"),
    "region": (
        *("Resize", (numbers(9), (1e-20, 1.0), None, (5,))),
        {"coordinate_transformation_mode": "tf_crop_and_resize"},
        "too many digits",
    ),
    "sizes": ("Resize", (numbers(9), None, None, np.array([5])), {}, "sizes are computed"),
}


@pytest.mark.parametrize("which", REFUSED)
def test_what_is_refused_has_a_reason(which: str) -> None:
    op, inputs, attributes, reason = REFUSED[which]
    graph, _ = cases.Nodes("one").add(op, *inputs, **attributes).build()
    (node,) = graph.nodes
    assert reason in (find_refusal(node, graph.call(node)) or "")


def test_an_output_left_out_before_another_is_refused() -> None:
    graph = single_node_graph("TopK", [numbers(9), np.array([2])], n_outputs=2, constant={1})
    (node,) = graph.nodes
    assert find_refusal(node, graph.call(node)) is None
    without = replace(node, outputs=("", "y1"))
    assert "left out" in (find_refusal(without, graph.call(node)) or "")


@pytest.mark.parametrize(
    ("shape", "axes", "lanes", "parts"),
    [
        ((5000, 1024), (1,), 128, 1),
        ((100_000, 4), (1,), 1, 1),
        ((2, 1 << 20), (1,), 256, 128),
        ((1 << 20, 64), (0,), 8, 132),
        ((64, 56 * 56, 64), (1,), 8, 2),
    ],
)
def test_lines_are_shared_by_as_many_threads_as_keep_a_device_busy(
    shape: tuple[int, ...], axes: tuple[int, ...], lanes: int, parts: int
) -> None:
    found = sweeps.Lines(shape, axes)
    assert (found.lanes, found.parts) == (lanes, parts)
