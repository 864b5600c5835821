"""Pools of replicas for synchronous code, on hosts without a cluster."""

from __future__ import annotations

import gc
from typing import Any

import plait as pl
import pytest
from fake_hosts import FakeHosts, item, items, pool_on
from plait.scheduler.ray.pools.blocking_pool import BlockingReplicaPool
from resources import await_dropped_sessions


def opened(hosts: FakeHosts, **options: Any) -> BlockingReplicaPool:
    return BlockingReplicaPool(pool_on(hosts, **options))


def fast() -> FakeHosts:
    return FakeHosts(lambda number: 0.0)


def test_items_run_one_by_one_and_streamed() -> None:
    with opened(fast(), n=2) as pool:
        assert pool.run(item(3))["y"].tolist() == [6]
        assert pool.run(item(3), fetches="x").tolist() == [3]
        assert [one["y"].tolist() for one in pool.stream(items(20))] == [
            [2 * value] for value in range(20)
        ]
        assert pool.status().done == 22


def test_a_failed_item_raises_what_it_failed_with() -> None:
    with opened(fast()) as pool, pytest.raises(pl.KernelError):
        pool.run(item(-1))


def test_what_makes_no_sense_is_refused() -> None:
    with opened(fast()) as pool, pytest.raises(pl.SessionError, match="max_in_flight is 0"):
        pool.stream(items(1), max_in_flight=0)


def test_replicas_that_refuse_the_plan_are_heard_of_at_once() -> None:
    hosts = fast()
    hosts.prepare = lambda host: setattr(host, "refusal", pl.ParseError("another version"))
    with pytest.raises(pl.ParseError, match="another version"):
        opened(hosts)


def test_a_closed_pool_runs_nothing() -> None:
    hosts = fast()
    pool = opened(hosts)
    pool.close()
    pool.close()
    assert hosts.living == []
    with pytest.raises(pl.SessionError, match="closed"):
        pool.run(item(1))


def test_a_pool_that_is_dropped_ends_its_replicas() -> None:
    hosts = fast()
    pool = opened(hosts)
    pool.run(item(1))
    del pool
    gc.collect()
    await_dropped_sessions(())
    assert hosts.living == []


async def test_a_trio_task_is_told_not_to_wait_here() -> None:
    with pytest.raises(pl.SessionError, match="would block the trio task"):
        opened(fast())
