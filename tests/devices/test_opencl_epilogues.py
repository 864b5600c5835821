"""Networks on an OpenCL device, on PoCL: the same bits with chains behind products and without."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import plait as pl
import pytest
from plait.devices.codegen.fusing import fuse
from plait.devices.codegen.pieces import Piece
from plait.devices.memory import View
from plait.devices.opencl import program
from plait.devices.opencl.device import OpenClDevice
from plait.graph.core.ir import Graph, Node
from plait.graph.values.tensor import Array
from pocl import pocl_device

Items = Sequence[dict[str, Array]]


async def streamed(graph: Graph, items: Items) -> list[list[bytes]]:
    """Return what a session yields, to the bit."""
    plan = pl.plan(graph, [OpenClDevice(device=pocl_device())], max_in_flight=2)
    async with pl.Session(plan) as session:
        async with session.stream(items, max_in_flight=2) as results:
            return [[item[name].tobytes() for name in graph.outputs] async for item in results]


async def check_bits(
    monkeypatch: pytest.MonkeyPatch, graph: Graph, items: Items, *, fewer: int
) -> None:
    """Compare a graph's results with and without epilogues, and how many pieces there are."""
    pieces: list[int] = []

    def counted(
        subgraph: Graph, views: Mapping[str, View], **options: Any
    ) -> tuple[Piece | Node, ...]:
        found = fuse(subgraph, views, **(options if with_epilogues else {}))
        pieces.append(len(found))
        return found

    # Compiling takes most of the time, and without optimization a third of it.
    monkeypatch.setattr(program, "OPTIONS", (*program.OPTIONS, "-cl-opt-disable"))
    monkeypatch.setattr(program, "fuse", counted)
    with_epilogues = True
    together = await streamed(graph, items)
    with_epilogues = False
    assert await streamed(graph, items) == together
    assert pieces[-1] - pieces[0] >= fewer


def residual_network() -> Graph:
    """Return two blocks of convolutions with a gate and a shortcut, and a product behind them."""
    rng = np.random.default_rng(5)

    def weights(*shape: int) -> Array:
        return (0.5 * rng.standard_normal(shape)).astype(np.float32)

    b = pl.GraphBuilder("residual")
    x = b.input("x", "float32", (1, 3, 9, 7))
    for _ in range(2):
        wide = b.op("HardSwish", b.op("Conv", x, weights(12, 3, 1, 1), weights(12)))
        deep = b.op("Conv", wide, weights(12, 1, 3, 3), group=12, pads=(1, 1, 1, 1))
        gate = b.op("Conv", b.op("GlobalAveragePool", deep), weights(12, 12, 1, 1))
        gated = b.op("Mul", deep, b.op("HardSigmoid", gate))
        x = b.op("Add", b.op("Conv", gated, weights(3, 12, 1, 1)), x)
    flat = b.op("Reshape", x, np.array([1, 189]))
    b.output("y", b.op("Add", b.op("MatMul", flat, weights(189, 4)), weights(4)))
    return b.build()


async def test_a_stream_through_a_residual_network_gives_the_same_bits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(6)
    items = [{"x": rng.standard_normal((1, 3, 9, 7), np.float32)} for _ in range(4)]
    await check_bits(monkeypatch, residual_network(), items, fewer=4)


@pytest.mark.extended
async def test_a_real_classifier_gives_the_same_bits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its first half: the other has blocks of the same kinds, which take as long to compile."""
    spec = find_spec("rapidocr_onnxruntime")
    if spec is None or spec.origin is None:
        pytest.skip("pip install rapidocr-onnxruntime==1.4.4")
    folder = Path(spec.origin).parent / "models"
    whole = pl.load(folder / "ch_ppocr_mobile_v2.0_cls_infer.onnx")
    graph = whole.extract(whole.nodes[: len(whole.nodes) // 2], "half")
    rng = np.random.default_rng(7)
    items = [{"x": rng.standard_normal((1, 3, 48, 192), np.float32)} for _ in range(2)]
    await check_bits(monkeypatch, graph, items, fewer=17)
