"""Cases of generated reductions, normalizations, products and windows: see `generated_cases`.

Shapes are chosen for the ways in which threads share the work: one or many on a line, neighbours
on one line or on neighbouring ones, lines in parts, groups and tiles that are not full.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import plait as pl
from generated_cases import Feeds, case, numbers
from plait.graph.core.ir import Graph
from plait.graph.values.tensor import Array
from single_node import run_node


class Nodes:
    """A graph of nodes that have nothing to do with each other, and what they are fed."""

    def __init__(self, name: str) -> None:
        self._builder = pl.GraphBuilder(name)
        self._feeds: dict[str, Array] = {}

    def add(
        self,
        op: str,
        *inputs: Array | tuple[float, ...] | None,
        outputs: int = 1,
        **attributes: Any,
    ) -> Nodes:
        """Add a node; arrays are fed, tuples are constants: int64, or float32 with fractions."""
        b = self._builder
        names: list[Any] = []
        for given in inputs:
            if isinstance(given, tuple):
                whole = all(isinstance(value, int) for value in given)
                names.append(np.array(given, np.int64 if whole else np.float32))
            elif given is None:
                names.append(None)
            else:
                name = f"x{len(self._feeds)}"
                names.append(b.input(name, given.dtype, given.shape))
                self._feeds[name] = given
        made = b.op(op, *names, outputs=outputs, **attributes)
        for name in (made,) if isinstance(made, str) else made:
            b.output(f"{name}_out", name)
        return self

    def build(self) -> tuple[Graph, Feeds]:
        """Return the graph and its feeds."""
        return self._builder.build(), self._feeds


def whole(*shape: int, dtype: str = "int8", seed: int = 1) -> Array:
    """Return integers that are not small."""
    low = 0 if dtype.startswith("u") else -100
    return np.random.default_rng(seed).integers(low, 100, shape).astype(dtype)


def positive(*shape: int, seed: int = 1) -> Array:
    return np.abs(numbers(*shape, seed=seed)) + np.float32(0.1)


@case
def sums() -> tuple[Graph, Feeds]:
    nodes = Nodes("sums")
    nodes.add("ReduceSum", numbers(33, 129), (1,))
    nodes.add("ReduceSum", numbers(300, 3), (0,), keepdims=0)
    nodes.add("ReduceSum", numbers(2, 150, 5, dtype="float16"), (1,))
    nodes.add("ReduceMean", numbers(5, 6, 7, 8), (1, 3))
    nodes.add("ReduceMean", whole(7, 40), (1,))
    nodes.add("ReduceL1", numbers(3, 50), (1,))
    nodes.add("ReduceL2", numbers(3, 50, dtype="float64"), (0,))
    nodes.add("ReduceSumSquare", whole(20, 9, dtype="uint8"), (0, 1))
    nodes.add("ReduceLogSum", positive(4, 25), (1,))
    nodes.add("ReduceLogSumExp", numbers(3, 100), (1,))
    return nodes.build()


@case
def long_lines() -> tuple[Graph, Feeds]:
    nodes = Nodes("long_lines")
    nodes.add("ReduceSum", numbers(1, 17000), (1,))
    nodes.add("Softmax", numbers(600, 3), axis=0)
    nodes.add("ArgMin", whole(1, 700, 2), axis=1)
    nodes.add("GroupNormalization", numbers(1, 2, 8200), positive(2), numbers(2), num_groups=1)
    return nodes.build()


@case
def extrema() -> tuple[Graph, Feeds]:
    nodes = Nodes("extrema")
    nodes.add("ReduceMax", numbers(9, 70), (1,))
    nodes.add("ReduceMin", whole(70, 9, dtype="int64"), (0,))
    nodes.add("ReduceProd", whole(6, 5, dtype="int32"), (1,))
    nodes.add("ArgMax", whole(5, 90), axis=1)
    nodes.add("ArgMax", whole(90, 5), axis=0, select_last_index=1, keepdims=0)
    nodes.add("TopK", whole(4, 60, dtype="int32"), (3,), outputs=2)
    nodes.add("TopK", numbers(60, 4), (2,), outputs=2, axis=0, largest=0)
    nodes.add("Hardmax", whole(3, 40).astype(np.float32), axis=1)
    return nodes.build()


@case
def normalizations() -> tuple[Graph, Feeds]:
    nodes, x = Nodes("normalizations"), numbers(2, 4, 5, 6)
    each = [positive(4), numbers(4), numbers(4), positive(4, seed=2)]
    nodes.add("Softmax", numbers(3, 70)).add("LogSoftmax", numbers(3, 7, 20), axis=1)
    nodes.add("LayerNormalization", numbers(5, 48), positive(48), numbers(48), outputs=3)
    nodes.add("RMSNormalization", numbers(5, 3, 16), positive(1, 16), axis=1)
    nodes.add("InstanceNormalization", x, *each[:2])
    nodes.add("GroupNormalization", x, *each[:2], num_groups=2)
    nodes.add("BatchNormalization", x, *each)
    nodes.add("BatchNormalization", x, *each, training_mode=1, outputs=3)
    nodes.add("LpNormalization", x, axis=1, p=1).add("MeanVarianceNormalization", x)
    nodes.add("LRN", x, size=3)
    return nodes.build()


@case
def products() -> tuple[Graph, Feeds]:
    nodes = Nodes("products")
    nodes.add("MatMul", numbers(2, 1, 9, 17), numbers(3, 17, 20))
    nodes.add("MatMul", numbers(3, 5, 18, dtype="float16"), numbers(18, 19, dtype="float16"))
    nodes.add("MatMul", numbers(3, 300), numbers(300, 5))
    nodes.add("MatMul", numbers(70), numbers(2, 70, 9)).add("MatMul", numbers(9, 70), numbers(70))
    nodes.add("MatMul", whole(5, 20, dtype="int64"), whole(20, 6, dtype="int64"))
    nodes.add(
        "Gemm", numbers(20, 5), numbers(7, 20), numbers(7), transA=1, transB=1, alpha=0.5, beta=2.0
    )
    nodes.add("Gemm", numbers(20, 1), numbers(7, 20), numbers(1, 7), transA=1, transB=1)
    nodes.add("MatMulInteger", whole(6, 30), whole(30, 7, dtype="uint8"), whole(6), None)
    one, byte = np.float32(0.02).reshape(()), np.uint8(3).reshape(())
    nodes.add(
        *("QLinearMatMul", whole(6, 30, dtype="uint8"), one, byte),
        *(whole(30, 7, dtype="uint8"), positive(7), whole(7, dtype="uint8"), one * 99, byte),
    )
    return nodes.build()


@case
def gradients_of_maxima() -> tuple[Graph, Feeds]:
    nodes, rng = Nodes("gradients_of_maxima"), np.random.default_rng(3)
    windows: tuple[tuple[tuple[int, ...], dict[str, Any]], ...] = (
        ((2, 3, 8), {"kernel_shape": [3], "strides": [2], "pads": [1, 0]}),
        ((1, 2, 7, 6), {"kernel_shape": [3, 2], "strides": [1, 2], "dilations": [2, 1]}),
        ((1, 2, 4, 5), {"kernel_shape": [2, 3], "auto_pad": "SAME_UPPER"}),
    )
    for shape, window in windows:
        x = rng.permutation(math.prod(shape)).reshape(shape).astype("float32")
        pooled, indices = run_node("MaxPool", [x], window, 2)
        nodes.add("MaxPoolGradient", numbers(*pooled.shape), indices, shape, **window)
    return nodes.build()


@case
def convolutions() -> tuple[Graph, Feeds]:
    nodes, x, little = Nodes("convolutions"), numbers(2, 8, 9, 10), numbers(2, 8, 4, 5)
    padded: dict[str, Any] = {"pads": (1, 1, 1, 1)}
    nodes.add("Conv", little, numbers(12, 8, 3, 3), numbers(12), **padded)
    nodes.add("Conv", x, numbers(16, 8, 1, 1))
    nodes.add("Conv", numbers(1, 70, 3, 3), numbers(8, 70, 2, 3), **padded)
    nodes.add("Conv", x, numbers(16, 4, 2, 3), group=2, strides=(2, 1), dilations=(1, 2))
    nodes.add("Conv", x, numbers(8, 1, 3, 3), numbers(8), group=8, strides=(2, 2), **padded)
    nodes.add("Conv", numbers(1, 3, 20, dtype="float16"), numbers(9, 3, 5, dtype="float16"))
    nodes.add("Conv", numbers(1, 2, 5, 6, 7), numbers(8, 2, 2, 2, 2), auto_pad="SAME_UPPER")
    nodes.add("ConvTranspose", little, numbers(8, 9, 3, 3), strides=(2, 2), output_padding=(1, 1))
    nodes.add("ConvTranspose", x, numbers(8, 2, 2, 2), numbers(4), group=2, **padded)
    nodes.add(
        *("ConvTranspose", numbers(1, 8, 3, 3), numbers(8, 8, 3, 4)),
        strides=(2, 3),
        dilations=(2, 1),
    )
    op = "ConvWeightsGradient"
    window: dict[str, Any] = {"kernel_shape": (3, 2), **padded}
    nodes.add(op, x, numbers(2, 12, 9, 11), **window)
    nodes.add(op, x, numbers(2, 6, 4, 11), group=2, strides=(2, 1), dilations=(2, 1), **window)
    half: dict[str, Any] = {"dtype": "float16"}
    nodes.add(
        op, numbers(3, 2, 20, **half), numbers(3, 5, 9, **half), kernel_shape=[4], strides=[2]
    )
    image, weights = whole(1, 4, 8, 9, dtype="uint8"), whole(8, 4, 3, 3)
    nodes.add("ConvInteger", image, weights, np.uint8(7).reshape(()), whole(8), **padded)
    one, byte = np.float32(0.02).reshape(()), np.uint8(3).reshape(())
    linear = (image, one, byte, weights, positive(8), whole(8), one * 99, byte)
    nodes.add("QLinearConv", *linear, whole(8, dtype="int32"), **padded)
    return nodes.build()


@case
def pools() -> tuple[Graph, Feeds]:
    nodes, x = Nodes("pools"), numbers(2, 3, 9, 10)
    square: dict[str, Any] = {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)}
    nodes.add("MaxPool", x, outputs=2, storage_order=1, **square)
    nodes.add("MaxPool", whole(1, 2, 30), kernel_shape=(4,), dilations=(2,), ceil_mode=1)
    nodes.add("AveragePool", x, count_include_pad=1, ceil_mode=1, **square)
    nodes.add("AveragePool", x, **square).add("LpPool", x, p=3, **square)
    nodes.add("GlobalAveragePool", x).add("GlobalMaxPool", x).add("GlobalLpPool", x, p=3)
    places = np.arange(24)[::-1].reshape(1, 1, 4, 6) * 4
    nodes.add("MaxUnpool", numbers(1, 1, 4, 6), places, kernel_shape=(2, 2), strides=(2, 2))
    return nodes.build()


@case
def resized() -> tuple[Graph, Feeds]:
    nodes, x = Nodes("resized"), numbers(1, 2, 9, 10)
    aligned: dict[str, Any] = {"coordinate_transformation_mode": "align_corners"}
    nodes.add("Resize", x.astype(np.float16), None, (1.0, 1.0, 2.0, 2.0))
    nodes.add("Resize", x, None, None, (1, 2, 5, 17), nearest_mode="ceil", **aligned)
    nodes.add("Resize", x, None, (1.0, 1.0, 2.0, 2.5), mode="linear")
    nodes.add("Resize", x, None, None, (1, 2, 4, 5), mode="linear", antialias=1)
    nodes.add("Resize", x, None, None, (1, 2, 12, 7), mode="cubic", exclude_outside=1, **aligned)
    nodes.add(
        *("Resize", x, (0.0, 0.0, -0.5, 0.25, 1.0, 1.0, 1.0, 1.5), None, (1, 2, 8, 8)),
        coordinate_transformation_mode="tf_crop_and_resize",
        extrapolation_value=7.0,
        mode="linear",
    )
    return nodes.build()


@case
def attentions() -> tuple[Graph, Feeds]:
    nodes = Nodes("attentions")
    q, k, v = numbers(1, 1, 40, 5), numbers(1, 1, 37, 5), numbers(1, 1, 37, 9)
    nodes.add("Attention", q, k, v)
    two = (numbers(1, 2, *each.shape[2:]) for each in (q, k, v))
    nodes.add("Attention", *two, numbers(2, 40, 37) > 0, softcap=1.5)
    nodes.add("Attention", q, k, v, numbers(1, 1, 1, 30), is_causal=1, scale=0.3)
    nodes.add("Attention", q, k, v, left_window_size=3, right_window_size=33)
    blind = np.zeros((40, 37), bool)
    nodes.add("Attention", q, k, v, blind)
    return nodes.build()


@case
def attentions_that_share_keys() -> tuple[Graph, Feeds]:
    nodes = Nodes("attentions_that_share_keys")
    for dtype, batch in (("float16", 1), ("float32", 2), ("float64", 1)):
        q = numbers(batch, 3, 16, dtype=dtype)
        k, v = (numbers(batch, 7, 8, dtype=dtype, seed=seed) for seed in (1, 2))
        nodes.add("Attention", q, k, v, q_num_heads=4, kv_num_heads=2)
    q, k = numbers(1, 4, 2, 3), numbers(1, 2, 34, 3)
    nodes.add("Attention", q, k, k)
    nodes.add("Attention", numbers(1, 1, 2, 130), numbers(1, 1, 20, 130), numbers(1, 1, 20, 3))
    return nodes.build()


@case
def networks_in_bfloat16() -> tuple[Graph, Feeds]:
    nodes, narrow = Nodes("networks_in_bfloat16"), "bfloat16"
    x, image = numbers(4, 40, dtype=narrow), numbers(1, 4, 9, 7, dtype=narrow)
    nodes.add("MatMul", x, numbers(40, 19, dtype=narrow, seed=2))
    nodes.add("Gemm", x, numbers(40, 5, dtype=narrow), numbers(5, dtype=narrow), alpha=0.5)
    nodes.add("Conv", image, numbers(6, 4, 3, 3, dtype=narrow), numbers(6, dtype=narrow))
    nodes.add("Softmax", x).add("ReduceSum", x, (1,)).add("ReduceMax", x, (0,)).add("ArgMin", x)
    nodes.add("LayerNormalization", x, numbers(40, dtype=narrow), numbers(40, dtype=narrow))
    nodes.add("MaxPool", image, kernel_shape=[2, 3]).add("GlobalAveragePool", image)
    nodes.add("Attention", *(numbers(1, 2, 10, 8, dtype=narrow, seed=n) for n in range(3)))
    return nodes.build()
