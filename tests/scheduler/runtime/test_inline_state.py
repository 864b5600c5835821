"""Items that read and assign variables, run where they are asked for: the same as one by one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import plait as pl
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st
from patience import WAIT_S
from plait.scheduler.dispatch.inline_policy import Estimates

Array = np.ndarray[Any, Any]
REFUSED = 13
ran_on: list[int] = []

spec = pl.TensorSpec("int64", (1,))


@pl.operator(spec, inputs=[spec], name="test_inline_state.check")
def check(x: Array) -> Array:
    ran_on.append(threading.get_ident())
    if x[0] == REFUSED:
        raise ValueError("refused")
    return x


@pytest.fixture(autouse=True)
def _brief(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(Estimates, "are_brief", lambda *_, **__: True)
    yield
    ran_on.clear()


def plan_sums(checked: str) -> pl.Plan:
    """Return a plan of total += x, last = x; `checked` is looked at after one is computed."""
    b = pl.GraphBuilder("sums")
    x = b.input("x", "int64", (1,))
    total, last = (
        b.variable("total", np.zeros(1, "int64")),
        b.variable("last", np.zeros(1, "int64")),
    )
    before = x if checked == "first" else x + 0
    fine = b.call(check, before, name="check")
    b.output("new_total", total.assign(total + fine))
    b.output("before", last)
    last.assign(x + (fine - fine))
    return pl.plan(b.build(), ["cpu"])


def feed(value: int) -> dict[str, Array]:
    return {"x": np.array([value])}


moves = st.one_of(
    st.tuples(st.just("run"), st.integers(1, 12) | st.just(REFUSED)),
    st.tuples(st.just("stream"), st.lists(st.integers(1, 12) | st.just(REFUSED), max_size=5)),
    st.tuples(st.just("fetch"), st.integers(1, 12)),
    st.tuples(st.just("assign"), st.integers(-5, 5)),
    st.tuples(st.just("reset"), st.none()),
)


@settings(deadline=None)
@given(st.sampled_from(["first", "late"]), st.lists(moves, min_size=1, max_size=25))
def test_any_order_of_runs_streams_failures_and_assignments_is_as_one_by_one(
    checked: str, script: list[tuple[str, Any]]
) -> None:
    total = last = 0

    def expect(value: int) -> tuple[int, int]:
        nonlocal total, last
        before, total, last = last, total + value, value
        return total, before

    with pl.BlockingSession(plan_sums(checked)) as session:
        for kind, value in script:
            if kind == "run" and value == REFUSED:
                with pytest.raises(pl.KernelError):
                    session.run(feed(value))
            elif kind == "run":
                found = session.run(feed(value))
                assert (found["new_total"][0], found["before"][0]) == expect(value)
            elif kind == "stream":
                for item, one in zip(session.stream(map(feed, value)), value, strict=True):
                    if one == REFUSED:
                        assert item.error is not None
                    else:
                        assert (item["new_total"][0], item["before"][0]) == expect(one)
            elif kind == "fetch":  # of another plan, which shares the variables and assigns one
                total += value
                assert session.run(feed(value), "new_total")[0] == total
            elif kind == "assign":
                session.assign({"total": np.array([value])})
                total = value
            else:
                session.reset_variables()
                total = last = 0
            assert session.variables["total"][0] == total
            assert session.variables["last"][0] == last


def test_they_run_on_the_thread_that_asks() -> None:
    with pl.BlockingSession(plan_sums("first")) as session:
        for _ in range(4):  # slots for both places of a variable are made, and brought
            session.run(feed(1))
        ran_on.clear()
        for _ in range(10):
            session.run(feed(1))
        list(session.stream(map(feed, range(1, 6))))
    assert {*ran_on} == {threading.get_ident()}


def test_an_item_waits_for_a_turn_that_another_has_taken() -> None:
    async def main() -> None:
        with trio.fail_after(WAIT_S):
            async with pl.Session(plan_sums("first")) as session:
                for _ in range(4):
                    await session.run(feed(1))
                assert session._runtime is not None
                variables, me = session._runtime.variables, object()
                found: list[int] = []

                async def run() -> None:
                    found.append((await session.run(feed(1)))["new_total"][0])

                await variables._turns.take(me)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(run)
                    await trio.testing.wait_all_tasks_blocked(0.01)
                    assert not found
                    await variables.hold({"total": np.array([100])})
                    variables._turns.leave(me)
                assert found == [101]

    trio.run(main)
