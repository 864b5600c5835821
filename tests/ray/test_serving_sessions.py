"""Items that are sent to a host; no cluster is needed for that."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import plait as pl
import pytest
from patience import WAIT_S
from plait.devices.worker.modules import Source
from plait.devices.worker.remote_errors import rebuild
from plait.graph.values.tensor import Array
from plait.scheduler.ray.payload import make_payload
from plait.scheduler.ray.pools.serving_sessions import Answer, Asked, ServingSessions

started = threading.Event()
ended = threading.Event()
seen: list[float] = []


@pl.operator(name="test_serving_sessions.waits")
def waits(x: Array) -> Array:
    """Wait until a test lets it end, where x is 1."""
    seen.append(float(x[0]))
    if x[0] == 1:
        started.set()
        ended.wait(WAIT_S)
    if x[0] < 0:
        raise ValueError("negative")
    return x + 1


def plan(max_in_flight: int = 1) -> pl.Plan:
    builder = pl.GraphBuilder("waits")
    x = builder.input("x", "float32", (2,))
    y = builder.call(waits, x)
    builder.output("y", builder.call(waits, y))
    return pl.plan(builder.build(), max_in_flight=max_in_flight)


def shipped(one: pl.Plan) -> tuple[Any, ...]:
    """Return a plan as it arrives: read-only bytes, and where its functions are."""
    return make_payload(one, None, None).pack(lambda value: value)


def asked(number: int, value: float, fetches: tuple[str, ...] | None = None) -> Asked:
    x = np.full(2, value, np.float32)
    x.flags.writeable = False
    return Asked(number, {"x": x}, fetches)


def serving(main: Callable[[ServingSessions], Awaitable[Any]], one: pl.Plan | None = None) -> Any:
    """Run something with an open session."""

    async def run() -> Any:
        sessions = ServingSessions()
        assert await sessions.open(*shipped(one or plan())) is None
        try:
            return await main(sessions)
        finally:
            ended.set()
            await sessions.close()

    started.clear()
    ended.clear()
    seen.clear()
    return asyncio.run(run(), debug=True)


def results(answer: Answer) -> dict[int, float | None]:
    return {
        one.number: None if one.results is None else float(one.results["y"][0])
        for one in answer.outcomes
    }


def test_items_of_a_call_come_back_by_their_numbers() -> None:
    items = [asked(number, number + 10) for number in (7, 3, 5)]
    answer = serving(lambda sessions: sessions.run(items))
    assert results(answer) == {7: 19.0, 3: 15.0, 5: 17.0}
    assert answer.done == 3
    assert answer.busy_s > 0


def test_a_failed_item_is_described_and_the_others_are_not_touched() -> None:
    answer = serving(lambda sessions: sessions.run([asked(0, -4), asked(1, 4)]))
    assert results(answer) == {0: None, 1: 6.0}
    failure = answer.outcomes[0].error
    assert failure is not None
    error = rebuild(failure, "the host")
    assert isinstance(error, pl.KernelError)
    assert isinstance(error.__cause__, ValueError)
    assert "Traceback in the host" in error.__notes__[0]


def test_a_cancelled_item_has_neither_results_nor_an_error() -> None:
    async def main(sessions: ServingSessions) -> Answer:
        call = asyncio.create_task(sessions.run([asked(0, 1), asked(1, 4)]))
        await asyncio.to_thread(started.wait, 10)
        await sessions.cancel([0, 99])
        await sessions.run([])  # the session's loop has come to it
        ended.set()
        return await call

    answer = serving(main)
    assert results(answer) == {0: None, 1: 6.0}
    assert answer.outcomes[0].error is None
    assert seen == [1, 4, 5]  # its second function was left out


def test_only_what_is_fetched_comes_back() -> None:
    one = plan()
    (middle,) = one.graph.nodes[0].outputs
    answer = serving(lambda sessions: sessions.run([asked(0, 4, (middle,))]), one)
    found = answer.outcomes[0].results
    assert found is not None
    assert {name: array.tolist() for name, array in found.items()} == {middle: [5.0, 5.0]}


def test_results_lie_in_memory_of_their_own() -> None:
    answer = serving(lambda sessions: sessions.run([asked(0, 4), asked(1, 5)]))
    first, second = ((one.results or {})["y"] for one in answer.outcomes)
    assert not np.shares_memory(first, second)


def test_a_plan_that_cannot_be_opened_is_described() -> None:
    async def main() -> Any:
        return await ServingSessions().open(np.zeros(64, np.uint8), ())

    error = rebuild(asyncio.run(main()), "the host")
    assert isinstance(error, pl.ParseError)
    assert "the plan that the pool sent" in str(error)


def test_a_graph_is_planned_for_the_devices_of_the_host() -> None:
    b = pl.GraphBuilder("squares")
    x = b.input("x", "float32", (2,))
    b.output("y", b.op("Mul", x, x))
    sent = make_payload(b.build(), ["formal", "cpu"], {"max_in_flight": 2})
    assert sent.plan.devices == ("cpu",)
    assert sent.plan.in_flight == 2

    async def main() -> Answer:
        sessions = ServingSessions()
        assert await sessions.open(*sent.pack(lambda value: value)) is None
        session = sessions._loop.session if sessions._loop is not None else None
        assert session is not None
        assert session.plan.devices == ("formal", "cpu")
        try:
            return await sessions.run([asked(0, 3)])
        finally:
            await sessions.close()

    assert results(asyncio.run(main())) == {0: 9.0}


def test_devices_that_the_host_lacks_are_named() -> None:
    async def main() -> Any:
        b = pl.GraphBuilder("relu")
        b.output("y", b.op("Relu", b.input("x", "float32", (2,))))
        sent = make_payload(b.build(), "no_such_device:3", None)
        return await ServingSessions().open(*sent.pack(lambda value: value))

    error = rebuild(asyncio.run(main()), "the host")
    assert isinstance(error, pl.DeviceUnavailableError)
    assert "no_such_device" in str(error)


@pytest.mark.parametrize(
    ("what", "devices", "planning", "message"),
    [
        (plan(), ["cpu"], None, "for the devices that it was made for"),
        (plan().fed, None, None, "do not know for which devices"),
        (plan().fed, "cpu", {"inputs_on": "cpu"}, "do not travel"),
        ("graph", "cpu", None, "replicas run a Plan or Graph, not a str"),
    ],
)
def test_what_hosts_can_make_no_plan_of_is_refused(
    what: Any, devices: Any, planning: Any, message: str
) -> None:
    with pytest.raises(pl.PlanError, match=message):
        make_payload(what, devices, planning)


def test_a_module_that_is_missing_on_the_host_is_named() -> None:
    async def main() -> Any:
        data, *_ = shipped(plan())
        source = Source("test_serving_sessions.gone", "no_such_module", None, "")
        return await ServingSessions().open(data, [source])

    error = rebuild(asyncio.run(main()), "the host")
    assert "no_such_module" in str(error)


def test_closing_twice_is_allowed() -> None:
    async def main(sessions: ServingSessions) -> None:
        await sessions.close()

    serving(main)


@pytest.mark.parametrize("in_flight", [1, 3])
def test_numbers_of_many_calls_are_kept_apart(in_flight: int) -> None:
    async def main(sessions: ServingSessions) -> list[Answer]:
        calls = [[asked(10 * call + i, 10 * call + i + 2) for i in range(5)] for call in range(6)]
        return await asyncio.gather(*map(sessions.run, calls))

    begun = time.perf_counter()
    found = serving(main, plan(in_flight))
    assert max(answer.busy_s for answer in found) < time.perf_counter() - begun
    assert [results(answer) for answer in found] == [
        {10 * call + i: 10 * call + i + 4.0 for i in range(5)} for call in range(6)
    ]
    assert max(answer.done for answer in found) == 30
