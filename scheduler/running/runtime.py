"""What stands behind a session: open devices, open plans by input shapes, items under way."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache, partial
from itertools import chain
from operator import attrgetter
from typing import Any, TypeAlias

import trio

from ...graph.tensor import Array
from ..bounds import check_within
from ..ends import not_decided
from ..events import Announcer, ItemDone
from ..faults.policy import FaultPolicy
from ..faults.recovery import Recovery
from ..planning import Plan
from ..profile import Recorder
from ..profile.recorder import Trace
from ..profile.status import Status, device_status, memory_status
from ..replicas.dispatch import Dispatcher
from ..replicas.variant import variant
from ..specialise import Shapes, bind_inputs
from ..stages import Entry
from .feeds import check_feeds, own_feeds
from .handing import borrowed
from .item import Flight
from .landing import Landing
from .open_devices import OpenDevices
from .open_plans import KEPT_PARTS, KEPT_PLANS, OpenPlans, Within
from .pace import Pace
from .passage import Passage, own_results
from .slots import Slots, session_closed
from .spares import Spares, most_nbytes
from .starter import Starter

_shape = attrgetter("shape")

Key: TypeAlias = tuple[tuple[tuple[int, ...], ...], int]
"""The shapes of the inputs, and the number of slots of each variant."""

LATEST_TRACES = 10_000
"""Of an item that loops for long, the profile knows the latest parts."""


class Runtime:
    """Runs items; used on the trio thread only.

    Parameters
    ----------
    plan : Plan
    measure : bool
        Time every node.
    trace : bool
        Keep the times of items.
    announcer : Announcer
        Told what observers should know.
    faults : FaultPolicy
        What to do when devices die.

    Attributes
    ----------
    now_ns : callable
        The clock that items are timed with.
    checkpoint, copying : callable
        Those of `Pace` and `Starter`.
    """

    def __init__(
        self, plan: Plan, *, measure: bool, trace: bool, announcer: Announcer, faults: FaultPolicy
    ) -> None:
        self.plan = plan
        self._fed = plan.fed
        self._announcer = announcer
        self.recorder = Recorder(keeps=trace, measures=measure)
        self._devices = OpenDevices(plan)
        self._pace = Pace()
        self.now_ns = self._pace.now_ns
        self.checkpoint = self._pace.checkpoint
        recovery = self._recovery = Recovery(self._devices, self._pace, faults, announcer)
        self._open_plans = OpenPlans(
            self._devices.by_name, self._pace, recovery, variants=plan.variants, measure=measure
        )
        self._variants = plan.variants
        self._dispatcher = Dispatcher(plan.replicas, recovery.lost)
        self._planned = lru_cache(KEPT_PLANS if plan.replicas else 0)(partial(_planned, plan))
        recovery.on_loss, recovery.on_return = self._open_plans.retire, self._open_plans.restore
        self._entries: dict[int, Entry] = {}
        self._flights: set[Flight] = set()
        self._landing = Landing(self.recorder, self._pace, self._flights)
        self._starter = Starter(
            self._pace,
            self._open_plans,
            recovery,
            self._landing,
            self._flights,
            announcer,
            self._dispatcher,
        )
        self.copying = self._starter.copying
        self.spares = Spares(most_nbytes(plan))
        self._admissions = 0
        self._admitted = trio.Event()
        self._closing = False

    def status(self) -> Status:
        """Return what happens at this moment."""
        done, failed = self.recorder.done, self.recorder.failed
        devices = device_status(self.plan.every_device, self._flights)
        memory = memory_status(self._open_plans.plans)
        return Status(done, failed, len(self._flights), devices, memory)

    def announce(self, flight: Flight) -> None:
        """Count an item that has ended, and tell observers."""
        self.recorder.count(flight.error is not None)
        if self._announcer.is_heard:
            marks = flight.marks
            latency_ns = max(0, marks.landed_ns - marks.admitted_ns)  # not every item gets that far
            self._announcer.tell(ItemDone(latency_ns / 1e9, flight.error))

    def borrowed(self, inputs: Any) -> Any:
        """Return what is fed, with loans of what lies on devices; on the caller's thread."""
        return borrowed(self.plan.inputs_on, self._devices.by_name, inputs)

    async def open(self) -> None:
        """Open the devices and, if the shapes are known, allocate and bind everything.

        Raises
        ------
        DeviceError
            If a device refuses; the others are closed again.
        """
        self._pace.start()
        try:
            for name in self.plan.every_device:
                self._pace.add(await trio.to_thread.run_sync(self._devices.open, name))
                self._recovery.add(name)
            self._pace.tell_time_of(self._devices.used)
            self.now_ns = self._pace.now_ns
            if self.plan.is_static:
                for slots in await self._static_slots(self.plan.max_in_flight):
                    await self._pace.on_thread(slots.fill)
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
        self._starter.refuse()
        self._open_plans.refuse()
        self._recovery.stop()
        if self._admissions:
            await self._admitted.wait()
        await self.drain(self._flights)
        await self._starter.settle()
        await self._recovery.wait_stopped()
        await self._pace.end()
        for close in chain(self._open_plans.closings(), self._devices.closings()):
            try:
                await trio.to_thread.run_sync(close)
            except Exception as error:
                errors.append(error)
        closed.set()

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
            await self._admit(inputs, self._count(max_in_flight), flight)
        finally:
            self._end_admission()

    @trio.lowlevel.enable_ki_protection
    async def admit_at_once(
        self, inputs: Mapping[str, Any], max_in_flight: int, flight: Flight
    ) -> bool:
        """Start an item if nothing has to be waited for, and say so; inputs are not kept.

        Raises
        ------
        FeedError, ShapeError, PlanError, DeviceError, SessionError
            If it cannot start; nothing is held then.
        """
        self._admissions += 1
        try:
            arrays: Mapping[str, Array] = check_feeds(self._fed, self.borrowed(inputs))
            flight.variant = self._dispatcher.choose(flight)
            slots, arrays = self._find(self._count(max_in_flight), arrays, flight.variant)
            turn = self._starter.turn_nowait(slots)
            if slots is None or turn is None:
                return False
            await self._starter.begin(flight, slots, turn, arrays)
            return True
        finally:
            self._end_admission()

    @trio.lowlevel.enable_ki_protection
    async def prepare(self, max_in_flight: int) -> None:
        """Open the plan for a number of items in flight now, if the shapes are known.

        Raises
        ------
        PlanError, DeviceError, SessionError
            If that cannot be: no item could ever start.
        """
        if self.plan.is_static:
            self._admissions += 1
            try:
                await self._static_slots(self._count(max_in_flight))
            finally:
                self._end_admission()

    def _end_admission(self) -> None:
        self._admissions -= 1
        if self._closing and not self._admissions:
            self._admitted.set()

    def _count(self, max_in_flight: int) -> int:
        """Return how many slots each variant has, so that together they have that many."""
        return max(-(-max_in_flight // self._variants), self.plan.max_in_flight)

    async def _admit(self, inputs: Mapping[str, Any], count: int, flight: Flight) -> None:
        arrays: Mapping[str, Array] = check_feeds(self._fed, self.borrowed(inputs))
        if self._starter.is_busy:
            await self._starter.settle()
        flight.variant = self._dispatcher.choose(flight)
        slots, arrays = self._find(count, arrays, flight.variant)
        if slots is None:
            slots = await self._slots(_key(arrays, count), flight.variant)
        if slots is None:
            own = partial(own_feeds, self.plan.graph, arrays)
            arrays = await self._starter.copying(arrays.values(), own)
            self._flights.add(flight)
            trio.lowlevel.spawn_system_task(self._pass, flight, arrays, self._entries[count])
        else:
            await self._starter.start(flight, slots, arrays)

    def _find(
        self, count: int, arrays: Mapping[str, Array], index: int
    ) -> tuple[Slots | None, Mapping[str, Array]]:
        """Return the slots of the one open plan that these inputs need, and what it is fed."""
        slots = self._open_plans.find(_key(arrays, count), index)
        return (slots, arrays) if slots is not None else self._whole(count, arrays, index)

    def _whole(
        self, count: int, arrays: Mapping[str, Array], index: int
    ) -> tuple[Slots | None, Mapping[str, Array]]:
        """Return the slots of the one plan that these inputs need, and what it is fed, if so."""
        entry = self._entries.get(count)
        stage = entry.find(arrays) if entry is not None else None
        if stage is None or stage.whole is None:
            return None, arrays
        slots = self._open_plans.find(id(stage.whole), index)
        fed = arrays if slots is None else {n: arrays[n] for n in stage.whole.graph.inputs}
        return slots, fed

    async def _pass(self, flight: Flight, arrays: Mapping[str, Array], entry: Entry) -> None:
        """Take an item through the stages of a graph whose shapes depend on values."""
        flight.marks.admitted_ns = self._pace.now_ns()
        results: Mapping[str, Array] = {}
        failure: BaseException | None = None
        traces: deque[Trace] = deque(maxlen=LATEST_TRACES)
        flight.traces = traces
        try:
            run_part = partial(self._run_part, flight, traces)
            check = partial(self._check, flight)
            passage = Passage(run_part, self._pace.on_thread, check)
            results = await passage.run(entry, arrays)
            results = await self._starter.copying(results.values(), partial(own_results, results))
        except BaseException as error:  # whatever it is, it is the item's
            failure = error
        self._landing.record(flight, flight.cause or failure)
        self._flights.discard(flight)
        flight.finish(results, failure)

    def _check(self, flight: Flight) -> None:
        if flight.cancelled or self._closing:
            raise session_closed()

    async def _run_part(
        self, flight: Flight, traces: deque[Trace], plan: Plan, inputs: Mapping[str, Array]
    ) -> Mapping[str, Array]:
        """Run one of the plans that an item goes through."""
        with trio.CancelScope() as starting:
            flight.on_cancel = starting.cancel  # it may wait for a device to come back
            slots = self._open_plans.find(id(plan), flight.variant)
            if slots is None:
                slots = await self._open_plans.open(
                    id(plan), partial(variant, plan), flight.variant, kept=KEPT_PARTS
                )
            assert slots is not None, "the plan of a part is static"
            self._check(flight)
            part = flight.part = Flight(is_part=True)
            part.age, part.variant = flight.age, flight.variant
            await self._starter.start(part, slots, inputs)
            flight.age = part.age
        flight.on_cancel = None
        if starting.cancelled_caught:
            raise session_closed()
        if flight.cancelled:
            part.cancel()
        await part.done.wait()
        traces.extend(part.traces)
        if part.error is not None:
            raise part.error
        return part.results

    async def _static_slots(self, count: int) -> list[Slots]:
        """Open the variants of a plan whose shapes are all known."""
        found = [
            await self._slots(_own_key(self.plan, count), index) for index in range(self._variants)
        ]
        return [slots for slots in found if slots is not None]

    async def _slots(self, key: Key, index: int) -> Slots | None:
        """Open a plan for some shapes; return its slots, None where values have to be known too."""
        shapes, count = dict(zip(self._fed.inputs, key[0], strict=True)), key[1]
        bind_inputs(self._fed, shapes)
        if count in self._entries:
            return None
        within = self._within(key, shapes) if self.plan.bounds else None
        make = partial(self._variant, key)
        slots = await self._open_plans.open(key, make, index, within=within)
        if slots is None:
            if self.plan.ends.devices:
                raise not_decided(self.plan.graph)
            whole = replace(self.plan, max_in_flight=count)
            self._entries.setdefault(count, Entry(whole, whole.graph, OrderedDict()))
        return slots

    def _within(self, key: Key, shapes: Shapes) -> Within | None:
        """Return the plan with bounds in which others may run; None for that one itself."""
        check_within(self._fed, self.plan.bounds, shapes)
        base = _own_key(self.plan, key[1])
        return None if key == base else Within(base, partial(self._variant, base), shapes)

    def _variant(self, key: Key, index: int) -> Plan:
        return variant(self._planned(key), index)


def _planned(plan: Plan, key: Key) -> Plan:
    """Return the plan for some shapes and number of slots, for the first of all replicas."""
    if plan.is_static and key == _own_key(plan, key[1]):
        return plan if key[1] == plan.max_in_flight else plan.again(key[1])
    return plan.for_shapes(dict(zip(plan.graph.inputs, key[0], strict=True)), key[1])


def _own_key(plan: Plan, count: int) -> Key:
    """Return the key of the shapes that a static plan was made for."""
    return tuple(plan.graph.tensors[name].static_shape for name in plan.graph.inputs), count


def _key(arrays: Mapping[str, Array], count: int) -> Key:
    return tuple(map(_shape, arrays.values())), count
