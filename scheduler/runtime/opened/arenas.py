"""The arenas of an open plan: one for each copy of each region, allocated on demand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TypeAlias

from ....devices.device import Device
from ....devices.memory import ALIGNMENT, HOST, SHARED, Arena, HostSlab, SharedArena, host_arena
from ...plans.regions import MemoryPlan, Region

Arenas: TypeAlias = Mapping[tuple[str, str], Arena]
"""The arenas of a slot, by memory and region."""

Lend: TypeAlias = Callable[[Region, int], Arena | None]
"""Returns an arena of a region that has another owner, None for other regions."""

SMALL_NBYTES, SLAB_NBYTES = 64 << 10, 1 << 20
"""Largest host arena that shares pages with others, and largest slab of such pages."""

Turned: TypeAlias = frozenset[tuple[str, str]]
"""The regions, by memory and name, that variables have changed places between."""


def copy_of(region: Region, index: int, turned: Turned) -> int:
    return 1 if (region.memory, region.name) in turned else index % region.copies


class OpenArenas:
    """Allocates and frees the regions of a memory plan; all methods block.

    Attributes
    ----------
    made : Mapping of (str, str, int) to Arena
        By memory, region and copy.
    """

    def __init__(
        self, memory: MemoryPlan, devices: Mapping[str, Device], lend: Lend | None = None
    ) -> None:
        self._memory = memory
        self._devices = devices
        self._lend = lend
        self._making = threading.Lock()
        self._open = ExitStack()
        self._grown: list[OpenArenas] = []
        self._slab = HostSlab(0)
        self.made: dict[tuple[str, str, int], Arena] = {}

    def open(self) -> None:
        """Allocate the memory that all slots share.

        Raises DeviceMemoryError if there is too little memory; nothing stays allocated.
        """
        with ExitStack() as undo:
            # Others are allocated with the first slot that has them.
            shared = (region for region in self._memory.regions if region.copies == 1)
            self.made.update(
                {(one.memory, one.name, 0): self._allocate(one, 0, undo) for one in shared}
            )
            self._open.push(undo.pop_all())

    @contextmanager
    def of(self, index: int, turned: Turned = frozenset()) -> Iterator[Arenas]:
        """Yield the arenas of slot `index` by region; new ones are freed if the block raises."""
        with self._making, ExitStack() as undo:
            numbered = {
                (region.memory, region.name, copy_of(region, index, turned)): region
                for region in self._memory.regions
            }
            arenas = {
                key: self.made.get(key) or self._allocate(region, key[2], undo)
                for key, region in numbered.items()
            }
            yield {key[:2]: arena for key, arena in arenas.items()}
            # Only now: a slot that could not be bound leaves nothing behind.
            for arena in arenas.values():
                arena.is_unused = False
            self.made.update(arenas)
            self._open.push(undo.pop_all())

    def made_for(self, index: int, turned: Turned = frozenset()) -> Arenas:
        """Return the arenas that slot `index` has, by region, without waiting for other threads."""
        return {
            (region.memory, region.name): self.made[
                region.memory, region.name, copy_of(region, index, turned)
            ]
            for region in self._memory.regions
        }

    def holding(self, memory: MemoryPlan) -> OpenArenas:
        """Return arenas for `memory`, a plan with the same regions, some of which may be larger.

        All but those that are too small here are these; the others are open as long as these are.
        They are made larger than needed, so that lengths which grow take few of them.
        """
        if memory is self._memory or self._fits(memory):
            return self
        if not (self._grown and self._grown[-1]._fits(memory)):
            pools = {
                name: replace(pool, regions={n: self._doubled(r) for n, r in pool.regions.items()})
                for name, pool in memory.pools.items()
            }
            # Twice as large, by powers of two: lengths that grow one by one allocate seldom.
            larger = replace(memory, pools=pools)
            self._grown.append(OpenArenas(larger, self._devices, self._lend_own))
            self._open.callback(self._grown[-1].close)
        return self._grown[-1]

    @property
    def grown(self) -> Iterator[Region]:
        """Yield the regions of arenas that were allocated because these are too small."""
        for one in self._grown:
            for memory, name, _ in list(one.made):
                region = one._memory.pools[memory].regions[name]
                if region.nbytes > self._region(region).nbytes:
                    yield region

    def _fits(self, memory: MemoryPlan) -> bool:
        return all(one.nbytes <= self._region(one).nbytes for one in memory.regions)

    def _region(self, region: Region) -> Region:
        return self._memory.pools[region.memory].regions[region.name]

    def _doubled(self, region: Region) -> Region:
        """Return `region` itself if its arena is large enough, or else with bytes to spare."""
        if region.nbytes <= self._region(region).nbytes:
            return region
        return replace(region, nbytes=1 << region.nbytes.bit_length())

    def _lend_own(self, region: Region, copy: int) -> Arena | None:
        """Return the arena for a `copy` of `region`, made on first use; None if it is too small."""
        if region.nbytes > self._region(region).nbytes:
            return None
        key = region.memory, region.name, copy
        with self._making:
            if key not in self.made:
                with ExitStack() as undo:
                    self.made[key] = self._allocate(self._region(region), copy, undo)
                    self._open.push(undo.pop_all())
            self.made[key].is_unused = False  # other plans may use it at any time
            return self.made[key]

    def close(self) -> None:
        self.made.clear()
        self._open.close()

    def _allocate(self, region: Region, copy: int, stack: ExitStack) -> Arena:
        lent = None if self._lend is None else self._lend(region, copy)
        if lent is not None:
            return lent
        is_small = region.memory == HOST and region.nbytes <= SMALL_NBYTES
        arena = self._carve(region.nbytes) if is_small else allocate(region, self._devices)
        arena.is_unused = True
        stack.callback(arena.close)
        return arena

    def _carve(self, nbytes: int) -> Arena:
        arena = self._slab.carve(nbytes)
        if arena is None:
            small = [one for one in self._memory.regions if one.nbytes <= SMALL_NBYTES]
            total = sum(
                one.copies * (one.nbytes + ALIGNMENT) for one in small if one.memory == HOST
            )
            self._slab = HostSlab(min(max(total, nbytes), SLAB_NBYTES))
            arena = self._slab.carve(nbytes)
        assert arena is not None
        return arena


def allocate(region: Region, devices: Mapping[str, Device]) -> Arena:
    """Return an arena for `region` on the host or one of `devices`; DeviceMemoryError if full."""
    memory, nbytes = region.memory, region.nbytes
    if memory == HOST:
        return host_arena(nbytes)
    if memory == SHARED:
        return SharedArena(nbytes)
    owner = next(device for device in devices.values() if device.capabilities.memory == memory)
    return owner.arena(memory, nbytes)
