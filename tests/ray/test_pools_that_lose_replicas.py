"""Replicas of a pool die, fall silent, come and go: on hosts without a cluster."""

from __future__ import annotations

from typing import Any

import plait as pl
import pytest
import trio
from fake_hosts import FakeHost, FakeHosts, counting, doubled, item, items, pool_on, taken
from hypothesis import given, settings
from hypothesis import strategies as st
from plait.devices.errors import DeviceLostError
from plait.scheduler.runtime.events import DeviceLost, DeviceRestored, ItemDone, ItemReplayed
from trio.testing import MockClock


async def test_items_of_a_replica_that_dies_run_elsewhere(autojump_clock: MockClock) -> None:
    hosts = FakeHosts()
    events: list[Any] = []
    hosts.prepare = lambda host: dying_at(host, host.number == 0, after=5)
    async with pool_on(hosts, n=2, on_event=events.append) as pool:
        async with pool.stream(items(40)) as results:
            assert await taken(results) == doubled(40)
        assert pool.status().failed == 0
        assert pool.status().done == 40
    kinds = [type(event) for event in events]
    assert kinds.count(DeviceLost) == kinds.count(DeviceRestored) == 1
    assert kinds.count(ItemReplayed) >= 1
    assert kinds.count(ItemDone) == 40
    lost = [event.device for event in events if isinstance(event, DeviceLost)]
    assert lost == [hosts.started[0].name]


def dying_at(host: FakeHost, dies: bool, after: int) -> None:
    def die(host: FakeHost, number: int) -> None:
        if dies and len(host.ran) > after:
            host.die()

    host.before = die


async def test_a_pool_opens_though_its_first_hosts_die_before_they_answer(
    autojump_clock: MockClock,
) -> None:
    hosts = FakeHosts()
    hosts.prepare = lambda host: host.die() if host.number < 3 else None
    async with pool_on(hosts) as pool:
        assert (await pool.run(item(1)))["y"].tolist() == [2]


async def test_a_pool_whose_hosts_all_die_does_not_open(autojump_clock: MockClock) -> None:
    hosts = FakeHosts()
    hosts.prepare = FakeHost.die
    with pytest.raises(DeviceLostError, match="the process is dead"):
        async with pool_on(hosts, faults=pl.FaultPolicy(patience=4)):
            pass
    assert len(hosts.started) == 4


async def test_a_lone_replica_that_dies_is_started_again(autojump_clock: MockClock) -> None:
    hosts = FakeHosts()
    hosts.prepare = lambda host: dying_at(host, host.number < 3, after=4)
    begun = trio.current_time()
    async with pool_on(hosts) as pool, pool.stream(items(30)) as results:
        assert await taken(results) == doubled(30)
    assert len(hosts.started) == 4
    assert trio.current_time() - begun < 1  # pauses grow only where no item has ended well


async def test_what_is_heard_late_of_a_lost_host_is_no_matter_of_the_next_one(
    autojump_clock: MockClock,
) -> None:
    hosts = FakeHosts()

    def fall_silent(host: FakeHost, number: int) -> None:
        host.silent = host.lingers = host.number == 0

    hosts.prepare = lambda host: setattr(host, "before", fall_silent)
    async with pool_on(hosts, silence_s=9) as pool, pool.stream(items(20)) as results:
        first = await anext(results)
        assert first["y"].tolist() == [0]
        hosts.started[0].bury()
        assert await taken(results) == doubled(20)[1:]
    assert len(hosts.started) == 2


async def test_an_item_that_ends_every_replica_fails_and_the_others_do_not(
    autojump_clock: MockClock,
) -> None:
    hosts = FakeHosts()

    def deadly(host: FakeHost, number: int) -> None:
        if number == 3:
            host.die()

    hosts.prepare = lambda host: setattr(host, "before", deadly)
    faults = pl.FaultPolicy(replays=2)
    async with pool_on(hosts, n=2, faults=faults) as pool:
        async with pool.stream(items(20), max_in_flight=1) as results:
            found = [one.error async for one in results]
    assert [index for index, error in enumerate(found) if error is not None] == [3]
    assert isinstance(found[3], DeviceLostError)
    assert "no replica survived" in str(found[3])
    assert hosts.ran.count(3) == 3


async def test_without_replays_items_of_a_lost_replica_fail(autojump_clock: MockClock) -> None:
    hosts = FakeHosts()
    hosts.prepare = lambda host: dying_at(host, host.number == 0, after=2)
    async with pool_on(hosts, faults=pl.FaultPolicy(replays=0)) as pool:
        async with pool.stream(items(10), max_in_flight=2) as results:
            failed = {one.index: one.error async for one in results if one.error is not None}
    assert failed
    assert all(isinstance(error, DeviceLostError) for error in failed.values())
    assert "feed it again if that does no harm" in str(next(iter(failed.values())))
    assert sorted(hosts.ran) == sorted(set(hosts.ran))


async def test_a_silent_replica_is_lost_after_a_while_and_its_items_run_elsewhere(
    autojump_clock: MockClock,
) -> None:
    hosts = FakeHosts()

    def fall_silent(host: FakeHost, number: int) -> None:
        host.silent = host.number == 0 and len(host.ran) > 3

    hosts.prepare = lambda host: setattr(host, "before", fall_silent)
    async with pool_on(hosts, n=2, silence_s=9) as pool:
        begun = trio.current_time()
        async with pool.stream(items(40)) as results:
            assert await taken(results) == doubled(40)
        assert 9 <= trio.current_time() - begun < 16
    assert hosts.started[0].killed


