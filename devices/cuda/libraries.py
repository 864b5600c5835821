"""NVIDIA's libraries, found where wheels, a toolkit or the system put them; none needs a GPU."""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

from ..errors import DeviceError

VERSIONS = (13, 12)
"""Major versions of CUDA whose libraries will do, the best first."""


class RefusedError(DeviceError):
    """A library does not compute what it was asked for; something else may."""


@cache
def load_library(name: str, versions: tuple[int, ...] = VERSIONS) -> ctypes.CDLL | None:
    """Load ``"nvrtc"``, ``"cublas"``...; return None where it is not installed."""
    for path in _places(name, versions):
        with suppress(OSError):  # missing, or something it needs is
            return ctypes.CDLL(path)
    return None


def _places(name: str, versions: tuple[int, ...]) -> Iterator[str]:
    yield from _by_pathfinder(name)
    yield from _in_wheels(name, versions)
    for version in versions:
        yield f"lib{name}.so.{version}"


def _by_pathfinder(name: str) -> Iterator[str]:
    """Ask NVIDIA's own finder, which comes with CuPy."""
    try:
        finder = importlib.import_module("cuda.pathfinder")
    except ImportError:
        return
    with suppress(RuntimeError):  # it says what it has looked at, at length
        yield str(finder.load_nvidia_dynamic_lib(name).abs_path)


def _in_wheels(name: str, versions: tuple[int, ...]) -> Iterator[str]:
    try:
        wheels = importlib.import_module("nvidia")
    except ImportError:
        return
    for folder in wheels.__path__:
        for version in versions:
            for path in Path(folder).glob(f"*/lib/lib{name}.so.{version}"):
                _load_beside(path, name)
                yield str(path)


def _load_beside(path: Path, name: str) -> None:
    """Load what a library will look for by name alone when it is used.

    NVRTC does so for its built-in functions, and wheels before 13.1 do not say where they are.
    """
    for part in path.parent.glob(f"lib{name}-builtins.so.*"):
        with suppress(OSError):
            ctypes.CDLL(str(part))
