"""Pools on paper: what limits them follows from their figures, and every item comes back."""

from __future__ import annotations

import math

import plait as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pool_simulation import Driver, HostKind, simulate_pool

FREE = Driver(call_s=0, item_s=0, copy_bytes_per_s=math.inf, link_bytes_per_s=math.inf, trip_s=0)


def test_hosts_that_are_never_without_items_are_the_limit() -> None:
    found = simulate_pool([HostKind("gpu", 4, item_s=0.1, in_flight=2)], items=4000)
    assert found.limit == "hosts"
    assert found.items_per_s == pytest.approx(80, rel=0.02)
    assert found.hosts["gpu"] == pytest.approx(1, abs=0.02)


def test_a_driver_does_no_more_calls_than_it_has_time_for() -> None:
    driver = Driver(call_s=1e-3, item_s=1e-3, copy_bytes_per_s=math.inf)
    found = simulate_pool([HostKind("gpu", 100, item_s=0.01)], driver, items=4000, feed_bytes=8)
    assert found.limit == "driver"
    assert found.items_per_s == pytest.approx(500, rel=0.02)


def test_a_link_carries_no_more_than_it_can() -> None:
    driver = Driver(call_s=0, item_s=0, copy_bytes_per_s=math.inf, link_bytes_per_s=1e8)
    found = simulate_pool([HostKind("gpu", 100, 0.01)], driver, items=2000, feed_bytes=1_000_000)
    assert found.limit == "link"
    assert found.items_per_s == pytest.approx(100, rel=0.02)


def test_results_are_a_link_s_work_as_feeds_are() -> None:
    driver = Driver(call_s=0, item_s=0, copy_bytes_per_s=math.inf, link_bytes_per_s=1e8)
    found = simulate_pool(
        [HostKind("gpu", 100, 0.01)], driver, items=2000, feed_bytes=8, result_bytes=1_000_000
    )
    assert found.items_per_s == pytest.approx(100, rel=0.02)


def test_drivers_share_the_work() -> None:
    driver = Driver(call_s=2e-3, item_s=0, copy_bytes_per_s=math.inf)
    hosts = [HostKind("gpu", 64, item_s=0.01)]
    one, four = (simulate_pool(hosts, driver, items=8000, feed_bytes=8, drivers=n) for n in (1, 4))
    assert one.limit == four.limit == "driver"
    assert four.items_per_s == pytest.approx(4 * one.items_per_s, rel=0.02)


def test_a_lone_item_takes_its_trips_and_its_work() -> None:
    driver = Driver(
        call_s=0.002, item_s=0.004, copy_bytes_per_s=1e6, link_bytes_per_s=1e5, trip_s=1
    )
    found = simulate_pool(
        [HostKind("gpu", 1, item_s=10)], driver, items=1, feed_bytes=1000, result_bytes=500
    )
    assert found.seconds == pytest.approx(10 + 2 + 0.006 + 1500 / 1e6 + 1500 / 1e5)
    assert found.latency_s[0] == found.seconds


def test_a_slow_kind_holds_up_an_ordered_stream_less_than_its_items_take() -> None:
    """With twenty items in flight, the slow ones' share would stall the others most of the time."""
    hosts = [HostKind("fast", 4, item_s=0.01), HostKind("slow", 4, item_s=0.16)]
    found = simulate_pool(hosts, FREE, items=4000, max_in_flight=20)
    assert found.items_per_s > 0.85 * 400
    unordered = simulate_pool(hosts, FREE, items=4000, max_in_flight=20, ordered=False)
    assert unordered.items_per_s == pytest.approx(425, rel=0.02)


def test_stragglers_cost_an_ordered_stream_more_than_their_own_time() -> None:
    hosts = [HostKind("gpu", 50, item_s=0.01, straggling=0.01, straggler=50)]
    ordered, free = (
        simulate_pool(hosts, FREE, items=10_000, ordered=ordered) for ordered in (True, False)
    )
    assert ordered.items_per_s < 0.7 * free.items_per_s
    assert ordered.limit == "order"
    wider = simulate_pool(hosts, FREE, items=10_000, max_in_flight=2500)
    assert wider.items_per_s > 1.4 * ordered.items_per_s


def test_the_same_question_has_the_same_answer() -> None:
    hosts = [HostKind("gpu", 3, item_s=0.01, spread=0.5)]
    assert simulate_pool(hosts, items=500) == simulate_pool(hosts, items=500)
    assert simulate_pool(hosts, items=500) != simulate_pool(hosts, items=500, seed=1)


@given(
    kinds=st.lists(
        st.tuples(st.integers(1, 4), st.floats(1e-4, 1), st.integers(1, 3)), min_size=1, max_size=3
    ),
    items=st.integers(1, 60),
    most=st.integers(1, 20),
    ordered=st.booleans(),
)
def test_no_pool_does_more_than_its_hosts_can(
    kinds: list[tuple[int, float, int]], items: int, most: int, ordered: bool
) -> None:
    hosts = [HostKind(f"kind{n}", *kind) for n, kind in enumerate(kinds)]
    found = simulate_pool(hosts, FREE, items=items, max_in_flight=most, ordered=ordered)
    slots = sum(kind.count * kind.in_flight for kind in hosts)
    assert found.items_per_s <= found.possible_items_per_s * (1 + slots / items) * 1.001
    assert all(0 <= share <= 1.001 for share in found.hosts.values())


@pytest.mark.parametrize(
    ("hosts", "arguments"),
    [([], {}), ([HostKind("gpu", 0, 1.0)], {}), ([HostKind("gpu", 1, 1.0)], {"items": 0})],
)
def test_what_makes_no_sense_is_refused(hosts: list[HostKind], arguments: dict[str, int]) -> None:
    with pytest.raises(pl.PlanError, match="fix"):
        simulate_pool(hosts, **arguments)  # type: ignore[arg-type]
