"""Losses, cancellations, deadlines and the end of a session, in any order: no item is lost."""

from __future__ import annotations

import concurrent.futures
from concurrent.futures import Future
from typing import Any

import plait as pl
from hypothesis import given, settings
from hypothesis import strategies as st
from patience import WAIT_S
from plait.devices.sim import SimDevice

from .fault_graphs import answer, feeds, halves

steps = st.lists(
    st.tuples(
        st.sampled_from(["submit", "submit", "submit with a deadline", "cancel", "lose", "run"]),
        st.integers(0, 30),
    ),
    max_size=25,
)


def check(item: Future[Any], value: int, allowed: tuple[type[pl.PlaitError], ...]) -> None:
    """See that an item has ended in one of the ways that there are."""
    assert item.done()
    if item.cancelled():
        return
    error = item.exception()
    if error is None:
        assert item.result()["y"].tolist() == answer(value)
    else:
        assert isinstance(error, allowed)


@given(steps, st.booleans(), st.booleans(), st.integers(1, 3))
@settings(max_examples=30, deadline=None)
def test_each_item_ends_with_its_own_result_or_an_error_that_it_may_have(
    steps: list[tuple[str, int]], alone: bool, waits: bool, in_flight: int
) -> None:
    """The session is closed at the end, with or without waiting for its items."""
    sim = SimDevice("sim:a")
    devices: list[Any] = [sim] if alone else [sim, "cpu"]
    plan = pl.plan(halves(), devices, pin={"first": "sim:a"}, max_in_flight=in_flight)
    policy = pl.FaultPolicy(restart_s=0, replays=100)
    items: list[tuple[Future[Any], int]] = []
    with pl.BlockingSession(plan, faults=policy) as session:
        for step, number in steps:
            if step == "lose":
                sim.lose("unplugged")
            elif step == "run":
                assert session.run(feeds(number))["y"].tolist() == answer(number)
            elif step == "cancel":
                for item, _ in items[number % 7 :: 7]:
                    item.cancel()
            else:
                deadline_s = None if step == "submit" else (number + 1) / 1e4
                items.append((session.submit(feeds(number), deadline_s=deadline_s), number))
        if waits:
            concurrent.futures.wait([item for item, _ in items], WAIT_S)
    for item, number in items:
        check(item, number, (pl.DeadlineError,) if waits else (pl.SessionError,))
