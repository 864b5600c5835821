"""Are results the same bits as numpy's, where they should be, and how close are they elsewhere?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import plait as pl
from gpu.loaded import loaded
from gpu.question import Row, answer
from gpu.target import Target
from plait.graph.core.ir import Graph

Floats: TypeAlias = np.ndarray[Any, Any]
RNG = np.random.default_rng(0)

SAME: Mapping[str, Callable[..., Floats]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
}
CLOSE: Mapping[str, Callable[..., Floats]] = {
    "Exp": np.exp,
    "Sin": np.sin,
    "Tanh": np.tanh,
}
ULPS = 4
"""More than float32 functions are off by (CUDA C++ Programming Guide, mathematical functions)."""
FUSED = "a * b + c"


def feeds(target: Target) -> dict[str, Floats]:
    """Return numbers of all sizes, among them denormal ones, and moderate ones."""
    size = target.size(1_000_000, 500)
    made = {}
    for name in "abc":
        numbers = RNG.standard_normal(size) * 10.0 ** RNG.integers(-5, 5, size)
        numbers[: size // 10] *= 1e-38
        made[name] = numbers.astype(np.float32)
    return made | {"moderate": RNG.uniform(-3, 3, size).astype(np.float32)}


def operators(size: int) -> Graph:
    """Return a graph of all operators, and of a product that something is added to."""
    b = pl.GraphBuilder("operators")
    *abc, moderate = (b.input(name, "float32", (size,)) for name in ("a", "b", "c", "moderate"))
    for op in SAME:
        b.output(op, b.op(op, *abc[:2]))
    b.output("Sqrt", b.op("Sqrt", b.op("Abs", abc[0])))
    b.output(FUSED, b.op("Add", b.op("Mul", *abc[:2]), abc[2]))
    for op in CLOSE:
        b.output(op, b.op(op, moderate))
    return b.build()


def expected(a: Floats, b: Floats, c: Floats, moderate: Floats) -> dict[str, Floats]:
    """Return what numpy gives, for functions as float64."""
    with np.errstate(all="ignore"):
        exact = {op: call(a, b) for op, call in SAME.items()}
        exact |= {"Sqrt": np.sqrt(abs(a)), FUSED: a * b + c}
    return exact | {op: call(moderate.astype(np.float64)) for op, call in CLOSE.items()}


def bits(target: Target) -> Iterator[Row]:
    """Bits of arithmetic and of functions, against numpy's."""
    given = feeds(target)
    wanted = expected(**given)
    for way, options in _ways(target).items():
        graph = operators(given["a"].size)
        with target.opened(**options) as device, loaded(device, graph) as run:
            found = run.run(given)
        for op in wanted:
            yield from _compared(op, way, found[op], wanted[op])


def _compared(op: str, way: str, found: Floats, wanted: Floats) -> Iterator[Row]:
    title, is_ours = f"{op}, {way}", way == "plait's kernels"
    if op in CLOSE:
        steps = np.spacing(np.abs(wanted).astype(np.float32)).astype(np.float64)
        error = float((np.abs(found - wanted) / steps).max())
        yield Row(f"{title}: largest error", error, "ulp", at_most=ULPS if is_ours else None)
        return
    same = (found == wanted) | (np.isnan(found) & np.isnan(wanted))
    at_least = 1.0 if is_ours else None
    yield Row(f"{title}: share of numpy's bits", float(same.mean()), at_least=at_least)
    tiny = (wanted != 0) & (np.abs(wanted) < np.finfo(np.float32).tiny)
    if tiny.any():
        yield Row(f"{title}: of these where they are denormal", float(same[tiny].mean()))


def _ways(target: Target) -> dict[str, dict[str, Any]]:
    """Return how kernels can be made: CuPy's flush denormal numbers, say its sources."""
    ways: dict[str, dict[str, Any]] = {"plait's kernels": {}}
    if target.has_cupy:
        from plait.devices.cuda.nvrtc import compile_cubin

        ways["CuPy's kernels"] = {"compiler": None}
        ways["fast math"] = {"compiler": partial(compile_cubin, fast_math=True)}
    return ways


if __name__ == "__main__":
    answer(bits)
