"""The invariants of a session at rest: kept after any items, and missed where they are broken."""

from __future__ import annotations

import numpy as np
import plait as pl
import pytest
from at_rest import validate
from plait.scheduler.runtime.opened.slots import Slots

FEEDS = {"x": np.ones(3, "float32")}


def plan() -> pl.Plan:
    b = pl.GraphBuilder("rests")
    b.output("y", b.op("Relu", b.input("x", "float32", (3,))))
    return pl.plan(b.build(), ["cpu"], max_in_flight=2)


async def test_nothing_is_left_of_items_that_have_ended() -> None:
    async with pl.Session(plan()) as session, session.stream([FEEDS] * 5, copy=False) as results:
        first = await anext(aiter(results))
        assert any("claims" in one for one in validate(session._open_runtime()))
        first.release()
        async for item in results:
            item.release()
        assert validate(session._open_runtime()) == []


async def test_a_session_that_keeps_a_slot_cannot_be_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Slots, "release", lambda *_: None)
    session = pl.Session(plan())
    await session.__aenter__()
    async with session.stream([FEEDS], copy=False) as results:
        (await anext(aiter(results))).release()
    with pytest.raises(AssertionError, match=r"1 claims"):
        await session.__aexit__(None, None, None)
