"""The memory plan: regions, the number of copies of each, and the placed tensors in them.

Items in flight share the copies of a region in turn: item number n, in the order of admission, uses
copy n % copies. A region's claims and releases are the waits that keep items from writing to a copy
that an earlier item still needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import lcm

PlacedTensor = tuple[str, str]
"""A tensor, or a scratch buffer, in a memory."""

ADMISSION = -1
"""Among claims: the region is claimed before the item is fed.

Among releases, the number of steps stands for the landing: the results were copied out.
"""


@dataclass(frozen=True, slots=True)
class Region:
    """Bytes that one item uses exclusively from a claim to a release, in one or more copies."""

    memory: str
    name: str
    """Unique within the memory."""
    nbytes: int
    """Size of one copy."""
    copies: int
    claims: tuple[int, ...] = ()
    """Steps that start only when the item that used this copy before, `copies` items ago, has
    released it. The first of them claims the copy; `ADMISSION` stands for the feeding. A region
    without claims is used by single steps of one device, which runs one step at a time."""
    releases: tuple[int, ...] = ()
    """The steps that must be complete for the release; the number of steps stands for the landing.
    The end of an item releases the copy, too."""


@dataclass(frozen=True, slots=True)
class Location:
    """The place of a tensor in a memory."""

    memory: str
    region: str
    offset: int
    """Bytes from the start of the item's copy of the region."""


@dataclass(frozen=True, slots=True)
class Pool:
    """The regions in one memory."""

    memory: str
    regions: Mapping[str, Region]
    slots: int
    """Items in flight, K."""
    layout: str
    """Name of the layout, see `memory_plan`."""
    item_nbytes: int
    """Bytes that one item alone would need."""
    tensors_nbytes: int
    """One item's buffers laid end to end, for comparison."""
    lower_bound: int
    """Bytes of buffers that must all be apart: no layout of one item needs less."""
    constants_nbytes: int = 0
    """Bytes of constants, allocated apart from the regions while the plan is open."""

    @property
    def nbytes(self) -> int:
        """Bytes for all items in flight, without constants."""
        return sum(region.copies * region.nbytes for region in self.regions.values())

    @property
    def slot_nbytes(self) -> int:
        """Bytes of one copy of each region that items take in turn."""
        return sum(region.nbytes for region in self.regions.values() if region.claims)

    @property
    def lane_nbytes(self) -> Mapping[str, int]:
        """Bytes of the regions without claims, by name."""
        return {name: one.nbytes for name, one in self.regions.items() if not one.claims}


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The offsets of all buffers, and the regions they lie in."""

    locations: Mapping[PlacedTensor, Location]
    pools: Mapping[str, Pool]
    """By memory."""
    added_edges: tuple[tuple[int, int], ...] = ()
    """Waits added to keep a limit: a step, and a later one that waits for it."""
    slowdown: float = 1.0
    """Predicted makespan of one item with these waits, relative to the one without."""
    scratch: Mapping[str, int] = field(default_factory=dict)
    """Bytes of scratch buffers, if other shapes run in this memory."""

    @property
    def nbytes(self) -> int:
        """Bytes in all memories, without constants."""
        return sum(pool.nbytes for pool in self.pools.values())

    @property
    def regions(self) -> tuple[Region, ...]:
        return tuple(one for pool in self.pools.values() for one in pool.regions.values())

    @property
    def period(self) -> int:
        """The number of items after which the same combination of copies returns."""
        return lcm(*(region.copies for region in self.regions))


def must_take_turns(regions: Iterable[Region], slots: int) -> bool:
    return any(region.copies < slots for region in regions if region.claims)
