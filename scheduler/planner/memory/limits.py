"""Limits of each memory, and the error for a plan that exceeds them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ....devices.device import Device
from ....devices.memory import HOST, SHARED
from ....graph.core.ir import Graph
from ....graph.core.printing import format_count
from ....graph.values.tensor import TensorSpec
from ...errors import DoesNotFitError, PlanError
from ...plans.placement import Placement
from ...plans.regions import MemoryPlan, Pool
from .buffers import Buffer

LISTED_TENSORS = 3

ADDRESSABLE = 2**48
"""Address space of a process: larger tensors cannot exist anywhere."""


class Limit(NamedTuple):
    """Bytes of a memory, constants included, and the owner of the limit."""

    nbytes: int
    owner: str


def find_limits(given: Mapping[str, int], devices: Mapping[str, Device]) -> dict[str, Limit]:
    """Return the lowest limit of each memory, `given` for it or for its device, or its size.

    Raises PlanError if a name is neither one of `devices` nor a memory, or a limit is not a number
    of bytes.
    """
    owned = {name: device.capabilities.memory for name, device in devices.items()}
    memories = {HOST, SHARED, *owned.values()}
    found: list[tuple[str, Limit]] = []
    for name, nbytes in given.items():
        if name not in owned and name not in memories:
            known = ", ".join(sorted({*owned, *memories}))
            raise PlanError(
                f"memory_limits names {name!r}, which is neither a device of the plan nor a memory",
                fix=f"use one of {known}",
            )
        if isinstance(nbytes, bool) or not isinstance(nbytes, int) or nbytes < 0:
            raise PlanError(f"the memory limit of {name!r} is {nbytes!r}", fix="use whole bytes")
        found.append((owned.get(name, name), Limit(nbytes, f"memory_limits[{name!r}]")))
    for name, device in devices.items():
        if device.capabilities.memory_bytes is not None:
            found.append((owned[name], Limit(device.capabilities.memory_bytes, name)))
    limits: dict[str, Limit] = {}
    for memory, limit in found:
        limits[memory] = min(limit, limits.get(memory, limit))
    return limits


def find_exceeded(plan: MemoryPlan, limits: Mapping[str, Limit]) -> list[str]:
    return [
        memory
        for memory, limit in limits.items()
        if memory in plan.pools and _sum_needed(plan.pools[memory]) > limit.nbytes
    ]


def check_addressable(graph: Graph) -> None:
    """Raise DoesNotFitError if a tensor of a static graph is too large for any machine."""
    for name, spec in graph.tensors.items():
        # Array libraries refuse large lengths next to a length of 0 too.
        nbytes = math.prod(filter(None, spec.static_shape)) * spec.dtype.itemsize
        if nbytes > ADDRESSABLE:
            raise _too_large_error(name, spec, nbytes, f"no machine has {ADDRESSABLE:,}")


def check_tensors(graph: Graph, placement: Placement, limits: Mapping[str, Limit]) -> None:
    """Raise DoesNotFitError if a tensor of `graph` exceeds the one of `limits` for its memory.

    `placement` has the memories of tensors. Call this before asking kernels for scratch buffers:
    they may be as large as a tensor.
    """
    for name, memory in placement.home.items():
        spec, limit = graph.tensors[name], limits.get(memory)
        if limit is not None and spec.nbytes > limit.nbytes:
            has = f"{limit.owner} has {limit.nbytes:,} of memory {memory!r}"
            raise _too_large_error(name, spec, spec.nbytes, has)


def _too_large_error(name: str, spec: TensorSpec, nbytes: int, has: str) -> DoesNotFitError:
    return DoesNotFitError(
        f"{name!r}, {spec}, alone takes {nbytes:,} bytes; {has}",
        fix="feed smaller inputs, or give nodes to other devices",
    )


def does_not_fit_error(pool: Pool, limit: Limit, buffers: Iterable[Buffer]) -> DoesNotFitError:
    largest = sorted(buffers, key=lambda buffer: -buffer.nbytes)[:LISTED_TENSORS]
    named = (f"{_name_buffer(one)} ({one.nbytes:,})" for one in largest)
    constants = f", {pool.constants_nbytes:,} of them constants" if pool.constants_nbytes else ""
    return DoesNotFitError(
        f"the plan needs at least {_sum_needed(pool):,} bytes of memory "
        f"{pool.memory!r}{constants}; {limit.owner} has {limit.nbytes:,}",
        at=f"{format_count(pool.slots, 'item')} in flight, "
        f"{pool.item_nbytes:,} bytes for one alone; "
        f"the largest tensors are {', '.join(named)}",
        fix="lower max_in_flight, feed smaller inputs, or give nodes to other devices",
    )


def _name_buffer(buffer: Buffer) -> str:
    name, scratch, _ = next(iter(buffer.offsets))[0].partition("\0")
    return f"scratch of {name!r}" if scratch else repr(name)


def _sum_needed(pool: Pool) -> int:
    return pool.nbytes + pool.constants_nbytes
