"""Every formula on every dtype, against numpy's kernels; all of a dtype share few kernels."""

from __future__ import annotations

import numpy as np
import plait as pl
import pytest
from generated_code import run_generated, run_pieces
from generated_elementwise_cases import OPS, drawn, side_by_side
from plait.devices.codegen.composition import compose
from plait.devices.codegen.formulas import Member
from plait.devices.codegen.fusing import fuse
from plait.devices.codegen.pieces import Launch, Piece
from plait.devices.codegen.types import CTYPES
from plait.graph.core.ir import Graph
from plait.graph.values.dtypes import is_extension, kind_of
from plait.graph.values.tensor import Array

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

NOT_EXACT = {
    *("Exp", "Log", "Erf", "Sin", "Cos", "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Tanh"),
    *("Asinh", "Acosh", "Atanh", "Pow", "Sigmoid", "Swish", "Elu", "Celu", "Selu", "Softplus"),
    *("Softsign", "Mish", "Gelu", "HardSigmoid", "HardSwish", "Sum", "Mean"),
}
TOLERANCE = {"bfloat16": 1.6e-2, "float16": 2e-3, "float32": 4e-6, "float64": 1e-13}
TOGETHER = 20
"""Nodes in a kernel."""
ELSEWHERE = ("QuantizeLinear", "DequantizeLinear", "Expand")
"""What has tests of its own."""


def run_composed(graph: Graph, feeds: dict[str, Array]) -> dict[str, Array]:
    """Run nodes of one output shape in few kernels: each takes time to compile."""
    members = [
        Member(n.op, graph.call(n), n.inputs, n.outputs[0], graph.tensors[n.outputs[0]])
        for n in graph.nodes
    ]
    pieces = []
    for start in range(0, len(members), TOGETHER):
        part = members[start : start + TOGETHER]
        kernel, tensors = compose(part, [member.output for member in part])
        pieces.append(Piece(graph.nodes[start : start + TOGETHER], (Launch(kernel, tensors),)))
    return run_pieces(graph, pieces, feeds)


def check_like_the_cpu(graph: Graph, feeds: dict[str, Array]) -> None:
    found, wanted = run_composed(graph, feeds), pl.run(graph, feeds)
    for node in graph.nodes:
        for name in node.outputs:
            got, expected = found[name], wanted[name]
            dtype = expected.dtype
            if is_extension(dtype):  # whose NaNs numpy's comparisons do not know
                got, expected = (array.astype(np.float32) for array in (got, expected))
            if kind_of(dtype) != "f" or node.op not in NOT_EXACT:
                np.testing.assert_array_equal(got, expected, str(node))
                continue
            tolerance = TOLERANCE[dtype.name]
            np.testing.assert_allclose(got, expected, tolerance, tolerance, err_msg=str(node))


@pytest.mark.parametrize("dtype", [name for name in CTYPES if name not in ("int16", "uint32")])
def test_formulas_give_what_numpy_does(dtype: str) -> None:
    check_like_the_cpu(*side_by_side(dtype))


def test_every_formula_is_tried() -> None:
    graphs = [side_by_side(dtype)[0] for dtype in ("float32", "int32", "bool")]
    taken = {node.op for graph in graphs for node in graph.nodes}
    assert taken == {*OPS} - {*ELSEWHERE}


def test_numbers_are_quantized_by_tensor_and_by_channel() -> None:
    b = pl.GraphBuilder("quantize")
    feeds = {"x": drawn("float32", (2, 3, 7), 1), "half": drawn("float16", (2, 3, 7), 2)}
    feeds["scales"] = np.array([0.5, 0.03, 2.0], np.float32)
    feeds["zeros"] = np.array([3, -7, 0], np.int8)
    feeds["sums"] = drawn("int32", (2, 3, 7), 3)
    x, half, scales, zeros, sums = (b.input(name, a.dtype, a.shape) for name, a in feeds.items())
    quantized = b.op("QuantizeLinear", x, scales, zeros)
    made = [
        quantized,
        b.op("DequantizeLinear", quantized, scales, zeros),
        b.op("DequantizeLinear", quantized, scales, zeros, output_dtype="float16"),
        b.op("DequantizeLinear", sums, np.float32(0.25), np.int32(5)),
        b.op("DequantizeLinear", sums, scales),
        b.op("QuantizeLinear", x, np.float32(0.1)),
        b.op("QuantizeLinear", x, scales, output_dtype="uint16"),
        b.op("QuantizeLinear", half, np.float16(0.1), np.uint8(9)),
        b.op("QuantizeLinear", half, scales, output_dtype="int16", precision="float32"),
        b.op("QuantizeLinear", sums, np.float32(3.0), np.int8(-2)),
    ]
    for index, y in enumerate(made):
        b.output(f"y{index}", y)
    feeds["x"] = np.nan_to_num(feeds["x"])
    feeds["half"] = np.nan_to_num(feeds["half"], posinf=9, neginf=-9)
    check_like_the_cpu(b.build(), feeds)


