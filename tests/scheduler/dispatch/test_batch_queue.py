"""The queue in front of batches: who goes into which, beside an oracle that searches lists."""

from __future__ import annotations

from collections import Counter
from typing import Any

from batch_oracle import Asked, QueueOracle
from hypothesis import given, settings
from hypothesis import strategies as st
from plait.scheduler.dispatch.batch_queue import BatchQueue, QueuedItem

SIZE = 5

arrivals: st.SearchStrategy[dict[str, Any]] = st.builds(
    dict,
    rows=st.integers(0, SIZE),
    client=st.sampled_from("abc"),
    group=st.sampled_from([1, 2]),
    wait_s=st.integers(0, 9),
)
events = st.lists(st.one_of(arrivals, st.integers(0, 30), st.none()), max_size=60)


@settings(max_examples=300)
@given(events, st.integers(0, 6))
def test_batches_are_those_of_the_oracle(drawn: list[object], max_delay_s: int) -> None:
    """Items come, leave and get late; a batch is asked for, one second after the other."""
    queue: BatchQueue[QueuedItem] = BatchQueue(SIZE, max_delay_s)
    oracle = QueueOracle(SIZE, max_delay_s)
    pairs: dict[QueuedItem, Asked] = {}
    for now_s, event in enumerate(drawn):
        if isinstance(event, dict):
            wait_s = event.pop("wait_s")
            item = QueuedItem(**event, since_s=now_s, until_s=now_s + wait_s)
            pairs[item] = Asked(**event, since_s=now_s, until_s=now_s + wait_s)
            queue.add(item)
            oracle.add(pairs[item])
        elif isinstance(event, int) and event < len(pairs):
            item = list(pairs)[event]
            was_there = pairs[item] in oracle.waiting
            assert queue.remove(item) == was_there
            if was_there:
                oracle.remove(pairs[item])
        elif event is None:
            late = [item for item in oracle.waiting if item.until_s <= now_s]
            assert {pairs[item] for item in queue.take_late(now_s)} == set(late)
            for one in late:
                oracle.remove(one)
            taken = queue.take_batch(now_s)
            assert [pairs[item] for item in taken] == oracle.batch(now_s)
            assert sum(item.rows for item in taken) <= SIZE
            assert len({item.group for item in taken}) <= 1
        assert queue.due_s() == oracle.due_s()
        assert len(queue) == len(oracle.waiting)
        assert {pairs[item] for item in queue} == set(oracle.waiting)


def item(client: str, rows: int = 1, group: int = 0) -> QueuedItem:
    return QueuedItem(rows, group, client, since_s=0.0)


def test_a_client_that_floods_the_queue_has_its_share_and_no_more() -> None:
    queue: BatchQueue[QueuedItem] = BatchQueue(4, 0.0)
    for client, count in (("flood", 90), ("b", 9), ("c", 9)):
        for _ in range(count):
            queue.add(item(client))
    served: Counter[object] = Counter()
    for _ in range(6):
        batch = [one.client for one in queue.take_batch(1.0)]
        assert len(batch) == 4
        served.update(batch)
        assert max(served.values()) - min(served[client] for client in ("flood", "b", "c")) <= 1


def test_a_client_alone_in_its_group_waits_for_one_batch_of_the_others_at_most() -> None:
    queue: BatchQueue[QueuedItem] = BatchQueue(4, 0.0)
    for _ in range(100):
        queue.add(item("flood", group=1))
    queue.add(item("b", group=2))
    assert {one.group for one in queue.take_batch(1.0)} == {1}
    assert [one.client for one in queue.take_batch(1.0)] == ["b"]


def test_an_item_of_many_rows_is_not_passed_by_small_ones_for_ever() -> None:
    queue: BatchQueue[QueuedItem] = BatchQueue(4, 0.0)
    queue.add(item("small"))
    queue.add(item("large", rows=4))
    for _ in range(20):
        queue.add(item("small"))
    assert {one.client for one in queue.take_batch(1.0)} == {"small"}
    assert [one.client for one in queue.take_batch(1.0)] == ["large"]


def test_nothing_is_kept_of_clients_and_groups_that_have_left() -> None:
    queue: BatchQueue[QueuedItem] = BatchQueue(2, 0.0)
    for number in range(100):
        queue.add(item(f"client {number}", group=number))
    while queue.take_batch(1.0):
        pass
    assert (queue._clients, queue._groups, queue._rows) == ({}, {}, {})
