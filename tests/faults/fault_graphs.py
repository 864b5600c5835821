"""Graphs over a device that dies, for tests of faults, and what their items should give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import plait as pl
from plait.graph.core.ir import Graph
from plait.graph.values.tensor import Array

N = 8


def halves(*shape: int | str) -> Graph:
    """Return y = relu(x) + relu(x), in two nodes."""
    builder = pl.GraphBuilder("halves")
    h = builder.op("Relu", builder.input("x", "float32", shape or (N,)), name="first")
    builder.output("y", builder.op("Add", h, h, name="second"))
    return builder.build()


def calling(function: Callable[..., Array], **attributes: Any) -> Graph:
    """Return y = relu(function(x))."""
    builder = pl.GraphBuilder("calling")
    h = builder.call(function, builder.input("x", "float32", (N,)), name="call", **attributes)
    builder.output("y", builder.op("Relu", h, name="second"))
    return builder.build()


def feeds(value: float, n: int = N) -> dict[str, Any]:
    return {"x": np.arange(n, dtype=np.float32) + value}


def answer(value: float, n: int = N) -> list[float]:
    x: Array = feeds(value, n)["x"]
    return (2 * np.maximum(x, 0)).tolist()  # type: ignore[no-any-return]
