"""Python functions that bring down or hold up the worker they run on."""

from __future__ import annotations

import os
import signal

import plait as pl
from plait.graph.tensor import Array

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
