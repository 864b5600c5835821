"""The base of devices that work in this process's memory, in order on one thread."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from threading import Lock
from types import MappingProxyType
from typing import Any, Protocol, TypeGuard, cast

import numpy as np

from ..graph.tensor import TensorSpec
from .device import OnDone, Program
from .event import Event
from .lane import ThreadLane
from .memory import SHARED, Arena, SharedArena, View, host_arena, host_view


class HostProgram(Program, Protocol):
    """A program that runs on whichever thread calls it."""

    def __call__(self) -> None:
        """Run it to its end."""
        ...

    def run(self, event: Event) -> None:
        """Run it, and stop early where the event is cancelled."""
        ...


class HostDevice:
    """The part of a device that is its lane and its memory; programs are left to subclasses.

    What is over sooner than the lane's thread would be awake may run on another one: `run_here`.

    Attributes
    ----------
    options : Mapping of str to value
        `threads` and `affinity`, as far as they were given.
    """

    def __init__(self, name: str, options: Mapping[str, Any] = MappingProxyType({})) -> None:
        self.name = name
        self.options = options
        self._lane = ThreadLane(f"plait-{name}", options.get("affinity", ()))

    def share_thread(self, other: HostDevice) -> None:
        """Work on another one's thread from now on; before `open`."""
        self._lane = other._lane

    def arena(self, memory: str, nbytes: int) -> Arena:
        """Allocate in this process's memory, or in shared memory."""
        return SharedArena(nbytes) if memory == SHARED else host_arena(nbytes)

    def view(self, arena: Arena, offset: int, spec: TensorSpec) -> View:
        """Return a numpy view."""
        return host_view(arena, offset, spec)

    def submit(
        self, program: Program, waits: Sequence[Event] = (), on_done: OnDone | None = None
    ) -> Event:
        """Queue a program on the lane."""
        event = Event(on_done)
        self._lane.put(event, partial(cast(HostProgram, program).run, event))
        return event

    def run_inline(self, program: Program, event: Event) -> bool:
        """Run a program on the calling thread, if the lane is idle; say whether that was so.

        In place of `submit`, for programs that take less time than to wake the lane's thread.
        """
        return self._lane.run_inline(event, partial(cast(HostProgram, program).run, event))

    def calling(self, program: Program) -> Callable[[], object] | None:
        """Return what runs a program on the calling thread, for who knows that the lane is idle.

        None where no other thread may run it. It raises what the program raises.
        """
        return self._lane.calling(cast(HostProgram, program))

    def is_caller(self) -> bool:
        """Return whether the calling thread is the lane's: it would wait for its own work."""
        return self._lane.is_caller()

    def hold(self) -> Lock | None:
        """Keep the lane from working until what is returned is released; None if it is not idle.

        For who calls what `calling` returned and does not know that the lane is idle.
        """
        return self._lane.hold()

    def copy(
        self,
        target: View,
        source: View,
        waits: Sequence[Event] = (),
        on_done: OnDone | None = None,
    ) -> Event:
        """Queue a copy between host memories on the lane."""
        event = Event(on_done)
        self._lane.put(event, partial(np.copyto, target.array, source.array))
        return event

    def close(self) -> None:
        """Finish what is queued, end the thread."""
        self._lane.close()


def given(
    threads: int | None, affinity: Sequence[int] | None, spinning: bool | None = None
) -> dict[str, Any]:
    """Return those of the options of devices on the host that are given."""
    every = {
        "threads": threads,
        "affinity": None if affinity is None else tuple(affinity),
        "spinning": spinning,
    }
    return {name: value for name, value in every.items() if value is not None}


def may_run_anywhere(device: object) -> TypeGuard[HostDevice]:
    """Say whether any thread may run a device's programs: it submits them in no way of its own."""
    return isinstance(device, HostDevice) and type(device).submit is HostDevice.submit


def physical_memory() -> int | None:
    """Return this machine's memory in bytes, None where it cannot be told."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def core_count() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
