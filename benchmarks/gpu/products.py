"""How fast are products of matrices, in which precision, and are they exact and the same again?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import plait as pl
from gpu.loaded import loaded
from gpu.question import Row, answer, fact
from gpu.target import Target
from plait.graph.core.ir import Graph

RNG = np.random.default_rng(0)
COUNT = 8
"""Layers that are queued at once: alone, the host would be what takes time."""


def product(dtype: str, m: int, k: int, n: int) -> Graph:
    b = pl.GraphBuilder(f"product of {dtype}")
    op = "MatMulInteger" if dtype == "int8" else "MatMul"
    b.output("y", b.op(op, b.input("a", dtype, (m, k)), b.input("b", dtype, (k, n))))
    return b.build()


def numbers(dtype: str, *shape: int) -> np.ndarray[Any, Any]:
    if dtype == "int8":
        return RNG.integers(-128, 128, shape, np.int8)
    return RNG.standard_normal(shape).astype(dtype)


def rates(target: Target) -> Iterator[Row]:
    """Rates of large products."""
    n = target.size(4096, 8)
    ways: dict[str, tuple[str, dict[str, Any]]] = {"float32": ("float32", {})}
    if target.is_cuda:
        ways["float32 on tensor cores (tf32)"] = "float32", {"tf32": True}
        ways["float32 by generated kernels"] = "float32", {"cublas": None}
    ways |= {"float16": ("float16", {}), "float64": ("float64", {}), "int8": ("int8", {})}
    for title, (dtype, options) in ways.items():
        with target.opened(**options) as device, loaded(device, product(dtype, n, n, n)) as run:
            run.run({"a": numbers(dtype, n, n), "b": numbers(dtype, n, n)})  # zeros are faster
            seconds = run.times(target.size(0.5, 0.001), rounds=3).total_s
        yield Row(f"{title}, {n} x {n} x {n}", 2 * n**3 / seconds / 1e12, "Top/s")


def errors(target: Target) -> Iterator[Row]:
    """What products are worth: exact in integers, close in floats, the same again."""
    n = target.size(1024, 12)
    for dtype, at_most in {"float32": 1e-5, "float16": 1e-2, "int8": 0.0}.items():
        feeds = {"a": numbers(dtype, n, n), "b": numbers(dtype, n, n)}
        with target.opened() as device, loaded(device, product(dtype, n, n, n)) as run:
            found = [run.run(feeds)["y"] for _ in range(3)]
        exact = feeds["a"].astype(np.float64) @ feeds["b"].astype(np.float64)
        error = float(np.abs(found[0] - exact).max() / np.abs(exact).max())
        yield Row(f"{dtype}: largest error over largest result", error, at_most=at_most)
        same = len({each.tobytes() for each in found}) == 1
        yield fact(f"{dtype}: three runs give the same bits", same, True)


def dense(dtype: str, m: int, k: int, n: int, *, layered: bool) -> Graph:
    """Return `COUNT` products of one input, each with a row and Relu behind it if asked for."""
    b = pl.GraphBuilder("dense layers")
    x = b.input("x", dtype, (m, k))
    for number in range(COUNT):
        y = b.op("MatMul", x, numbers(dtype, k, n))
        b.output(f"y{number}", b.op("Relu", b.op("Add", y, numbers(dtype, n))) if layered else y)
    return b.build()


def layers(target: Target) -> Iterator[Row]:
    """What a row and Relu behind products take, many at once."""
    for dtype in ("float16", "float32"):
        with target.opened() as device:
            for sizes in target.size(((512, 1024, 1024), (8, 1024, 1024)), ((4, 8, 8),)):
                title = f"{' x '.join(map(str, sizes))}, {dtype}"
                for what, layered in {"product": False, "product, row, Relu": True}.items():
                    with loaded(device, dense(dtype, *sizes, layered=layered)) as run:
                        seconds = run.times(target.size(0.02, 0.001), rounds=3).total_s / COUNT
                    yield Row(f"{title}: {what}", seconds * 1e6, "µs")


def quantized(title: str, x: tuple[int, ...], w: tuple[int, ...]) -> Graph:
    """Return `COUNT` layers of one input, as dynamic quantization makes them."""
    b = pl.GraphBuilder(title)
    given = b.input("x", "float32", x)
    values, scale, zero = b.op("DynamicQuantizeLinear", given, outputs=["bytes", "scale", "zero"])
    for number in range(COUNT):
        factors, row = (values, numbers("int8", *w), zero), numbers("float32", w[-1])
        if len(w) == 2:
            sums = b.op("MatMulInteger", *factors)
        else:
            sums = b.op("ConvInteger", *factors, pads=[w[2] // 2, w[3] // 2] * 2)
            row = numbers("float32", w[0], 1, 1)
        reals = b.op("Mul", b.op("Cast", sums, to="float32"), scale)
        b.output(f"y{number}", b.op("Relu", b.op("Add", reals, row)))
    return b.build()


def around_zero_points(target: Target) -> Iterator[Row]:
    """What quantized layers take, and whether cuBLAS gives the bits of generated kernels."""
    ways: dict[str, dict[str, Any]] = {"quantized": {}}
    if target.is_cuda:
        ways["quantized, by generated kernels"] = {"cublas": None}
    layers = {
        "512 x 1024 x 1024": ((512, 1024), (1024, 1024)),
        "128 x 768 x 3072": ((128, 768), (768, 3072)),
        "8 x 4096 x 4096": ((8, 4096), (4096, 4096)),
        "single cells, 256 to 64 channels, 8 x 56 x 56": ((8, 256, 56, 56), (64, 256, 1, 1)),
        "3x3, 64 to 64 channels, 8 x 56 x 56": ((8, 64, 56, 56), (64, 64, 3, 3)),
    }
    small = {"4 x 9 x 6": ((4, 9), (9, 6)), "3x3": ((1, 3, 4, 5), (2, 3, 3, 3))}
    for title, (x, w) in target.size(layers, small).items():
        graph, feeds, found = quantized(title, x, w), {"x": numbers("float32", *x)}, set()
        for what, options in ways.items():
            with target.opened(**options) as device, loaded(device, graph) as run:
                found.add(b"".join(each.tobytes() for each in run.run(feeds).values()))
                seconds = run.times(target.size(0.02, 0.001), rounds=3).total_s / COUNT
            yield Row(f"{title}: {what}", seconds * 1e6, "µs")
        yield fact(f"{title}: the same bits", len(found) == 1, True)


def captures(target: Target) -> Iterator[Row]:
    """Whether CuPy's own products can be captured: why plait calls cuBLAS itself."""
    cupy = target.cupy()
    a = cupy.ones((256, 256), cupy.float32)
    result = cupy.empty_like(a)
    cupy.matmul(a, a, out=result)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        stream.begin_capture()
        try:
            cupy.matmul(a, a, out=result)
            refused = False
        except Exception:
            refused = True
        with suppress(Exception):  # what was refused may have spoilt the recording
            stream.end_capture()
    yield fact("cupy.matmul is refused during capture", refused, True)


if __name__ == "__main__":
    answer(rates, layers, around_zero_points, errors, captures)
