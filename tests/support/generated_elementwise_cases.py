"""Every formula of one element: as a graph of nodes side by side, and as small cases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import plait as pl
from generated_cases import Feeds, case
from generators import is_elementwise, list_generated_ops
from plait.devices.codegen.types import CTYPES
from plait.graph.core.ir import Graph
from plait.graph.values.dtypes import dtype_of, kind_of
from plait.graph.values.errors import PlaitError
from plait.graph.values.tensor import Array

OPS = tuple(op for op in list_generated_ops() if is_elementwise(op) and "." not in op)
VARIANTS: dict[str, Sequence[dict[str, Any]]] = {
    "BitShift": [{"direction": "LEFT"}, {"direction": "RIGHT"}],
    "Cast": [{"to": name} for name in CTYPES],
    "Celu": [{"alpha": 0.7}],
    "Gelu": [{"approximate": "none"}, {"approximate": "tanh"}],
    "HardSigmoid": [{"alpha": -0.3, "beta": 0.7}],
    "IsInf": [{}, {"detect_negative": False}, {"detect_positive": False}],
    "LeakyRelu": [{"alpha": 0.1}, {"alpha": 1.5}],
    "Mod": [{"fmod": False}, {"fmod": True}],
    "Selu": [{}, {"alpha": 2.0, "gamma": 0.5}],
    "Shrink": [{"bias": 1.0, "lambd": 2.0}],
    "Swish": [{}, {"alpha": -1.5}],
    "ThresholdedRelu": [{"alpha": 0.5}],
}
FLOATS = ("float16", "bfloat16", "float32", "float64")


def drawn(dtype: str, shape: tuple[int, ...], seed: int) -> Array:
    """Return numbers around 0 and at the ends of the range, halves, zeros, NaNs and infinities."""
    rng, kind = np.random.default_rng(seed), kind_of(dtype_of(dtype))
    if kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if kind == "f":
        values = rng.standard_normal(shape) * 4
        special = [0.0, -0.0, 0.5, -0.5, 2.5, 1.0, -1.0, np.inf, -np.inf, np.nan]
        return np.where(rng.random(shape) < 0.3, rng.choice(special, shape), values).astype(
            dtype_of(dtype)
        )
    ends = np.iinfo(dtype)
    values = rng.integers(max(ends.min, -9), 10, shape).astype(dtype)
    far = np.array([ends.min, ends.max, 0, 1, ends.max // 3], dtype)
    return np.where(rng.random(shape) < 0.3, rng.choice(far, shape), values)


def side_by_side(dtype: str) -> tuple[Graph, dict[str, Array]]:
    """Return all operators that take the dtype, each an output; inputs."""
    b = pl.GraphBuilder(dtype)
    feeds = {
        "x": drawn(dtype, (4, 6, 5), 1),
        "row": drawn(dtype, (6, 1), 2),
        "flag": drawn("bool", (4, 1, 5), 3),
        "low": np.array(1, dtype_of(dtype)),
        "high": np.array([5 if dtype != "bool" else 1], dtype_of(dtype)),
    }
    feeds["tame"] = feeds["x"]
    if dtype in FLOATS:
        finite = np.nan_to_num(np.abs(feeds["x"].astype(np.float64)), posinf=7)
        feeds["tame"] = finite.astype(feeds["x"].dtype)
    x, row, flag, low, high, tame = (b.input(name, a.dtype, a.shape) for name, a in feeds.items())
    operands: dict[str, Sequence[tuple[Any, ...]]] = {
        "Where": [(flag, x, row)],
        "Clip": [(x, low, high), (x, low), (x,)],
        "Cast": [(tame,)],  # what else becomes of floats, ONNX leaves open
        "CastLike": [(x, flag)],
        "PRelu": [(x, low)],
        "Max": [(x, row, low)],
        "Min": [(x, row, low)],
        "Sum": [(x, row, x)],
        "Mean": [(x, row, x)],
        "Pow": [(x, row), (x, low), *((x, np.array(e, dtype_of(dtype))) for e in (0, 1, 2, 3))],
    }
    for op in OPS:
        for attributes in VARIANTS.get(op, [{}]):
            for given in operands.get(op, [(x, row), (x,)]):
                try:
                    y = b.op(op, *given, **attributes)
                except PlaitError:
                    continue
                b.output(f"{op}.{y}", y)
    return b.build(), feeds


def _first_of_each(dtype: str, ops: Sequence[str]) -> tuple[Graph, Feeds]:
    """Return one node of each operator, and a chain of them."""
    graph, feeds = side_by_side(dtype)
    firsts = {node.op: node for node in reversed(graph.nodes) if node.op in ops}
    return graph.extract(
        [node for node in graph.nodes if firsts.get(node.op) is node], dtype
    ), feeds


@case
def formulas_of_floats() -> tuple[Graph, Feeds]:
    return _first_of_each("float32", [op for op in OPS if op != "Cast"])


@case
def formulas_of_integers() -> tuple[Graph, Feeds]:
    return _first_of_each(
        "int64", ("Abs", "BitShift", "Clip", "Div", "Mod", "Pow", "Shrink", "Sign")
    )


@case
def conversions() -> tuple[Graph, Feeds]:
    b = pl.GraphBuilder("conversions")
    feeds = {"x": drawn("float64", (40,), 1), "half": drawn("float16", (40,), 2)}
    x, half = (b.input(name, a.dtype, a.shape) for name, a in feeds.items())
    for name in CTYPES:
        b.output(name, b.op("Cast", x, to=name))
    b.output("short", b.op("Cast", half, to="int16"))
    return b.build(), feeds


@case
def a_chain_of_halves() -> tuple[Graph, Feeds]:
    b = pl.GraphBuilder("chain")
    feeds = {"x": drawn("float16", (3, 5, 7), 1), "z": drawn("float16", (5, 1), 2)}
    x, z = (b.input(name, a.dtype, a.shape) for name, a in feeds.items())
    gate = b.op("Sigmoid", b.op("Add", x, z))
    b.output("y", b.op("Mul", gate, b.op("Round", b.op("Div", x, z))))
    return b.build(), feeds


@case
def formulas_of_bfloat16() -> tuple[Graph, Feeds]:
    return _first_of_each("bfloat16", ("Add", "Cast", "Exp", "Max", "Pow", "Where"))


@case
def quantization() -> tuple[Graph, Feeds]:
    b = pl.GraphBuilder("quantization")
    feeds = {"x": drawn("float32", (2, 3, 7), 1), "scales": np.array([0.5, 0.03, 2], np.float32)}
    x, scales = (b.input(name, a.dtype, a.shape) for name, a in feeds.items())
    quantized = b.op("QuantizeLinear", x, scales, output_dtype="int8")
    b.output("y", b.op("DequantizeLinear", quantized, scales))
    b.output("quantized", quantized)
    feeds["wide"] = drawn("float32", (3, 700), 2)
    made = b.op("DynamicQuantizeLinear", b.input("wide", "float32", (3, 700)), outputs=3)
    for index, y in enumerate(made):
        b.output(f"y{index}", y)
    return b.build(), feeds
