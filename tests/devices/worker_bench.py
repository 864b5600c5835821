"""Parts that tests of workers share: graphs of calls, buffers for them, and a gate to wait at."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import plait as pl
from bound import moving
from patience import WAIT_S
from plait.devices import Device, Program
from plait.devices.event import Event
from plait.devices.memory import ALIGNMENT, SharedArena, View
from plait.devices.worker import launch as worker_launch
from plait.devices.worker.device import WorkerDevice
from plait.graph.core.ir import Graph
from plait.graph.values.tensor import Array, TensorSpec

from . import worker_functions as functions


def calls(*functions: Callable[..., Array], n: int = 4, **attributes: Any) -> Graph:
    """Return x → function → function → y; all get the same attributes."""
    b = pl.GraphBuilder("calls")
    tensor = b.input("x", "float32", (n,))
    for number, function in enumerate(functions):
        name = f"{function.__name__}{number}"
        tensor = b.call(function, tensor, name=name, **attributes)
    b.output("y", tensor)
    return b.build()


def unary(*ops: str) -> Graph:
    """Return x → op → op → y."""
    b = pl.GraphBuilder("unary")
    tensor = b.input("x", "float32", (4,))
    for op in ops:
        tensor = b.op(op, tensor)
    b.output("y", tensor)
    return b.build()


class Bound:
    """A graph bound on an open device to shared buffers, each its own."""

    def __init__(self, device: Device, graph: Graph, *, measure: bool = False) -> None:
        self.device, self.graph = device, graph
        specs = moving(device, graph)
        self.arena = SharedArena(sum(map(_room, specs.values())))
        self.views = place(device, self.arena, specs)
        try:
            self.program = device.compile(graph, self.views, measure=measure)
        except BaseException:
            self.close()
            raise

    def submit(self, **inputs: Array) -> Event:
        for name, value in inputs.items():
            self.views[name].array[...] = value
        return self.device.submit(self.program)

    def run(self, **inputs: Array) -> dict[str, Array]:
        self.submit(**inputs).wait(WAIT_S)
        return {name: self.views[name].array.copy() for name in self.graph.outputs}

    def close(self) -> None:
        self.views.clear()
        self.arena.close()

    def __enter__(self) -> Bound:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def place(device: Device, arena: SharedArena, specs: dict[str, TensorSpec]) -> dict[str, View]:
    """Return views of tensors that lie one behind the other."""
    views, offset = {}, 0
    for name, spec in specs.items():
        views[name] = device.view(arena, offset, spec)
        offset += _room(spec)
    return views


def _room(spec: TensorSpec) -> int:
    return -(-max(spec.nbytes, 1) // ALIGNMENT) * ALIGNMENT


class Gate:
    """A named pipe at which `worker_functions.wait_for` waits."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        os.mkfifo(path)

    def arrived(self) -> int:
        """Wait until somebody waits there; return what is to be closed to let it go on."""
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            try:
                return os.open(self.path, os.O_WRONLY | os.O_NONBLOCK)
            except OSError as error:
                if error.errno != errno.ENXIO:  # nobody is there
                    raise
                time.sleep(0.001)
        raise TimeoutError("nobody came to the gate")

    def open(self) -> None:
        os.close(self.arrived())


class Bench:
    """A worker, and programs that are tried on it."""

    def __init__(self) -> None:
        self.device = WorkerDevice("worker:0")
        self.device.open()
        self._bound: list[Bound] = []

    def bind(self, function: Callable[..., Array], **attributes: Any) -> Program:
        """Return a program of one call, of zeros."""
        self._bound.append(Bound(self.device, calls(function, **attributes)))
        return self._bound[-1].program

    def submit(self, function: Callable[..., Array], **attributes: Any) -> Event:
        return self.device.submit(self.bind(function, **attributes))

    def works(self) -> bool:
        self.submit(functions.scale).wait(WAIT_S)
        return True

    @property
    def pid(self) -> int:
        assert self.device.pid is not None
        return self.device.pid

    @property
    def process(self) -> worker_launch.Process:
        assert self.device._client is not None
        return self.device._client._process

    def close(self) -> None:
        self.device.close()
        for bound in self._bound:
            bound.close()
