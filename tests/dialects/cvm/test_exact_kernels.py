"""Generated exact operators, and quantized ones, give the bits that are due."""

from __future__ import annotations

from collections.abc import Iterator

import generated_exact_cases as cases
import numpy as np
import plait as pl
import pytest
from bound import Bound
from cvm_models import convolution_graph
from generated_cases import CASES
from generated_code import run_generated, run_pieces
from generated_network_cases import Nodes, whole
from generators import is_elementwise, list_generated_ops
from plait import cvm
from plait.devices.codegen.composition import compose
from plait.devices.codegen.formulas import Member
from plait.devices.codegen.fusing import fuse
from plait.devices.codegen.pieces import Launch, Piece
from plait.devices.formal.device import FormalDevice
from plait.devices.opencl.device import OpenClDevice
from plait.graph.core.operator import find_operator, list_operators
from plait.graph.values.tensor import Array
from pocl import pocl_device

OWN = sorted(name for name, made in CASES.items() if made.__module__ == cases.__name__)
TOGETHER = 12
"""Nodes in a kernel."""


@pytest.fixture(scope="module")
def formal() -> Iterator[FormalDevice]:
    device = FormalDevice()
    device.open()
    yield device
    device.close()


def run_case(name: str, formal: FormalDevice) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return what a case gives, and what by definition; formulas share few kernels."""
    graph, feeds = CASES[name]()
    with Bound(formal, graph) as bound:
        wanted = bound.run(feeds)
    if name != "exact_formulas":
        return run_generated(graph, feeds), wanted
    members = [
        Member(n.op, graph.call(n), n.inputs, n.outputs[0], graph.tensors[n.outputs[0]])
        for n in graph.nodes
    ]
    pieces = []
    for start in range(0, len(members), TOGETHER):
        part = slice(start, start + TOGETHER)
        kernel, tensors = compose(members[part], [member.output for member in members[part]])
        pieces.append(Piece(graph.nodes[part], (Launch(kernel, tensors),)))
    return run_pieces(graph, pieces, feeds), wanted


@pytest.mark.parametrize("name", OWN)
def test_a_case_gives_the_bits_of_its_definition(formal: FormalDevice, name: str) -> None:
    found, wanted = run_case(name, formal)
    for tensor, expected in wanted.items():
        np.testing.assert_array_equal(found[tensor], expected, tensor)


def test_every_exact_operator_is_generated_and_has_a_case() -> None:
    exact = {op for op in list_operators() if op.startswith("cvm.")}
    moved = {op for op in exact if find_operator(op).views}
    assert exact - moved == {op for op in list_generated_ops() if op.startswith("cvm.")}
    tried = {node.op for name in OWN for node in CASES[name]()[0].nodes}
    assert tried >= exact - moved
    assert {f"cvm.{op}" for op, *_ in cases.FORMULAS} == {
        op for op in exact if is_elementwise(op)
    } - {"cvm.where"}


@pytest.mark.parametrize("threshold", [1, 33, 50, 100])
def test_boxes_as_large_as_can_be_overlap_as_they_should(
    formal: FormalDevice, threshold: int
) -> None:
    """Areas take 64 bits, and a hundred times that."""
    rng = np.random.default_rng(7)
    ends = np.array([cases.LOWEST, cases.LOWEST + 1, 0, 1, cases.HIGHEST], np.int32)
    corners = np.sort(rng.choice(ends, (200, 4, 2, 2)), axis=2).reshape(200, 4, 4)
    about = np.stack([np.zeros((200, 4)), rng.integers(0, 3, (200, 4))], axis=2)
    boxes = np.concatenate([about, corners], axis=2).astype(np.int32)
    counts = np.full(200, 4, np.int32)
    nodes = Nodes("far").add("cvm.non_max_suppression", boxes, counts, iou_threshold=threshold)
    graph, feeds = nodes.build()
    with Bound(formal, graph) as bound:
        ((name, wanted),) = bound.run(feeds).items()
    np.testing.assert_array_equal(run_generated(graph, feeds)[name], wanted)
    kept = (wanted[..., 0] == 0).sum()
    assert 200 < kept < 800


def scale(*shape: int) -> Array:
    """Return scales whose products and quotients are not exact."""
    return np.random.default_rng(3).uniform(0.01, 2, shape).astype(np.float32)


def test_quantized_nodes_give_the_bits_of_the_cpu_whatever_the_scales() -> None:
    """A definition computes in real numbers; both of these, as ONNX Runtime does, in float32."""
    a, b, image = whole(9, 30), whole(30, 8, dtype="uint8"), whole(2, 4, 6, 7, dtype="uint8")
    zero, byte = np.int8(3).reshape(()), np.uint8(97).reshape(())
    nodes = Nodes("quantized")
    linear = (a, scale(9), whole(9), b, scale(8), whole(8, dtype="uint8"))
    nodes.add("QLinearMatMul", *linear, scale() * 99, zero)
    nodes.add("QLinearMatMul", *linear, scale(9) * 999, whole(9, dtype="uint8"))
    pixels = (image, scale(), byte, whole(6, 2, 3, 3), scale(6), whole(6))
    bias = np.array([-(2**31), 2**31 - 1, 5, -300, 70_000, 0], np.int32)
    for made in ((scale() * 40, byte), (scale() * 9e4, zero, bias)):
        nodes.add("QLinearConv", *pixels, *made, group=2, pads=(1, 1, 1, 1))
    x = np.random.default_rng(5).standard_normal((9, 30)).astype(np.float32) * 50
    nodes.add("QuantizeLinear", x, scale(30), whole(30))
    nodes.add("DequantizeLinear", a, scale(9), whole(9), axis=0)
    nodes.add("DynamicQuantizeLinear", x, outputs=3)
    graph, feeds = nodes.build()
    found = run_generated(graph, feeds)
    for name, expected in pl.run(graph, feeds).items():
        np.testing.assert_array_equal(found[name], expected, name)


def test_what_is_scaled_by_blocks_is_not_fused_with_what_made_it() -> None:
    b = pl.GraphBuilder("blocks")
    x, scales = b.input("x", "float32", (4, 6)), b.input("scales", "float32", (4, 6))
    y = b.op("QuantizeLinear", b.op("Abs", x), b.op("Abs", scales), block_size=1)
    b.output("y", y)
    pieces = [piece for piece in fuse(b.build(), {}) if isinstance(piece, Piece)]
    assert [len(piece.nodes) for piece in pieces] == [1, 1, 1]


def test_a_cvm_model_yields_on_opencl_what_its_definitions_yield() -> None:
    symbol, params = cvm.dump_cvm(convolution_graph())
    image = np.random.default_rng(3).integers(-127, 128, 192).astype(np.int8).tobytes()
    outputs = []
    for device in ("formal", OpenClDevice("opencl:0", device=pocl_device())):
        with cvm.load_model(symbol, params, device) as model:
            outputs.append([model.inference(image), model.inference(bytes(192))])
    assert outputs[0] == outputs[1]
