"""Carries out commands on a host: runs programs, copies in, out and between its devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from ....devices.device import Device, Program
from ....devices.event import Event
from ....devices.memory import HOST, HOST_MEMORIES, Arena, View, host_arena
from ....graph.tensor import Array, TensorSpec
from ...costs.host import INLINE_BYTES
from .commands import Command, RemoteTensor


@dataclass(slots=True)
class Memory:
    """An arena, the device that allocated it, and the views that were made of it so far.

    Attributes
    ----------
    staging : dict of RemoteTensor to View
        For each place that was copied from or to the host's memory, the bytes there.
    """

    arena: Arena
    device: Device
    views: dict[tuple[int, RemoteTensor], View] = field(default_factory=dict)
    staging: dict[RemoteTensor, View] = field(default_factory=dict)


class HostWork:
    """Starts commands.

    Parameters
    ----------
    objects : Mapping of int to object
        Devices, memories and programs.
    """

    def __init__(self, objects: Mapping[int, Any]) -> None:
        self._objects = objects
        self._reads: dict[int, Array] = {}

    def take_read(self, number: int) -> Array | None:
        """Return what a command has read, once."""
        return self._reads.pop(number, None)

    def view(self, number: int, place: RemoteTensor) -> View:
        """Return a device's view of a place, which may be in the memory of another one."""
        memory: Memory = self._objects[place.arena]
        key = number, place
        view = memory.views.get(key)
        if view is None:
            device: Device = self._objects[number]
            view = memory.views[key] = device.view(memory.arena, place.offset, place.spec)
        return view

    def launch(self, command: Command, done: Callable[[Event], None]) -> Event:
        """Start a command; `done` is called with the event that is returned."""
        device: Device = self._objects[command.device]
        if command.kind == "run":
            program: Program = self._objects[command.program]
            return device.submit(program, (), done)
        if command.kind == "write":
            assert command.target is not None
            assert command.array is not None
            target = self.view(command.device, command.target)
            return _copy(device, target, self._to_copy(target, command, command.array), done)
        if command.kind == "read":
            return self._read(device, command, done)
        return self._move(device, command, done)

    def _to_copy(self, target: View, command: Command, array: Array) -> View:
        """Return a view of an array that came along, which a device can copy from."""
        if target.arena.memory in HOST_MEMORIES:
            return _host_view(array)
        assert command.target is not None
        staged = self._staging(command.device, command.target)
        np.copyto(staged.array, array)
        return staged

    def _read(self, device: Device, command: Command, done: Callable[[Event], None]) -> Event:
        assert command.source is not None
        source = self.view(command.device, command.source)
        array = np.empty(source.spec.static_shape, source.spec.dtype)
        if source.arena.memory in HOST_MEMORIES:
            self._reads[command.number] = array
            return _copy(device, _host_view(array), source, done)
        staged = self._staging(command.device, command.source)

        def copied(event: Event) -> None:
            if event.error is None:
                np.copyto(array, staged.array)
                self._reads[command.number] = array
            done(event)

        return device.copy(staged, source, (), copied)

    def _move(self, device: Device, command: Command, done: Callable[[Event], None]) -> Event:
        """Copy from the memory of another device of this host."""
        assert command.source is not None
        assert command.target is not None
        memory: Memory = self._objects[command.source.arena]
        target = self.view(command.device, command.target)
        reached = {*HOST_MEMORIES, *device.capabilities.copies_from}
        if memory.arena.memory in reached:
            return _copy(device, target, self.view(command.device, command.source), done)
        owner = memory.device
        source = owner.view(memory.arena, command.source.offset, command.source.spec)
        if target.arena.memory in HOST_MEMORIES:
            there = owner.view(target.arena, command.target.offset, command.target.spec)
            return owner.copy(there, source, (), done)
        return self._over_host(device, owner, target, source, command, done)

    def _over_host(
        self,
        device: Device,
        owner: Device,
        target: View,
        source: View,
        command: Command,
        done: Callable[[Event], None],
    ) -> Event:
        """Copy from one memory to another, neither of them the host's nor known to the other."""
        assert command.target is not None
        staged = self._staging(command.device, command.target)
        theirs = owner.view(staged.arena, 0, command.target.spec)

        def copied(event: Event) -> None:
            if event.error is not None:
                done(event)
            else:
                device.copy(target, staged, (), done)

        return owner.copy(theirs, source, (), copied)

    def _staging(self, number: int, place: RemoteTensor) -> View:
        """Return a view of host memory that a device copies from and to, for one place of its."""
        memory: Memory = self._objects[place.arena]
        view = memory.staging.get(place)
        if view is None:
            device: Device = self._objects[number]
            arena = host_arena(place.spec.nbytes)
            view = memory.staging[place] = device.view(arena, 0, place.spec)
        return view


def _host_view(array: Array) -> View:
    spec = TensorSpec(array.dtype, array.shape)
    return View(Arena(HOST, array.nbytes, None), 0, spec, array)


def _copy(device: Device, target: View, source: View, done: Callable[[Event], None]) -> Event:
    """Copy by a device that does nothing else then; what is small at once, on this thread."""
    memories = {target.arena.memory, source.arena.memory}
    if HOST_MEMORIES.issuperset(memories) and target.spec.nbytes <= INLINE_BYTES:
        event = Event(done)
        event.run(partial(np.copyto, target.array, source.array))
        return event
    return device.copy(target, source, (), done)
