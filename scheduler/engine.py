"""What stands behind a session: open devices, open plans by input shapes, items under way."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import trio

from ..devices.cpu import core_count
from ..devices.device import Device
from ..devices.registry import find
from ..graph.tensor import Array
from .executor import Execution
from .feeds import check_feeds
from .item import Flight
from .open_plan import OpenPlan, Slot
from .planning import Plan
from .profile import Recorder
from .slot_pool import SlotPool
from .specialise import Shapes, bind_inputs

KEPT_PLANS = 8
"""Idle plans beyond this number are closed, the least recently used first."""

INLINE_BYTES = 1 << 20
"""More than this is copied on a thread, so that the loop is not held up (1 MB takes 0.1 ms)."""

Key = tuple[tuple[tuple[int, ...], ...], int]
"""The shapes of the inputs, and the number of slots."""


class Engine:
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
        self._pools: OrderedDict[Key, SlotPool] = OrderedDict()
        self._flights: set[Flight] = set()
        self._opening = trio.Lock()

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
                device = self.plan.prototypes[name] if name in self.plan.given else find(name)
                await trio.to_thread.run_sync(device.open, self._cores())
                self._devices[name] = device
            if self.plan.is_static:
                shapes = [self.plan.graph.tensors[n].static_shape for n in self.plan.graph.inputs]
                pool = await self._pool((tuple(shapes), self.plan.max_in_flight))
                await trio.to_thread.run_sync(pool.fill)
        except BaseException:
            await self.close()
            raise

    def _cores(self) -> int | None:
        """Return each device's share of the cores, where more than one computes on them."""
        sharing = sum(device.capabilities.runs_python for device in self.plan.prototypes.values())
        return max(1, core_count() // sharing) if sharing > 1 else None

    async def close(self) -> None:
        """Cancel what is under way, wait for it to end, and free everything."""
        with trio.CancelScope(shield=True):
            await self.drain(self._flights)
            for pool in self._pools.values():
                await trio.to_thread.run_sync(pool.open_plan.close)
            self._pools.clear()
            for device in reversed(self._devices.values()):
                await trio.to_thread.run_sync(device.close)
            self._devices.clear()

    async def drain(self, flights: set[Flight]) -> None:
        """Cancel items and wait until the last of them has ended; not to be cancelled itself."""
        with trio.CancelScope(shield=True):
            for flight in list(flights):
                flight.cancel()
            for flight in list(flights):
                await flight.done.wait()

    async def admit(self, inputs: Mapping[str, Any], slots: int, flight: Flight) -> None:
        """Start an item, once one of `slots` sets of buffers for its shapes is free.

        Raises
        ------
        FeedError, ShapeError, PlanError, DeviceError
            If it cannot start; nothing is held then.
        """
        admitted_ns = time.perf_counter_ns()
        arrays = check_feeds(self.plan.graph, inputs)
        key = tuple(array.shape for array in arrays.values()), max(slots, self.plan.max_in_flight)
        pool = await self._pool(key)
        slot = await pool.acquire()
        try:
            if sum(array.nbytes for array in arrays.values()) > INLINE_BYTES:
                await trio.to_thread.run_sync(_feed, slot, arrays)
            else:
                _feed(slot, arrays)
        except BaseException:
            pool.release(slot)
            raise
        execution = Execution(
            pool.open_plan, slot, partial(self._notify, flight, pool, slot, admitted_ns)
        )
        flight.execution = execution
        self._flights.add(flight)
        execution.start()

    def _notify(self, flight: Flight, pool: SlotPool, slot: Slot, admitted_ns: int) -> None:
        """Tell the trio thread that an item has ended; called on any thread."""
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._land, flight, pool, slot, admitted_ns)

    def _land(self, flight: Flight, pool: SlotPool, slot: Slot, admitted_ns: int) -> None:
        """Copy an item's results out and free its slot.

        Not when a consumer asks for them: a slow consumer would keep slots from other callers.
        """
        execution = flight.execution
        assert execution is not None
        results = None
        if execution.is_complete:
            results = {name: np.array(array) for name, array in slot.results.items()}
        pool.release(slot)
        self._flights.discard(flight)
        self.recorder.record(pool.open_plan.plan, execution, admitted_ns)
        flight.finish(results, execution.error)

    async def _pool(self, key: Key) -> SlotPool:
        """Return the slots for some shapes, held once more; the first time they are made."""
        pool = self._pools.get(key)
        if pool is None:
            async with self._opening:
                pool = self._pools.get(key)
                if pool is None:
                    bind_inputs(self.plan.graph, self._named(key))
                    await self._evict()
                    open_plan = await trio.to_thread.run_sync(self._open, key)
                    pool = self._pools[key] = SlotPool(open_plan, key[1])
        self._pools.move_to_end(key)
        return pool

    def _open(self, key: Key) -> OpenPlan:
        plan, slots = self.plan, key[1]
        if not plan.is_static or slots != plan.max_in_flight:
            plan = plan.for_shapes(self._named(key), slots)
        open_plan = OpenPlan(plan, self._devices, measure=self._measure)
        open_plan.open()
        return open_plan

    def _named(self, key: Key) -> Shapes:
        return dict(zip(self.plan.graph.inputs, key[0], strict=True))

    async def _evict(self) -> None:
        idle = [key for key, pool in self._pools.items() if pool.is_idle]
        for key in idle[: max(0, len(self._pools) - KEPT_PLANS + 1)]:
            await trio.to_thread.run_sync(self._pools.pop(key).open_plan.close)


def _feed(slot: Slot, arrays: Mapping[str, Array]) -> None:
    for name, array in arrays.items():
        np.copyto(slot.feeds[name], array)
