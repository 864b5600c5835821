"""Live streams on a clock that jumps, beside a queue simulated event by event."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

import numpy as np
import plait as pl
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from plait.scheduler.runtime.streaming.options import Drop, Keep
from trio.testing import MockClock

RUN_S, LOOK_S = 1 / 1024, 1 / 65536
"""Added to each run, and each look at a result: so that no two things happen at one moment."""


@dataclass(frozen=True)
class Schedule:
    """When a source gives, and how long runs and the consumer take, in seconds.

    The results are (index, moment when it is handed out).
    """

    gaps: Sequence[int]
    runs: Sequence[int]
    looks: Sequence[int]
    keep: Keep
    drop: Drop | None
    max_in_flight: int

    def streamed(self) -> tuple[list[tuple[int, float]], int]:
        """Return what a stream hands out when, and how many items it dropped."""
        return trio.run(self._stream, clock=MockClock(autojump_threshold=0))

    async def _stream(self) -> tuple[list[tuple[int, float]], int]:
        seen = []
        async with pl.Session(self._plan()) as session:
            begin = trio.current_time()
            arguments: Any = {"keep": self.keep, "drop": self.drop}
            async with session.stream(
                self._source(), max_in_flight=self.max_in_flight, **arguments
            ) as results:
                async for item in results:
                    assert item["y"].tolist() == [item.index, self.runs[item.index]]
                    seen.append((item.index, trio.current_time() - begin))
                    await trio.sleep(self.looks[item.index] + LOOK_S)
            dropped = session.status().dropped
            assert session.profile().dropped == dropped
        return seen, dropped

    def _plan(self) -> pl.Plan:
        builder = pl.GraphBuilder("live")
        x = builder.input("x", "float64", (2,))
        builder.output("y", builder.call(wait, x))
        return pl.plan(builder.build(), max_in_flight=self.max_in_flight)

    async def _source(self) -> AsyncIterator[dict[str, Any]]:
        again = np.empty(2)  # as a camera does
        for index, gap in enumerate(self.gaps):
            await trio.sleep(gap)
            again[:] = index, self.runs[index]
            yield {"x": again}

    def expected(self) -> tuple[list[tuple[int, float]], int]:
        """Return the same by definition."""
        keep = 1 if self.keep == "latest" else self.keep
        moments: list[tuple[float, int, str]] = []
        for index in range(len(self.gaps)):
            heappush(moments, (float(sum(self.gaps[: index + 1])), index, "given"))
        buffer, order, done = deque[int](), deque[int](), set[int]()
        free, dropped, is_asking, seen = self.max_in_flight, 0, True, []
        while moments:
            now, index, what = heappop(moments)
            if what == "given":
                buffer.append(index)
                # One that can start at once takes no place in the buffer.
                if len(buffer) > keep and not free:
                    dropped += 1
                    del buffer[-1 if self.drop == "newest" else 0]
            elif what == "done":
                done.add(index)
            else:
                is_asking, free = True, free + 1
            while free and buffer:
                free, index = free - 1, buffer.popleft()
                order.append(index)
                heappush(moments, (now + self.runs[index] + RUN_S, index, "done"))
            if is_asking and order and order[0] in done:
                is_asking, index = False, order.popleft()
                seen.append((index, now))
                heappush(moments, (now + self.looks[index] + LOOK_S, index, "released"))
        return seen, dropped


@pl.operator(name="test_live_streams.wait")
async def wait(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    await trio.sleep(float(x[1]) + RUN_S)
    return x


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    count = draw(st.integers(0, 16))

    def seconds(least: int) -> st.SearchStrategy[list[int]]:
        most = draw(st.sampled_from([1, 3, 9]))
        return st.lists(st.integers(least, most), min_size=count, max_size=count)

    keep: Keep = draw(st.sampled_from(["latest", 1, 2, 5]))
    drops = [None, "oldest"] if keep == "latest" else [None, "oldest", "newest"]
    gaps, runs, looks = draw(seconds(1)), draw(seconds(0)), draw(seconds(0))
    return Schedule(gaps, runs, looks, keep, draw(st.sampled_from(drops)), draw(st.integers(1, 4)))


@settings(max_examples=60)
@given(schedules())
def test_a_live_stream_hands_out_what_its_buffer_keeps_when_it_can(schedule: Schedule) -> None:
    assert schedule.streamed() == schedule.expected()


def test_what_a_slow_consumer_gets_of_the_latest_is_two_frames_old_at_most() -> None:
    frames = 200
    slow = Schedule([1] * frames, [0] * frames, [10] * frames, "latest", None, 1)
    seen, dropped = slow.streamed()
    assert len(seen) + dropped == frames
    assert len(seen) <= frames // 10 + 2
    assert max(handed_out - (index + 1) for index, handed_out in seen[:-1]) <= 2
