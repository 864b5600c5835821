"""Permits of streams and slots."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from patience import WAIT_S
from plait.scheduler.dispatch.back_pressure import Permits
from plait.scheduler.runtime.tasks import TaskPermits


@pytest.mark.parametrize("make", [Permits, TaskPermits])
def test_permits_are_taken_together_or_not_at_all(make: type[Permits]) -> None:
    permits = make(3)
    assert permits.take(2)
    assert not permits.take(2)
    assert permits.free == 1
    permits.give_back()
    assert permits.take(2)
    assert not permits.take()


async def test_a_permit_goes_to_the_task_that_has_waited_longest() -> None:
    permits, order = TaskPermits(1), list[str]()

    async def wait(name: str) -> None:
        await permits.acquire()
        order.append(name)

    assert permits.take()
    with trio.fail_after(WAIT_S):
        async with trio.open_nursery() as nursery:
            for name in ("first", "second"):
                nursery.start_soon(wait, name)
                await trio.testing.wait_all_tasks_blocked()
            permits.give_back()
            assert not permits.take()  # it is that of the first task, which has not run yet
            await trio.testing.wait_all_tasks_blocked()
            assert order == ["first"]
            permits.give_back()
    assert order == ["first", "second"]
    assert permits.free == 0


async def test_a_task_that_waits_no_more_leaves_its_permit_to_others() -> None:
    permits = TaskPermits(0)
    with trio.move_on_after(0):
        await permits.acquire()
    permits.give_back()
    assert permits.free == 1
