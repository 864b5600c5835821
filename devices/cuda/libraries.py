"""NVIDIA's libraries, found in wheels, a toolkit or the system; none needs a GPU."""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from ..errors import DeviceError

VERSIONS = (13, 12)
"""Compatible major versions of CUDA, the best first."""


class RefusedError(DeviceError):
    """A library does not support the requested computation; another may."""


@cache
def load_library(name: str, versions: tuple[int, ...] = VERSIONS) -> ctypes.CDLL | None:
    for path in _list_paths(name, versions):
        with suppress(OSError):  # it or a dependency is missing
            return ctypes.CDLL(path)
    return None


def read_version(get_version: Any) -> str:
    get_version.restype = ctypes.c_size_t
    number = int(get_version())
    return f"{number // 10_000}.{number // 100 % 100}.{number % 100}"


def _list_paths(name: str, versions: tuple[int, ...]) -> Iterator[str]:
    yield from _find_by_pathfinder(name)
    yield from _find_in_wheels(name, versions)
    for version in versions:
        yield f"lib{name}.so.{version}"


def _find_by_pathfinder(name: str) -> Iterator[str]:
    """Yield the path of library `name`, if NVIDIA's own finder, which comes with CuPy, has one."""
    try:
        finder = importlib.import_module("cuda.pathfinder")
    except ImportError:
        return
    with suppress(RuntimeError):  # not found
        yield str(finder.load_nvidia_dynamic_lib(name).abs_path)


def _find_in_wheels(name: str, versions: tuple[int, ...]) -> Iterator[str]:
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
    """Load the parts that library `name` at `path` opens by name when it is used.

    NVRTC opens its built-in functions like this, and wheels before 13.1 do not include their path.
    """
    for part in path.parent.glob(f"lib{name}-builtins.so.*"):
        with suppress(OSError):
            ctypes.CDLL(str(part))
