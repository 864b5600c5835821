"""Numba's decorators, typed: mypy sees a function as it is written."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import numba
import numpy.ma  # noqa: F401 - Numba asks for it when it meets its first array, in the first item
from numba import types
from numba.extending import intrinsic, register_jitable

from ...graph.tensor import Array

Function = TypeVar("Function", bound=Callable[..., Any])
Parameters = ParamSpec("Parameters")

_njit: Any = numba.njit

CELLS = types.Array(types.float32, 1, "C")
TABLE = types.Array(types.int64, 1, "C")


def _edition() -> str:
    """Return a digest of this package's files, any of which may be part of a function's code."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]


_EDITION = _edition()


def machine_code(*arguments: Any) -> Callable[[Function], Function]:
    """Compile a function for these argument types when it is defined; without any, when called.

    It runs without Python's lock. The machine code is kept on disk where there is a place for it.
    """
    signature = [types.void(*arguments)] if arguments else []

    def decorate(function: Function) -> Function:
        # Numba calls what it keeps after this name, and looks for changes in the function's own
        # file alone.
        function.__qualname__ = f"{function.__name__}_{_EDITION}"
        try:
            compiled = _njit(*signature, nogil=True, cache=True)(function)
        except RuntimeError:  # no folder to write to
            compiled = _njit(*signature, nogil=True)(function)
        return cast(Function, compiled)

    return decorate


def instruction(
    function: Callable[Concatenate[Any, Parameters], Any],
) -> Callable[Parameters, None]:
    """Let compiled functions call one that writes its own machine instructions.

    It gets the types of its arguments, after Numba's typing context, and returns a signature and
    the function that writes.
    """
    return cast(Callable[Parameters, None], intrinsic(function))


def inline(function: Callable[..., Any]) -> None:
    """Let compiled functions call a Python function, which stays one for everybody else."""
    register_jitable(function)


def writable(array: Array) -> Array:
    """Return an array that compiled code takes: constants are copied, as they are read-only."""
    return array if array.flags.writeable else array.copy()
