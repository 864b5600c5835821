"""Turns with variables: one assigns at a time, in order, and nobody reads meanwhile."""

from __future__ import annotations

import pytest
import trio
from plait import SessionError
from plait.scheduler.runtime.variables.lock import VariableLock
from trio.testing import wait_all_tasks_blocked


async def test_those_who_assign_follow_each_other_in_order() -> None:
    turns, order = VariableLock(), list[int]()

    async def assign(number: int) -> None:
        await turns.take(number)
        order.append(number)
        await trio.lowlevel.checkpoint()
        turns.leave(number)

    async with trio.open_nursery() as nursery:
        for number in range(1, 6):
            nursery.start_soon(assign, number)
            await wait_all_tasks_blocked()
    assert order == [1, 2, 3, 4, 5]


async def test_who_gives_up_waiting_is_passed_over() -> None:
    turns = VariableLock()
    await turns.take("first")
    async with trio.open_nursery() as nursery:
        scope = trio.CancelScope()

        async def give_up() -> None:
            with scope:
                await turns.take("second")

        nursery.start_soon(give_up)
        await wait_all_tasks_blocked()
        nursery.start_soon(turns.take, "third")
        await wait_all_tasks_blocked()
        scope.cancel()
        await wait_all_tasks_blocked()
        turns.leave("first")
    turns.leave("third")
    await turns.take("fourth")


async def test_who_has_a_turn_may_take_it_again() -> None:
    turns = VariableLock()
    await turns.take("one")
    await turns.take("one")
    turns.leave("other")
    turns.leave("one")
    turns.leave("one")
    await turns.take("other")


async def test_a_commit_waits_for_readers_and_holds_up_new_ones() -> None:
    turns, seen = VariableLock(), list[str]()
    await turns.share("reader")

    async def commit() -> None:
        async with turns.alone():
            seen.append("committed")

    async def read() -> None:
        await turns.share("later")
        seen.append("read")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(commit)
        await wait_all_tasks_blocked()
        nursery.start_soon(read)
        await wait_all_tasks_blocked()
        assert turns.is_read
        assert seen == []
        turns.leave("reader")
    assert seen == ["committed", "read"]


async def test_whoever_waits_is_turned_away_at_the_end() -> None:
    turns = VariableLock()
    await turns.take("one")
    refused: list[str] = []

    async def wait() -> None:
        with pytest.raises(SessionError, match="closed"):
            await turns.take("two")
        refused.append("two")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        turns.refuse()
    assert refused == ["two"]
    with pytest.raises(SessionError, match="closed"):
        await turns.share("three")
