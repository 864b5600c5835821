"""Joined sources, in any order of arrival, beside a search through all items by definition."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import plait as pl
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

UNIT_S = 0.1
"""No sum of floats may decide who is a partner: this has no exact value in binary."""

Missing = Literal["drop", "previous"]
Item = tuple[float, Any]


@dataclass(frozen=True)
class Case:
    """Stamps as sources give them, in units, and which are heartbeats; the first source first."""

    sources: dict[str, list[tuple[int, bool]]]
    tolerance: int
    lateness: int
    missing: Missing
    pauses: list[int]

    @property
    def by_time(self) -> dict[str, Any]:
        arguments = {"tolerance_s": self.tolerance * UNIT_S, "lateness_s": self.lateness * UNIT_S}
        return {**arguments, "missing": self.missing}

    def items(self, name: str) -> list[Item]:
        """Return what a source gives: stamps, and of what they are."""
        return [
            pl.Stamped(stamp * UNIT_S, None if is_heartbeat else (name, number))
            for number, (stamp, is_heartbeat) in enumerate(self.sources[name])
        ]


def in_time(items: Sequence[Item], lateness: float) -> list[Item]:
    """Return those that are not behind the furthest one before them by more than that."""
    kept: list[Item] = []
    highest = float("-inf")
    for stamp, value in items:
        highest = max(highest, stamp)
        if stamp >= highest - lateness and value is not None:
            kept.append((stamp, value))
    return sorted(kept, key=lambda one: one[0])


def partner(stamp: float, others: Sequence[Item], tolerance: float, missing: Missing) -> Any:
    near = [one for one in others if abs(one[0] - stamp) <= tolerance]
    if near:
        return min(near, key=lambda one: abs(one[0] - stamp))[1]
    before = [one for one in others if one[0] < stamp]
    return before[-1][1] if before and missing == "previous" else None


def expected(case: Case) -> tuple[list[Item], dict[str, int]]:
    """Return what is matched, and how many items of each source are late."""
    tolerance, lateness = case.by_time["tolerance_s"], case.by_time["lateness_s"]
    every = {name: in_time(case.items(name), lateness) for name in case.sources}
    first, *others = every
    matched = []
    for stamp, value in every[first]:
        found = {first: value}
        found |= {name: partner(stamp, every[name], tolerance, case.missing) for name in others}
        if None not in found.values():
            matched.append((stamp, found))
    given = {name: sum(value is not None for _, value in case.items(name)) for name in case.sources}
    late = {name: given[name] - len(kept) for name, kept in every.items()}
    # Of what comes when all is over, nobody can say whether it was late.
    return matched, late


@st.composite
def cases(draw: st.DrawFn) -> Case:
    is_heartbeat = st.sampled_from([False, False, False, True])
    stamps = st.lists(st.tuples(st.integers(0, 20), is_heartbeat), max_size=14)
    names = ["left", "right", "third"][: draw(st.integers(2, 3))]
    return Case(
        {name: draw(stamps) for name in names},
        draw(st.integers(0, 4)),
        draw(st.integers(0, 20)),
        draw(st.sampled_from(["drop", "previous"])),
        draw(st.lists(st.integers(0, 3), min_size=1, max_size=8)),
    )


@given(cases())
def test_a_join_matches_what_is_nearest_whatever_the_order(case: Case) -> None:
    joined = pl.join({name: case.items(name) for name in case.sources}, **case.by_time)
    matched, late = expected(case)
    assert [tuple(one) for one in joined] == matched
    status = joined.status()
    assert status.matched == len(matched)
    first = next(iter(case.sources))
    assert status.late[first] == late[first]
    # Other sources are not read on when no item of the first one is left.
    assert all(status.late[name] <= late[name] for name in case.sources)


async def paced(case: Case, name: str, offset: int) -> AsyncIterator[Item]:
    for number, one in enumerate(case.items(name)):
        await trio.sleep(case.pauses[(number + offset) % len(case.pauses)])
        yield one


@given(cases())
def test_how_fast_sources_are_beside_each_other_changes_nothing(case: Case) -> None:
    async def main() -> list[Item]:
        sources = {name: paced(case, name, offset) for offset, name in enumerate(case.sources)}
        return [tuple(one) async for one in pl.join(sources, **case.by_time)]

    assert trio.run(main, clock=MockClock(autojump_threshold=0)) == expected(case)[0]


@given(st.lists(st.integers(0, 30), max_size=20), st.lists(st.integers(0, 30), max_size=20))
def test_keys_match_what_is_equal(left: list[int], right: list[int]) -> None:
    """Within a lateness that nothing exceeds; of equal keys the first one is the partner."""
    sources = {"left": [(key, key) for key in left], "right": [(key, key) for key in right]}
    pairs = [one.value for one in pl.join(sources, by="key", lateness=30)]
    assert pairs == [{"left": key, "right": key} for key in sorted(left) if key in set(right)]


def test_asyncio_joins_as_trio_does() -> None:
    async def frames(count: int) -> AsyncIterator[Item]:
        for number in range(count):
            await asyncio.sleep(0)
            yield pl.Stamped(number, number)

    async def main() -> list[Any]:
        joined = pl.join({"a": frames(5), "b": frames(4)}, tolerance_s=0)
        return [one.value async for one in joined]

    assert asyncio.run(main(), debug=True) == [{"a": one, "b": one} for one in range(4)]