def test_numbers_are_quantized_by_their_range() -> None:
    b = pl.GraphBuilder("range")
    feeds = {f"x{n}": np.linspace(-n, 3, n, dtype=np.float32) for n in (0, 1, 300, 70_000)}
    feeds["zeros"] = np.zeros(5, np.float32)
    for name, x in feeds.items():
        made = b.op("DynamicQuantizeLinear", b.input(name, x.dtype, x.shape), outputs=3)
        for index, y in enumerate(made):
            b.output(f"{name}.{index}", y)
    graph = b.build()
    found, wanted = run_generated(graph, feeds), pl.run(graph, feeds)
    for name, expected in wanted.items():
        np.testing.assert_array_equal(found[name], expected, name)


def test_more_inputs_than_a_kernel_can_have_are_refused() -> None:
    b = pl.GraphBuilder("many")
    b.output("y", b.op("Sum", *(b.input(f"x{n}", "float32", (2,)) for n in range(65))))
    graph = b.build()
    assert fuse(graph, {}) == graph.nodes


def test_floats_that_no_integer_is_become_what_processors_make_of_them() -> None:
    """Low bits, or the lowest number: nothing that C leaves open."""
    b = pl.GraphBuilder("beyond")
    x = b.input("x", "float64", (7,))
    for name in ("int8", "uint8", "int32", "int64", "uint64"):
        b.output(name, b.op("Cast", x, to=name))
    graph = b.build()
    feeds = {"x": np.array([300.7, -1.5, 3e9, -1e30, np.nan, np.inf, 2.0**63])}
    found = run_composed(graph, feeds)
    lowest = -(2**31)
    assert found["int8"].tolist() == [44, -1, 0, 0, 0, 0, 0]
    assert found["uint8"].tolist() == [44, 255, 0, 0, 0, 0, 0]
    assert found["int32"].tolist() == [300, -1, *[lowest] * 5]
    assert found["int64"].tolist() == [300, -1, 3 * 10**9, *[-(2**63)] * 4]
    assert found["uint64"].tolist() == [300, 2**64 - 1, 3 * 10**9, 2**63, 2**63, 0, 2**63]


def test_halves_are_rounded_once_from_doubles() -> None:
    b = pl.GraphBuilder("once")
    b.output("y", b.op("Cast", b.input("x", "float64", (4,)), to="float16"))
    between = 1 + 2.0**-11  # as near to 1 as to the next half
    x = np.array([between + 2.0**-40, between, between - 2.0**-40, -(between + 2.0**-40)])
    (y,) = (found for found in run_composed(b.build(), {"x": x}).values())
    np.testing.assert_array_equal(y, x.astype(np.float16))


def test_each_thread_takes_several_elements_where_there_are_many() -> None:
    shape = (1027, 1025)
    b = pl.GraphBuilder("many")
    feeds = {
        "x": np.arange(np.prod(shape), dtype=np.int32).reshape(shape),
        "row": np.arange(shape[1], dtype=np.int32),
        "one": np.array(3, np.int32),
    }
    x, row, one = (b.input(name, a.dtype, a.shape) for name, a in feeds.items())
    b.output("y", b.op("Mul", b.op("Sub", x, row), one))
    graph = b.build()
    (piece,) = fuse(graph, {})
    assert isinstance(piece, Piece)
    found = run_pieces(graph, [piece], feeds)
    np.testing.assert_array_equal(found["y"], (feeds["x"] - feeds["row"]) * 3)
