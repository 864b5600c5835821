"""plait behind the interface that ONNX tests its backends by.

::

    from onnx.backend.test import BackendTest
    from plait.testing import OnnxBackend

    globals().update(BackendTest(OnnxBackend, __name__).enable_report().test_cases)

Needs ``pip install 'plait[onnx]'``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import numpy as np

from .graph.errors import PlaitError
from .graph.formats.onnx import read_model
from .graph.infer import infer_shapes
from .graph.ir import Graph
from .graph.tensor import Array
from .scheduler import PlanError, plan, run

DECIDING_SIZE = 1024
"""Inputs up to this many elements may decide shapes: they are made constants where need be."""


class UnsupportedError(NotImplementedError):
    """The model uses what plait says it does not have; the tests count it as not supported."""


class Prepared(NamedTuple):
    """A model that is ready to run.

    Attributes
    ----------
    graph : Graph
    devices : tuple of str
    alternate : bool
        Give the nodes to the devices in turn.
    """

    graph: Graph
    devices: tuple[str, ...]
    alternate: bool

    def run(self, inputs: Any, **_: Any) -> tuple[Array, ...]:
        """Return the outputs; inputs are in the graph's order, or by name.

        Raises
        ------
        UnsupportedError
            If a shape depends on what is only known while the model runs.
        """
        fed = dict(inputs) if isinstance(inputs, Mapping) else self._named(inputs)
        graph = _known_shapes(self.graph, fed)
        fed = {name: fed[name] for name in graph.inputs}
        pins = {
            node.name: self.devices[index % len(self.devices)]
            for index, node in enumerate(graph.nodes)
        }
        made = plan(graph, self.devices, pin=pins if self.alternate else None)
        results = run(made, fed)
        return tuple(results[name] for name in graph.outputs)

    def _named(self, inputs: Sequence[Any]) -> dict[str, Array]:
        arrays = [np.asarray(value) for value in inputs]
        return dict(zip(self.graph.inputs, arrays, strict=False))


class OnnxBackend:
    """Runs ONNX models on the devices named by the class; subclasses name others.

    Attributes
    ----------
    devices : tuple of str
    alternate : bool
        Give the nodes to the devices in turn, rather than by preference.
    """

    devices: ClassVar[tuple[str, ...]] = ("cpu",)
    alternate: ClassVar[bool] = False

    @classmethod
    def is_compatible(cls, model: Any, device: str = "CPU", **_: Any) -> bool:
        """Say whether a model can be loaded."""
        try:
            cls.prepare(model, device)
        except UnsupportedError:
            return False
        return True

    @classmethod
    def prepare(cls, model: Any, device: str = "CPU", **_: Any) -> Prepared:
        """Load a `ModelProto`.

        Raises
        ------
        UnsupportedError
            If it uses what plait lacks; the message says what.
        """
        try:
            return Prepared(read_model(model, "model.onnx"), cls.devices, cls.alternate)
        except PlaitError as error:
            raise UnsupportedError(str(error)) from error

    @classmethod
    def run_model(cls, model: Any, inputs: Any, device: str = "CPU", **_: Any) -> tuple[Array, ...]:
        """Load a model and run it once."""
        return cls.prepare(model, device).run(inputs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Say whether tests for a kind of device are for this backend."""
        return device == "CPU"


class AlternatingBackend(OnnxBackend):
    """Runs every other node in another process."""

    devices = ("cpu", "worker:0")
    alternate = True


def _known_shapes(graph: Graph, fed: Mapping[str, Array]) -> Graph:
    """Return the graph, with small inputs made constants until no shape depends on a value."""
    candidates = [name for name in graph.inputs if np.size(fed[name]) <= DECIDING_SIZE]
    while True:
        try:
            plan(graph).for_shapes({name: np.shape(fed[name]) for name in graph.inputs})
        except PlanError as error:
            if not candidates:
                raise UnsupportedError(str(error)) from error
            graph = _fixed(graph, candidates.pop(), fed)
        else:
            return graph


def _fixed(graph: Graph, name: str, fed: Mapping[str, Array]) -> Graph:
    """Return the graph with an input made a constant."""
    value = np.array(fed[name], order="C")
    value.flags.writeable = False
    inputs = tuple(other for other in graph.inputs if other != name)
    return infer_shapes(replace(graph, inputs=inputs, constants={**graph.constants, name: value}))
