"""Joined sources in streams, what they hold, what they refuse, and that they are closed."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import plait as pl
import pytest
import trio
from trace_reader import read
from trio.testing import MockClock

FRAMES = 500
PERIOD = 40
"""Of the left camera, in ms; the right one is a little off."""


def difference() -> pl.Plan:
    """Return what subtracts the numbers that two frames are filled with."""
    b = pl.GraphBuilder("difference")
    frames = [b.input(name, "float32", (2, 2)) for name in ("left", "right")]
    b.output("y", b.op("Sub", *frames))
    return pl.plan(b.build(), max_in_flight=2)


class Camera:
    """Frames, each with its number, at their times in ms: 2 % are missing, 5 % come late."""

    def __init__(self, seed: int, offset: int) -> None:
        chance = random.Random(seed)
        self.stamps = [
            number * PERIOD + offset for number in range(FRAMES) if chance.random() > 0.02
        ]
        arrivals = [
            (stamp + (5 * PERIOD if chance.random() < 0.05 else 0), stamp) for stamp in self.stamps
        ]
        self.arrivals = sorted(arrivals)
        self.is_open = False

    def frame(self, stamp: int) -> pl.Stamped:
        return pl.Stamped(stamp / 1000, np.full((2, 2), self.stamps.index(stamp), np.float32))

    async def live(self) -> AsyncIterator[pl.Stamped]:
        self.is_open = True
        try:
            for at, stamp in self.arrivals:
                await trio.sleep_until(at / 1000)
                yield self.frame(stamp)
        finally:
            self.is_open = False

    def recorded(self) -> Iterator[pl.Stamped]:
        self.is_open = True
        try:
            for _, stamp in self.arrivals:
                yield self.frame(stamp)
        finally:
            self.is_open = False

    def in_time(self, lateness: int) -> list[int]:
        """Return the stamps of the frames that are no later than that, by definition."""
        arrived = [stamp for _, stamp in self.arrivals]
        return sorted(
            stamp
            for place, stamp in enumerate(arrived)
            if stamp >= max(arrived[: place + 1]) - lateness
        )


def are_closed(*cameras: Camera) -> bool:
    return not any(camera.is_open for camera in cameras)


def expected(left: Camera, right: Camera, lateness: int) -> list[tuple[float, float]]:
    """Return stamp and difference of each pair, for a tolerance of 10 ms."""
    there = right.in_time(lateness)
    pairs = []
    for stamp in left.in_time(lateness):
        near = [one for one in there if abs(one - stamp) <= 10]
        if near:
            other = min(near, key=lambda one: (abs(one - stamp), one))
            number = left.stamps.index(stamp) - right.stamps.index(other)
            pairs.append((stamp / 1000, float(number)))
    return pairs


@pytest.mark.parametrize("lateness", [0, 5 * PERIOD])
def test_two_cameras_are_joined_by_time(lateness: int) -> None:
    left, right = Camera(1, 0), Camera(2, 7)

    async def main() -> list[tuple[float, float]]:
        cameras = {"left": left.live(), "right": right.live()}
        joined = pl.join(cameras, tolerance_s=0.0101, lateness_s=lateness / 1000)
        async with pl.Session(difference()) as session, session.stream(joined) as results:
            seen = [(item.stamp or 0.0, float(item["y"][0, 0])) async for item in results]
        status = joined.status()
        assert status.matched == len(seen)
        assert sum(status.late.values()) > 10 or lateness
        assert status.missing["right"] > 2
        return seen

    assert trio.run(main, clock=MockClock(autojump_threshold=0)) == expected(left, right, lateness)
    assert are_closed(left, right)


def test_recorded_sources_are_joined_for_synchronous_code_and_asyncio() -> None:
    left, right = Camera(1, 0), Camera(2, 7)

    def joined() -> pl.Join:
        cameras = {"left": left.recorded(), "right": right.recorded()}
        return pl.join(cameras, tolerance_s=0.0101, lateness_s=0.2)

    async def main() -> list[tuple[float | None, float]]:
        async with pl.AsyncioSession(difference()) as session:
            async with session.stream(joined()) as results:
                return [(item.stamp, float(item["y"][0, 0])) async for item in results]

    wanted = expected(left, right, 200)
    with pl.BlockingSession(difference()) as session:
        for arguments in ({}, {"keep": 1000}):
            results = session.stream(joined(), **arguments)  # type: ignore[arg-type]
            assert [(item.stamp, float(item["y"][0, 0])) for item in results] == wanted
        left_early = session.stream(joined())
        next(left_early)
        assert left.is_open
        left_early.close()
    assert asyncio.run(main()) == wanted
    assert are_closed(left, right)


def test_no_more_waits_than_lateness_and_tolerance_make_necessary() -> None:
    def stamps(period: float) -> Iterator[pl.Stamped]:
        return (pl.Stamped(number * period, number) for number in range(round(2000 / period)))

    joined = pl.join({"a": stamps(4), "b": stamps(0.5)}, tolerance_s=2, lateness_s=8)
    most = max(sum(joined.status().waiting.values()) for _ in joined)
    assert joined.status().matched == 500
    assert most <= (8 / 4 + 2) + (2 * 2 + 8) / 0.5 + 2


def test_a_source_whose_stamps_do_not_grow_is_refused_before_it_fills_the_memory() -> None:
    stuck = (pl.Stamped(0, 0) for _ in range(1000))
    joined = pl.join({"a": [(5, 5)], "b": stuck}, tolerance_s=9, max_waiting=10)
    with pytest.raises(pl.SourceError, match="10 items of source 'b' wait"):
        next(joined)
    assert list(joined) == []


def test_async_sources_are_not_for_plain_iteration() -> None:
    camera = Camera(1, 0)
    joined = pl.join({"a": camera.recorded(), "b": camera.live()}, tolerance_s=1)
    with pytest.raises(pl.SourceError, match="source 'b' is async"):
        next(joined)
    assert are_closed(camera)


def test_heartbeats_of_a_source_that_stands_still_let_the_others_go_on() -> None:
    def idle() -> Iterator[pl.Stamped]:
        yield pl.Stamped(0, "b0")
        yield pl.Stamped(9, None)
        pytest.fail("it is not asked again")

    sources = {"a": [(stamp, stamp) for stamp in range(5)], "b": idle()}
    joined = pl.join(sources, tolerance_s=1)
    assert [one.stamp for one in joined] == [0, 1]
    assert joined.status().missing == {"b": 3}


def test_a_missing_partner_may_raise() -> None:
    joined = pl.join({"a": [(1, 1), (2, 2)], "b": [(1, 1)]}, by="key", missing="raise")
    assert next(joined).value == {"a": 1, "b": 1}
    with pytest.raises(pl.SourceError, match="'a' at key 2 has no partner in 'b'"):
        next(joined)


WAIT_NS = 1_000_000


def test_profiles_and_traces_say_how_long_items_waited_for_partners(tmp_path: Path) -> None:
    def frames(wait_ns: int = 0) -> Iterator[pl.Stamped]:
        for number in range(3):
            end = time.perf_counter_ns() + wait_ns
            while time.perf_counter_ns() < end:
                pass
            yield pl.Stamped(number, np.zeros((2, 2), np.float32))

    def joined() -> pl.Join:
        return pl.join({"left": frames(), "right": frames(WAIT_NS)}, by="key")

    async def under_trio(**arguments: Any) -> pl.Profile:
        async with pl.Session(difference()) as session:
            async with session.stream(joined(), **arguments) as results:
                assert [item.stamp async for item in results] == [0, 1, 2]
        return session.profile()

    async def under_asyncio() -> pl.Profile:
        async with pl.AsyncioSession(difference()) as session:
            async with session.stream(joined()) as results:
                assert [item.stamp async for item in results] == [0, 1, 2]
            return session.profile()

    with pl.BlockingSession(difference()) as session:
        assert [item.stamp for item in session.stream(joined())] == [0, 1, 2]
        profiles = [session.profile()]
    profiles += [trio.run(under_trio), trio.run(lambda: under_trio(keep=9))]
    profiles.append(asyncio.run(under_asyncio()))
    for profile in profiles:
        assert all(record.waited_for >= {"partners"} for record in profile.records)
        assert profile.attribution().partners_ns <= profile.attribution().wall_ns
    profile = profiles[1]
    assert profile.attribution().partners_ns >= 3 * WAIT_NS
    profile.save(tmp_path / "trace.json")
    for bars in read(tmp_path / "trace.json").bars.values():
        (source,) = (bar for bar in bars if bar.name == "source")
        (waits,) = (bar for bar in bars if bar.name == "waits for partners")
        assert source.start <= waits.start < waits.end == source.end
        assert waits.end - waits.start >= WAIT_NS / 1e3


def test_joins_are_joined_and_mappings_keep_their_names() -> None:
    inner = pl.join({"a": [(1, "a1"), (2, "a2")], "b": [(1, "b1"), (2, "b2")]}, by="key")
    outer = pl.join({"ab": inner, "c": [(2, "c2")]}, by="key")
    assert [tuple(one) for one in outer] == [(2, {"a": "a2", "b": "b2", "c": "c2"})]
    twice = pl.join({"a": [(1, 1)], "b": [(1, {"a": 2})]}, by="key")
    with pytest.raises(pl.SourceError, match="both give 'a'"):
        next(twice)


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (np.zeros(2), "gave a ndarray without a stamp"),
        ((float("nan"), 1), "gave the time nan"),
        (("noon", 1), "gave the time 'noon'"),
        ((True, 1), "gave the time True"),
        ((10**400, 1), "gave the time 1000"),
        ((-(10**5000), 1), "gave the time of thousands of digits"),
    ],
)
def test_what_has_no_time_is_refused(item: Any, message: str) -> None:
    with pytest.raises(pl.SourceError, match=message):
        next(pl.join({"a": [(0, 0)], "b": [item]}, tolerance_s=1))


@pytest.mark.parametrize("stamp", ["noon", None, 10**400, float("inf"), np.zeros(1)])
def test_a_stream_ends_with_a_stamp_that_is_no_number(stamp: Any) -> None:
    b = pl.GraphBuilder("double")
    x = b.input("x", "float32", (2,))
    b.output("y", x + x)
    feeds = {"x": np.ones(2, np.float32)}
    items = [pl.Stamped(1.0, feeds), pl.Stamped(stamp, feeds)]

    async def some() -> AsyncIterator[pl.Stamped]:
        for one in items:
            yield one

    with pl.BlockingSession(pl.plan(b.build())) as session:
        results = session.stream(items)
        assert next(results).stamp == 1
        with pytest.raises(pl.SourceError, match="the source gave the time"):
            next(results)

    async def main() -> None:
        async with pl.Session(pl.plan(b.build())) as session, session.stream(some()) as results:
            with pytest.raises(pl.SourceError, match="the source gave the time"):
                [item async for item in results]

    trio.run(main)


@pytest.mark.parametrize(
    ("sources", "arguments", "message"),
    [
        ({"a": []}, {}, "two sources or more"),
        ({"a": [], "b": 3}, {}, "'b' is a int"),
        ({"a": [], "b": []}, {}, "how far from each other"),
        ({"a": [], "b": []}, {"tolerance_s": -1}, "-1 is not a tolerance"),
        ({"a": [], "b": []}, {"tolerance_s": 1, "lateness": 1}, "lateness is 1 in a join by time"),
        ({"a": [], "b": []}, {"by": "key", "tolerance_s": 1}, "tolerance_s is 1 in a join by key"),
        ({"a": [], "b": []}, {"by": "key", "lateness": 1.5}, "1.5 is not .* lateness"),
        ({"a": [], "b": []}, {"by": "key", "lateness": 10**400}, "is not a tolerance"),
        ({"a": [], "b": []}, {"by": "name"}, "by is 'name'"),
        ({"a": [], "b": []}, {"by": "key", "missing": "wait"}, "missing is 'wait'"),
        ({"a": [], "b": []}, {"by": "key", "max_waiting": 0}, "max_waiting is 0"),
    ],
)
def test_what_cannot_be_joined_is_refused(
    sources: Any, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(pl.SourceError, match=message):
        pl.join(sources, **arguments)


async def test_a_join_that_is_cancelled_or_fails_closes_its_sources(
    autojump_clock: MockClock,
) -> None:
    async def failing() -> AsyncIterator[pl.Stamped]:
        await trio.sleep(1)
        raise LookupError("unplugged")
        yield pl.Stamped(0, 0)  # type: ignore[unreachable]

    left, right = Camera(1, 0), Camera(2, 7)
    joined = pl.join({"left": left.live(), "right": right.live()}, tolerance_s=0.01)
    with trio.move_on_after(1):
        async for _ in joined:
            assert left.is_open
    assert are_closed(left, right)
    assert [one async for one in joined] == []
    left = Camera(1, 0)
    joined = pl.join({"left": left.live(), "right": failing()}, tolerance_s=0.01)
    with pytest.raises(LookupError, match="unplugged"):
        await anext(joined)
    assert are_closed(left)
