"""Executes commands on a host: runs programs, copies in, out and between its devices."""

from __future__ import annotations

import mmap
import weakref
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from ....devices.device import Device, OnDone, Program
from ....devices.errors import DeviceMemoryError
from ....devices.event import Event
from ....devices.memory import HOST, HOST_MEMORIES, Arena, View
from ....graph.values.tensor import Array, TensorSpec
from ...costs.host import INLINE_BYTES
from .commands import Command, RemoteTensor


@dataclass(frozen=True, slots=True)
class StagedBytes:
    """A buffer in use, and the list of unused ones to return it to."""

    view: View
    _unused: list[View]

    def free(self) -> None:
        self._unused.append(self.view)

    def lend(self) -> Array:
        """Return an array on the buffer, which is freed with the array.

        A pickler refers to the array as long as it needs the bytes.
        """
        array = self.view.array.view()
        weakref.finalize(array, self.free).atexit = False
        return array


class Staging:
    """Page-locked buffers between messages and a device's memory, by device and place. Thread-safe.

    Messages lie in memory of the cluster, from which a device copies slowly and not concurrently
    with other work. A place has as many buffers as were ever in use at once, usually one or two.
    """

    def __init__(self) -> None:
        self._unused: dict[Hashable, list[View]] = {}

    def take(self, device: Device, key: Hashable, spec: TensorSpec) -> StagedBytes:
        """Return a free buffer of `spec` for `key` that `device` can copy; or DeviceMemoryError."""
        unused = self._unused.setdefault(key, [])
        try:
            view = unused.pop()
        except IndexError:
            view = device.view(_allocate_pages(spec.nbytes), 0, spec)
        return StagedBytes(view, unused)


def _allocate_pages(nbytes: int) -> Arena:
    try:
        pages = mmap.mmap(-1, max(nbytes, 1))
    except (OSError, OverflowError) as error:
        raise DeviceMemoryError(
            f"cannot allocate {nbytes} bytes of host memory to copy from and to",
            fix="free memory on the host, or lower max_in_flight",
        ) from error
    return Arena(HOST, nbytes, np.frombuffer(pages, np.uint8, nbytes))


@dataclass(slots=True)
class Memory:
    """An arena, the device that allocated it, and its cached views and buffers."""

    arena: Arena
    device: Device
    views: dict[tuple[int, RemoteTensor], View] = field(default_factory=dict)
    """By number of the device, and place."""
    staging: Staging = field(default_factory=Staging)
    """Buffers for copies from and to host memory, if the arena is elsewhere."""


class CopyOverHost(Event):
    """A copy in two parts, by two devices: neither's stream can see it end."""


