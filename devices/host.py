"""The base of devices that work in this process's memory, in order on one thread."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from threading import Lock
from types import MappingProxyType
from typing import Any, Protocol, TypeGuard, cast

import numpy as np

from ..graph.values.tensor import TensorSpec
from .device import OnDone, Program
from .event import Event
from .lane import ThreadLane
from .memory import SHARED, Arena, SharedArena, View, host_arena, host_view


class HostProgram(Program, Protocol):
    def __call__(self) -> None: ...

    def run(self, event: Event) -> None:
        """Run the program, and stop early if `event` is cancelled."""


class HostDevice:
    """The lane and memory of a device; subclasses add programs.

    Work that is shorter than waking the lane's thread may run on another thread: `run_inline`.

    Attributes
    ----------
    options : Mapping of str to value
        `threads` and `affinity`, if given.
    """

    def __init__(self, name: str, options: Mapping[str, Any] = MappingProxyType({})) -> None:
        self.name = name
        self.options = options
        self._lane = ThreadLane(f"plait-{name}", options.get("affinity", ()))

    def share_thread(self, other: HostDevice) -> None:
        """Work on the thread of `other` from now on; call it before `open`."""
        self._lane = other._lane

    def arena(self, memory: str, nbytes: int) -> Arena:
        return SharedArena(nbytes) if memory == SHARED else host_arena(nbytes)

    def view(self, arena: Arena, offset: int, spec: TensorSpec) -> View:
        return host_view(arena, offset, spec)

    def submit(
        self, program: Program, waits: Sequence[Event] = (), on_done: OnDone | None = None
    ) -> Event:
        event = Event(on_done)
        self._lane.put(event, partial(cast(HostProgram, program).run, event))
        return event

    def run_inline(self, program: Program, event: Event) -> bool:
        """Run `program` for `event` on this thread if the lane is idle; return whether it was.

        A replacement of `submit` for programs that take less time than waking the lane's thread.
        """
        return self._lane.run_inline(event, partial(cast(HostProgram, program).run, event))

    def calling(self, program: Program) -> Callable[[], object] | None:
        """Return a function that runs `program` on the calling thread while the lane is idle.

        None if other threads may not run it. It raises the program's errors.
        """
        return self._lane.calling(cast(HostProgram, program))

    def is_caller(self) -> bool:
        """Return whether the calling thread is the lane's: it would wait for its own work."""
        return self._lane.is_caller()

    def hold(self) -> Lock | None:
        """Keep the lane idle until the returned lock is released; None if it is not idle.

        It protects calls of the function from `calling`.
        """
        return self._lane.hold()

    def copy(
        self, target: View, source: View, waits: Sequence[Event] = (), on_done: OnDone | None = None
    ) -> Event:
        event = Event(on_done)
        self._lane.put(event, partial(np.copyto, target.array, source.array))
        return event

    def close(self) -> None:
        """Finish the queued work and end the thread."""
        self._lane.close()


def collect_options(
    threads: int | None, affinity: Sequence[int] | None, spinning: bool | None = None
) -> dict[str, Any]:
    every = {
        "threads": threads,
        "affinity": None if affinity is None else tuple(affinity),
        "spinning": spinning,
    }
    return {name: value for name, value in every.items() if value is not None}


def may_run_anywhere(device: object) -> TypeGuard[HostDevice]:
    """Return whether any thread may run programs of `device`: `submit` is not overridden."""
    return isinstance(device, HostDevice) and type(device).submit is HostDevice.submit


def read_physical_memory() -> int | None:
    """Return the size of this machine's memory in bytes, None if unknown."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def is_machine_loaded(cores: int) -> bool:
    """Return whether other programs need the machine's `cores` cores.

    Two programs for each core in the mean of the last minute. ``PLAIT_FIGURES=off`` assumes none.
    """
    if os.environ.get("PLAIT_FIGURES") == "off" or not hasattr(os, "getloadavg"):
        return False
    return os.getloadavg()[0] >= 2 * cores


def count_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
