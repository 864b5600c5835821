"""Cases of generated exact operators, and of quantization by blocks: see `generated_cases`."""

from __future__ import annotations

from typing import Any

import numpy as np
from generated_cases import Feeds, case
from generated_network_cases import Nodes, whole
from plait.graph.core.ir import Graph
from plait.graph.values.tensor import Array

LOWEST, HIGHEST = -(2**31), 2**31 - 1
ENDS = (LOWEST, LOWEST + 1, -1, 0, 1, HIGHEST - 1, HIGHEST)
SHIFTS: list[dict[str, Any]] = [
    {"precision": precision, "shift_bit": bits}
    for precision, bits in ((1, 1), (2, 31), (8, 9), (16, 32), (31, 2), (32, 1), (32, 32))
]
PLAIN: list[dict[str, Any]] = [{}]
FORMULAS: tuple[tuple[str, int, list[dict[str, Any]]], ...] = (
    *((op, 1, PLAIN) for op in ("relu", "abs", "negative", "precision")),
    *((f"broadcast_{op}", 2, PLAIN) for op in ("add", "sub", "mul", "max", "div", "greater")),
    *((op, 2, PLAIN) for op in ("elemwise_add", "elemwise_sub")),
    ("clip", 1, [{"a_min": -HIGHEST, "a_max": HIGHEST}, {"a_min": -7, "a_max": 5}]),
    ("cvm_clip", 1, [{"precision": precision} for precision in (1, 2, 31, 32)]),
    *((op, 1, SHIFTS) for op in ("right_shift", "left_shift")),
)
"""Operators of one element: how many they take, and attributes."""


def anything(*shape: int, seed: int = 1) -> Array:
    """Return int32s of all magnitudes, the ends of the range among them."""
    rng = np.random.default_rng(seed)
    numbers = rng.integers(LOWEST, HIGHEST, shape, np.int32) >> rng.integers(0, 32, shape, np.int32)
    return np.where(rng.random(shape) < 0.1, rng.choice(np.array(ENDS, np.int32), shape), numbers)


def boxes(samples: int, rows: int, *, far: bool, seed: int = 1) -> Array:
    """Return boxes of few classes and scores, small or of any size, most of them with an inside."""
    rng = np.random.default_rng(seed)
    of = samples, rows, 6
    made = anything(*of, seed=seed) if far else rng.integers(0, 30, of, np.int32)
    made[..., :2] = rng.integers(-1, 4, (samples, rows, 2))
    forwards = rng.random((samples, rows, 1)) < 0.9
    begin, end = made[..., 2:4].copy(), made[..., 4:].copy()
    made[..., 2:4] = np.where(forwards, np.minimum(begin, end), begin)
    made[..., 4:] = np.where(forwards, np.maximum(begin, end), end)
    return made


@case
def exact_formulas() -> tuple[Graph, Feeds]:
    """All on each pair of the ends of the range, and on other numbers."""
    ends = np.array(ENDS, np.int32)
    x = np.concatenate([np.repeat(ends, len(ends)), anything(51)])
    y = np.concatenate([np.tile(ends, len(ends)), anything(51, seed=2)])
    nodes = Nodes("exact_formulas")
    for op, count, variants in FORMULAS:
        for attributes in variants:
            nodes.add(f"cvm.{op}", *(x, y)[:count], **attributes)
    return nodes.add("cvm.where", y % 2, x, y).build()


@case
def exact_rows() -> tuple[Graph, Feeds]:
    x, y = anything(3, 4, 5), anything(3, 4, 5, seed=2)
    nodes = Nodes("exact_rows").add("cvm.where", np.array([1, 0, -1], np.int32), x, y)
    return nodes.add("cvm.broadcast_sub", x, anything(4, 1)).build()


@case
def exact_products() -> tuple[Graph, Feeds]:
    """By tiles that are not full, by lines, cell by cell."""
    nodes = Nodes("exact_products")
    nodes.add("cvm.dense", anything(9, 40), anything(19, 40), anything(19), units=19)
    nodes.add("cvm.dense", anything(1, 70), anything(5, 70), units=5, use_bias=False)
    nodes.add("cvm.dense", anything(3, 70), anything(1, 70), anything(1), units=1)
    window: dict[str, Any] = {
        "kernel_size": (3, 2),
        "padding": (2, 1),
        "strides": (2, 1),
        "dilation": (1, 2),
    }
    image = anything(2, 4, 7, 6)
    full = (image, anything(9, 4, 3, 2), anything(9))
    nodes.add("cvm.conv2d", *full, channels=9, **window)
    apart = (image, anything(8, 1, 3, 2))
    nodes.add("cvm.conv2d", *apart, channels=8, groups=4, use_bias=False, **window)
    return nodes.build()


