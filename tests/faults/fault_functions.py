"""Python functions that bring down or hold up the worker they run on."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from typing import Any

import plait as pl
from plait.devices.kernels.registry import kernel
from plait.devices.worker import process
from plait.graph.core.attribute import Attribute, Kind
from plait.graph.core.checks import Checks
from plait.graph.core.operator import Call, define
from plait.graph.values.tensor import Array, TensorSpec

FATAL = 666


@pl.operator()
def twice(x: Array) -> Array:
    return x + x


@pl.operator()
def die_of_some(x: Array) -> Array:
    """Kill the process if the first number is the fatal one."""
    if x[0] == FATAL:
        os.kill(os.getpid(), signal.SIGKILL)
    return x + x


@pl.operator()
def die_once(x: Array, *, path: str = "") -> Array:
    """Kill the process, the first time."""
    if not os.path.exists(path):
        with open(path, "w"):
            pass
        os.kill(os.getpid(), signal.SIGKILL)
    return x + x


@pl.operator(effects=True)
def write_and_die(x: Array, *, path: str = "") -> Array:
    """Add a line to a file; kill the process if the first number is the fatal one."""
    with open(path, "a") as file:
        file.write(f"{x[0]}\n")
    if x[0] == FATAL:
        os.kill(os.getpid(), signal.SIGKILL)
    return x + x


@pl.operator()
def hang_on_some(x: Array, *, path: str = "") -> Array:
    """Wait for ever, at a named pipe that nobody closes, if the first number is the fatal one."""
    if x[0] == FATAL:
        with open(path, "rb") as pipe:
            pipe.read()
    return x + x


@pl.operator()
def run_out_of_memory_on_some(x: Array) -> Array:
    if x[0] == FATAL:
        raise MemoryError("8 EiB")
    return x + x


def hang_once(path: str) -> None:
    """Wait for ever, at a named pipe that nobody closes, the first time on a worker."""
    if process.serving and not os.path.exists(f"{path}.reached"):
        with open(f"{path}.reached", "w"):
            pass
        with open(path, "rb") as pipe:
            pipe.read()


@define("test.DoubleLate", inputs="x", attributes={"path": Attribute(Kind.STRING)})
def double_late_spec(call: Call) -> tuple[TensorSpec]:
    return (call.spec(0),)


@kernel("test.DoubleLate")
def double_late(
    xp: Any, inputs: Sequence[Array], outputs: Sequence[Array], attributes: Mapping[str, Any]
) -> None:
    hang_once(attributes["path"])
    xp.add(inputs[0], inputs[0], out=outputs[0])


@pl.operator()
class OpenedLate:
    """Doubles; when it is opened, it hangs once."""

    def prepare(self, call: Call, check: Checks) -> None:
        self._path = call.attributes["path"]

    def open(self, inputs: Sequence[Array | None]) -> None:
        hang_once(self._path)

    def run(self, x: Array, *, path: str = "") -> Array:
        return x + x
