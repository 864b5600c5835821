"""Regions for tensors whose lengths have no bound, one behind the other.

Nothing else is in there, and none of them shares bytes, so that they can be laid out anew for other
lengths while all else stays where it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ....devices.device import Device
from ...plans.regions import ADMISSION, Location, MemoryPlan, PlacedTensor, Pool, Region
from .buffers import Buffer, alignment_of

GROWING = "growing"
"""The name of the region."""

MOST_COPIES = 64
"""More items than this share the copies of the region in turn."""


def set_apart(
    buffers: Mapping[str, list[Buffer]], growing: frozenset[str]
) -> tuple[dict[str, list[Buffer]], dict[PlacedTensor, int]]:
    """Return the buffers without those of some tensors, by memory, and the bytes of these."""
    left: dict[str, list[Buffer]] = {}
    sizes: dict[PlacedTensor, int] = {}
    for memory, inside in buffers.items():
        for buffer in inside:
            names = [name for name, _ in buffer.offsets]
            if growing.isdisjoint(names):
                left.setdefault(memory, []).append(buffer)
            else:
                assert len(names) == 1, "they share no bytes"
                sizes[names[0], memory] = buffer.nbytes
    return left, sizes


def beside(
    plan: MemoryPlan,
    sizes: Mapping[PlacedTensor, int],
    slots: int,
    completion: int,
    constants: Mapping[str, int],
    devices: Mapping[str, Device],
) -> MemoryPlan:
    """Return a plan for so many items with the region in each memory; `completion` follows all.

    `constants` are the bytes of those by memory.
    """
    copies = max(plan.period, min(-(-slots // plan.period) * plan.period, MOST_COPIES))
    copies -= copies % plan.period
    locations, ends = _laid_out(sizes, devices)
    pools = dict(plan.pools)
    for memory, nbytes in ends.items():
        region = Region(memory, GROWING, nbytes, copies, (ADMISSION,), (completion,))
        empty = Pool(memory, {}, slots, "joint", 0, 0, 0, constants_nbytes=constants.get(memory, 0))
        pool = pools.get(memory, empty)
        pools[memory] = replace(pool, regions={**pool.regions, GROWING: region})
    return replace(plan, locations={**plan.locations, **locations}, pools=pools)


def grown(plan: MemoryPlan, nbytes: Mapping[str, int], devices: Mapping[str, Device]) -> MemoryPlan:
    """Return a plan in which the tensors of the regions take so many bytes, by name."""
    inside = [placed for placed, at in plan.locations.items() if at.region == GROWING]
    locations, ends = _laid_out(
        {one: nbytes[one[0]] for one in inside if one[0] in nbytes}, devices
    )
    pools = dict(plan.pools)
    for memory, end in ends.items():
        regions = pools[memory].regions
        larger = replace(regions[GROWING], nbytes=end)
        pools[memory] = replace(pools[memory], regions={**regions, GROWING: larger})
    return replace(plan, locations={**plan.locations, **locations}, pools=pools)


def _laid_out(
    sizes: Mapping[PlacedTensor, int], devices: Mapping[str, Device]
) -> tuple[dict[PlacedTensor, Location], dict[str, int]]:
    """Return where buffers lie, one behind the other, and where they end in each memory."""
    locations: dict[PlacedTensor, Location] = {}
    ends: dict[str, int] = {}
    for (name, memory), nbytes in sizes.items():
        alignment = alignment_of(memory, devices)
        offset = -(-ends.get(memory, 0) // alignment) * alignment
        locations[name, memory] = Location(memory, GROWING, offset)
        ends[memory] = offset + nbytes
    return locations, ends
