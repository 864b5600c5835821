"""Arrays that are handed over on devices, and results that are taken there.

What callers have queued on a device is known on their own thread only, so inputs are borrowed there
as soon as they are fed. An item's first steps then copy them to where they are planned. Results are
complete when an item lands; copies of them are queued then, and end before its slot is free.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, TypeAlias, cast

import numpy as np

from ...devices.device import Device, OnDone
from ...devices.errors import DeviceError, DeviceLostError
from ...devices.event import Event
from ...devices.exchange import Exchange, Loan
from ...devices.memory import View
from ...graph.errors import PlaitError
from ...graph.tensor import Array, TensorSpec
from ..errors import FeedError
from ..memory.regions import Replica
from ..placement import OUTSIDE
from ..planning import Plan
from ..steps import Transfer
from .pace import Launch, Pace


def borrowed(on: Mapping[str, str], devices: Mapping[str, Device], inputs: Any) -> Any:
    """Return what is fed, with loans of arrays that lie on the devices where they are expected.

    What cannot be borrowed is replaced by the error. Called on the thread of the caller.
    """
    if not on or not isinstance(inputs, Mapping):
        return inputs
    loans: dict[str, Loan | PlaitError] = {}
    for name, where in on.items():
        value = inputs.get(name)
        if value is None or isinstance(value, np.ndarray | Loan | PlaitError):
            continue
        device = cast(Exchange, devices[where])  # `plan` saw to it
        if device.takes(value):
            loans[name] = _loan(name, where, device, value)
    return {**inputs, **loans} if loans else inputs


def _loan(name: str, where: str, device: Exchange, value: Any) -> Loan | PlaitError:
    try:
        return device.borrow(value)
    except DeviceLostError as error:
        return error
    except Exception as error:  # other libraries raise what they like
        made = FeedError(
            f"what is fed to input {name!r} cannot be read on {where!r}: {error}",
            fix="feed a contiguous array of the input's dtype, without a gradient, or a host array",
        )
        made.__cause__ = error
        return made


@dataclass(frozen=True, slots=True)
class Arrival:
    """The step that brings an input to where it is planned.

    Attributes
    ----------
    step : int
    device : Exchange
    target : View
    pace : Pace or None
        Of the session.
    """

    step: int
    device: Exchange
    target: View
    pace: Pace | None

    def launch_of(self, value: Loan | Array) -> Launch:
        """Return what launches the step for one item."""
        if isinstance(value, Loan):
            source = value.view
        else:
            spec = self.target.spec
            array = np.ascontiguousarray(value, spec.dtype).reshape(spec.static_shape)
            source = self.device.stage(array)
        launch = partial(self.device.copy, self.target, source)
        return launch if self.pace is None else self.pace.launching(self.device, launch)


@dataclass(frozen=True, slots=True)
class Departure:
    """A result on a device, where an item leaves it.

    Attributes
    ----------
    device : Exchange
    source : View
    """

    device: Exchange
    source: View


Departures: TypeAlias = Mapping[str, Departure]
ViewOf: TypeAlias = Callable[[Device, Replica, TensorSpec], View]
"""Returns a view of the memory of a slot."""


def arrivals_of(
    plan: Plan, devices: Mapping[str, Device], view: ViewOf, pace: Pace | None
) -> dict[str, Arrival]:
    """Return the steps of a plan that bring what is handed over, by input."""
    found = {}
    for step in plan.steps:
        if isinstance(step.work, Transfer) and step.work.arrives:
            device, name = cast(Exchange, devices[step.device]), step.work.tensor
            target = view(device, (name, step.work.target), plan.graph.tensors[name])
            found[name] = Arrival(step.index, device, target, pace)
    return found


def departures_of(plan: Plan, devices: Mapping[str, Device], view: ViewOf) -> dict[str, Departure]:
    """Return the outputs of a plan that are taken on devices."""
    assert plan.placement is not None
    graph, found = plan.graph, {}
    for name, where in plan.outputs_on.items():
        device = cast(Exchange, devices[where])
        if name in graph.constants:
            source = device.room(graph.tensors[name])
            device.copy(source, device.stage(graph.constants[name])).wait()
        else:
            replica = name, plan.placement.local[name, OUTSIDE]
            source = view(device, replica, graph.tensors[name])
        found[name] = Departure(device, source)
    return found


def nothing_handed(waits: Sequence[Event], on_done: OnDone) -> Event:
    """Stand for the launch of an arrival in a slot that no item is on."""
    raise AssertionError("an item has launches of its own for what is handed over")


class Copying:
    """Copies results within their devices, into arrays that are the caller's.

    Parameters
    ----------
    on_done : callable
        Called once with this, on any thread, when all copies have ended.

    Attributes
    ----------
    results : Mapping of str to Array
    error : BaseException or None
        Why one of them failed.
    """

    def __init__(self, on_done: Callable[[Copying], object]) -> None:
        self.results: dict[str, Array] = {}
        self.error: BaseException | None = None
        self._on_done = on_done
        self._ended = count(1)
        self._most = 0

    def start(self, departures: Departures) -> None:
        """Queue the copies; on the thread of the caller."""
        self._most = len(departures) + 1  # none is the last before all are queued
        for name, one in departures.items():
            try:
                target = one.device.room(one.source.spec)
                one.device.copy(target, one.source, (), self._end)
                self.results[name] = target.array
            except DeviceError as error:
                self._fail(error)
        self._count()

    def _end(self, event: Event) -> None:
        self.error = self.error or event.error
        self._count()

    def _fail(self, error: BaseException) -> None:
        self.error = self.error or error
        self._count()

    def _count(self) -> None:
        if next(self._ended) == self._most:
            self._on_done(self)


def follow_readers(departures: Departures) -> None:
    """Have devices wait for what callers have queued that reads results where they lie."""
    for device in {id(one.device): one.device for one in departures.values()}.values():
        with suppress(DeviceError):  # it is lost, and so are the results
            device.follow()
