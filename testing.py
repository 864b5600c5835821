"""plait as a backend of ONNX, for the tests that ONNX has for backends.

::

    from onnx.backend.test import BackendTest
    from plait.testing import OnnxBackend

    globals().update(BackendTest(OnnxBackend, __name__).enable_report().test_cases)

Needs the extra ``[onnx]``.
"""

from __future__ import annotations

import atexit
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, ClassVar, NamedTuple

import numpy as np

from .devices.device import Device
from .devices.kinds import get_kind
from .devices.registry import find
from .graph.core.ir import Graph
from .graph.core.nested import walk_nodes
from .graph.core.traits import RUNTIME
from .graph.formats.onnx import read_model
from .graph.operators.control import CONTROL_FLOW
from .graph.values.dtypes import TEXT
from .graph.values.errors import PlaitError
from .graph.values.tensor import Array
from .scheduler.bridges.blocking import run
from .scheduler.planner.api import plan
from .scheduler.runtime.faults.open_devices import close_shared, open_shared


class UnsupportedError(NotImplementedError):
    """The model needs a feature that plait lacks; the tests count it as not supported."""


class Prepared(NamedTuple):
    """A model that is ready to run.

    Attributes
    ----------
    graph : Graph
    devices : tuple of str or Device
    alternate : bool
        Give the nodes to the devices in turn.
    """

    graph: Graph
    devices: tuple[str | Device, ...]
    alternate: bool

    def run(self, inputs: Any, **_: Any) -> tuple[Array, ...]:
        """Return the outputs; inputs are in the graph's order, or by name."""
        fed = dict(inputs) if isinstance(inputs, Mapping) else self._named(inputs)
        names = [device if isinstance(device, str) else device.name for device in self.devices]
        pins = {
            path: names[index % len(names)]
            for index, (path, _, node) in enumerate(walk_nodes(self.graph))
            if node.op not in CONTROL_FLOW
        }
        made = plan(self.graph, self.devices, pin=pins if self.alternate else None)
        results = run(made, fed)
        return tuple(results[name] for name in self.graph.outputs)

    def _named(self, inputs: Sequence[Any]) -> dict[str, Array]:
        arrays = [np.asarray(value) for value in inputs]
        return dict(zip(self.graph.inputs, arrays, strict=False))


class OnnxBackend:
    """Runs ONNX models on the devices named by the class; subclasses name others.

    Attributes
    ----------
    devices : tuple of str or Device
    alternate : bool
        Give the nodes to the devices in turn, rather than by preference.

    Examples
    --------
    >>> from plait.testing import OnnxBackend
    >>> OnnxBackend.supports_device("CPU")
    True
    """

    devices: ClassVar[tuple[str | Device, ...]] = ("cpu",)
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
            If it uses a feature that plait lacks, which the message names.
        """
        try:
            graph = read_model(model, "model.onnx")
        except PlaitError as error:
            raise UnsupportedError(str(error)) from error
        names = [one if isinstance(one, str) else one.name for one in cls.devices]
        has_runtime = any(get_kind(name) == "ort" for name in names)
        for *_where, around, node in walk_nodes(graph):
            named = (around.tensors[name] for name in (*node.inputs, *node.outputs) if name)
            is_bound = RUNTIME in node.operator.traits or any(one.dtype == TEXT for one in named)
            if is_bound and not has_runtime:
                raise UnsupportedError(f"only ONNX Runtime has {node.op}, or takes text for it")
        return Prepared(graph, cls.devices, cls.alternate)

    @classmethod
    def run_model(cls, model: Any, inputs: Any, device: str = "CPU", **_: Any) -> tuple[Array, ...]:
        """Load a model and run it once."""
        return cls.prepare(model, device).run(inputs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Say whether tests for a kind of device are for this backend."""
        return device == "CPU"


class AlternatingBackend(OnnxBackend):
    """Runs every other node in another process, which is started once."""

    devices = ("cpu", "worker:0")
    alternate = True

    @classmethod
    def prepare(cls, model: Any, device: str = "CPU", **options: Any) -> Prepared:
        """Load a `ModelProto`; raises as `OnnxBackend.prepare`."""
        prepared = super().prepare(model, device, **options)
        kept = (_kept_open(one) if isinstance(one, str) else one for one in prepared.devices)
        return prepared._replace(devices=tuple(kept))


@cache
def _kept_open(name: str) -> Device:
    """Return a device that stays open until the interpreter ends."""
    found = find(name)
    open_shared(found, 1)
    atexit.register(close_shared, found)
    return found
