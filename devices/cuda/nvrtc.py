"""NVRTC, NVIDIA's compiler library, which needs neither a GPU nor a driver nor a toolkit.

CuPy's interface always flushes denormal numbers to zero, and compiles only for the present GPU.
"""

from __future__ import annotations

import ctypes
from functools import cache, lru_cache, partial
from typing import Any

from ..errors import DeviceUnavailableError, KernelError
from .cubins import load_or_make
from .libraries import load_library

EXACT = ("--fmad=false",)
"""Products and sums round as on other devices; denormals and IEEE division are the default (NVRTC,
supported compile options)."""
FAST = ("--use_fast_math",)

KEPT = 64
"""Programs in the process's cache, for later sessions."""

MAX_LINES = 12
"""Lines of the compiler's output in an error."""


@lru_cache(KEPT)
def compile_cubin(source: str, arch: str, *, fast_math: bool = False) -> bytes:
    """Compile CUDA C `source` to a program for one kind of GPU, or load it from the cache.

    Parameters
    ----------
    arch : str
        Of the GPU: ``"sm_90"``.
    fast_math : bool, default False
        Fuse products with sums, flush denormals, and use approximations of division, roots and
        transcendental functions.

    Raises
    ------
    DeviceUnavailableError
        If NVRTC is not installed.
    KernelError
        If the compiler refuses the source, or does not know the architecture.
    """
    options = (f"--gpu-architecture={arch}", "--std=c++17", "-w", *(FAST if fast_math else EXACT))
    name = "\0".join((_read_version(), *options, source))
    return load_or_make(name, partial(_compile, source, arch, options))


def _compile(source: str, arch: str, options: tuple[str, ...]) -> bytes:
    nvrtc, program = _load_nvrtc(), ctypes.c_void_p()
    name = ctypes.c_char_p(b"plait.cu")
    _check(nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), name, 0, None, None))
    try:
        listed = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        if nvrtc.nvrtcCompileProgram(program, len(options), listed):
            raise _refused_error(_read_text(program, "ProgramLog").decode(errors="replace"), arch)
        return _read_text(program, "CUBIN")
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


@cache
def _read_version() -> str:
    major, minor = ctypes.c_int(), ctypes.c_int()
    _check(_load_nvrtc().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
    return f"NVRTC {major.value}.{minor.value}"


@cache
def _load_nvrtc() -> Any:
    library = load_library("nvrtc")
    if library is None:
        raise DeviceUnavailableError(
            "NVRTC, which compiles kernels for CUDA, is not installed",
            fix="pip install nvidia-cuda-nvrtc, or install the CUDA toolkit",
        )
    library.nvrtcGetErrorString.restype = ctypes.c_char_p
    return library


def _read_text(program: ctypes.c_void_p, part: str) -> bytes:
    """Read a property of `program`; `part` is in the middle of the names of its two functions."""
    nvrtc, size = _load_nvrtc(), ctypes.c_size_t()
    _check(getattr(nvrtc, f"nvrtcGet{part}Size")(program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    _check(getattr(nvrtc, f"nvrtcGet{part}")(program, buffer))
    return buffer.raw


def _check(status: int) -> None:
    if status:
        text = _load_nvrtc().nvrtcGetErrorString(status).decode()
        raise KernelError(f"NVRTC fails: {text}", fix="report this, with the version of NVRTC")


def _refused_error(log: str, arch: str) -> KernelError:
    lines = [line for line in log.rstrip("\0").splitlines() if line.strip()]
    shown = "\n  ".join(lines[:MAX_LINES])
    fix = "report this: a generated kernel is wrong"
    if "builtins" in log:  # a library that NVRTC opens when it is used
        fix = "pip install cuda-pathfinder, which finds all parts of NVRTC, or a newer NVRTC"
    if "gpu-architecture" in log:
        fix = f"install an NVRTC that knows {arch}"
    return KernelError(f"NVRTC refuses a program for {arch}:\n  {shown}", fix=fix)
