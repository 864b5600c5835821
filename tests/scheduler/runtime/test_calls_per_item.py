"""Work of the loop's thread for an item that lanes run, in calls of plait's own functions.

Time depends on the machine and its load, and the number of calls does not. A bound is what was
counted when it was written, and a few more.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FrameType

import numpy as np
import plait as pl
import pytest
from plait.scheduler.dispatch.inline_policy import Estimates
from plait.scheduler.dispatch.way_choice import WayChoice
from plait.scheduler.runtime.dispatcher import Unevenness

ROOT = str(Path(pl.__file__).parent)
FEEDS = {name: np.ones(600, np.float32) for name in "abc"}
ITEMS = 40


def on_replicas() -> pl.Plan:
    """Return a plan on two replicas."""
    builder = pl.GraphBuilder("two lanes")
    last = builder.op("Sum", *(builder.input(name, "float32", (600,)) for name in FEEDS))
    for _ in range(12):  # so that a step is not quick
        last = builder.op("Softmax", builder.op("Erf", last))
    builder.output("y", last)
    return pl.plan(builder.build(), ["cpu:0..1"], max_in_flight=4)


@pytest.fixture(autouse=True)
def _items_go_to_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Estimates, "are_brief", lambda *_, **__: False)
    monkeypatch.setattr(WayChoice, "advance", lambda choice, *_: choice.refuse())
    # They are long on some machines, and take some calls more for that.
    monkeypatch.setattr(Unevenness, "is_worth_waiting", False)


async def calls_per_item(run: Callable[[int], Awaitable[None]]) -> float:
    """Return how often functions of plait are called on this thread, for each item.

    It is the least of several runs: on a busy machine a thread that waits longer is called more.
    """
    await run(ITEMS)  # plans are opened, and steps are timed
    return min([await count_calls(run) for _ in range(15)])


async def count_calls(run: Callable[[int], Awaitable[None]]) -> float:
    calls = 0

    def note(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls
        calls += event == "call" and frame.f_code.co_filename.startswith(ROOT)

    sys.setprofile(note)  # of this thread alone
    try:
        await run(ITEMS)
    finally:
        sys.setprofile(None)
    return calls / ITEMS


async def test_an_item_takes_few_calls() -> None:
    async with pl.Session(on_replicas()) as session:

        async def run(count: int) -> None:
            for _ in range(count):
                await session.run(FEEDS)

        assert await calls_per_item(run) <= 104


async def test_a_streamed_item_takes_few_calls() -> None:
    async with pl.Session(on_replicas()) as session:

        async def run(count: int) -> None:
            async with session.stream([FEEDS] * count) as results:
                async for _ in results:
                    pass

        assert await calls_per_item(run) <= 121
