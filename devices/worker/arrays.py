"""The arrays of a worker process, on shared memory."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from typing import Any

import numpy as np

from ...graph.core.ir import Graph
from ...graph.values.tensor import Array, TensorSpec
from ..function_steps import Step
from ..memory import SHARED, Arena, View, host_view


class ProcessArrays:
    """The memory of a worker process and its array library: numpy's, unless a subclass differs."""

    kind = "cpu"
    """The kind of device that lends its kernels."""
    module: Any = np

    def __init__(self, name: str) -> None:
        self._name = name

    def arena(self, mapping: mmap.mmap) -> Arena:
        """Return the memory that `mapping`, a file of the parent, holds or describes."""
        return Arena(SHARED, len(mapping), np.frombuffer(mapping, np.uint8))

    def view(self, arena: Arena, offset: int, spec: TensorSpec) -> View:
        return host_view(arena, offset, spec)

    def constants(self, graph: Graph) -> Mapping[str, Array]:
        return graph.constants

    def as_array(self, value: Any) -> Array:
        """Convert `value`, the result of a Python function, to an array."""
        return np.asarray(value)

    def measured(self, step: Step) -> Step:
        """Return a step that ends when the work of `step` has ended."""
        return step

    def settle(self) -> None:
        """Wait until all started work has ended.

        Raises DeviceLostError if the process cannot compute any more.
        """
