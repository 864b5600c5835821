"""Arrays that are handed over on devices, and results that are taken there.

The work that callers have queued on a device is known on their own thread only, so inputs are
borrowed there as soon as they are fed. An item's first steps copy them to where they are planned,
and its last ones copy results into arrays that are the caller's. Both are launched differently for
each item.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, cast

import numpy as np

from ....devices.device import Device, OnDone
from ....devices.errors import DeviceError, DeviceLostError, DeviceUnavailableError
from ....devices.event import Event
from ....devices.exchange import Exchange, Loan
from ....devices.memory import View
from ....graph.values.errors import PlaitError, get_text
from ....graph.values.tensor import Array, TensorSpec
from ...errors import FeedError
from ...plans.placement import OUTSIDE, Transfer
from ...plans.plan import Plan
from ...plans.regions import PlacedTensor
from ..virtual_time import Launch, VirtualTimeDriver
from .feeds import ItemFeeds


def borrow_inputs(on: Mapping[str, str], devices: Mapping[str, Device], inputs: Any) -> Any:
    """Return `inputs` with loans of arrays that are on those `devices` where `on` expects them.

    A failed loan is replaced by its error. Called on the thread of the caller.
    """
    if not on or not isinstance(inputs, Mapping):
        return inputs
    loans: dict[str, Loan | PlaitError] = {}
    for name, where in on.items():
        value = inputs.get(name)
        if value is None or isinstance(value, np.ndarray | Loan | PlaitError):
            continue
        device = cast(Exchange | None, devices.get(where))  # `plan` saw to it
        loan = None if device is None else _borrow(name, device, value)
        if loan is not None:
            loans[name] = loan
    return ItemFeeds({**inputs, **loans}) if loans else inputs


def _borrow(name: str, device: Exchange, value: Any) -> Loan | PlaitError | None:
    try:
        return device.borrow(value) if device.takes(value) else None
    except (DeviceLostError, DeviceUnavailableError) as error:
        return error
    except Exception as error:  # other libraries raise anything
        detail = error.what if isinstance(error, PlaitError) else get_text(error)
        made = FeedError(
            f"what is fed to input {name!r} cannot be read on {device.name!r}: {detail}",
            fix=getattr(error, "fix", None) or "feed a plain array of the input's dtype",
        )
        made.__cause__ = error
        return made


@dataclass(frozen=True, slots=True)
class DeviceInput:
    """The step that brings an input to where it is planned."""

    step: int
    device: Exchange
    target: View
    driver: VirtualTimeDriver | None
    """The driver of the session."""

    def launch_of(self, value: Loan | Array) -> Launch:
        if isinstance(value, Loan):
            source = value.view
        else:
            spec = self.target.spec
            array = np.ascontiguousarray(value, spec.dtype).reshape(spec.static_shape)
            source = self.device.stage(array)
        return _pace(self.driver, self.device, partial(self.device.copy, self.target, source))


@dataclass(frozen=True, slots=True)
class DeviceOutput:
    """The step that copies a result on a device into an array that is the caller's."""

    step: int | None
    """None for a constant, which is the same array for all items."""
    device: Exchange
    source: View
    nothing: View
    """An empty array, the target of a step with a result that is read in place."""
    driver: VirtualTimeDriver | None
    """The driver of the session."""

    def launch_to(self, target: View | None) -> Launch:
        """Return a launcher that copies the result to `target`; None leaves it where it is."""
        ends = (self.nothing, self.nothing) if target is None else (target, self.source)
        return _pace(self.driver, self.device, partial(self.device.copy, *ends))


Departures: TypeAlias = Mapping[str, DeviceOutput]
ViewOf: TypeAlias = Callable[[Device, PlacedTensor, TensorSpec], View]
"""Returns a view of the memory of a slot."""


def find_arrivals(
    plan: Plan, devices: Mapping[str, Device], view: ViewOf, driver: VirtualTimeDriver | None
) -> dict[str, DeviceInput]:
    """Return a DeviceInput for each input of `plan` that is fed on one of `devices`.

    Its target is a `view`, and `driver` is that of the session.
    """
    found: dict[str, DeviceInput] = {}
    for step in plan.steps if plan.ends.inputs else ():
        if isinstance(step.work, Transfer) and step.work.arrives:
            device, name = cast(Exchange, devices[step.device]), step.work.tensor
            target = view(device, (name, step.work.target), plan.graph.tensors[name])
            found[name] = DeviceInput(step.index, device, target, driver)
    return found


def find_departures(
    plan: Plan, devices: Mapping[str, Device], view: ViewOf, driver: VirtualTimeDriver | None
) -> dict[str, DeviceOutput]:
    """Return a DeviceOutput for each output of `plan` that is taken on one of `devices`.

    Each has a `view` and `driver`, as inputs do. Copying constants there may block.
    """
    if not plan.ends.outputs:
        return {}
    assert plan.placement is not None
    steps = {
        one.work.tensor: one.index
        for one in plan.steps
        if isinstance(one.work, Transfer) and one.work.leaves
    }
    found = {}
    for name, where in plan.ends.outputs.items():
        device, spec = cast(Exchange, devices[where]), plan.graph.tensors[name]
        if name in plan.graph.constants:
            source = device.room(spec)
            device.follow()
            device.copy(source, device.stage(plan.graph.constants[name])).wait()
        else:
            placed = name, plan.placement.local[name, OUTSIDE]
            source = view(device, placed, spec)
        nothing = device.room(TensorSpec(spec.dtype, (0,)))
        found[name] = DeviceOutput(steps.get(name), device, source, nothing, driver)
    return found


def _pace(driver: VirtualTimeDriver | None, device: Device, launch: Launch) -> Launch:
    return launch if driver is None else driver.launching(device, launch)


def skip_handing(waits: Sequence[Event], on_done: OnDone) -> Event:
    """Stand in for the launch of an arrival or departure, which each item replaces."""
    raise AssertionError("an item has launches of its own for these")


def follow_readers(departures: Departures) -> None:
    """Make devices of `departures` wait for queued work of callers that read results in place."""
    for device in {id(one.device): one.device for one in departures.values()}.values():
        with suppress(DeviceError):  # it is lost, and so are the results
            device.follow()
