"""Python functions that hosts import."""

from __future__ import annotations

import os
import time
from pathlib import Path

import plait as pl
from plait.graph.values.tensor import Array


@pl.operator()
def divide(x: Array) -> Array:
    """Divide by a sum, which must not be zero."""
    if not x.sum():
        raise ZeroDivisionError("nothing to divide by")
    return x / x.sum()


@pl.operator()
def linger(x: Array) -> Array:
    """Take as many seconds as the first number says."""
    time.sleep(float(x[0]))
    return x


@pl.operator()
def die_once(x: Array, *, path: str = "") -> Array:
    """End the process, unless a file says that one has ended."""
    if not Path(path).exists():
        Path(path).touch()
        os._exit(3)
    return x
