"""Spare arrays for inputs of waiting items: free for others once the items are fed, not before."""

from __future__ import annotations

from typing import Any

import numpy as np
import plait as pl
import pytest
from plait.scheduler.runtime.runtime import Runtime
from plait.scheduler.runtime.streaming.admission import AdmissionQueue


async def test_inputs_of_a_batch_are_its_own_until_it_is_admitted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    b = pl.GraphBuilder("batches")
    b.output("y", b.op("Relu", b.input("x", "float32", ("n", 3))))
    order: list[str] = []
    admit, take_back = Runtime.admit, AdmissionQueue._take_back

    async def note_admission(runtime: Runtime, *given: Any, **options: Any) -> None:
        await admit(runtime, *given, **options)
        order.append("admitted")

    def note_return(queue: AdmissionQueue, *given: Any) -> None:
        order.append("taken back")
        take_back(queue, *given)

    monkeypatch.setattr(Runtime, "admit", note_admission)
    monkeypatch.setattr(AdmissionQueue, "_take_back", note_return)
    items = [{"x": np.ones((1, 3), "float32")}] * 2
    async with (
        pl.Session(pl.plan(b.build(), ["cpu"])) as session,
        session.stream(items, batch=2) as results,
    ):
        assert [item["y"].shape async for item in results] == [(1, 3)] * 2
    assert order[:2] == ["admitted", "taken back"]
