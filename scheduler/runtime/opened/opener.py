"""Opens plans while devices may die, and runs their prologues.

A prologue runs when the memory is there, filled with zeros, and constants are; nodes follow in
their order. Its results are copied to where items read.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Protocol, TypeVar

import trio

from ....devices.device import Device
from ....devices.errors import DeviceLostError, UnsupportedNodeError
from ....devices.refusals import count_refusals
from ....graph.values.errors import PlaitError
from ...errors import session_closed_error
from ...plans.placement import OUTSIDE
from ...plans.plan import Plan
from ...profile.timestamps import Timestamps
from ..faults.recovery import Recovery
from ..faults.watch import Watch
from ..virtual_time import VirtualTimeDriver
from .arenas import Lend
from .copying import Copy, copy_all, find_mover
from .executor import Execution
from .lanes import OpenLanes
from .open_plan import Lanes, OpenPlan

if TYPE_CHECKING:
    from ..recorder import Recorder

T = TypeVar("T")


class WithRoom(Protocol):
    """Calls a function that allocates memory on a thread."""

    def __call__(self, make: Callable[[], T]) -> Awaitable[T]:
        """Return the result of `make`; idle plans are closed for it if necessary."""


@dataclass(slots=True, eq=False)
class Opener:
    """Opens plans or their replacements; used on the trio thread only.

    `devices` are open; `recorder` is called with the execution of a prologue; `lend` returns the
    arenas of regions that the session keeps; every node is timed if it `measure`s. `lanes` have
    the order of the items of all plans, and the instances that keep state for all plans.
    """

    _devices: Mapping[str, Device]
    _driver: VirtualTimeDriver
    _recovery: Recovery
    _with_room: WithRoom
    _recorder: Recorder
    _lend: Lend
    _watch: Watch
    _measure: bool
    lanes: Lanes = field(default_factory=OpenLanes)

    async def open(self, plan: Plan) -> OpenPlan:
        """Open `plan` or its replacement, run its prologue, and return it.

        Raises KernelError if a node of the prologue fails; DeviceError if a device refuses, or is
        lost again and again; SessionError if the session is being closed.
        """
        for deaths in count(1):
            refusals = count_refusals()
            adapted = await self._recovery.adapt(plan)
            lives = self._lives(plan, adapted)
            try:
                open_plan = await self._opened(adapted)
            except UnsupportedNodeError as error:
                if not self._recovery.note_refusals(adapted, error, refusals):
                    raise
                continue
            except DeviceLostError:
                # The plan itself may kill the device: attempts are limited.
                if not self._recovery.examine() or deaths > self._recovery.policy.replays:
                    raise
                continue
            # Else it was opened on a device that is gone, or goes round one that is back.
            if self._lives(plan, adapted) == lives:
                open_plan.refusals = refusals
                return open_plan
            await self._close(open_plan)
        raise AssertionError("it counts for ever")

    def _lives(self, plan: Plan, adapted: Plan) -> list[Mapping[str, int | None]]:
        return [self._recovery.lives(each) for each in (plan, adapted)]

    async def _opened(self, plan: Plan) -> OpenPlan:
        open_plan = await self._with_room(partial(self._open, plan))
        try:
            if plan.prologue is not None:
                await self._run_prologue(open_plan, plan.prologue)
            if any(
                step.owns for step in plan.steps
            ):  # instances of nodes are opened with a first slot
                await self._with_room(partial(open_plan.make_slot, 0))
        except BaseException as error:
            try:
                await self._close(open_plan)
            except PlaitError as other:
                error.add_note(f"and then: {other}")
            raise
        return open_plan

    async def _run_prologue(self, open_plan: OpenPlan, plan: Plan) -> None:
        prologue = await self._with_room(partial(self._open, plan, n_slots=1))
        try:
            await run_prologue(open_plan, prologue, self._driver, self._recorder, self._watch)
        finally:
            await self._close(prologue)

    async def _close(self, open_plan: OpenPlan) -> None:
        # Cancelled or not, memory and devices are given back.
        with trio.CancelScope(shield=True):
            await self._driver.on_thread(open_plan.close)

    def _open(self, plan: Plan, n_slots: int = 0) -> OpenPlan:
        measure, lend = self._measure, self._lend
        lanes, driver = self.lanes, self._driver
        open_plan = OpenPlan(plan, self._devices, driver, lanes, measure=measure, lend=lend)
        open_plan.open()
        try:
            for index in range(n_slots):
                open_plan.make_slot(index)
        except BaseException:
            open_plan.close()
            raise
        return open_plan


async def run_prologue(
    open_plan: OpenPlan,
    prologue: OpenPlan,
    driver: VirtualTimeDriver,
    recorder: Recorder,
    watch: Watch,
) -> None:
    """Run `prologue` on `driver`, note it in `recorder`, and copy its results into `open_plan`.

    When this is cancelled, running work on a device ends first, and nothing else starts; `watch`
    kills a worker that does not come to an end with it. Raises KernelError or DeviceError if a node
    or a copy fails.
    """
    marks = Timestamps(admitted_ns=driver.now_ns())
    marks.fed_ns = marks.admitted_ns
    done = trio.Event()
    execution = Execution(prologue, prologue.slots[0], partial(driver.call, done.set))
    execution.start()
    driver.wake()
    try:
        steps = prologue.plan.steps
        await watch.until(done, partial(watch.kill, steps, execution.events), execution.cancel)
        await trio.lowlevel.checkpoint_if_cancelled()
        if not execution.is_complete:
            error, execution.error = execution.error or session_closed_error(), None
            try:
                raise error
            finally:
                del error, execution  # it holds this frame, and with it arenas
        marks.finished_ns = driver.now_ns()
        await copy_all([*_list_copies(open_plan, prologue)], driver)
    except PlaitError as error:
        error.add_note("this is computed once, when the plan is opened")
        raise
    marks.landed_ns = driver.now_ns()
    recorder.record_prologue(prologue, execution, marks)


def _list_copies(open_plan: OpenPlan, prologue: OpenPlan) -> Iterator[Copy]:
    assert open_plan.plan.placement is not None
    assert prologue.plan.placement is not None
    made = prologue.plan.placement.local
    for name, memory in sorted(open_plan.plan.placement.prepared):
        if name in open_plan.plan.graph.variables:
            continue
        device = find_mover(open_plan.devices, memory)
        source = prologue.shared_view((name, made[name, OUTSIDE]), device)
        target = open_plan.shared_view((name, memory), device)
        yield Copy(target, source, device)