@case
def exact_windows() -> tuple[Graph, Feeds]:
    x, nodes = anything(2, 3, 7, 6), Nodes("exact_windows")
    nodes.add("cvm.max_pool2d", x, pool_size=(3, 2), strides=(2, 2), padding=(1, 1))
    nodes.add("cvm.max_pool2d", x, pool_size=(2, 3), strides=(3, 2), ceil_mode=True)
    return nodes.add("cvm.upsampling", x, scale=3).build()


@case
def exact_reductions() -> tuple[Graph, Feeds]:
    x, long, nodes = anything(3, 4, 5), anything(2, 900), Nodes("exact_reductions")
    for op in ("cvm.sum", "cvm.max"):
        nodes.add(op, x, axis=(0, -1), keepdims=True)
        nodes.add(op, -np.abs(long // 2), axis=(0,), exclude=True)
    nodes.add("cvm.sum", x, axis=(0, 1, 2), exclude=True)
    return nodes.add("cvm.sum", long).build()


@case
def exact_movement() -> tuple[Graph, Feeds]:
    x, nodes = anything(3, 4, 5), Nodes("exact_movement")
    nodes.add("cvm.repeat", x, repeats=3, axis=-2).add("cvm.tile", x, reps=(2, 1, 3, 2))
    nodes.add("cvm.concatenate", x, anything(3, 2, 5)).add("cvm.transpose", x)
    nodes.add("cvm.transpose", x, axes=(1, -1, 0)).add("cvm.flatten", x)
    nodes.add("cvm.strided_slice", x, begin=(2, 0), end=(-9, 9), stride=(-1, 3))
    nodes.add("cvm.slice_like", x, anything(2, 4, 3), axis=(0, 2))
    places = np.array([[HIGHEST, 3], [-1, LOWEST]], np.int32)
    nodes.add("cvm.take", x, places, axis=1).add("cvm.take", x, places)
    return nodes.add("cvm.lut", places, anything(5), in_dim=5).build()


@case
def exact_boxes() -> tuple[Graph, Feeds]:
    """More boxes than a group has threads, and boxes whose areas take more than 64 bits."""
    many, nodes = boxes(2, 280, far=False), Nodes("exact_boxes")
    nodes.add("cvm.get_valid_counts", many, outputs=2, score_threshold=1)
    counts = np.array([280, 140], np.int32)
    nodes.add("cvm.non_max_suppression", many, counts, iou_threshold=20, top_k=200)
    far = boxes(3, 6, far=True), np.array([HIGHEST, LOWEST, 5], np.int32)
    nodes.add("cvm.non_max_suppression", *far, force_suppress=True, max_output_size=4)
    return nodes.build()


@case
def quantized_blocks() -> tuple[Graph, Feeds]:
    """Blocks along each axis, the last one of them shorter."""
    rng = np.random.default_rng(5)
    x = (rng.standard_normal((4, 7, 3)) * 50).astype(np.float32)

    def scales(*shape: int, dtype: str = "float32") -> Array:
        return rng.uniform(0.1, 2, shape).astype(dtype)

    nodes = Nodes("quantized_blocks")
    nodes.add("QuantizeLinear", x, scales(4, 3, 3), whole(4, 3, 3), block_size=3)
    halves = x.astype(np.float16), scales(4, 7, 2, dtype="float16")
    nodes.add("QuantizeLinear", *halves, axis=-1, block_size=2, output_dtype="int16")
    short = whole(4, 7, 3), scales(2, 7, 3), whole(2, 7, 3)
    nodes.add("DequantizeLinear", *short, axis=0, block_size=2)
    sums = whole(4, 7, 3, dtype="int32") * 1000, scales(4, 1, 3)
    return nodes.add("DequantizeLinear", *sums, block_size=9).build()
