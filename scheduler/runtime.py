"""What stands behind a session: open devices, open plans by input shapes, items under way."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias, TypeVar

import numpy as np
import trio

from ..devices.cpu import core_count
from ..devices.device import Device
from ..devices.errors import DeviceMemoryError
from ..devices.event import CancelledWorkError
from ..devices.registry import find
from ..graph.tensor import Array
from .executor import Execution
from .feeds import check_feeds
from .item import Flight
from .leases import close_shared, open_shared
from .open_plan import OpenPlan, Slot
from .planning import Plan
from .profile import Recorder
from .slots import Slots, session_closed
from .specialise import Shapes, bind_inputs

T = TypeVar("T")

KEPT_PLANS = 8
"""Idle plans beyond this number are closed, the least recently used first."""

INLINE_BYTES = 1 << 20
"""More than this is copied on a thread, so that the loop is not held up (1 MB takes 0.1 ms)."""

Key: TypeAlias = tuple[tuple[tuple[int, ...], ...], int]
"""The shapes of the inputs, and the number of slots."""


class Runtime:
    """Runs items; used on the trio thread only.

    Parameters
    ----------
    plan : Plan
    measure : bool
        Time every node.
    """

    def __init__(self, plan: Plan, *, measure: bool) -> None:
        self.plan = plan
        self.recorder = Recorder()
        self._measure = measure
        self._devices: dict[str, Device] = {}
        self._open_plans: OrderedDict[Key, Slots] = OrderedDict()
        self._flights: set[Flight] = set()
        self._opening = trio.Lock()
        self._admissions = 0
        self._admitted = trio.Event()
        self._closing = False

    async def open(self) -> None:
        """Open the devices and, if the shapes are known, allocate and bind everything.

        Raises
        ------
        DeviceError
            If a device refuses; the others are closed again.
        """
        self._token = trio.lowlevel.current_trio_token()
        try:
            for name in self.plan.devices:
                await self._open_device(name)
            if self.plan.is_static:
                shapes = [self.plan.graph.tensors[n].static_shape for n in self.plan.graph.inputs]
                slots = await self._slots((tuple(shapes), self.plan.max_in_flight))
                await trio.to_thread.run_sync(slots.fill)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Cancel what is under way, wait for it to end, and free everything.

        Raises
        ------
        Exception
            What the first device that failed to close raised; the others are closed all the same.
        """
        errors: list[BaseException] = []
        closed = trio.Event()
        # A task of its own: Ctrl-C strikes the main task, at any await, shielded or not.
        trio.lowlevel.spawn_system_task(self._close, errors, closed)
        with trio.CancelScope(shield=True):
            while not closed.is_set():
                try:
                    await closed.wait()
                except KeyboardInterrupt as error:
                    errors.append(error)
        if errors:
            raise errors[0]

    async def _close(self, errors: list[BaseException], closed: trio.Event) -> None:
        self._closing = True
        for slots in self._open_plans.values():
            slots.refuse()
        if self._admissions:
            await self._admitted.wait()
        await self.drain(self._flights)
        for close in self._closings():
            try:
                await trio.to_thread.run_sync(close)
            except Exception as error:
                errors.append(error)
        self._open_plans.clear()
        self._devices.clear()
        closed.set()

    async def _open_device(self, name: str) -> None:
        if name in self.plan.given:
            device = self.plan.prototypes[name]
            await trio.to_thread.run_sync(open_shared, device, self._cores())
        else:
            device = find(name)
            await trio.to_thread.run_sync(device.open, self._cores())
        self._devices[name] = device

    def _closings(self) -> Iterator[Callable[[], None]]:
        """Yield what to call to free everything, plans before the devices they lie on."""
        for slots in list(self._open_plans.values()):
            yield slots.open_plan.close
        for name, device in reversed(self._devices.items()):
            shared = name in self.plan.given
            yield partial(close_shared, device) if shared else device.close

    async def drain(self, flights: set[Flight]) -> None:
        """Cancel items and wait until the last of them has ended; not to be cancelled itself."""
        with trio.CancelScope(shield=True):
            for flight in list(flights):
                flight.cancel()
            for flight in list(flights):
                await flight.done.wait()

    @trio.lowlevel.enable_ki_protection  # Ctrl-C is taken before or after, never in between
    async def admit(self, inputs: Mapping[str, Any], max_in_flight: int, flight: Flight) -> None:
        """Start an item, once one of `max_in_flight` slots for its shapes is free.

        Raises
        ------
        FeedError, ShapeError, PlanError, DeviceError, SessionError
            If it cannot start; nothing is held then.
        """
        self._admissions += 1
        try:
            await self._admit(inputs, max(max_in_flight, self.plan.max_in_flight), flight)
        finally:
            self._admissions -= 1
            if self._closing and not self._admissions:
                self._admitted.set()

    async def _admit(self, inputs: Mapping[str, Any], count: int, flight: Flight) -> None:
        arrays = check_feeds(self.plan.graph, inputs)
        slots = await self._slots((tuple(array.shape for array in arrays.values()), count))
        slot = await slots.acquire()
        admitted_ns = time.perf_counter_ns()
        try:
            if sum(array.nbytes for array in arrays.values()) > INLINE_BYTES:
                await trio.to_thread.run_sync(_feed, slot, arrays)
            else:
                _feed(slot, arrays)
            if self._closing:
                raise session_closed()
        except BaseException:
            slots.release(slot)
            raise
        landing = partial(self._land, flight, slots, slot, admitted_ns)
        flight.execution = Execution(slots.open_plan, slot, partial(self._notify, landing))
        self._flights.add(flight)
        flight.execution.start()

    def _notify(self, landing: Any) -> None:
        """Have the trio thread land an item; called on any thread."""
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(landing)

    def _land(self, flight: Flight, slots: Slots, slot: Slot, admitted_ns: int) -> None:
        """Copy an item's results out and free its slot.

        Not when a consumer asks for them: a slow consumer would keep slots from other callers.
        """
        assert flight.execution is not None
        self.recorder.record(slots.open_plan.plan, flight.execution, admitted_ns)
        nbytes = sum(array.nbytes for array in slot.results.values())
        if nbytes > INLINE_BYTES and flight.execution.is_complete:
            trio.lowlevel.spawn_system_task(self._land_large, flight, slots, slot)
            return
        results, error = _outcome(flight.execution, slot)
        self._finish(flight, slots, slot, results, error)

    async def _land_large(self, flight: Flight, slots: Slots, slot: Slot) -> None:
        assert flight.execution is not None
        outcome = await trio.to_thread.run_sync(_outcome, flight.execution, slot)
        self._finish(flight, slots, slot, *outcome)

    def _finish(
        self,
        flight: Flight,
        slots: Slots,
        slot: Slot,
        results: Mapping[str, Array],
        error: BaseException | None,
    ) -> None:
        slots.release(slot)
        self._flights.discard(flight)
        flight.finish(results, error)

    async def _with_room(self, make: Callable[[], T]) -> T:
        """Make something on a thread; if there is no memory for it, idle plans give way first."""
        try:
            return await trio.to_thread.run_sync(make)
        except DeviceMemoryError:
            if not await self._evict(keep=0):
                raise
            return await trio.to_thread.run_sync(make)

    async def _slots(self, key: Key) -> Slots:
        """Return the slots for some shapes; the first time they are needed a plan is opened."""
        slots = self._open_plans.get(key)
        if slots is None:
            async with self._opening:
                slots = self._open_plans.get(key)
                if slots is None:
                    slots = await self._open_plan(key)
        if self._closing:
            raise session_closed()
        self._open_plans.move_to_end(key)
        return slots

    async def _open_plan(self, key: Key) -> Slots:
        if self._closing:
            raise session_closed()
        bind_inputs(self.plan.graph, self._named(key))
        await self._evict(keep=KEPT_PLANS - 1)
        open_plan = await self._with_room(partial(self._open, key))
        slots = self._open_plans[key] = Slots(open_plan, key[1], self._with_room)
        return slots

    def _open(self, key: Key) -> OpenPlan:
        plan, count = self.plan, key[1]
        if not plan.is_static or count != plan.max_in_flight:
            plan = plan.for_shapes(self._named(key), count)
        open_plan = OpenPlan(plan, self._devices, measure=self._measure)
        open_plan.open()
        return open_plan

    def _named(self, key: Key) -> Shapes:
        return dict(zip(self.plan.graph.inputs, key[0], strict=True))

    async def _evict(self, keep: int) -> bool:
        """Close idle plans until `keep` plans are left; say whether one was closed."""
        evicted = False
        while len(self._open_plans) > keep:
            # Chosen anew each time: while one is closed, others may come into use.
            idle = (key for key, slots in self._open_plans.items() if slots.is_idle)
            key = next(idle, None)
            if key is None:
                break
            slots, evicted = self._open_plans.pop(key), True
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(slots.open_plan.close)
        return evicted

    def _cores(self) -> int:
        """Return each device's share of the cores; one is left to the loop and to others."""
        prototypes = self.plan.prototypes
        used = {subgraph.device for subgraph in self.plan.subgraphs}
        sharing = sum(prototypes[name].capabilities.runs_python for name in used)
        return max(1, (core_count() - 1) // max(1, sharing))


def _feed(slot: Slot, arrays: Mapping[str, Array]) -> None:
    for name, array in arrays.items():
        np.copyto(slot.feeds[name], array)


def _outcome(execution: Execution, slot: Slot) -> tuple[Mapping[str, Array], BaseException | None]:
    """Return copies of an item's results, or why there are none."""
    if not execution.is_complete:
        skipped = execution.error is None or isinstance(execution.error, CancelledWorkError)
        return {}, session_closed() if skipped else execution.error
    try:
        return {name: np.array(array) for name, array in slot.results.items()}, None
    except MemoryError as error:
        return {}, error
