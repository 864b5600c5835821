"""Pools of replicas, on hosts without a cluster and a clock of their own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from itertools import count
from typing import Any

import numpy as np
import plait as pl
import pytest
import trio
from fake_hosts import FakeHost, FakeHosts, counting, doubled, item, items, pool_on, taken
from plait.graph.operators.randomness import RANDOM_KEY
from plait.graph.values.tensor import Array
from plait.scheduler.ray.payload import make_payload
from plait.scheduler.ray.pools.replicas import ReplicaPool
from plait.scheduler.ray.pools.serving_sessions import Answer, Asked
from trio.testing import MockClock, wait_all_tasks_blocked


async def test_an_item_runs_on_a_replica(autojump_clock: MockClock) -> None:
    async with pool_on(FakeHosts()) as pool:
        assert (await pool.run(item(3)))["y"].tolist() == [6]


async def test_results_come_in_the_order_of_the_source_whoever_is_slow(
    autojump_clock: MockClock,
) -> None:
    hosts = FakeHosts(lambda number: (0.001, 0.05, 0.013)[number])
    async with pool_on(hosts, n=3) as pool, pool.stream(items(60)) as results:
        assert await taken(results) == doubled(60)
    assert len(hosts.started[0].ran) > len(hosts.started[2].ran) > len(hosts.started[1].ran) > 0


async def test_results_out_of_order_come_when_they_are_done(autojump_clock: MockClock) -> None:
    hosts = FakeHosts(lambda number: (0.001, 1.0)[number])
    async with pool_on(hosts, n=2) as pool, pool.stream(items(10), ordered=False) as results:
        found = await taken(results)
    assert sorted(found) == doubled(10)
    assert found != doubled(10)


async def test_the_source_is_asked_only_while_there_is_room(autojump_clock: MockClock) -> None:
    asked = count()
    most = 0

    def source() -> Iterator[dict[str, Array]]:
        for value in range(30):
            next(asked)
            yield item(value)

    async with (
        pool_on(FakeHosts(), n=2) as pool,
        pool.stream(source(), max_in_flight=5) as results,
    ):
        async for one in results:
            most = max(most, int(repr(asked).strip("count()")) - one.index)
    assert most == 5


async def test_a_source_may_use_its_arrays_again(autojump_clock: MockClock) -> None:
    array = np.zeros(1, np.int32)

    def source() -> Iterator[dict[str, Array]]:
        for value in range(20):
            array[0] = value
            yield {"x": array}

    async with pool_on(FakeHosts(), n=2) as pool, pool.stream(source()) as results:
        assert await taken(results) == doubled(20)


async def test_a_live_source_is_not_held_back_by_slow_replicas(autojump_clock: MockClock) -> None:
    async def source() -> AsyncIterator[dict[str, Array]]:
        for value in range(20):
            await trio.sleep(0.3)
            yield item(value)

    async with pool_on(FakeHosts(lambda _: 1.0)) as pool:
        async with pool.stream(source(), keep="latest", max_in_flight=1) as results:
            found = [(one.index, one["y"].tolist()) async for one in results]
        assert found == [(index, [2 * index]) for index, _ in found]
        assert found[-1][0] == 19
        assert pool.status().dropped == 20 - len(found) > 10


async def test_results_are_arrays_of_their_own_unless_copies_are_declined(
    autojump_clock: MockClock,
) -> None:
    async with pool_on(FakeHosts()) as pool:
        async with pool.stream(items(1)) as results:
            assert [one["y"].flags.writeable async for one in results] == [True]
        async with pool.stream(items(1), copy=False) as results:
            assert [one["y"].flags.writeable async for one in results] == [False]


async def test_small_items_go_together(autojump_clock: MockClock) -> None:
    hosts = FakeHosts(lambda number: 1e-5)
    async with pool_on(hosts) as pool, pool.stream(items(200)) as results:
        assert await taken(results) == doubled(200)
    assert len(hosts.started[0].calls) < 60


async def test_what_is_fetched_has_the_form_that_was_asked_for(autojump_clock: MockClock) -> None:
    async with pool_on(FakeHosts()) as pool:
        found = await pool.run(item(4), fetches={"in": "x", "out": ["y"]})
    assert found["in"].tolist() == [4]
    assert found["out"][0].tolist() == [8]


async def test_a_batch_is_one_item_for_a_replica(autojump_clock: MockClock) -> None:
    hosts = FakeHosts()
    async with pool_on(hosts) as pool, pool.stream(items(8), batch=4) as results:
        assert await taken(results) == doubled(8)
    assert hosts.ran == [0, 1]


async def test_a_failed_item_keeps_its_class_and_its_place(autojump_clock: MockClock) -> None:
    async with pool_on(FakeHosts(), n=2) as pool:
        source = [item(value) for value in (0, -1, 2)]
        async with pool.stream(source) as results:
            errors = [one.error async for one in results]
    assert [type(error) for error in errors] == [type(None), pl.KernelError, type(None)]
    assert isinstance(errors[1], pl.KernelError)
    assert isinstance(errors[1].__cause__, ValueError)


async def test_what_does_not_fit_the_graph_makes_no_trip(autojump_clock: MockClock) -> None:
    hosts = FakeHosts()
    async with pool_on(hosts) as pool:
        with pytest.raises(pl.FeedError, match="no value for input 'x'"):
            await pool.run({})
        with pytest.raises(pl.FeedError, match="must be int32"):
            await pool.run({"x": np.zeros(1, np.float32)})
        with pytest.raises(pl.FetchError, match="no tensor 'z'"):
            await pool.run(item(1), fetches="z")
    assert hosts.ran == []


async def test_an_item_that_is_late_fails_at_once_and_its_replica_is_told(
    autojump_clock: MockClock,
) -> None:
    hosts = FakeHosts(lambda number: (0.001, 100.0)[number])
    async with pool_on(hosts, n=2) as pool:
        begun = trio.current_time()
        async with pool.stream(items(2), deadline_s=1.0) as results:
            errors = [one.error async for one in results]
        assert trio.current_time() - begun == pytest.approx(1.0)
    (late,) = [error for error in errors if error is not None]
    assert isinstance(late, pl.DeadlineError)
    assert hosts.started[1].cancelled == set(hosts.started[1].ran)


async def test_run_gives_up_at_its_deadline(autojump_clock: MockClock) -> None:
    async with pool_on(FakeHosts(lambda number: 100.0)) as pool:
        with pytest.raises(pl.DeadlineError):
            await pool.run(item(1), deadline_s=0.5)


async def test_cancelling_run_tells_the_replica(autojump_clock: MockClock) -> None:
    hosts = FakeHosts(lambda number: 100.0)
    async with pool_on(hosts) as pool:
        with trio.move_on_after(1):
            await pool.run(item(1))
        await wait_all_tasks_blocked()
        assert hosts.started[0].cancelled == {0}
        assert pool.status().in_flight == 0


async def test_leaving_a_stream_drops_what_waits(autojump_clock: MockClock) -> None:
    hosts = FakeHosts(lambda number: 1.0)
    async with pool_on(hosts) as pool:
        async with pool.stream(items(100), max_in_flight=50) as results:
            await anext(results)
        assert pool.status().waiting == 0
        assert pool.status().in_flight == 0
        await trio.sleep(100)
        assert len(hosts.ran) < 5
        assert (await pool.run(item(1)))["y"].tolist() == [2]


async def test_leaving_a_pool_ends_its_replicas_and_what_they_run(
    autojump_clock: MockClock,
) -> None:
    hosts = FakeHosts(lambda number: 100.0)
    errors: list[BaseException] = []

    async def work(pool: ReplicaPool) -> None:
        try:
            await pool.run(item(1))
        except pl.SessionError as error:
            errors.append(error)

    async with trio.open_nursery() as nursery:
        async with pool_on(hosts, n=3) as pool:
            for _ in range(5):
                nursery.start_soon(work, pool)
            await wait_all_tasks_blocked()
    assert [str(error).splitlines()[0] for error in errors] == [
        "the session was closed before the item was done"
    ] * 5
    assert hosts.living == []
    assert all(host.closed for host in hosts.started)
    with pytest.raises(pl.SessionError, match="the pool is not open"):
        await pool.run(item(1))


async def test_what_the_body_raises_comes_out_as_it_is(autojump_clock: MockClock) -> None:
    with pytest.raises(KeyError, match="mine"):
        async with pool_on(FakeHosts()):
            raise KeyError("mine")


async def test_a_pool_whose_replicas_refuse_the_plan_does_not_open(
    autojump_clock: MockClock,
) -> None:
    hosts = FakeHosts()
    hosts.prepare = lambda host: setattr(host, "refusal", pl.ParseError("another version"))
    with pytest.raises(pl.ParseError, match="another version"):
        async with pool_on(hosts, n=2):
            pass
    assert hosts.living == []


async def test_a_host_of_another_version_is_refused(autojump_clock: MockClock) -> None:
    hosts = FakeHosts()
    hosts.prepare = lambda host: host.told.update(plait="0.0.1")
    with pytest.raises(pl.DeviceUnavailableError, match=r"has plait 0\.0\.1, this process"):
        async with pool_on(hosts):
            pass


async def test_a_pool_opens_when_some_replicas_cannot_be_started(autojump_clock: MockClock) -> None:
    hosts = FakeHosts()
    hosts.room = 1
    async with pool_on(hosts, n=2) as pool:
        assert (await pool.run(item(1)))["y"].tolist() == [2]
        assert sorted(one.ready for one in pool.status().replicas.values()) == [False, True]


async def test_a_pool_for_which_there_is_no_node_does_not_open(autojump_clock: MockClock) -> None:
    hosts = FakeHosts()
    hosts.room = 0
    begun = trio.current_time()
    with pytest.raises(pl.DeviceUnavailableError, match="no replica has started within 20 s"):
        async with pool_on(hosts, start_timeout_s=20):
            pass
    assert trio.current_time() - begun < 25
    assert hosts.living == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n": 0}, "0 to 0 replicas"),
        ({"n": (3, 2)}, "3 to 2 replicas"),
        ({"n": "2"}, "n is '2'"),
        ({"n": (1, 2, 3)}, "n is"),
        ({"max_in_flight": 0}, "max_in_flight is 0"),
    ],
)
async def test_a_pool_that_makes_no_sense_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(pl.SessionError, match=message):
        pool_on(FakeHosts(), **options)


def test_replicas_that_would_each_have_their_variables_are_refused() -> None:
    with pytest.raises(pl.PlanError, match="each replica would have its own"):
        pool_on(FakeHosts(), counting(), n=2)


async def test_status_says_where_items_are(autojump_clock: MockClock) -> None:
    hosts = FakeHosts(lambda number: 1.0)
    async with pool_on(hosts, n=2) as pool, trio.open_nursery() as nursery:
        for value in range(6):
            nursery.start_soon(pool.run, item(value))
        await wait_all_tasks_blocked()
        found = pool.status().to_dict()
    assert found["in_flight"] == 6
    assert found["waiting"] == 2
    assert {one["under_way"] for one in found["replicas"].values()} == {2}
    nodes = {name: (one["node"], one["process"]) for name, one in found["replicas"].items()}
    assert nodes == {host.name: (f"node {host.number}", host.number) for host in hosts.started}


async def test_items_bring_their_keys_whichever_replica_has_them(
    autojump_clock: MockClock,
) -> None:
    """Also those that run again because a replica was lost."""
    builder = pl.GraphBuilder("drawing")
    x = builder.input("x", "int32", ("batch",))
    builder.output("noise", builder.op("RandomUniformLike", x, dtype="float32"))
    builder.output("y", builder.op("Add", x, x))
    keys: dict[int, set[tuple[int, ...]]] = {}

    class Watching(FakeHost):
        async def run_items(self, given: Iterable[Asked]) -> Answer:
            for one in map(Asked, *zip(*given, strict=True)):
                key = one.inputs[RANDOM_KEY]
                keys.setdefault(int(one.inputs["x"][0]), set()).add(tuple(key.tolist()))
            if self.number == 0 and len(keys) > 3:
                self.die()
            return await super().run_items(given)

    class Hosts(FakeHosts):
        async def start(self, name: str) -> FakeHost:
            host = Watching(name, len(self.started), 0.01)
            self.started.append(host)
            return host

    hosts = Hosts()
    made = make_payload(pl.plan(builder.build()), None, None)
    async with ReplicaPool(made, hosts.start, hosts.put, n=2, seed=9) as pool:
        async with pool.stream(items(20)) as results:
            assert len([one async for one in results]) == 20
        await pool.run(item(20))
    assert keys == {value: {(9, value)} for value in range(21)}
