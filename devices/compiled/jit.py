"""Typed forms of Numba's decorators: mypy sees the decorated function's own signature."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import numba
import numpy.ma  # noqa: F401 - Numba asks for it when it meets its first array, in the first item
from numba import types
from numba.extending import intrinsic, register_jitable

from ...graph.values.tensor import Array
from ..cache_folder import hash_sources

Function = TypeVar("Function", bound=Callable[..., Any])
Parameters = ParamSpec("Parameters")

_njit: Any = numba.njit

CELLS = types.Array(types.float32, 1, "C")
TABLE = types.Array(types.int64, 1, "C")


_EDITION = hash_sources("compiled")
"""A digest of this package's files, any of which may be inlined into a function."""


def machine_code(*arguments: Any) -> Callable[[Function], Function]:
    """Return the decorator that compiles for types `arguments`, or without any at its first call.

    It runs without the interpreter's lock. The machine code is cached on disk if a folder is
    writable.
    """
    signature = [types.void(*arguments)] if arguments else []

    def decorate(function: Function) -> Function:
        # Numba names its cache after this, and checks only the function's own file for changes.
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
    """Let compiled functions call `function`, which emits its own machine instructions.

    It receives Numba's typing context and the types of its arguments, and returns a signature and a
    code generator.
    """
    return cast(Callable[Parameters, None], intrinsic(function))


def inline(function: Callable[..., Any]) -> None:
    """Let compiled functions call `function`, which Python can still call, too."""
    register_jitable(function)


def make_writable(array: Array) -> Array:
    """Return `array`, or a copy if it is read-only, which compiled code does not accept."""
    return array if array.flags.writeable else array.copy()
