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


async def run_prologue(
    open_plan: OpenPlan,
    prologue: OpenPlan,
    driver: VirtualTimeDriver,
    recorder: Recorder,
    watch: Watch,
) -> None:
    """Compute what an open plan needs before its first item; its prologue is open, with a slot.

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
    execution = Execution(prologue, prologue.slots[0], partial(driver.call, done.set))
    execution.start()
    driver.wake()
    try:
        steps = prologue.plan.steps
        await watch.until(done, partial(watch.kill, execution, steps), execution.cancel)
        await trio.lowlevel.checkpoint_if_cancelled()
        if not execution.is_complete:
            error, execution.error = execution.error or session_closed_error(), None
            try:
                raise error
            finally:
                del error, execution  # it holds this frame, and with it arenas
        marks.finished_ns = driver.now_ns()
        await copy_all([*_copies(open_plan, prologue)], driver)
    except PlaitError as error:
        error.add_note("this is computed once, when the plan is opened")
        raise
    marks.landed_ns = driver.now_ns()
    recorder.record_prologue(prologue, execution, marks)


def _copies(open_plan: OpenPlan, prologue: OpenPlan) -> Iterator[Copy]:
    """Yield the copies of each result to where it is read."""
    assert open_plan.plan.placement is not None
    assert prologue.plan.placement is not None
    made = prologue.plan.placement.local
    for name, memory in sorted(open_plan.plan.placement.prepared):
        if name in open_plan.plan.graph.variables:
            continue
        device = mover(open_plan.devices, memory)
        source = prologue.shared_view((name, made[name, OUTSIDE]), device)
        target = open_plan.shared_view((name, memory), device)
        yield Copy(target, source, device)
