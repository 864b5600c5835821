"""Python functions that misbehave, where a worker can import them."""

from __future__ import annotations

import os

import numpy as np
import plait as pl
from plait.graph.values.tensor import Array


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


@pl.operator(arrays="cuda")
def wait_at_on_gpu(x: Array, *, gate: str = "") -> Array:
    """Wait until somebody writes a byte to a named pipe."""
    return wait_at(x, gate=gate)


@pl.operator(arrays="cuda")
def fail_on_gpu(x: Array) -> Array:
    """Raise."""
    return fail(x)


@pl.operator()
def cores_here(x: Array) -> Array:
    """Return how many cores the thread may run on, and the first of them."""
    cores = sorted(os.sched_getaffinity(0))
    return np.array([len(cores), cores[0]], np.float32)


@pl.operator()
def blas_threads(x: Array) -> Array:
    """Return how many threads BLAS was told to have when the process was started."""
    return np.array([int(os.environ["OPENBLAS_NUM_THREADS"])] * 2, np.float32)
