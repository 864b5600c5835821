"""Values of a session's variables: on the host, and in each memory in which a plan reads them.

A value is copied to where it is read when an item that reads it there is about to start, unless it
is there already; what nobody reads in the meantime is not copied.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ....devices.device import Device
from ....devices.errors import DeviceLostError
from ....devices.memory import HOST_MEMORIES, Arena, host_arena, host_view
from ....graph.ir import Node
from ....graph.state import spec_of_variable
from ....graph.tensor import Array, TensorSpec, frozen_copy
from ...planner.memory.prepared import list_regions, name_next_region, name_region
from ...plans.regions import Region
from ..opened.arenas import Turned, allocated
from ..opened.copying import Copy, copy_all, mover
from ..virtual_time import VirtualTimeDriver


@dataclass(slots=True)
class _Place:
    """A memory in which a variable is read, and whether its value is there.

    Attributes
    ----------
    arenas : list of Arena or None
        One that it is read from, and one for the next value where they change places.
    turn : int
        Which it is read from.
    """

    arenas: list[Arena | None] = field(default_factory=lambda: [None, None])
    turn: int = 0
    is_current: bool = False

    @property
    def arena(self) -> Arena:
        """Where it is read from."""
        found = self.arenas[self.turn]
        assert found is not None, "it is read there"
        return found


@dataclass(slots=True)
class _Held:
    """One variable.

    Attributes
    ----------
    name : str
    spec : TensorSpec
    value : Array or None
        On the host, read-only; None if it is in other places only.
    places : dict of str to _Place
        By memory. Threads may add some at any time, so that nobody goes through it itself.
    """

    name: str
    spec: TensorSpec
    value: Array | None = None
    places: dict[str, _Place] = field(default_factory=dict)

    def hold(self, value: Array) -> None:
        """Have a value on the host alone."""
        self.value = value
        # A copy of the list: threads that open plans add places meanwhile.
        for place in list(self.places.values()):
            place.is_current = False

    def keep(self, memories: set[str]) -> None:
        """Take note that a new value is in some memories, and nowhere else."""
        self.value = None
        for memory, place in list(self.places.items()):
            place.is_current = memory in memories


class VariableStore:
    """Keeps them; on the trio thread only, but for `lend`.

    Parameters
    ----------
    variables : Mapping of str to Node
    devices : Mapping of str to Device
        Those that are open.
    driver : VirtualTimeDriver

    Attributes
    ----------
    changes : int
        How often something has changed of where values are.
    turned : frozenset of (str, str)
        The regions, by memory and name, whose second arenas are the ones to use.
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
        self._held = {n: _Held(n, spec_of_variable(node)) for n, node in variables.items()}
        self._regions = {name_region(name): (held, 0) for name, held in self._held.items()}
        self._regions |= {name_next_region(name): (held, 1) for name, held in self._held.items()}
        self._lost: list[Arena] = []

    def __iter__(self) -> Iterator[str]:
        return iter(self._held)

    def spec(self, name: str) -> TensorSpec:
        """Return the spec of what a variable holds."""
        return self._held[name].spec

    def hold(self, values: Mapping[str, Array]) -> None:
        """Have variables hold arrays, which nobody changes any more."""
        self.changes += 1
        for name, value in values.items():
            self._held[name].hold(value)

    def check(self, arenas: Iterable[tuple[tuple[str, str], Arena]]) -> None:
        """Raise DeviceLostError if a memory was lost in which items wrote next values."""
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
        """Take note in which memories alone variables have new values.

        `swaps` has the arenas of these, by name and memory, that change places with those of the
        old ones, and `turning` their regions.
        """
        self.changes += 1
        for (name, memory), arena in swaps.items():
            place = self._held[name].places[memory]
            # What was written becomes what is read, by changing places rather than by a copy.
            place.turn = place.arenas.index(arena)
        # Slots are bound to arenas, so that plans need to know which of the two is which by now.
        self.turned = self.turned ^ turning
        for name, where in memories.items():
            self._held[name].keep(where)

    def spoil(self, memories: Mapping[str, set[str]]) -> None:
        """Take note in which memories variables hold nothing sensible any more."""
        self.changes += 1
        for name, where in memories.items():
            for memory in where.intersection(list(self._held[name].places)):
                self._held[name].places[memory].is_current = False

    def lend(self, region: Region, copy: int) -> Arena | None:
        """Return an arena of a variable's region; None for other regions. Any thread, blocks.

        What is the first of what it is read from is the second of where the next is written.

        Raises
        ------
        DeviceMemoryError
            If there is too little memory.
        """
        found = self._regions.get(region.name)
        if found is None:
            return None
        held, shift = found
        # Two plans that are opened at once must not each allocate the variable's arena.
        with self._lending:
            place = held.places.get(region.memory, _Place())
            arena = place.arenas[copy ^ shift] or allocated(region, self._devices)
            place.arenas[copy ^ shift] = arena
            held.places[region.memory] = place
            return arena

    def are_here(self, names: Iterable[str]) -> bool:
        """Return whether the values of variables are arrays of this process."""
        return all(self._held[name].value is not None for name in names)

    def missing(self, where: Mapping[str, set[str]]) -> list[tuple[str, str]]:
        """Return which variables are not in which memories as they are now.

        Those that were lost are not missing: what is to run there fails by itself.
        """
        places = [
            (name, memory, self._held[name].places.get(memory))
            for name, memories in where.items()
            for memory in memories
        ]
        return [(n, memory) for n, memory, place in places if place and not place.is_current]

    async def bring(self, missing: Sequence[tuple[str, str]]) -> None:
        """Copy variables to memories in which they are not.

        Raises
        ------
        DeviceLostError
            If a value was on a device that was lost.
        DeviceError
            If a device fails.
        """
        copies: list[Copy] = []
        for name, memory in missing:
            held = self._held[name]
            value = await self._value(held)
            device = mover(self._devices.values(), memory)
            arena = host_arena(held.spec.nbytes)
            np.copyto(host_view(arena, 0, held.spec).array, value)
            target, source = (
                device.view(one, 0, held.spec) for one in (held.places[memory].arena, arena)
            )
            # Through an array of its own: the value may change on the host while the device still
            # reads.
            copies.append(Copy(target, source, device))
        # All at once, since a copy to one device need not wait for that to another.
        await copy_all(copies, self._driver)
        for name, memory in missing:
            self._held[name].places[memory].is_current = True

    async def fetch(self, name: str) -> Array:
        """Return a value, read-only.

        Raises
        ------
        DeviceLostError
            If it was on a device that was lost.
        DeviceError
            If a device fails.
        """
        value = await self._value(self._held[name])
        return frozen_copy(value) if value.flags.writeable else value

    def read(self, name: str) -> Array:
        """Return the same at once, if need be by waiting for a device.

        Raises
        ------
        DeviceLostError, DeviceError
            As `fetch`.
        """
        held = self._held[name]
        if held.value is not None:
            return held.value
        memory = self._current(held)
        device = mover(self._devices.values(), memory)
        source = device.view(held.places[memory].arena, 0, held.spec)
        # Devices of this process show their memory as it is.
        if type(source.array) is np.ndarray:
            return frozen_copy(source.array)
        target = device.view(host_arena(held.spec.nbytes), 0, held.spec)
        device.copy(target, source).wait()
        return frozen_copy(target.array)

    def lose(self, memory: str) -> None:
        """Take note that what was in a memory is gone, unless that is of the host."""
        if memory in HOST_MEMORIES:
            return
        self.changes += 1
        for held in self._held.values():
            if (place := held.places.pop(memory, None)) is not None:
                # Freed with the session: programs of the plan that is being replaced may still hold
                # views.
                self._lost += filter(None, place.arenas)
                self.turned -= list_regions({held.name: {memory}})

    def closings(self) -> Iterator[Callable[[], None]]:
        """Yield what to call, on a thread, to free all memory."""
        for held in self._held.values():
            for place in held.places.values():
                for arena in filter(None, place.arenas):
                    yield arena.close
            held.places.clear()
        for arena in self._lost:
            yield arena.close
        self._lost.clear()

    async def _value(self, held: _Held) -> Array:
        """Return a value on the host; it may change as soon as others run."""
        if held.value is not None:
            return held.value
        memory = self._current(held)
        device = mover(self._devices.values(), memory)
        source = device.view(held.places[memory].arena, 0, held.spec)
        if memory in HOST_MEMORIES:
            return source.array
        target = device.view(host_arena(held.spec.nbytes), 0, held.spec)
        await copy_all([Copy(target, source, device)], self._driver)
        # An item may have committed a new value while this one was on its way.
        if held.places[memory].is_current:
            held.value = frozen_copy(target.array)
        return target.array

    def _current(self, held: _Held) -> str:
        """Return a memory in which a value is, one of the host if there is one."""
        found = [memory for memory, place in list(held.places.items()) if place.is_current]
        if not found:
            raise _lost_error(held.name)
        # From there no device has to copy.
        return min(found, key=lambda memory: memory not in HOST_MEMORIES)


def _lost_error(name: str) -> DeviceLostError:
    return DeviceLostError(
        f"what the variable {name!r} held lay on a device that was lost",
        fix="assign to it, or load what was saved: session.load_variables(path)",
    )
