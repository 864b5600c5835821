"""Shares of a GPU: multiprocessors that run only the kernels of one device.

CUDA calls them green contexts. Only their streams differ from those of the whole GPU: memory,
events, loaded kernels and libraries belong to its primary context. `core` is the module cuda.core.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from itertools import accumulate
from typing import Any, NamedTuple, TypeAlias

from ...graph.values.extras import get_install_command, import_extra
from ..errors import DeviceUnavailableError
from ..streams.failures import get_first_line
from .driver import CuPy
from .names import ALL, CudaName

CudaCore: TypeAlias = Any
"""The module `cuda.core`, or its double in tests."""

MakeStream: TypeAlias = Callable[[], Any]
"""Returns a new stream of CuPy's; the device must be current."""


class Share(NamedTuple):
    resources: tuple[Any, ...]
    """Resources of `cuda.core`, from one split."""
    multiprocessors: int
    total: int
    """Their count, and that of the GPU."""


def load_core() -> CudaCore:
    missing = "cuda.core, which divides a GPU into shares, is not installed"
    return import_extra("cuda.core", missing, get_install_command("cuda"), DeviceUnavailableError)


def find_share(name: str, of: CudaName, core: CudaCore) -> Share:
    """Return the multiprocessors of share `of`, rounded to where `core` can divide the GPU.

    Shares with disjoint percentages are disjoint. Raises DeviceUnavailableError if the GPU or its
    driver has no shares, or `name` would be empty.
    """
    try:
        groups = _divide(core, of.index)
    except Exception as error:
        raise DeviceUnavailableError(
            f"{of.gpu} cannot be divided into shares: {get_first_line(error)}",
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


def get_stream_maker(cupy: CuPy, core: CudaCore, index: int, share: Share) -> MakeStream:
    """Return a function that creates streams of `cupy` on `share` of GPU `index`.

    The GPU must be current; `core` makes its context.
    """
    core.Device(index).set_current()
    return partial(_create_stream, cupy, _create_context(core, index, share.resources))


@lru_cache
def _create_context(core: CudaCore, index: int, resources: tuple[Any, ...]) -> Any:
    """Create the green context of GPU `index` on `resources`, with `core`, once.

    They are kept: 20 contexts that were dropped still took 745 MB (H200).
    """
    return core.Device(index).create_context(core.ContextOptions(resources=[*resources]))


def _create_stream(cupy: CuPy, context: Any) -> Any:
    return cupy.cuda.Stream.from_external(context.create_stream())  # which it keeps alive


@lru_cache
def _divide(core: CudaCore, index: int) -> list[Any]:
    """Divide the multiprocessors of GPU `index` into the smallest groups, the last one larger.

    `core` makes one split for all shares: its groups are disjoint, and only groups of one split can
    be combined (CUDA Driver API, cuDevResourceGenerateDesc). CUDA makes fewer groups than would
    fit, since they are alike: an H200 has 15 of 8, and 12 left over.
    """
    every = core.Device(index).resources.sm
    size = max(every.min_partition_size, every.coscheduled_alignment)
    groups, rest = every.split(core.SMResourceOptions(count=[size] * (every.sm_count // size)))
    return [*groups, rest] if rest.sm_count else [*groups]
