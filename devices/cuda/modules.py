"""Generated kernels, compiled and loaded once for all programs that use them."""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeAlias

from ..codegen.dialect import CUDA, join_sources
from ..codegen.registry import Kernel
from .driver import CuPy

Compiler: TypeAlias = Callable[[str, str], bytes]
"""Compiles CUDA C for an architecture into a loadable program."""


KERNELS_PER_PROGRAM = 16
"""Programs are compiled in parallel; starting one takes about as long as compiling a kernel (20 ms
and 10 ms, NVRTC 13.3)."""


class Module:
    """A program on the GPU, loaded while this object lives.

    The device must be current at creation. The finalizer makes it current on any thread: the driver
    unloads from the current context only.
    """

    def __init__(self, cupy: CuPy, index: int, cubin: bytes, kernels: Iterable[Kernel]) -> None:
        module = cupy.cuda.function.Module()
        module.load(cubin)
        # CuPy's functions hold their module.
        self._functions = {kernel.name: module.get_function(kernel.name) for kernel in kernels}
        weakref.finalize(self, _unload, cupy, index, self._functions).atexit = False

    def address(self, kernel: Kernel) -> int:
        return int(self._functions[kernel.name].ptr)


def _unload(cupy: CuPy, index: int, functions: dict[str, Any]) -> None:
    with suppress(Exception), cupy.cuda.Device(index) as device:  # a lost device has no modules
        device.use()  # see `queues.CudaBackend.current`
        functions.clear()


class Modules:
    def __init__(self, cupy: CuPy, index: int, compiler: Compiler) -> None:
        self._cupy = cupy
        self._index = index
        self._compiler = compiler
        self._arch = f"sm_{cupy.cuda.Device(index).compute_capability}"
        self._lock = threading.Lock()
        self._loaded: weakref.WeakValueDictionary[str, Module] = weakref.WeakValueDictionary()

    def load(self, kernels: Iterable[Kernel]) -> dict[str, Module]:
        """Return the modules that define `kernels`, by name, compiling new ones.

        The device must be current. A kernel of a live program is not compiled again.
        """
        wanted = {kernel.name: kernel for kernel in kernels}
        with self._lock:  # the slots of a plan follow each other with the same kernels
            found = {name: self._loaded.get(name) for name in wanted}
            missing = [kernel for name, kernel in wanted.items() if found[name] is None]
            for module, compiled in self._compile(missing):
                for kernel in compiled:
                    self._loaded[kernel.name] = found[kernel.name] = module
        return {name: module for name, module in found.items() if module is not None}

    def _compile(self, kernels: list[Kernel]) -> Iterator[tuple[Module, list[Kernel]]]:
        if not kernels:
            return
        count = min(-(-len(kernels) // KERNELS_PER_PROGRAM), os.cpu_count() or 1)
        programs = [kernels[first::count] for first in range(count)]
        with ThreadPoolExecutor(count, "plait-nvrtc") as pool:
            for program, cubin in zip(programs, pool.map(self._cubin, programs), strict=True):
                yield Module(self._cupy, self._index, cubin, program), program

    def _cubin(self, kernels: list[Kernel]) -> bytes:
        return self._compiler(join_sources(CUDA, kernels), self._arch)


class Arguments:
    """The buffers of a launch in the driver's form: an array of pointers to pointers."""

    def __init__(self, addresses: list[int]) -> None:
        self._cells = (ctypes.c_uint64 * len(addresses))(*addresses)
        start, step = ctypes.addressof(self._cells), ctypes.sizeof(ctypes.c_uint64)
        each = (start + step * number for number in range(len(addresses)))
        self._pointers = (ctypes.c_void_p * len(addresses))(*each)

    @property
    def address(self) -> int:
        """The address of the array, valid while this object lives."""
        return ctypes.addressof(self._pointers)
