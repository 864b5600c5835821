"""The arrays that a worker process computes with: numpy's, on memory that it shares."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from ...graph.ir import Graph
from ...graph.tensor import Array, TensorSpec
from ..function_steps import Step
from ..memory import SHARED, Arena, View, host_view


class ProcessArrays(Protocol):
    """What a worker process adds to its messages: memory, and a library of arrays on it."""

    @property
    def kind(self) -> str:
        """Return the kind of device whose kernels it runs."""
        ...

    @property
    def module(self) -> Any: ...

    def arena(self, mapping: mmap.mmap) -> Arena:
        """Return the memory in a file of the parent's, or that such a file describes."""
        ...

    def view(self, arena: Arena, offset: int, spec: TensorSpec) -> View: ...

    def constants(self, graph: Graph) -> Mapping[str, Array]:
        """Return a graph's constants as arrays of the library."""
        ...

    def as_array(self, value: Any) -> Array:
        """Return what a Python function returned as an array of the library."""
        ...

    def measured(self, step: Step) -> Step:
        """Return a step that ends when its work has ended."""
        ...

    def settle(self) -> None:
        """Wait until all that was begun has ended.

        Raises DeviceLostError if nothing more can be computed in this process.
        """
        ...


class HostArrays:
    """Arrays of numpy; `name` is the worker's."""

    kind = "cpu"
    module = np

    def __init__(self, name: str) -> None:
        self._name = name

    def arena(self, mapping: mmap.mmap) -> Arena:
        """Return the file's memory."""
        return Arena(SHARED, len(mapping), np.frombuffer(mapping, np.uint8))

    def view(self, arena: Arena, offset: int, spec: TensorSpec) -> View:
        return host_view(arena, offset, spec)

    def constants(self, graph: Graph) -> Mapping[str, Array]:
        return graph.constants

    def as_array(self, value: Any) -> Array:
        """Return an array of numpy's."""
        return np.asarray(value)

    def measured(self, step: Step) -> Step:
        return step

    def settle(self) -> None:
        """Do nothing: numpy is done when it returns."""
