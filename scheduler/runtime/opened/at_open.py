"""Runs the prologue of a plan when it is opened, and copies its results to where items read.

The memory is there by then, filled with zeros, and constants are; nodes follow in their order.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import trio

from ....graph.errors import PlaitError
from ...plans.placement import OUTSIDE
from ...profile.timestamps import Timestamps
from ..items.executor import Execution
from ..virtual_time import VirtualTimeDriver
from .copying import Copy, copy_all, mover
from .open_plan import OpenPlan
from .slots import session_closed_error

if TYPE_CHECKING:
    from ..faults.watch import Watch
    from ..recorder import Recorder


async def prepare(
    open_plan: OpenPlan,
    section: OpenPlan,
    driver: VirtualTimeDriver,
    recorder: Recorder,
    watch: Watch,
) -> None:
    """Compute what an open plan needs before its first item; its section is open, with a slot.

    When this is cancelled, what runs on a device ends first, and nothing else starts; a worker that
    does not come to an end with it is killed.

    Raises
    ------
    KernelError, DeviceError
        If a node or a copy fails.
    """
    marks = Timestamps(admitted_ns=driver.now_ns())
    marks.fed_ns = marks.admitted_ns
    done = trio.Event()
    execution = Execution(section, section.slots[0], partial(driver.call, done.set))
    execution.start()
    driver.wake()
    try:
        steps = section.plan.steps
        await watch.until(done, partial(watch.kill, execution, steps), execution.cancel)
        await trio.lowlevel.checkpoint_if_cancelled()
        if not execution.is_complete:
            error, execution.error = execution.error or session_closed_error(), None
            try:
                raise error
            finally:
                del error, execution  # it holds this frame, and with it arenas
        marks.finished_ns = driver.now_ns()
        await copy_all([*_copies(open_plan, section)], driver)
    except PlaitError as error:
        error.add_note("this is computed once, when the plan is opened")
        raise
    marks.landed_ns = driver.now_ns()
    recorder.record_opening(section, execution, marks)


def _copies(open_plan: OpenPlan, section: OpenPlan) -> Iterator[Copy]:
    """Yield the copies of each result to where it is read."""
    assert open_plan.plan.placement is not None
    assert section.plan.placement is not None
    made = section.plan.placement.local
    for name, memory in sorted(open_plan.plan.placement.prepared):
        if name in open_plan.plan.graph.variables:
            continue
        device = mover(open_plan.devices, memory)
        source = section.shared_view((name, made[name, OUTSIDE]), device)
        target = open_plan.shared_view((name, memory), device)
        yield Copy(target, source, device)
