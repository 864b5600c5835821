"""Copies between memories, outside of the steps of items: many at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import NamedTuple

import numpy as np
import trio

from ....devices.device import Device
from ....devices.donation import Donation
from ....devices.event import Event
from ....devices.memory import HOST_MEMORIES, View
from ....graph.values.tensor import Array, shorten_array
from ...costs.host import INLINE_BYTES
from ..large_copies import copy_array
from ..virtual_time import VirtualTimeDriver

_nbytes = attrgetter("nbytes")

GIVES_UP_SIZE, KEEPS_BYTES = 500, 1 << 18
"""For more elements than this, numpy gives up the interpreter while it copies. Regaining it may
take longer than copying, 20 µs: 50 µs and more if other threads hold it."""


class Copy(NamedTuple):
    """Target and source, and the device that copies if this process cannot."""

    target: View
    source: View
    device: Device

    @property
    def is_here(self) -> bool:
        """True when target and source are in memories of the host, where no device is needed."""
        return HOST_MEMORIES.issuperset((self.target.arena.memory, self.source.arena.memory))


class OutputCopies:
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
        """Copy the outputs within memories of the host, on this thread."""
        for target, source in self._arrays:
            copy_array(target, source)

    async def make(self, driver: VirtualTimeDriver) -> None:
        """Make all copies through `driver`, those within the host last.

        Copies in flight end even if this is cancelled. Raises DeviceError if a device fails.
        """
        begun = [_begin(one, driver) for one in self._others]
        driver.wake()
        events = [event for _, event in begun]
        for done, _ in begun:
            await wait_for_end(done, partial(_cancel, events))
        for event in events:
            if event.error is not None:
                raise event.error
        if self.is_quick:
            self.make_here()
        else:
            await driver.on_thread(self.make_here)


class Feeds:
    """Where an item's inputs are written to.

    Steps can read those in `lent` where the caller has them.
    """

    def __init__(
        self, targets: Mapping[str, Array], lent: Mapping[str, Donation] | None = None
    ) -> None:
        self.targets = targets
        self.lent = lent or {}
        self._rooms = [(name, array, _get_room(array)) for name, array in targets.items()]
        self.nbytes = sum_nbytes(targets.values())

    def shortened(self, arrays: Mapping[str, Array]) -> Feeds:
        shapes = {name: arrays[name].shape for name in self.targets}
        if all(target.shape == shapes[name] for name, target in self.targets.items()):
            return self
        parts = ((name, shorten_array(one, shapes[name])) for name, one in self.targets.items())
        return Feeds(dict(parts))

    def take(self, arrays: Mapping[str, Array]) -> None:
        """Have steps read `arrays`, or copies, until `end_loans`; lanes rest meanwhile."""
        for name, target in self.targets.items():
            array = arrays[name]
            if name in self.lent and _may_be_read(array, target):
                self.lent[name].array = array
            else:
                target[...] = array  # the interpreter is not needed elsewhere

    def end_loans(self) -> None:
        """Have steps read the memory of the slot again."""
        for name, place in self.lent.items():
            place.array = self.targets[name]

    def write(self, arrays: Mapping[str, Array]) -> None:
        """Copy `arrays` to the targets, which have their shapes."""
        self.end_loans()  # Ctrl-C may have struck before
        for name, target, room in self._rooms:
            source = arrays[name]
            # numpy would release the interpreter for the copy, and often have to wait for it then.
            if room is None or source.dtype is not target.dtype or not source.flags.c_contiguous:
                copy_array(target, source)
            else:
                room[:] = source.data.cast("B")


def _may_be_read(array: Array, target: Array) -> bool:
    flags = array.flags
    is_alike = type(array) is np.ndarray and array.dtype == target.dtype
    return is_alike and flags.c_contiguous and flags.aligned


def _get_room(array: Array) -> memoryview | None:
    """Return the bytes of `array` if they are copied sooner without numpy, or else None."""
    is_between = array.size > GIVES_UP_SIZE and array.nbytes <= KEEPS_BYTES
    return array.data.cast("B") if is_between and array.dtype.kind in "biuf" else None


def are_small(arrays: Iterable[Array]) -> bool:
    """Return whether `arrays` may be copied on the loop's thread."""
    return sum_nbytes(arrays) <= INLINE_BYTES


def sum_nbytes(arrays: Iterable[Array]) -> int:
    return sum(map(_nbytes, arrays))


async def copy_all(copies: Iterable[Copy], driver: VirtualTimeDriver) -> None:
    await OutputCopies(copies).make(driver)


async def wait_for_end(done: trio.Event, cancel: Callable[[], object]) -> None:
    """Wait until work on devices is `done`; if cancelled, call `cancel` and wait on."""
    try:
        await done.wait()
    except BaseException:
        cancel()
        with trio.CancelScope(shield=True):
            await done.wait()
        raise


def find_mover(devices: Iterable[Device], memory: str) -> Device:
    found = tuple(devices)
    owners = (device for device in found if device.capabilities.memory == memory)
    reaching = (device for device in found if memory in device.capabilities.accesses)
    return next(owners, None) or next(reaching)


def _begin(one: Copy, driver: VirtualTimeDriver) -> tuple[trio.Event, Event]:
    done = trio.Event()
    launch = driver.launching(one.device, partial(one.device.copy, one.target, one.source))
    return done, launch((), lambda _: driver.call(done.set))


def _cancel(events: Sequence[Event]) -> None:
    for event in events:
        event.cancel()
