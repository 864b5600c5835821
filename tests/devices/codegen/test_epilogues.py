"""Products that elementwise nodes go on with: the bits they give alone, what must stay apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import plait as pl
import pytest
from generated_cases import Feeds, fused_pieces
from generated_code import run_pieces
from generated_epilogue_cases import CHAINS, finished_and_kept
from plait.devices.codegen import tiles
from plait.devices.codegen.fusing import MOST_WITH_PRODUCT, fuse
from plait.devices.codegen.pieces import Launch, Piece
from plait.devices.codegen.registry import scratch
from plait.devices.cuda.lowering import Lowering
from plait.devices.device import scratch_name
from plait.devices.memory import View, host_arena, host_view
from plait.graph.core.ir import Graph


@pytest.mark.slow
@pytest.mark.parametrize("make", CHAINS, ids=lambda make: make.__name__)
def test_a_chain_behind_a_product_gives_the_bits_that_it_gives_apart(
    make: Callable[[], tuple[Graph, Feeds]],
) -> None:
    graph, feeds = make()
    pieces = fused_pieces(graph)
    assert len(pieces) == len(graph.outputs)
    check_bits(graph, pieces, feeds)


def check_bits(graph: Graph, pieces: tuple[Piece, ...], feeds: Feeds) -> None:
    """Compare with products by themselves, and the chains behind them as other kernels."""
    together = run_pieces(graph, list(pieces), feeds)
    apart = run_pieces(graph, list(fused_pieces(graph, epilogues=False)), feeds)
    for name in graph.outputs:
        assert together[name].tobytes() == apart[name].tobytes(), name


@pytest.mark.extended
def test_what_others_read_of_a_product_is_written_too() -> None:
    graph, feeds = finished_and_kept()
    pieces = fused_pieces(graph)
    assert [[node.op for node in piece.nodes] for piece in pieces] == [
        ["MatMul", "Neg"],
        ["MatMul"],
        ["MatMul", "Add", "Abs"],
        ["Softmax"],
    ]
    check_bits(graph, pieces, feeds)


def test_the_chain_of_a_split_product_is_computed_where_its_parts_are_added() -> None:
    b = pl.GraphBuilder("split")
    deep = b.op("MatMul", b.input("a", "float32", (8, 4096)), b.input("c", "float32", (4096, 8)))
    b.output("y", b.op("Add", deep, b.input("z", "float32", (8, 8))))
    (piece,) = fused_pieces(b.build())
    parts, total = (item for item in piece.queued if isinstance(item, Launch))
    assert parts.buffers == ("a", "c", scratch_name(piece.nodes[0], 0))
    assert set(total.buffers) == {"a", "c", scratch_name(piece.nodes[0], 0), "z", "y"}


def test_what_is_read_before_and_behind_a_product_cannot_be_its_epilogue() -> None:
    """The product reads what the first node gives, which would be there only behind it."""
    b = pl.GraphBuilder("around")
    x = b.op("Exp", b.input("x", "float32", (4, 4)))
    b.output("y", b.op("Sub", b.op("MatMul", x, x), x))
    assert [len(piece.nodes) for piece in fused_pieces(b.build())] == [1, 2]


def test_a_chain_of_another_shape_stays_apart() -> None:
    b = pl.GraphBuilder("gate")
    w = b.input("w", "float32", (3, 3, 1, 1))
    gate = b.op("Sigmoid", b.op("Conv", b.input("x", "float32", (2, 3, 1, 1)), w))
    b.output("y", b.op("Mul", b.input("z", "float32", (2, 3, 4, 4)), gate))
    assert [len(piece.nodes) for piece in fused_pieces(b.build())] == [2, 1]


def test_a_long_chain_is_no_epilogue_beyond_what_registers_hold() -> None:
    b = pl.GraphBuilder("long")
    tensor = b.op("MatMul", b.input("x", "float32", (4, 4)), b.input("w", "float32", (4, 4)))
    for _ in range(MOST_WITH_PRODUCT + 3):
        tensor = b.op("Neg", tensor)
    b.output("y", tensor)
    assert [len(piece.nodes) for piece in fused_pieces(b.build())] == [MOST_WITH_PRODUCT, 4]


def test_without_epilogues_products_are_alone() -> None:
    graph, _ = CHAINS[0]()
    pieces = [item for item in fuse(graph, {}) if isinstance(item, Piece)]
    assert [len(piece.nodes) for piece in pieces if piece.nodes[0].op == "MatMul"] == [1] * 6


PLACES = {"a": 0, "c": 4096, "z": 8192, "made": 12288, "y": 16384, "turned": 20480, "parts": 24576}


def sizes(places: Mapping[str, int]) -> list[int]:
    """Return how many nodes each piece has: a split product, something between, and a sum."""
    b = pl.GraphBuilder("places")
    a, c = b.input("a", "float32", (8, 128)), b.input("c", "float32", (128, 8))
    z = b.input("z", "float32", (8, 8))
    made = b.op("MatMul", a, c)
    b.output("turned", b.op("Transpose", z))
    b.output("y", b.op("Sub", made, z))
    graph = b.build()
    product, transpose, last = graph.nodes
    renamed = {made: "made", transpose.outputs[0]: "turned", last.outputs[0]: "y"}
    arena = host_arena(1 << 16)
    views: dict[str, View] = {
        name: host_view(arena, places[renamed.get(name, name)], spec)
        for name, spec in graph.tensors.items()
        if name not in graph.constants
    }
    for index, spec in enumerate(_parts(graph)):
        views[scratch_name(product, index)] = host_view(arena, places["parts"], spec)
    found = fuse(graph, views, epilogues=lambda node: True)
    return [len(item.nodes) for item in found if isinstance(item, Piece)]


def _parts(graph: Graph) -> tuple[pl.TensorSpec, ...]:
    product = graph.nodes[0]
    return scratch(product, graph.call(product), graph.output_specs(product))


@pytest.fixture
def _split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "choose", lambda product: (tiles.TILES[4], 2))


@pytest.mark.usefixtures("_split")
@pytest.mark.parametrize(
    ("moved", "together"),
    [
        ({}, True),
        ({"y": "z"}, True),
        ({"y": "a"}, False),
        ({"y": "c"}, False),
        ({"turned": "a"}, False),
        ({"turned": "parts"}, False),
        ({"y": "parts"}, False),
        ({"z": "parts"}, False),
    ],
)
def test_a_product_waits_for_its_epilogue_only_while_nothing_is_ruined(
    moved: Mapping[str, str], together: bool
) -> None:
    places = {**PLACES, **{name: PLACES[other] for name, other in moved.items()}}
    assert sizes(places) == ([1, 2] if together else [1, 1, 1])


@pytest.mark.parametrize("multiplies", [True, False])
def test_cublas_has_its_products_to_itself(multiplies: bool) -> None:
    """A pointwise convolution is a product, too; one of real windows has a generated kernel."""
    b = pl.GraphBuilder("libraries")
    x = b.input("x", "float32", (2, 4, 6, 6))
    point = b.op("Conv", x, b.input("v", "float32", (4, 4, 1, 1)))
    window = b.op("Conv", b.op("Relu", point), b.input("w", "float32", (8, 4, 3, 3)))
    b.output("y", b.op("Relu", window))
    parts = Lowering(generates=True, multiplies=multiplies).parts(b.build(), {})
    assert [len(part.nodes) for part in parts] == ([1, 1, 2] if multiplies else [2, 2])
    assert [part.of_libraries is None for part in parts] == (
        [False, True, True] if multiplies else [True, True]
    )


def test_an_empty_product_is_nothing_to_launch() -> None:
    b = pl.GraphBuilder("empty")
    a, c = b.input("a", "float32", (0, 4)), b.input("c", "float32", (4, 3))
    b.output("y", b.op("Relu", b.op("MatMul", a, c)))
    (piece,) = fused_pieces(b.build())
    assert piece.queued == ()


def test_a_product_of_no_depth_is_zeros_to_go_on_with() -> None:
    b = pl.GraphBuilder("shallow")
    a, c = b.input("a", "float32", (2, 0)), b.input("c", "float32", (0, 3))
    b.output("y", b.op("Add", b.op("MatMul", a, c), np.arange(3, dtype=np.float32)))
    graph = b.build()
    feeds = {"a": np.empty((2, 0), np.float32), "c": np.empty((0, 3), np.float32)}
    found = run_pieces(graph, list(fused_pieces(graph)), feeds)
    np.testing.assert_array_equal(found["y"], [[0, 1, 2], [0, 1, 2]])
