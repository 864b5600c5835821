"""Python functions that misbehave, where a worker can import them."""

from __future__ import annotations

import plait as pl
from plait.graph.tensor import Array


@pl.operator()
def wait_at(x: Array, *, gate: str = "") -> Array:
    """Wait until somebody writes a byte to a named pipe."""
    with open(gate, "rb", buffering=0) as pipe:
        pipe.read(1)
    return x


@pl.operator()
def fail(x: Array) -> Array:
    """Raise."""
    raise ValueError("injected")
