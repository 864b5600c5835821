"""Do kernels of all kinds give what the cpu gives, in sizes that fill no block?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import plait as pl
from gpu.loaded import floats, loaded
from gpu.question import Row, answer
from gpu.target import Target
from plait.graph.values.dtypes import dtype_of, kind_of
from plait.graph.values.tensor import Array

CLOSE = {"float16": 3e-2, "bfloat16": 5e-2}
"""Largest difference over largest result, where it is not that of float32."""
DTYPES = ("float32", "float16", "bfloat16", "float64")
RUNS = 3
"""So that a recorded graph is replayed."""


def reductions(target: Target) -> Iterator[Row]:
    """Sums and the like, over lines short and long."""
    for dtype in ("float32", "float16"):
        b, feeds = _begun(f"reductions of {dtype}", dtype, x=(5, 37, 67), wide=(3, 4099))
        for name, x in (("x", "x"), ("wide", "wide")):
            for op in ("ReduceSum", "ReduceMax", "ReduceMean"):
                b.output(f"{op} {name}", b.op(op, x, np.array([-1]), keepdims=True))
                b.output(f"{op} {name}, first", b.op(op, x, np.array([0]), keepdims=False))
            b.output(f"Softmax {name}", b.op("Softmax", x, axis=-1))
            b.output(f"LogSoftmax {name}", b.op("LogSoftmax", x, axis=0))
            b.output(f"ArgMax {name}", b.op("ArgMax", x, axis=-1))
            b.output(f"CumSum {name}", b.op("CumSum", x, np.array(1)))
        scale = b.constant(floats(67).astype(dtype_of(dtype)))
        b.output("LayerNormalization", b.op("LayerNormalization", "x", scale, axis=-1))
        values, indices = b.op("TopK", "wide", np.array([5]), outputs=2)
        b.output("TopK", values)
        b.output("TopK, indices", indices)
        yield from _same(target, b, feeds)


def movement(target: Target) -> Iterator[Row]:
    """What is scattered, gathered, resized, padded and turned."""
    b, feeds = _begun("movement", "float32", x=(1, 3, 37, 53), flat=(33, 45))
    cells = b.constant(np.array([[3, 4], [32, 44], [0, 0]]))
    b.output("ScatterND", b.op("ScatterND", "flat", cells, floats(3)))
    rows = b.constant(np.random.default_rng(0).permuted(np.tile(np.arange(33), (45, 1)), axis=1).T)
    b.output("ScatterElements", b.op("ScatterElements", "flat", rows, floats(33, 45), axis=0))
    b.output("GatherElements", b.op("GatherElements", "flat", rows, axis=0))
    b.output("Gather", b.op("Gather", "flat", np.array([31, 0, 7]), axis=1))
    for mode in ("nearest", "linear", "cubic"):
        sizes = b.constant(np.array([1, 3, 61, 41]))
        b.output(f"Resize {mode}", b.op("Resize", "x", None, None, sizes, mode=mode))
    b.output("Pad", b.op("Pad", "flat", np.array([2, 3, 1, 4]), mode="reflect"))
    b.output("Transpose", b.op("Transpose", "x", perm=(3, 1, 0, 2)))
    b.output("Concat", b.op("Concat", "flat", "flat", axis=1))
    yield from _same(target, b, feeds)  # fmt: skip


def networks(target: Target) -> Iterator[Row]:
    """Windows and attention."""
    for dtype in ("float32", "float16"):
        kinds = dtype_of(dtype)
        b, feeds = _begun(
            f"networks of {dtype}", dtype,
            x=(2, 6, 19, 23), q=(1, 3, 35, 24), k=(1, 3, 41, 24), v=(1, 3, 41, 24),
        )  # fmt: skip
        weights, turned = (floats(*shape).astype(kinds) for shape in ((7, 6, 3, 3), (6, 5, 3, 3)))
        b.output("Conv", b.op("Conv", "x", weights, pads=(1,) * 4))
        b.output("Conv, steps", b.op("Conv", "x", weights, strides=(2, 2), dilations=(2, 1)))
        alone = floats(6, 1, 5, 5).astype(kinds)
        b.output("Conv, each channel", b.op("Conv", "x", alone, group=6, pads=(2,) * 4))
        b.output("ConvTranspose", b.op("ConvTranspose", "x", turned, strides=(2, 2)))
        b.output("MaxPool", b.op("MaxPool", "x", kernel_shape=(3, 3), strides=(2, 2)))
        b.output("AveragePool", b.op("AveragePool", "x", kernel_shape=(3, 2), pads=(1, 0, 1, 1)))
        b.output("Attention", b.op("Attention", "q", "k", "v"))
        yield from _same(target, b, feeds)


def products(target: Target) -> Iterator[Row]:
    """Products by libraries, and with a bias and more behind them."""
    for dtype in DTYPES:
        kinds = dtype_of(dtype)
        b, feeds = _begun(f"products of {dtype}", dtype, x=(33, 70), stack=(3, 17, 40))
        product = b.op("MatMul", "x", floats(70, 51).astype(kinds))
        b.output("MatMul", product)
        b.output("with a bias", b.op("Relu", b.op("Add", product, floats(51).astype(kinds))))
        b.output("stacked", b.op("MatMul", "stack", floats(3, 40, 29).astype(kinds)))
        yield from _same(target, b, feeds)
    b, feeds = _begun("products of int8", "int8", x=(32, 64))
    factors = np.random.default_rng(0).integers(-128, 128, (64, 48), np.int8)
    b.output("MatMulInteger", b.op("MatMulInteger", "x", factors))
    yield from _same(target, b, feeds)


def _begun(
    name: str, dtype: str, **shapes: tuple[int, ...]
) -> tuple[pl.GraphBuilder, dict[str, Array]]:
    b, feeds = pl.GraphBuilder(name), dict[str, Array]()
    for number, (each, shape) in enumerate(shapes.items()):
        b.input(each, dtype, shape)
        feeds[each] = (8 if dtype == "int8" else 1) * floats(*shape, seed=number)
        feeds[each] = feeds[each].astype(dtype_of(dtype))
    return b, feeds


def _same(target: Target, b: pl.GraphBuilder, feeds: dict[str, Array]) -> Iterator[Row]:
    """Yield the largest difference to the cpu of each way to launch."""
    graph = b.build()
    wanted = pl.run(graph, feeds, devices=["cpu"])
    for way, options in target.ways.items():
        if options.get("compiler", ...) is None:
            continue  # CuPy's kernels are not ours
        with target.opened(**options) as device:
            refused = [n.op for n in graph.nodes if not device.supports(n, graph.call(n)).ok]
            if refused:
                yield Row(f"{graph.name}, {way}", f"refused: {refused}", status="failed")
                continue
            with loaded(device, graph) as run:
                for _ in range(RUNS):
                    found = run.run(feeds)
        worst = {name: _difference(found[name], wanted[name]) for name in wanted}
        most = max(worst, key=worst.__getitem__)
        close = max(CLOSE.get(each.dtype.name, 1e-4) for each in wanted.values())
        yield Row(f"{graph.name}, {way}: difference", worst[most], at_most=close, note=most)


def _difference(found: Array, wanted: Array) -> float:
    if kind_of(wanted.dtype) != "f":
        return float(np.count_nonzero(found != wanted))
    a, b = (each.astype(np.float64) for each in (found, wanted))
    return float(np.abs(a - b).max() / (np.abs(b).max() or 1))


EXPERIMENTS: tuple[Any, ...] = (reductions, movement, networks, products)

if __name__ == "__main__":
    answer(*EXPERIMENTS)
