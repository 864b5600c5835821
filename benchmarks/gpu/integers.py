"""Has the integer set the bits that its definitions give, the device `formal` being those?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import plait as pl
from gpu.loaded import loaded
from gpu.question import Row, answer, failed
from gpu.target import Target
from plait.devices import Device
from plait.graph.core.ir import Graph

Arrays: TypeAlias = list[np.ndarray[Any, Any]]
RNG = np.random.default_rng(11)
WINDOW = {"kernel_size": (3, 3), "padding": (1, 1)}
SCALE = np.float32(0.02)


def anything(*shape: int, dtype: str = "int32") -> np.ndarray[Any, Any]:
    """Return integers of all magnitudes, the extremes among them."""
    limits = np.iinfo(dtype)
    numbers = RNG.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    numbers >>= RNG.integers(0, limits.bits, shape).astype(dtype)
    numbers.reshape(-1)[:2] = limits.min, limits.max
    return numbers


def small(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.integers(-127, 128, shape, np.int32)


def bytes_of(*shape: int, dtype: str = "int8") -> np.ndarray[Any, Any]:
    limits = np.iinfo(dtype)
    return RNG.integers(limits.min, limits.max, shape, dtype, endpoint=True)


X, ROW, FLOATS = anything(2, 3, 40), anything(3, 1), RNG.standard_normal((4, 30)).astype(np.float32)
SCALED: Arrays = [np.array(SCALE), np.array(3, np.uint8)]

CASES: list[tuple[str, Arrays, dict[str, Any]]] = [
    *((f"cvm.{op}", [X], {}) for op in ("relu", "abs", "negative", "precision", "flatten")),
    *((f"cvm.broadcast_{op}", [X, ROW], {}) for op in ("add", "sub", "mul", "div", "max")),
    *((f"cvm.elemwise_{op}", [X, anything(2, 3, 40)], {}) for op in ("add", "sub")),
    ("cvm.sum", [X], {"axis": (1,)}),
    ("cvm.max", [X], {"axis": (0, 2), "keepdims": True}),
    ("cvm.clip", [X], {"a_min": -1000, "a_max": 500}),
    ("cvm.cvm_clip", [X], {"precision": 12}),
    ("cvm.right_shift", [X], {"precision": 20, "shift_bit": 5}),
    ("cvm.left_shift", [X], {"precision": 20, "shift_bit": 7}),
    ("cvm.dense", [small(5, 200), small(7, 200), small(7)], {"units": 7}),
    ("cvm.conv2d", [small(2, 4, 9, 8), small(6, 2, 3, 3), small(6)],
     {"channels": 6, "groups": 2, **WINDOW}),
    ("cvm.max_pool2d", [small(2, 4, 9, 8)], {"pool_size": (3, 2), "strides": (2, 2)}),
    ("cvm.upsampling", [small(2, 4, 9, 8)], {"scale": 2}),
    ("cvm.transpose", [X], {"axes": (2, 0, 1)}),
    *((op, [X, anything(2, 3, 40)], {}) for op in ("Add", "Sub", "Mul", "BitwiseXor", "Max")),
    ("MatMulInteger", [bytes_of(5, 64), bytes_of(64, 12)], {}),
    ("MatMulInteger", [bytes_of(5, 33), bytes_of(33, 7), np.array(3, np.int8)], {}),
    ("ConvInteger", [bytes_of(1, 3, 9, 8), bytes_of(4, 3, 3, 3)], {}),
    ("QuantizeLinear", [FLOATS, *SCALED], {}),
    ("DequantizeLinear", [bytes_of(4, 30, dtype="uint8"), *SCALED], {}),
    ("DynamicQuantizeLinear", [FLOATS], {"outputs": ["y", "scale", "zero"]}),
    ("QLinearMatMul", [bytes_of(5, 33, dtype="uint8"), *SCALED, bytes_of(33, 7, dtype="uint8"),
                       *SCALED, *SCALED], {}),
    ("QLinearConv", [bytes_of(1, 3, 9, 8, dtype="uint8"), *SCALED,
                     bytes_of(4, 3, 3, 3, dtype="uint8"), *SCALED, *SCALED], {}),
]  # fmt: skip


def definitions(target: Target) -> Iterator[Row]:
    """Operators on integers, each against its definition."""
    same, refused = 0, list[str]()
    chosen = CASES[:: target.size(1, 7)]
    with target.opened() as device:
        for op, inputs, attributes in chosen:
            graph, fed = _single(op, inputs, attributes)
            (node,) = graph.nodes
            if not (support := device.supports(node, graph.call(node))).ok:
                refused.append(f"{op} ({support.reason})")
                continue
            try:
                different = _different(device, graph, fed)
            except pl.PlaitError as error:
                yield failed(op, error)
                continue
            same += different == 0
            if different:
                yield Row(f"{op}: elements that differ", different, at_most=0)
    ran = len(chosen) - len(refused)
    yield Row(f"operators with the bits of their definitions, of {ran}", same, at_least=ran)
    yield Row("operators that are left to another device", len(refused), note="; ".join(refused))


def _single(op: str, inputs: Arrays, attributes: dict[str, Any]) -> tuple[Graph, dict[str, Any]]:
    """Return a graph of one node; scales and zero points are constants in it."""
    b = pl.GraphBuilder(op)
    fed = {f"x{index}": x for index, x in enumerate(inputs) if x.ndim}
    names = [
        b.input(f"x{index}", x.dtype, x.shape) if x.ndim else b.constant(x)
        for index, x in enumerate(inputs)
    ]
    made = b.op(op, *names, **attributes)
    for index, name in enumerate((made,) if isinstance(made, str) else made):
        b.output(f"y{index}", name)
    return b.build(), fed


def _different(device: Device, graph: Graph, fed: Mapping[str, Any]) -> int:
    """Return how many elements differ from what the definition gives."""
    wanted = pl.run(graph, fed, devices=["formal"])
    with loaded(device, graph) as run:
        found = run.run(fed)
    return sum(int(np.count_nonzero(found[name] != wanted[name])) for name in wanted)


if __name__ == "__main__":
    answer(definitions)