async def test_a_long_item_is_not_taken_for_silence(autojump_clock: MockClock) -> None:
    hosts = FakeHosts(lambda number: 1000.0)
    async with pool_on(hosts, silence_s=9) as pool:
        assert (await pool.run(item(1)))["y"].tolist() == [2]
    assert len(hosts.started) == 1


async def test_replicas_are_added_while_items_wait_and_given_back_when_idle(
    autojump_clock: MockClock,
) -> None:
    hosts = FakeHosts(lambda number: 0.5)
    async with pool_on(hosts, n=(1, 4)) as pool:
        async with pool.stream(items(200)) as results:
            assert await taken(results) == doubled(200)
        assert len(hosts.living) == 4
        await trio.sleep(1000)
        assert len(hosts.living) == 1
        assert (await pool.run(item(1)))["y"].tolist() == [2]


async def test_a_replica_that_was_lost_at_work_is_given_back_when_idle(
    autojump_clock: MockClock,
) -> None:
    hosts = FakeHosts(lambda number: 0.5)
    async with pool_on(hosts, n=(1, 2)) as pool:
        async with pool.stream(items(40)) as results:
            async for one in results:
                if one.index == 20:
                    for host in hosts.living:
                        host.die()
        assert len(pool.status().replicas) == 2
        await trio.sleep(1000)
        assert len(pool.status().replicas) == 1


async def test_replicas_that_found_no_node_are_given_up_when_nothing_waits(
    autojump_clock: MockClock,
) -> None:
    hosts = FakeHosts(lambda number: 0.5)
    hosts.room = 2
    async with pool_on(hosts, n=(1, 4)) as pool:
        async with pool.stream(items(40)) as results:
            assert await taken(results) == doubled(40)
        assert len(pool.status().replicas) == 4
        await trio.sleep(1000)
        assert [one.ready for one in pool.status().replicas.values()] == [True]


async def test_a_pool_that_keeps_up_does_not_grow(autojump_clock: MockClock) -> None:
    hosts = FakeHosts()
    async with pool_on(hosts, n=(1, 4)) as pool:
        for value in range(100):
            await pool.run(item(value))
            await trio.sleep(0.1)
    assert len(hosts.started) == 1


async def test_items_fail_while_no_replica_can_be_started(autojump_clock: MockClock) -> None:
    hosts = FakeHosts()
    async with pool_on(hosts, faults=pl.FaultPolicy(patience=2)) as pool:
        hosts.prepare = lambda host: setattr(host, "refusal", pl.DeviceError("no memory"))
        hosts.started[0].die()
        await trio.sleep(60)
        with pytest.raises(pl.DeviceError, match="no memory"):
            await pool.run(item(1))
        hosts.prepare = lambda host: None
        await trio.sleep(60)
        assert (await pool.run(item(1)))["y"].tolist() == [2]


async def test_items_that_assign_to_variables_are_not_run_again(autojump_clock: MockClock) -> None:
    hosts = FakeHosts()
    hosts.prepare = lambda host: dying_at(host, True, after=2)
    async with pool_on(hosts, counting()) as pool:
        async with pool.stream(items(5)) as results:
            errors = [one.error async for one in results]
        assert [error is None for error in errors] == [True, True, False, False, False]
        assert all(isinstance(error, DeviceLostError) for error in errors[2:])
        assert "so it is not run again" in str(errors[2])
        with pytest.raises(DeviceLostError, match="what the variables held there"):
            await pool.run(item(1))
    assert len(hosts.started) == 1


async def test_items_that_assign_go_one_after_the_other(autojump_clock: MockClock) -> None:
    hosts = FakeHosts()
    async with pool_on(hosts, counting()) as pool, trio.open_nursery() as nursery:
        for value in range(10):
            nursery.start_soon(pool.run, item(value))
    assert hosts.started[0].calls == [(number,) for number in range(10)]


@settings(max_examples=30)
@given(
    fates=st.lists(st.sampled_from(["dies", "falls silent", "is fast", "is slow"]), max_size=6),
    after=st.integers(0, 12),
    n=st.integers(1, 3),
    max_in_flight=st.integers(1, 20),
)
def test_whatever_happens_to_replicas_each_result_comes_once_and_in_order(
    fates: list[str], after: int, n: int, max_in_flight: int
) -> None:
    hosts = FakeHosts(lambda number: 0.2 if fates[number : number + 1] == ["is slow"] else 0.001)

    def strike(host: FakeHost, number: int) -> None:
        fate = fates[host.number] if host.number < len(fates) else ""
        if len(host.ran) > after:
            if fate == "dies":
                host.die()
            host.silent = fate == "falls silent"

    hosts.prepare = lambda host: setattr(host, "before", strike)

    async def main() -> None:
        faults = pl.FaultPolicy(replays=10)
        async with pool_on(hosts, n=n, faults=faults, silence_s=3) as pool:
            async with pool.stream(items(50), max_in_flight=max_in_flight) as results:
                assert await taken(results) == doubled(50)
            assert pool.status().done == 50
            assert pool.status().in_flight == 0

    trio.run(main, clock=MockClock(autojump_threshold=0))
    assert hosts.living == []
