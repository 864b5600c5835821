"""Python functions on arrays of a GPU, for workers: well-behaved ones, and some that are not.

In the process of a worker on a fake GPU, `double_worker` stands in for CuPy.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from importlib import import_module
from typing import Any

import numpy as np
import plait as pl
from plait.graph.values.tensor import Array, TensorSpec

WILD = """
extern "C" __global__ void write_wild(float *x, unsigned long long far) { x[far] = 1; }
"""
ENDLESS = """
extern "C" __global__ void compute_endlessly(volatile float *x) { while (x[0] > 0) { } }
"""


def cupy() -> Any:
    """Return CuPy, or what stands in for it in this process."""
    double = sys.modules.get("double_worker")
    return import_module("cupy") if double is None else double.cupy


def launch_wild(x: Array) -> None:
    """Queue a kernel that breaks the context of the process when it runs."""
    module = cupy()
    if hasattr(module, "gpu"):
        module.gpu.break_next()
        module.launch(lambda: None)
    else:
        module.RawKernel(WILD, "write_wild")((1,), (1,), (x, np.uint64(1 << 40)))


@pl.operator(arrays="cuda")
def scale(x: Array, *, by: float = 2.0) -> Array:
    return x * x.dtype.type(by)


@pl.operator()
def scale_on_host(x: Array, *, by: float = 2.0) -> Array:
    return x * np.float32(by)


@pl.operator([TensorSpec("float32", ("n",))] * 2, inputs=[TensorSpec("float32", ("n",))],
             arrays="cuda")  # fmt: skip
def split_sign(x: Array) -> tuple[Array, Array]:
    return cupy().maximum(x, 0), cupy().minimum(x, 0)


@pl.operator(arrays="cuda")
def add_constant(x: Array, constant: Array) -> Array:
    return x + constant


@pl.operator(TensorSpec("int64", (1,)), arrays="cuda")
def process_id(x: Array) -> Array:
    return x[:1].astype("int64") * 0 + os.getpid()


@pl.operator(arrays="cuda")
def return_a_host_array(x: Array) -> Array:
    return np.zeros(x.shape, x.dtype)


@pl.operator(arrays="cuda")
def return_another_shape(x: Array) -> Array:
    return x[:1]


@pl.operator(arrays="cuda")
def fail_if_negative(x: Array) -> Array:
    if float(x.min()) < 0:
        raise ValueError("a number is negative")
    return x


@pl.operator(arrays="cuda")
def end_if_negative(x: Array, *, how: str = "") -> Array:
    """Bring down the process."""
    if float(x.min()) < 0:
        END[how](x)
    return x * x.dtype.type(2)


def die(_: Array) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def crash(_: Array) -> None:
    ctypes.string_at(0)


def leave(_: Array) -> None:
    os._exit(3)


END = {"killed": die, "segfault": crash, "exit": leave, "wild": launch_wild}


@pl.operator(arrays="cuda")
def wait_for(x: Array, *, path: str = "") -> Array:
    """Wait until somebody has opened a named pipe for writing, and closed it again."""
    with open(path, "rb") as pipe:
        pipe.read()
    return x


@pl.operator(arrays="cuda")
def compute_endlessly(x: Array, *, path: str = "") -> Array:
    """Wait as `wait_for` does, and then for a kernel that does not end."""
    wait_for(x, path=path)
    module = cupy()
    if hasattr(module, "gpu"):
        signal.pause()
    module.RawKernel(ENDLESS, "compute_endlessly")((1,), (1,), (x,))
    return x


@pl.operator(arrays="cuda")
def scale_late(x: Array) -> Array:
    """Queue work that takes longer than a message."""
    y = x * x.dtype.type(2)
    for _ in range(100):
        y = y * y.dtype.type(1)
    return y


@pl.operator(arrays="cuda")
class Weights:
    """Multiplies by what it has put onto the GPU when it was opened."""

    def open(self, inputs: list[Array | None]) -> None:
        (_, weights) = inputs
        assert weights is not None
        self.weights = weights * weights.dtype.type(10)

    def run(self, x: Array, weights: Array) -> Array:
        return x * self.weights


@pl.operator(arrays="cuda")
def scale_by_torch(x: Array) -> Array:
    torch = import_module("torch")
    return torch.from_dlpack(x) * 3
