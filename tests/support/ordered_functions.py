"""Functions whose calls follow the order of items, where a worker can import them."""

from __future__ import annotations

import threading

import numpy as np
import plait as pl
from plait.graph.values.tensor import Array

S = pl.TensorSpec("float32", (4,))
GATE_S = 30.0

seen: list[int] = []
told: list[int] = []
gates: dict[int, threading.Event] = {}
begun: list[int] = []
BAD = -1.0


@pl.operator(S, inputs=[S], name="test_ordered.slow", effects=True, ordered=False)
def slow(x: Array) -> Array:
    """Wait until the item's gate is open, if it has one; with effects, on its lane's thread."""
    begun.append(int(x[0]))
    gate = gates.get(int(x[0]))
    assert gate is None or gate.wait(GATE_S)
    if (x == BAD).any():
        raise ValueError("a bad item")
    return x + 0


@pl.operator(S, inputs=[S], name="test_ordered.worked")
def worked(x: Array) -> Array:
    return x * 1


@pl.operator(S, inputs=[S], name="test_ordered.note")
def note(x: Array) -> Array:
    """Visibly keep state."""
    seen.append(int(x[0]))
    return x + 1


@pl.operator(S, inputs=[S], name="test_ordered.tell", effects=True)
def tell(x: Array) -> Array:
    tell_all(int(x[0]))
    return x + 1


@pl.operator(S, inputs=[S], name="test_ordered.declared", ordered=True)
def declared(x: Array) -> Array:
    tell_all(int(x[0]))
    return x + 1


@pl.operator(pl.TensorSpec("int32", (4,)), name="test_ordered.record")
def record(x: Array) -> Array:
    seen.append(int(x[0]))
    return x


def tell_all(value: int) -> None:
    """Keep state where no look at a function's source finds it."""
    getattr(told, "append")(value)  # noqa: B009


@pl.operator(S, inputs=[S], name="test_ordered.Sum", ordered=True)
class Sum:
    """The sum of all items so far."""

    def open(self, inputs: object) -> None:
        self.total = np.zeros(4, np.float32)

    def run(self, x: Array) -> Array:
        self.total += x
        return self.total.copy()
