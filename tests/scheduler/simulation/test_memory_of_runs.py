"""Sessions allocate the memory that simulations predict."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import plait as pl
import pytest
from machines import chain
from plait.devices.memory import Arena
from plait.scheduler.runtime.opened.arenas import OpenArenas


@pytest.mark.slow
@pytest.mark.parametrize("max_in_flight", [1, 2, 5])
@pytest.mark.parametrize("stages", [1, 2, 3])
async def test_a_stream_allocates_exactly_what_was_simulated(
    monkeypatch: pytest.MonkeyPatch, max_in_flight: int, stages: int
) -> None:
    allocated: Counter[str] = Counter()
    allocate = OpenArenas._allocate

    def count(self: OpenArenas, *given: Any) -> Arena:
        arena = allocate(self, *given)
        allocated[arena.memory] += arena.nbytes
        return arena

    monkeypatch.setattr(OpenArenas, "_allocate", count)
    devices = ["cpu", "worker:0"]
    graph = chain(2 * stages)
    pins = {node.name: devices[index // 2 % 2] for index, node in enumerate(graph.nodes)}
    plan = pl.plan(graph, devices, pin=pins, max_in_flight=max_in_flight)
    found = pl.simulate(plan, items=7)
    feeds = {"x": np.ones((64, 64), np.float32)}
    async with pl.Session(plan) as session, session.stream([feeds] * 7) as results:
        async for item in results:
            assert item.error is None
    assert allocated == {name: use.planned_nbytes for name, use in found.memory.items()}
