"""PoCL, an OpenCL for processors: what runs generated kernels where there is no GPU."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import pytest

STRUCT_BYTES = 4096
"""More than PoCL's description of a device takes."""
_kept: list[Any] = []


@cache
def pocl_device() -> Any:
    """Return PoCL's device; tests that need one are skipped where there is none."""
    cl = pytest.importorskip("pyopencl", reason="pyopencl is not installed")
    try:
        platforms = cl.get_platforms()
    except cl.Error:  # none at all
        platforms = []
    for platform in platforms:
        if platform.name == "Portable Computing Language":
            device = platform.get_devices()[0]
            _name_processor(device.int_ptr)
            return device
    pytest.skip("there is no PoCL")


def _name_processor(device: int) -> None:
    """Have PoCL compile for AVX2 where its LLVM is older than the processor.

    LLVM calls a processor it does not know "generic", and then has no such target.
    """
    readable = _readable()
    name = ctypes.create_string_buffer(b"x86-64-v3")
    for address in range(device, device + STRUCT_BYTES, 8):
        if not _is_in(readable, address):
            break
        field = ctypes.c_uint64.from_address(address)
        if _is_in(readable, field.value) and ctypes.string_at(field.value, 8) == b"generic\0":
            field.value = ctypes.addressof(name)
            _kept.append(name)


def _readable() -> list[tuple[int, int]]:
    fields = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    ranges = [(area.split("-"), rights) for area, rights, *_ in fields]
    return [(int(start, 16), int(end, 16)) for (start, end), rights in ranges if "r" in rights]


def _is_in(ranges: list[tuple[int, int]], address: int) -> bool:
    return any(start <= address <= end - 8 for start, end in ranges)
