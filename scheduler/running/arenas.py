"""The arenas of an open plan: one for each copy of each region, allocated on demand."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TypeAlias

from ...devices.device import Device
from ...devices.memory import HOST, SHARED, Arena, SharedArena, host_arena
from ..memory.regions import MemoryPlan, Region

Arenas: TypeAlias = Mapping[tuple[str, str], Arena]
"""The arenas of a slot, by memory and region."""


class OpenArenas:
    """Allocates and frees the regions of a memory plan; all methods block.

    Parameters
    ----------
    memory : MemoryPlan
    devices : Mapping of str to Device
        Open.

    Attributes
    ----------
    made : Mapping of (str, str, int) to Arena
        By memory, region and copy.
    """

    def __init__(self, memory: MemoryPlan, devices: Mapping[str, Device]) -> None:
        self._memory = memory
        self._devices = devices
        self._making = threading.Lock()
        self._open = ExitStack()
        self.made: dict[tuple[str, str, int], Arena] = {}

    def open(self) -> None:
        """Allocate what all slots share.

        Raises
        ------
        DeviceMemoryError
            If there is too little memory; nothing stays allocated.
        """
        with ExitStack() as undo:
            shared = (region for region in self._memory.regions if region.copies == 1)
            self.made.update(
                {(one.memory, one.name, 0): self._allocate(one, undo) for one in shared}
            )
            self._open.push(undo.pop_all())

    @contextmanager
    def of(self, index: int) -> Iterator[Arenas]:
        """Give the arenas of a slot, to one thread at a time.

        What had to be allocated for that is freed if the block raises.

        Raises
        ------
        DeviceMemoryError
            If there is too little memory.
        """
        with self._making, ExitStack() as undo:
            numbered = {
                (region.memory, region.name, index % region.copies): region
                for region in self._memory.regions
            }
            arenas = {
                key: self.made.get(key) or self._allocate(region, undo)
                for key, region in numbered.items()
            }
            yield {key[:2]: arena for key, arena in arenas.items()}
            self.made.update(arenas)
            self._open.push(undo.pop_all())

    def close(self) -> None:
        """Free them."""
        self.made.clear()
        self._open.close()

    def _allocate(self, region: Region, stack: ExitStack) -> Arena:
        memory, nbytes = region.memory, region.nbytes
        if memory == HOST:
            arena = host_arena(nbytes)
        elif memory == SHARED:
            arena = SharedArena(nbytes)
        else:
            owner = next(d for d in self._devices.values() if d.capabilities.memory == memory)
            arena = owner.arena(memory, nbytes)
        stack.callback(arena.close)
        return arena
