"""Python functions that workers call: one computation, on arrays of either memory."""

from __future__ import annotations

import plait as pl
from plait.graph.values.tensor import Array


@pl.operator(arrays="cuda")
def halve_on_gpu(x: Array) -> Array:
    return x * x.dtype.type(0.5)


@pl.operator()
def halve_on_host(x: Array) -> Array:
    return x * x.dtype.type(0.5)