class HostWork:
    """Starts commands, while others may be running.

    `objects` are devices, memories and programs by number.
    """

    def __init__(self, objects: Mapping[int, Any]) -> None:
        self._objects = objects
        self._reads: dict[int, Array] = {}

    def take_read(self, number: int) -> Array | None:
        return self._reads.pop(number, None)

    def view(self, number: int, place: RemoteTensor) -> View:
        memory: Memory = self._objects[place.arena]
        key = number, place
        view = memory.views.get(key)
        if view is None:
            device: Device = self._objects[number]
            view = memory.views[key] = device.view(memory.arena, place.offset, place.spec)
        return view

    def follows(self, command: Command, other: Command, event: Event) -> bool:
        device, owner = (self._objects.get(one.device) for one in (command, other))
        if device is None or owner is None or isinstance(event, CopyOverHost):
            return False
        mine, others = device.capabilities, owner.capabilities
        if not (mine.native_waits and others.native_waits):
            return False
        return owner is device or others.memory in {mine.memory, *mine.copies_from}

    def launch(self, command: Command, waits: tuple[Event, ...], done: OnDone) -> Event:
        device: Device = self._objects[command.device]
        if command.kind == "run":
            program: Program = self._objects[command.program]
            return device.submit(program, waits, done)
        if command.kind == "write":
            return self._write(device, command, waits, done)
        if command.kind == "read":
            return self._read(device, command, waits, done)
        return self._move(device, command, waits, done)

    def _write(
        self, device: Device, command: Command, waits: tuple[Event, ...], done: OnDone
    ) -> Event:
        assert command.target is not None
        assert command.array is not None
        target = self.view(command.device, command.target)
        if target.arena.memory in HOST_MEMORIES:
            return _copy(device, target, _make_host_view(command.array), waits, done)
        staged = self._staged(command.device, command.target)
        np.copyto(staged.view.array, command.array)

        def copied(event: Event) -> None:
            staged.free()
            done(event)

        return device.copy(target, staged.view, waits, copied)

    def _read(
        self, device: Device, command: Command, waits: tuple[Event, ...], done: OnDone
    ) -> Event:
        assert command.source is not None
        source = self.view(command.device, command.source)
        if source.arena.memory in HOST_MEMORIES:
            array = np.empty(source.spec.static_shape, source.spec.dtype)
            self._reads[command.number] = array
            return _copy(device, _make_host_view(array), source, waits, done)
        staged = self._staged(command.device, command.source)
        self._reads[command.number] = staged.lend()
        return device.copy(staged.view, source, waits, done)

    def _move(
        self, device: Device, command: Command, waits: tuple[Event, ...], done: OnDone
    ) -> Event:
        assert command.source is not None
        assert command.target is not None
        memory: Memory = self._objects[command.source.arena]
        target = self.view(command.device, command.target)
        reached = {*HOST_MEMORIES, *device.capabilities.copies_from}
        if memory.arena.memory in reached:
            return _copy(device, target, self.view(command.device, command.source), waits, done)
        owner = memory.device
        source = owner.view(memory.arena, command.source.offset, command.source.spec)
        if target.arena.memory not in HOST_MEMORIES:
            return self._over_host(command, (target, source), waits, done)
        assert not waits, "a device that computes in the host's memory takes none"
        there = owner.view(target.arena, command.target.offset, command.target.spec)
        return owner.copy(there, source, (), done)

    def _over_host(
        self, command: Command, ends: tuple[View, View], waits: tuple[Event, ...], done: OnDone
    ) -> Event:
        """Copy by `command` between `ends` over host memory, after `waits`; then call `done`."""
        assert command.source is not None
        assert command.target is not None
        target, source = ends
        device: Device = self._objects[command.device]
        memory: Memory = self._objects[command.source.arena]
        staged = self._staged(command.device, command.target)
        theirs = memory.device.view(staged.view.arena, 0, command.target.spec)
        whole = CopyOverHost(done)

        def end(event: Event) -> None:
            staged.free()
            whole.started_ns, whole.ended_ns = event.started_ns, event.ended_ns
            whole.complete(event.error)

        def go_on(event: Event) -> None:
            if event.error is not None:
                end(event)
            else:
                device.copy(target, staged.view, waits, end)

        memory.device.copy(theirs, source, (), go_on)
        return whole

    def _staged(self, number: int, place: RemoteTensor) -> StagedBytes:
        memory: Memory = self._objects[place.arena]
        return memory.staging.take(self._objects[number], (number, place), place.spec)


def _make_host_view(array: Array) -> View:
    spec = TensorSpec(array.dtype, array.shape)
    return View(Arena(HOST, array.nbytes, None), 0, spec, array)


def _copy(
    device: Device, target: View, source: View, waits: tuple[Event, ...], done: OnDone
) -> Event:
    memories = {target.arena.memory, source.arena.memory}
    is_small = HOST_MEMORIES.issuperset(memories) and target.spec.nbytes <= INLINE_BYTES
    if is_small and not waits:
        event = Event(done)
        event.run(partial(np.copyto, target.array, source.array))
        return event
    return device.copy(target, source, waits, done)
