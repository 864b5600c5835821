"""Python functions for workers: well-behaved ones, and some that are not."""

from __future__ import annotations

import atexit
import builtins
import os
import signal
import stat
import time
from collections.abc import Sequence

import numpy as np
import plait as pl
from plait.devices.kernels.registry import ArrayModule, Arrays, kernel
from plait.graph.core.attribute import Attributes
from plait.graph.core.operator import Call, define
from plait.graph.values.tensor import Array, TensorSpec


class CustomError(Exception):
    pass


@pl.operator(TensorSpec("int64", (1,)))
def process_id(x: Array) -> Array:
    return np.array([os.getpid()])


@pl.operator()
def scale(x: Array, *, by: float = 2.0) -> Array:
    return (x * np.float32(by)).astype("float32")


@pl.operator([TensorSpec("float32", ("n",))] * 2, inputs=[TensorSpec("float32", ("n",))])
def split_sign(x: Array) -> tuple[Array, Array]:
    return np.maximum(x, 0), np.minimum(x, 0)


@pl.operator()
def fail_if_negative(x: Array) -> Array:
    if (x < 0).any():
        raise ValueError("a number is negative")
    return x


@pl.operator()
def fail_in_its_own_way(x: Array) -> Array:
    raise CustomError("not one of Python's")


class Own(BaseException):
    pass


@pl.operator()
def raise_what_is_no_exception(x: Array, *, kind: str = "") -> Array:
    raise {"Own": Own, **vars(builtins)}[kind]("no Exception")


class MuteError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pl.operator()
def fail_without_a_word(x: Array) -> Array:
    raise MuteError


@pl.operator()
def fail_at_length(x: Array) -> Array:
    raise RuntimeError("x" * 50_000_000)


@pl.operator()
def return_another_shape(x: Array) -> Array:
    return np.concatenate([x, x])


@pl.operator()
def write_to_input(x: Array) -> Array:
    x += 1
    return x


@pl.operator(name="named_by_hand")
def negate(x: Array) -> Array:
    return -x


@pl.operator()
def die(x: Array) -> Array:
    os.kill(os.getpid(), signal.SIGKILL)
    return x


@pl.operator()
def leave(x: Array, *, status: int = 0) -> Array:
    os._exit(status)


@pl.operator()
def wait_for(x: Array, *, path: str = "") -> Array:
    """Wait until somebody has opened a named pipe for writing, and closed it again."""
    with open(path, "rb") as pipe:
        pipe.read()
    return x


@pl.operator()
def note(x: Array, *, path: str = "") -> Array:
    with open(path, "a") as file:
        file.write(".")
    return x


@pl.operator()
def send_garbage(x: Array) -> Array:
    for fd in _sockets():
        os.write(fd, b"\xff" * 64)
    return x


@pl.operator()
def close_sockets(x: Array) -> Array:
    for fd in _sockets():
        os.close(fd)
    return x


@pl.operator()
def die_before_a_child(x: Array, *, path: str = "") -> Array:
    """Leave behind a forked process that has inherited everything."""
    child = os.fork()
    if child == 0:
        time.sleep(3600)
        os._exit(0)
    with open(path, "w") as file:
        file.write(str(child))
    os.kill(os.getpid(), signal.SIGKILL)
    return x


@pl.operator()
def linger(x: Array) -> Array:
    """See to it that the process does not end by itself."""
    atexit.register(time.sleep, 600)
    return x


define("test.Halve", inputs="x")(lambda call: _halved(call))


def _halved(call: Call) -> Sequence[TensorSpec]:
    return (call.spec(0),)


@kernel("test.Halve")
def halve(xp: ArrayModule, inputs: Arrays, outputs: Arrays, attributes: Attributes) -> None:
    xp.multiply(inputs[0], 0.5, out=outputs[0])


def _sockets() -> list[int]:
    kinds = {fd: os.fstat(fd).st_mode for fd in range(3, 64) if _is_open(fd)}
    return [fd for fd, mode in kinds.items() if stat.S_ISSOCK(mode)]


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True
