"""Shares of a GPU: some of its multiprocessors, which run nothing but the kernels of one device.

CUDA calls them green contexts. Their streams are all that differs from the whole GPU: memory,
events, loaded kernels and libraries are those of its primary context.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from itertools import accumulate
from typing import Any, NamedTuple, TypeAlias

from ...graph.extras import how_to_install, import_extra
from ..errors import DeviceUnavailableError
from ..streams.failures import first_line
from .driver import CuPy
from .names import ALL, CudaName

CudaCore: TypeAlias = Any
"""The module `cuda.core`, or what stands in for it in tests."""

MakeStream: TypeAlias = Callable[[], Any]
"""Returns a new stream of CuPy's; the device must be current."""


class Share(NamedTuple):
    """The multiprocessors of a share.

    Attributes
    ----------
    resources : tuple
        Of `cuda.core`, from one split.
    multiprocessors, total : int
        How many they are, and how many the GPU has.
    """

    resources: tuple[Any, ...]
    multiprocessors: int
    total: int


def load_core() -> CudaCore:
    """Import `cuda.core`.

    Raises
    ------
    DeviceUnavailableError
        If it is missing or does not load.
    """
    missing = "cuda.core, which divides a GPU into shares, is not installed"
    return import_extra("cuda.core", missing, how_to_install("cuda"), DeviceUnavailableError)


def find_share(name: str, of: CudaName, core: CudaCore) -> Share:
    """Return the multiprocessors of a share; its ends are moved to where the GPU can be divided.

    Shares whose percentages do not overlap have none in common.

    Raises
    ------
    DeviceUnavailableError
        If the GPU or its driver has no shares, or this one would be empty.
    """
    try:
        groups = _divide(core, of.index)
    except Exception as error:
        raise DeviceUnavailableError(
            f"{of.gpu} cannot be divided into shares: {first_line(error)}",
            fix=f"use {of.gpu!r}, or a driver of CUDA 13 (580 or later) with cuda-bindings 13",
        ) from error
    ends = [*accumulate((group.sm_count for group in groups), initial=0)]
    total = ends[-1]

    def nearest(percent: int) -> int:
        return min(range(len(ends)), key=lambda number: abs(ends[number] - percent * total / ALL))

    begin, end = nearest(of.first), nearest(of.last)
    if begin == end:
        size = ends[1]
        raise DeviceUnavailableError(
            f"{name!r} has no multiprocessor: the {total} of {of.gpu} are divided by {size}",
            fix=f"give it more: {size} are {-(-ALL * size // total)} %",
        )
    return Share(tuple(groups[begin:end]), ends[end] - ends[begin], total)


def stream_maker(cupy: CuPy, core: CudaCore, index: int, share: Share) -> MakeStream:
    """Return what makes streams whose kernels run on a share; the device must be current."""
    core.Device(index).set_current()
    return partial(_stream, cupy, _context(core, index, share.resources))


@lru_cache
def _context(core: CudaCore, index: int, resources: tuple[Any, ...]) -> Any:
    """Return the green context of a share, made once: 20 that were let go of kept 745 MB (H200)."""
    return core.Device(index).create_context(core.ContextOptions(resources=[*resources]))


def _stream(cupy: CuPy, context: Any) -> Any:
    return cupy.cuda.Stream.from_external(context.create_stream())  # which it keeps alive


@lru_cache
def _divide(core: CudaCore, index: int) -> list[Any]:
    """Return a GPU's multiprocessors in groups as small as they can be, the last one larger.

    One split for all shares: the groups of one are certainly apart, and only groups of one split
    may be put together (CUDA Driver API, cuDevResourceGenerateDesc). CUDA makes fewer groups than
    would fit, since they are alike: an H200 has 15 of 8, and 12 left over.
    """
    every = core.Device(index).resources.sm
    size = max(every.min_partition_size, every.coscheduled_alignment)
    groups, rest = every.split(core.SMResourceOptions(count=[size] * (every.sm_count // size)))
    return [*groups, rest] if rest.sm_count else [*groups]
