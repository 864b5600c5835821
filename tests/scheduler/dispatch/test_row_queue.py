"""The queue of rows: first come, first served, in full batches of rows that can be stacked."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from plait.scheduler.dispatch.row_queue import NEVER, RowGroup, RowQueue

came = st.lists(st.tuples(st.integers(1, 9), st.sampled_from("ab"), st.booleans()), max_size=12)
kept = st.none() | st.tuples(st.integers(8, 12), st.booleans())


@given(blocks=came, size=st.integers(1, 8), keep=kept)
def test_each_row_leaves_once_in_order_and_batches_are_full_or_due(
    blocks: list[tuple[int, str, bool]], size: int, keep: tuple[int, bool] | None
) -> None:
    queue: RowQueue[RowGroup] = RowQueue(size)
    waiting: dict[str, list[tuple[RowGroup, int]]] = {"a": [], "b": []}
    order: list[RowGroup] = []
    for now_s, (rows, group, is_left) in enumerate(blocks):
        block = RowGroup(rows, group, now_s, now_s + 3)
        order.append(block)
        queue.add(block)
        if is_left:
            queue.remove(block)
            queue.remove(block)
        else:
            waiting[group] += [(block, row) for row in range(rows)]
        if keep is not None:
            most, newest = keep
            together = sorted(waiting["a"] + waiting["b"], key=lambda one: order.index(one[0]))
            excess = max(0, len(together) - most)
            gone = together[most:] if newest else together[:excess]
            shed = [
                (run.block, row)
                for run in queue.shed(most, newest=newest)
                for row in range(run.start, run.stop)
            ]
            assert sorted(shed, key=together.index) == gone
            waiting = {
                name: [one for one in rows if one not in gone] for name, rows in waiting.items()
            }
        assert len(queue) == sum(map(len, waiting.values()))
        due_s = [
            -NEVER if len(rows) >= size else rows[0][0].due_s for rows in waiting.values() if rows
        ]
        assert queue.due_s() == min(due_s, default=NEVER)
        while taken := [
            (run.block, row)
            for run in queue.take_batch(now_s)
            for row in range(run.start, run.stop)
        ]:
            group = str(taken[0][0].group)
            expected = waiting[group][:size]
            assert taken == expected
            assert len(expected) == size or expected[0][0].due_s <= now_s
            del waiting[group][: len(taken)]
        assert queue.due_s() > now_s
