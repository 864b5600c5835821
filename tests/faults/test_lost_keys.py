"""Workers killed during streams by key: nothing lost, doubled or displaced, state right."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from random import Random
from typing import Any

import numpy as np
import plait as pl
import pytest
import trio
from patience import WAIT_S
from plait.devices.worker.device import WorkerDevice
from plait.scheduler.runtime.events import SessionEvent

N_KEYS, N_ITEMS_PER_DEATH = 50, 25


def make_plan(worker: WorkerDevice) -> pl.Plan:
    """Plan a graph that adds up the results of a worker, and counts."""
    b = pl.GraphBuilder("sums")
    total = b.variable("total", np.zeros((1, 2), "float32"))
    count = b.variable("count", np.zeros((1, 1), "int32"))
    doubled = b.op("Add", (x := b.input("x", "float32", (1, 2))), x, name="worker")
    b.output("sum", total.assign(total + doubled))
    b.output("number", count.assign(count + np.int32(1)))
    return pl.plan(b.build(), [worker, "cpu"], pin={"worker": "worker:0"}, max_in_flight=4)


@pytest.mark.parametrize(
    ("batch", "n_deaths"),
    [
        (None, 4),
        (8, 4),
        pytest.param(None, 200, marks=pytest.mark.extended),
        pytest.param(8, 200, marks=pytest.mark.extended),
    ],
)
async def test_streams_by_key_are_whole_whenever_a_worker_dies(
    batch: int | None, n_deaths: int
) -> None:
    random, worker = Random(n_deaths), WorkerDevice("worker:0")
    n_items = n_deaths * N_ITEMS_PER_DEATH
    deaths = set(random.sample(range(n_items), n_deaths))
    keys = [random.randrange(N_KEYS) for _ in range(n_items)]
    seen = Counter[str]()

    def source() -> Iterator[dict[str, Any]]:
        for index, key in enumerate(keys):
            if index in deaths and worker.pid is not None:
                with suppress(ProcessLookupError):  # it may not be back yet
                    os.kill(worker.pid, signal.SIGKILL)
            yield {"x": np.full((1, 2), index, np.float32), "key": key}

    def observe(event: SessionEvent) -> None:
        seen[type(event).__name__] += 1

    sums, counts = Counter[int](), Counter[int]()
    with trio.fail_after(WAIT_S * max(1, n_deaths // 20)):
        async with pl.Session(make_plan(worker), on_event=observe) as session:
            async with session.stream(source(), key="key", batch=batch) as results:
                found = [item async for item in results]
            assert [item.error for item in found] == [None] * n_items
            for item, (index, key) in zip(found, enumerate(keys), strict=True):
                sums[key] += 2 * index
                counts[key] += 1
                assert (item["sum"][0, 0], item["number"][0, 0]) == (sums[key], counts[key])
            for key in {*keys}:
                state = await session.fetch_variables(key=key)
                assert (state["total"][0, 0], state["count"][0, 0]) == (sums[key], counts[key])
    assert 1 <= seen["DeviceLost"] <= n_deaths
