"""Values of a session's variables: on the host, and in each memory in which a plan reads them.

A value is copied to a memory when an item that reads it there is about to start, unless it is there
already. So values that are not read are not copied.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ....devices.device import Device, Pollable
from ....devices.errors import DeviceLostError
from ....devices.memory import HOST_MEMORIES, Arena, ArenaPair, host_arena, host_view
from ....graph.core.ir import Node
from ....graph.core.state import get_variable_spec
from ....graph.values.tensor import Array, TensorSpec, copy_read_only
from ...planner.memory.prepared import list_regions, name_next_region, name_region
from ...plans.regions import Region
from ..opened.arenas import Turned, allocate
from ..opened.copying import Copy, copy_all, find_mover
from ..virtual_time import VirtualTimeDriver


@dataclass(slots=True)
class _Place:
    """A memory in which a variable is read, and whether it has the current value."""

    arenas: list[Arena | None] = field(default_factory=lambda: [None, None])
    """The arena to read, and, for variables that swap, one for the next value."""
    pair: ArenaPair = field(default_factory=ArenaPair)
    turn: int = 0
    """Index of the arena to read."""
    is_current: bool = False

    @property
    def arena(self) -> Arena:
        found = self.arenas[self.turn]
        assert found is not None, "it is read there"
        return found


@dataclass(slots=True)
class _Held:
    name: str
    spec: TensorSpec
    value: Array | None = None
    """On the host, read-only; None if it is in other places only."""
    places: dict[str, _Place] = field(default_factory=dict)
    """By memory. Threads may add entries at any time, so iterate over a copy."""

    def hold(self, value: Array) -> None:
        """Set `value`, which is then on the host only."""
        self.value = value
        # A copy, since threads that open plans may add places.
        for place in list(self.places.values()):
            place.is_current = False

    def keep(self, memories: set[str]) -> None:
        """Record that a new value is in `memories` only."""
        self.value = None
        for memory, place in list(self.places.items()):
            place.is_current = memory in memories


class VariableStore:
    """Keeps values of variables; used on the trio thread only, except `lend`.

    `changes` counts changes of the places of values. In the regions `turned`, by memory and name,
    the second arena is the one to read.
    """

    def __init__(
        self,
        variables: Mapping[str, Node],
        devices: Mapping[str, Device],
        driver: VirtualTimeDriver,
    ) -> None:
        self._devices = devices
        self._driver = driver
        self.changes = 0
        self.turned: Turned = frozenset()
        self._lending = threading.Lock()
        self._held = {n: _Held(n, get_variable_spec(node)) for n, node in variables.items()}
        self._regions = {name_region(name): (held, 0) for name, held in self._held.items()}
        self._regions |= {name_next_region(name): (held, 1) for name, held in self._held.items()}
        self._lost: list[Arena] = []

    def __iter__(self) -> Iterator[str]:
        return iter(self._held)

    def spec(self, name: str) -> TensorSpec:
        return self._held[name].spec

    def hold(self, values: Mapping[str, Array]) -> None:
        """Set variables to `values`, arrays that must not change any more."""
        self.changes += 1
        for name, value in values.items():
            self._held[name].hold(value)

    def check(self, arenas: Iterable[tuple[tuple[str, str], Arena]]) -> None:
        """Raise DeviceLostError if one of `arenas` was lost; each has its variable and memory."""
        for (name, memory), arena in arenas:
            place = self._held[name].places.get(memory)
            if place is None or arena not in place.arenas:
                raise _lost_error(name)

    def keep(
        self,
        memories: Mapping[str, set[str]],
        swaps: Mapping[tuple[str, str], Arena],
        turning: Turned,
    ) -> None:
        """Record `memories` by variable, the only ones that have new values.

        `swaps` has the arenas of new values, by name and memory, that swap with those of the old
        ones, and `turning` their regions.
        """
        self.changes += 1
        for (name, memory), arena in swaps.items():
            place = self._held[name].places[memory]
            # The arena that was written becomes the one to read, which saves a copy.
            place.turn = place.arenas.index(arena)
        # Slots are bound to arenas, so plans need to know which of the two to read.
        self.turned = self.turned ^ turning
        for name, where in memories.items():
            self._held[name].keep(where)

    def spoil(self, memories: Mapping[str, set[str]]) -> None:
        self.changes += 1
        for name, where in memories.items():
            for memory in where.intersection(list(self._held[name].places)):
                self._held[name].places[memory].is_current = False

    def lend(self, region: Region, copy: int) -> Arena | None:
        """Return the arena for a `copy` of a variable's `region`, or None. Thread-safe; blocks.

        The region to read and the region to write share two arenas, in opposite order. Raises
        DeviceMemoryError if there is too little memory.
        """
        found = self._regions.get(region.name)
        if found is None:
            return None
        held, shift = found
        # Two plans opened at the same time must not both allocate the variable's arena.
        with self._lending:
            place = held.places.get(region.memory, _Place())
            arena = place.arenas[copy ^ shift] or allocate(region, self._devices)
            arena.pair = place.pair
            place.arenas[copy ^ shift] = arena
            held.places[region.memory] = place
            return arena

    def are_here(self, names: Iterable[str]) -> bool:
        return all(self._held[name].value is not None for name in names)

    def missing(self, where: Mapping[str, set[str]]) -> list[tuple[str, str]]:
        """Return the pairs of variable and memory in `where` that lack the current value.

        Lost memories are not included: work there fails by itself.
        """
        places = [
            (name, memory, self._held[name].places.get(memory))
            for name, memories in where.items()
            for memory in memories
        ]
        return [(n, memory) for n, memory, place in places if place and not place.is_current]

    async def bring(self, missing: Sequence[tuple[str, str]]) -> None:
        """Copy current values to the pairs of variable and memory in `missing`.

        Raises DeviceLostError if a value was on a device that was lost; DeviceError if a device
        fails.
        """
        copies: list[Copy] = []
        for name, memory in missing:
            held = self._held[name]
            held.places[memory].pair.part = None
            value = await self._value(held)
            device = find_mover(self._devices.values(), memory)
            arena = host_arena(held.spec.nbytes)
            np.copyto(host_view(arena, 0, held.spec).array, value)
            target, source = (
                device.view(one, 0, held.spec) for one in (held.places[memory].arena, arena)
            )
            # Through a separate array: the value may change while the device still reads it.
            copies.append(Copy(target, source, device))
        # Concurrently, since copies to different devices are independent.
        await copy_all(copies, self._driver)
        for name, memory in missing:
            self._held[name].places[memory].is_current = True

    async def fetch(self, name: str) -> Array:
        """Return the value of variable `name`, read-only.

        Raises DeviceLostError if it was on a device that was lost; DeviceError if a device fails.
        """
        value = await self._value(self._held[name])
        return copy_read_only(value) if value.flags.writeable else value

    def read(self, name: str) -> Array:
        """Return the value of variable `name`, read-only; blocks while a device copies it.

        Raises DeviceLostError or DeviceError as `fetch`.
        """
        held = self._held[name]
        if held.value is not None:
            return held.value
        memory = self._current(held)
        device = find_mover(self._devices.values(), memory)
        source = device.view(held.places[memory].arena, 0, held.spec)
        # Devices of this process give access to their memory.
        if type(source.array) is np.ndarray:
            return copy_read_only(source.array)
        target = device.view(host_arena(held.spec.nbytes), 0, held.spec)
        copied = device.copy(target, source)
        if isinstance(device, Pollable):  # the loop, which may have promised to poll, waits here
            device.watch()
        copied.wait()
        return copy_read_only(target.array)

    def lose(self, memory: str) -> None:
        if memory in HOST_MEMORIES:
            return
        self.changes += 1
        for held in self._held.values():
            if (place := held.places.pop(memory, None)) is not None:
                # Freed with the session: programs of the replaced plan may still have views.
                self._lost += filter(None, place.arenas)
                self.turned -= list_regions({held.name: {memory}})

    def closings(self) -> Iterator[Callable[[], None]]:
        """Yield functions that free all memory, to be called on a thread."""
        for held in self._held.values():
            for place in held.places.values():
                for arena in filter(None, place.arenas):
                    yield arena.close
            held.places.clear()
        for arena in self._lost:
            yield arena.close
        self._lost.clear()

    async def _value(self, held: _Held) -> Array:
        """Return the value of `held` on the host; it may change as soon as other tasks run."""
        if held.value is not None:
            return held.value
        memory = self._current(held)
        device = find_mover(self._devices.values(), memory)
        source = device.view(held.places[memory].arena, 0, held.spec)
        if memory in HOST_MEMORIES:
            return source.array
        target = device.view(host_arena(held.spec.nbytes), 0, held.spec)
        await copy_all([Copy(target, source, device)], self._driver)
        # An item may have committed a new value during the copy.
        if held.places[memory].is_current:
            held.value = copy_read_only(target.array)
        return target.array

    def _current(self, held: _Held) -> str:
        found = [memory for memory, place in list(held.places.items()) if place.is_current]
        if not found:
            raise _lost_error(held.name)
        # Reading host memory needs no copy by a device.
        return min(found, key=lambda memory: memory not in HOST_MEMORIES)


def _lost_error(name: str) -> DeviceLostError:
    return DeviceLostError(
        f"what the variable {name!r} held lay on a device that was lost",
        fix="assign to it, or load what was saved: session.load_variables(path)",
    )
