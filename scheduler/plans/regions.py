"""The memory plan: regions, the number of copies of each, and the placed tensors in them.

Items in flight share the copies of a region in turn: item number n, in the order of admission, uses
copy n % copies. What a step has to wait for, so that no item writes into a copy that an earlier one
still needs, is stated by the region's claims and releases.
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
    """Bytes that an item has for itself from a claim to a release, in one or more copies.

    Attributes
    ----------
    memory : str
    name : str
        Unique within the memory.
    nbytes : int
        Of one copy.
    copies : int
    claims : tuple of int
        A step in here starts only when the item that used this copy before, `copies` items ago,
        has released it. The first claim by an item holds it. `ADMISSION` stands for the feeding.
        Without claims nothing is waited for: only single steps of one device touch the region, and
        a device runs one step at a time.
    releases : tuple of int
        It is released when all of these are complete, or when the item has ended. The number of
        steps stands for the landing.
    """

    memory: str
    name: str
    nbytes: int
    copies: int
    claims: tuple[int, ...] = ()
    releases: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Location:
    """Where a placed tensor lies.

    Attributes
    ----------
    memory : str
    region : str
        By name.
    offset : int
        Bytes from the start of the item's copy of the region.
    """

    memory: str
    region: str
    offset: int


@dataclass(frozen=True, slots=True)
class Pool:
    """What is allocated of one memory.

    Attributes
    ----------
    memory : str
    regions : Mapping of str to Region
    slots : int
        Items in flight, K.
    layout : str
        Which layout the regions follow, see `memory_plan`.
    item_nbytes : int
        What one item alone would need.
    tensors_nbytes : int
        One item's buffers laid end to end, for comparison.
    lower_bound : int
        Bytes that no layout of one item can go below: of buffers that must all be apart.
    constants_nbytes : int
        Constants that lie beside the regions for as long as the plan is open.
    """

    memory: str
    regions: Mapping[str, Region]
    slots: int
    layout: str
    item_nbytes: int
    tensors_nbytes: int
    lower_bound: int
    constants_nbytes: int = 0

    @property
    def nbytes(self) -> int:
        """All of it, for all items in flight, without constants."""
        return sum(region.copies * region.nbytes for region in self.regions.values())

    @property
    def slot_nbytes(self) -> int:
        """Bytes of one copy of each region that items take in turn."""
        return sum(region.nbytes for region in self.regions.values() if region.claims)

    @property
    def lane_nbytes(self) -> Mapping[str, int]:
        """Bytes of the regions that no item has for itself, by name."""
        return {name: one.nbytes for name, one in self.regions.items() if not one.claims}


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The offsets of all buffers, and the regions they lie in.

    Attributes
    ----------
    locations : Mapping of PlacedTensor to Location
    pools : Mapping of str to Pool
        By memory.
    added_edges : tuple of (int, int)
        Waits added so that a limit is kept: a step, and a later one that waits for it.
    slowdown : float
        The makespan of one item that is predicted with these waits, relative to that without.
    scratch : Mapping of str to int
        Bytes of scratch buffers, where there is room for other shapes.
    """

    locations: Mapping[PlacedTensor, Location]
    pools: Mapping[str, Pool]
    added_edges: tuple[tuple[int, int], ...] = ()
    slowdown: float = 1.0
    scratch: Mapping[str, int] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Of all memories, without constants."""
        return sum(pool.nbytes for pool in self.pools.values())

    @property
    def regions(self) -> tuple[Region, ...]:
        """The regions of all memories."""
        return tuple(one for pool in self.pools.values() for one in pool.regions.values())

    @property
    def period(self) -> int:
        """After how many items the same copies come together again."""
        return lcm(*(region.copies for region in self.regions))


def takes_turns(regions: Iterable[Region], slots: int) -> bool:
    """True unless each of so many items in flight has a copy of everything for itself."""
    return any(region.copies < slots for region in regions if region.claims)
