"""Copies between memories, outside of the steps of items: many at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import trio

from ....devices.device import Device
from ....devices.event import Event
from ....devices.memory import HOST_MEMORIES, View
from ....graph.tensor import Array
from ...costs.host import INLINE_BYTES
from ..virtual_time import VirtualTimeDriver


class Copy(NamedTuple):
    """What becomes what, and the device that copies it if this process cannot."""

    target: View
    source: View
    device: Device

    @property
    def is_here(self) -> bool:
        """True when both are in memories of the host, where no device is needed."""
        return HOST_MEMORIES.issuperset((self.target.arena.memory, self.source.arena.memory))


class Copies:
    """Copies that are made again and again.

    Attributes
    ----------
    is_quick : bool
        True when all of it takes no longer than some turns of the loop, on the host.
    """

    def __init__(self, copies: Iterable[Copy] = ()) -> None:
        listed = tuple(copies)
        here = [one for one in listed if one.is_here]
        self._arrays = [(one.target.array, one.source.array) for one in here]
        self._others = [one for one in listed if not one.is_here]
        nbytes = sum(one.target.spec.nbytes for one in here)
        self.is_quick = nbytes <= INLINE_BYTES and not self._others

    def __bool__(self) -> bool:
        return bool(self._arrays or self._others)

    def make_here(self) -> None:
        """Copy what is in memories of the host; blocks."""
        for target, source in self._arrays:
            np.copyto(target, source)

    async def make(self, pace: VirtualTimeDriver) -> None:
        """Copy everything, within the host last; what has begun ends, also when this is cancelled.

        Raises
        ------
        DeviceError
            If a device fails.
        """
        begun = [_begun(one, pace) for one in self._others]
        pace.wake()
        events = [event for _, event in begun]
        for done, _ in begun:
            await ended(done, partial(_cancel, events))
        for event in events:
            if event.error is not None:
                raise event.error
        if self.is_quick:
            self.make_here()
        else:
            await pace.on_thread(self.make_here)


def are_small(arrays: Iterable[Array]) -> bool:
    """Say whether arrays may be copied on the loop's thread."""
    return nbytes_of(arrays) <= INLINE_BYTES


def nbytes_of(arrays: Iterable[Array]) -> int:
    """Return how many bytes arrays have together."""
    nbytes = 0
    for array in arrays:
        nbytes += array.nbytes
    return nbytes


async def copy_all(copies: Iterable[Copy], pace: VirtualTimeDriver) -> None:
    """Make copies, as `Copies.make` does.

    Raises
    ------
    DeviceError
        If a device fails.
    """
    await Copies(copies).make(pace)


async def ended(done: trio.Event, cancel: Callable[[], object]) -> None:
    """Wait for work on devices, which has to end even where nobody wants it any more."""
    try:
        await done.wait()
    except BaseException:
        cancel()
        with trio.CancelScope(shield=True):
            await done.wait()
        raise


def mover(devices: Iterable[Device], memory: str) -> Device:
    """Return the device that copies into a memory: its owner, or one that reaches it."""
    found = tuple(devices)
    owners = (device for device in found if device.capabilities.memory == memory)
    reaching = (device for device in found if memory in device.capabilities.accesses)
    return next(owners, None) or next(reaching)


def _begun(one: Copy, pace: VirtualTimeDriver) -> tuple[trio.Event, Event]:
    done = trio.Event()
    launch = pace.launching(one.device, partial(one.device.copy, one.target, one.source))
    return done, launch((), lambda _: pace.call(done.set))


def _cancel(events: Sequence[Event]) -> None:
    for event in events:
        event.cancel()
