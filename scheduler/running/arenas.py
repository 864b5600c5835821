"""The arenas of an open plan: one for each copy of each region, allocated on demand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TypeAlias

from ...devices.device import Device
from ...devices.memory import HOST, SHARED, Arena, SharedArena, host_arena
from ..memory.regions import MemoryPlan, Region

Arenas: TypeAlias = Mapping[tuple[str, str], Arena]
"""The arenas of a slot, by memory and region."""

Lend: TypeAlias = Callable[[Region], Arena | None]


class OpenArenas:
    """Allocates and frees the regions of a memory plan; all methods block.

    Parameters
    ----------
    memory : MemoryPlan
    devices : Mapping of str to Device
        Open.
    lend : callable, optional
        Returns the arena of a region that somebody else keeps, None for others.

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
        lent = None if self._lend is None else self._lend(region)
        if lent is not None:
            return lent
        arena = allocated(region, self._devices)
        stack.callback(arena.close)
        return arena


def allocated(region: Region, devices: Mapping[str, Device]) -> Arena:
    """Return an arena for a region.

    Raises
    ------
    DeviceMemoryError
        If there is too little memory.
    """
    memory, nbytes = region.memory, region.nbytes
    if memory == HOST:
        return host_arena(nbytes)
    if memory == SHARED:
        return SharedArena(nbytes)
    owner = next(device for device in devices.values() if device.capabilities.memory == memory)
    return owner.arena(memory, nbytes)
