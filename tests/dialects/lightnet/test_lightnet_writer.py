"""Graphs written as LightNet's files, and read again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import plait as pl
import pytest
from command_line import plait
from plait.dialects.lightnet.load import load_lightnet
from plait.dialects.lightnet.writer import dump_lightnet
from plait.graph.core.ir import Graph
from plait.graph.values.tensor import Array

RANDOM = np.random.default_rng(9)


def floats(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype(np.float32)


def graph_of(write: Callable[[pl.GraphBuilder, str], str], *shape: int) -> Graph:
    b = pl.GraphBuilder("g")
    b.output("y", write(b, b.input("x", "float32", shape)))
    return b.build()


def assert_survives(graph: Graph, *, rounds: bool = False) -> None:
    """Assert that a graph computes the same when it is read again."""
    again = load_lightnet(*dump_lightnet(graph))
    assert again.inputs == graph.inputs
    assert again.outputs == graph.outputs
    feeds = {n: floats(*graph.tensors[n].static_shape) for n in graph.inputs}
    wanted, got = pl.run(graph, feeds), pl.run(again, feeds)
    for name, array in wanted.items():
        if rounds:
            np.testing.assert_allclose(got[name], array, rtol=1e-5, atol=1e-5)
        else:
            np.testing.assert_array_equal(got[name], array, strict=True)


W, B = floats(4, 3, 3, 3), floats(4)
V = floats(3, 2, 3, 3)
C = [floats(3) ** 2 for _ in range(4)]

WRITERS: dict[str, Callable[[Any, str], str]] = {
    "Conv": lambda b, x: b.op("Conv", x, W, B, pads=(1, 0, 2, 1), strides=(2, 1)),
    "Conv without bias": lambda b, x: b.op("Conv", x, W),
    "Conv padded alike": lambda b, x: b.op("Conv", x, W, auto_pad="SAME_UPPER", strides=(2, 2)),
    "Conv dilated": lambda b, x: b.op("Conv", x, W, dilations=(2, 1)),
    "ConvTranspose": lambda b, x: b.op("ConvTranspose", x, V, strides=(2, 2), pads=(1, 0, 0, 1)),
    "ConvTranspose to a shape": lambda b, x: b.op(
        "ConvTranspose", x, V, strides=(2, 2), output_shape=(14, 12)
    ),
    "MaxPool": lambda b, x: b.op("MaxPool", x, kernel_shape=(3, 2), pads=(1, 0, 1, 1)),
    "AveragePool": lambda b, x: b.op("AveragePool", x, kernel_shape=(2, 2), pads=(1, 1, 0, 0)),
    "GlobalAveragePool": lambda b, x: b.op("GlobalAveragePool", x),
    "BatchNormalization": lambda b, x: b.op("BatchNormalization", x, *C, epsilon=1e-3),
    "Add a channel": lambda b, x: b.op("Add", x, floats(3, 1, 1)),
    "Max of three": lambda b, x: b.op("Max", x, b.op("Relu", x), b.op("Sigmoid", x)),
    "Sub of itself": lambda b, x: b.op("Sub", x, x),
    "Concat of three": lambda b, x: b.op("Concat", x, b.op("Relu", x), x, axis=-3),
    "Concat of one": lambda b, x: b.op("Concat", x, axis=1),
    "MatMul": lambda b, x: b.op("MatMul", b.op("Flatten", x), floats(126, 5)),
    "Gemm": lambda b, x: b.op(
        "Gemm", b.op("Flatten", x), floats(5, 126), floats(5), transB=True, alpha=0.5, beta=2.0
    ),
    "LeakyRelu": lambda b, x: b.op("LeakyRelu", x, alpha=0.2),
    "Softmax": lambda b, x: b.op("Softmax", x),
    "Reshape": lambda b, x: b.op("Reshape", x, np.array([0, -1])),
    "Flatten": lambda b, x: b.op("Flatten", x),
    "Squeeze": lambda b, x: b.op("Squeeze", x, np.array([0])),
    "Transpose": lambda b, x: b.op("Transpose", x),
    "ReduceMax": lambda b, x: b.op("ReduceMax", x, np.array([-1])),
    "Resize": lambda b, x: b.op(
        "Resize", x, None, None, np.array([1, 3, 5, 8]), nearest_mode="round_prefer_ceil"
    ),
    "Resize twice": lambda b, x: b.op(
        "Resize",
        *(x, None, np.array([1, 1, 2, 3], np.float32)),
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    ),
    "Slice": lambda b, x: b.op("Slice", x, np.array([1, -3]), np.array([99, -1]), np.array([1, 3])),
}


ROUNDED = ("GlobalAveragePool", "MatMul", "Gemm")
"""What is summed up in another order."""


@pytest.mark.parametrize("which", WRITERS)
def test_what_is_written_computes_the_same(which: str) -> None:
    assert_survives(graph_of(WRITERS[which], 1, 3, 7, 6), rounds=which in ROUNDED)


REFUSED: dict[str, tuple[Callable[[Any, str], str], str]] = {
    "LRN": (lambda b, x: b.op("LRN", x, size=3), "no operators for LRN"),
    "MatMul": (lambda b, x: b.op("MatMul", x, floats(6, 2)), "of a matrix with a constant"),
    "two": (lambda b, x: b.op("Erf", b.op("Exp", x)), "no operators for Erf, Exp"),
    "1-D": (
        lambda b, x: b.op("Conv", b.op("Reshape", x, np.array([1, 3, -1])), floats(2, 3, 3)),
        "other than two axes",
    ),
    "ceil": (
        lambda b, x: b.op("MaxPool", x, kernel_shape=(2, 2), strides=(2, 2), ceil_mode=True),
        "rounds up",
    ),
    "counted": (
        lambda b, x: b.op(
            "AveragePool", x, kernel_shape=(2, 2), pads=(1, 1, 0, 0), count_include_pad=True
        ),
        "counts padding",
    ),
    "broadcast": (lambda b, x: b.op("Add", x, b.op("GlobalMaxPool", x)), "is broadcast"),
    "step": (
        lambda b, x: b.op("Slice", x, np.array([0]), np.array([9]), np.array([3]), np.array([2])),
        "one by one",
    ),
    "scalar": (lambda b, x: b.op("ReduceMax", x, keepdims=False), "axes of known lengths"),
    "linear": (
        lambda b, x: b.op("Resize", x, None, None, np.array([1, 3, 5, 8]), mode="linear"),
        "nearest centre",
    ),
    "floor": (
        lambda b, x: b.op("Resize", x, None, None, np.array([1, 3, 9, 8]), nearest_mode="floor"),
        "nearest centre",
    ),
    "int64": (lambda b, x: b.op("Identity", b.constant(np.arange(3))), "no such dtype"),
    "nan": (
        lambda b, x: b.op("Identity", b.constant(np.array([np.nan]), name="c"), outputs=["z"])[0],
        "is not a number",
    ),
}


@pytest.mark.parametrize("which", REFUSED)
def test_what_lightnet_cannot_do_is_said(which: str) -> None:
    write, complaint = REFUSED[which]
    with pytest.raises(pl.GraphError, match=complaint) as caught:
        dump_lightnet(graph_of(write, 1, 3, 7, 6))
    assert caught.value.fix == "save a .plait file or an ONNX model"


@pytest.mark.parametrize("name", ["n" * 512, "half \ud800"])
def test_names_that_lightnet_cannot_have_are_refused(name: str) -> None:
    graph = graph_of(lambda b, x: str(b.op("Relu", x, name=name)), 2)
    with pytest.raises(pl.GraphError, match="too long for a name, or no text"):
        dump_lightnet(graph)


def test_symbolic_shapes_are_refused() -> None:
    b = pl.GraphBuilder("g")
    b.output("y", b.op("Relu", b.input("x", "float32", ("n",))))
    with pytest.raises(pl.GraphError, match="axes of known lengths"):
        dump_lightnet(b.build())


def test_outputs_keep_their_order_though_others_read_them() -> None:
    b = pl.GraphBuilder("g")
    x = b.input("x", "float32", (2,))
    first = b.op("Relu", x)
    b.output("second", b.op("Sigmoid", first))
    b.output("first", first)
    assert_survives(b.build())


def test_inputs_that_nobody_reads_are_kept() -> None:
    b = pl.GraphBuilder("g")
    b.input("unused", "float32", (3,))
    b.output("y", b.op("Relu", b.input("x", "float32", (2,))))
    assert_survives(b.build())


def test_constants_that_weights_cannot_hold_are_in_the_model() -> None:
    def write(b: pl.GraphBuilder, x: str) -> str:
        kept = b.constant(np.array([2**31 - 1, -(2**31)], np.int32), name="c")
        b.output("z", b.op("Add", kept, kept))
        spaced = b.constant(np.array([0.1, 3e38], np.float32), name="two words")
        return str(b.op("Mul", x, spaced))

    graph = graph_of(write, 2)
    _, weights = dump_lightnet(graph)
    assert weights == b"0\n"
    assert_survives(graph)


def test_a_constant_is_created_once() -> None:
    def write(b: pl.GraphBuilder, x: str) -> str:
        c = b.constant(floats(2), name="c")
        return str(b.op("Mul", b.op("Add", x, c), c))

    document = json.loads(dump_lightnet(graph_of(write, 2))[0])
    created = [
        one["tensors_out"][0]["name"] for one in document["ops"] if one["optype"] == "create"
    ]
    assert created == ["x", "c"]


def test_what_was_read_is_written_again_the_same() -> None:
    graph = graph_of(lambda b, x: b.op("Relu", b.op("Conv", x, W, B)), 1, 3, 5, 5)
    files = dump_lightnet(graph)
    assert dump_lightnet(load_lightnet(*files)) == files


def test_the_command_line_converts(tmp_path: Path) -> None:
    graph = graph_of(lambda b, x: b.op("Relu", b.op("Conv", x, W, B)), 1, 3, 5, 5)
    pl.save(graph, tmp_path / "net.plait")
    assert plait(tmp_path, "convert", "net.plait", "net.json").exit_code == 0
    assert {one.name for one in tmp_path.iterdir()} == {"net.plait", "net.json", "net.wts"}
    assert plait(tmp_path, "convert", "net.json", "again.plait").exit_code == 0
    x = floats(1, 3, 5, 5)
    again = pl.run(pl.load(tmp_path / "again.plait"), {"x": x})["y"]
    np.testing.assert_array_equal(again, pl.run(graph, {"x": x})["y"])
