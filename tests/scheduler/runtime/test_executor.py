"""Items going through an open plan, in every order that the test can think of."""

from __future__ import annotations

from random import Random

import numpy as np
import plait as pl
import pytest
from fake_devices import SteppedDevice
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plait.graph.core.ir import Graph
from plait.scheduler.planner.memory import memory_plan
from plait.scheduler.runtime.opened.open_plan import OpenPlan
from plait.scheduler.runtime.opened.slot import Slot
from random_graphs import expected, feeds, graphs
from staged import Guest, Known, Stage, devices, pins


@pytest.mark.parametrize("small", [0, 1 << 16])
@given(
    graph=graphs(),
    random=st.randoms(use_true_random=False),
    limit=st.integers(1, 6),
    copies=st.sampled_from([None, 1, 2, 3]),
)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_order_and_any_number_in_flight_gives_the_same_bits(
    graph: Graph,
    random: Random,
    limit: int,
    copies: int | None,
    small: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a copy of everything for each item, and with fewer, which they use in turn."""
    monkeypatch.setattr(memory_plan, "SMALL_NBYTES", small)
    stage = Stage(graph, devices(), pins(graph, random), limit, copies)
    fed = [feeds(graph, seed) for seed in range(8)]
    guests: list[Guest] = []
    while len(stage.finished) < len(fed):
        in_flight = len(guests) - len(stage.finished)
        hungry = len(guests) < len(fed) and in_flight < limit
        if hungry and (random.random() < 0.5 or not stage.busy()):
            guests.append(stage.start(len(guests), fed[len(guests)]))
        else:
            random.choice(stage.busy()).step()
    for guest in guests:
        assert guest.execution.error is None
        for name, array in expected(graph, guest.inputs).items():
            np.testing.assert_array_equal(guest.results[name], array)
    stage.open_plan.close()


@given(graphs(), st.randoms(use_true_random=False))
def test_a_step_is_ready_when_its_count_is_met_and_not_before(graph: Graph, random: Random) -> None:
    stage = Stage(graph, devices(), pins(graph, random))
    execution = stage.start(0, feeds(graph)).execution
    while busy := stage.busy():
        random.choice(busy).step()
        for step in stage.plan.steps:
            events = [execution.events[wait] for wait in step.waits]
            complete = all(event is not None and event.done for event in events)
            assert (execution.ready_ns[step.index] > 0) == complete


def fork() -> Graph:
    builder = pl.GraphBuilder("fork")
    x = builder.input("x", "int32", (4,))
    long, short = builder.op("Neg", x, name="long"), builder.op("Relu", x, name="short")
    builder.output("after", builder.op("Neg", short, name="after"))
    builder.output("slow", long)
    return builder.build()


def test_a_short_branch_is_not_held_back_by_a_long_sibling() -> None:
    stage = Stage(fork(), devices(), {"long": "a", "short": "b", "after": "b"})
    stage.start(0, {"x": np.arange(4, dtype=np.int32)})
    while stage.devices["b"].queue:
        stage.devices["b"].step()
    done = {step.name for step in stage.plan.steps if step.device == "b"}
    assert any(name.startswith("after") or "b" in name for name in done)
    assert stage.devices["a"].queue, "the long branch has not moved"
    stage.run_all(Random(0))
    assert stage.finished == [0]


def failing(stage: Stage, device: str, error: Exception) -> None:
    event, _ = stage.devices[device].queue[0]

    def fail() -> None:
        raise error

    stage.devices[device].queue[0] = event, fail


def test_after_a_failure_nothing_more_starts_and_the_item_ends_once() -> None:
    stage = Stage(fork(), devices(), {"long": "a", "short": "b", "after": "b"})
    execution = stage.start(0, {"x": np.arange(4, dtype=np.int32)}).execution
    failing(stage, "b", ValueError("broken"))
    stage.devices["b"].step()
    assert stage.finished == [], "the other branch is still under way"
    stage.run_all(Random(0))
    assert stage.finished == [0]
    assert str(execution.error) == "broken"
    assert not stage.devices["b"].queue


def test_the_first_failure_is_the_one_that_counts() -> None:
    stage = Stage(fork(), devices(), {"long": "a", "short": "b", "after": "b"})
    execution = stage.start(0, {"x": np.arange(4, dtype=np.int32)}).execution
    failing(stage, "b", ValueError("first"))
    failing(stage, "a", ValueError("second"))
    stage.devices["b"].step()
    stage.run_all(Random(0))
    assert str(execution.error) == "first"


def test_a_device_that_refuses_work_fails_the_item() -> None:
    stage = Stage(fork(), devices(), {"long": "a", "short": "b", "after": "b"})

    def refuse(*_: object) -> None:
        raise pl.DeviceLostError("gone")

    slot = stage.open_plan.make_slot(0)
    stage.open_plan.slots[0] = Slot(
        slot.feeds, slot.results, (refuse,) * len(stage.plan.steps), slot.inline  # type: ignore[arg-type]
    )  # fmt: skip
    execution = stage.start(0, {"x": np.arange(4, dtype=np.int32)}).execution
    assert stage.finished == [0]
    assert isinstance(execution.error, pl.DeviceLostError)


@given(st.integers(0, 12), st.randoms(use_true_random=False))
def test_cancelling_at_any_moment_ends_the_item_once_and_frees_its_slot(
    moment: int, random: Random
) -> None:
    graph = fork()
    stage = Stage(graph, devices(), {"long": "a", "short": "b", "after": "c"})
    execution = stage.start(0, feeds(graph)).execution
    for _ in range(moment):
        if stage.busy():
            random.choice(stage.busy()).step()
    execution.cancel()
    stage.run_all(random)
    assert stage.finished == [0]
    second = stage.start(1, feeds(graph, 7))
    stage.run_all(random)
    assert stage.finished == [0, 1]
    for name, array in expected(graph, feeds(graph, 7)).items():
        np.testing.assert_array_equal(second.results[name], array)


def test_cancelled_work_that_has_not_started_is_skipped() -> None:
    stage = Stage(fork(), devices(), {"long": "a", "short": "b", "after": "b"})
    guest = stage.start(0, {"x": np.full(4, 5, np.int32)})
    before = guest.slot.results["slow"].copy()
    guest.execution.cancel()
    stage.run_all(Random(0))
    np.testing.assert_array_equal(guest.results["slow"], before)


def test_arenas_and_programs_are_made_when_opened_and_never_while_items_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage(fork(), devices(), {"long": "a", "short": "b", "after": "c"})
    stage.open_plan.make_slot(0)

    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError("allocates in the steady state")

    for name in ("arena", "view", "compile"):
        monkeypatch.setattr(SteppedDevice, name, forbidden)
    stage.start(0, feeds(fork()))
    stage.run_all(Random(0))
    assert stage.finished == [0]


def chains(names: str) -> Stage:
    """Return a stage of a chain over devices without copies, for three items."""
    builder = pl.GraphBuilder("chain")
    last = builder.input("x", "int32", (4,))
    for index, _ in enumerate(names):
        last = builder.op("Neg", last, name=f"n{index}")
    builder.output("y", last)
    on = [SteppedDevice(name, private=False) for name in sorted(set(names))]
    return Stage(builder.build(), on, {f"n{i}": name for i, name in enumerate(names)}, 3)


def given_to(stage: Stage, guests: list[Guest]) -> set[tuple[int, int]]:
    """Return the steps that lanes have been given, by item."""
    return {
        (guest.index, step)
        for guest in guests
        for step, event in enumerate(guest.execution.events)
        if event is not None
    }


def test_an_older_item_goes_first_where_several_wait_for_a_lane() -> None:
    stage = chains("aba")
    guests = [stage.start(index, {"x": np.full(4, index, np.int32)}) for index in range(3)]
    assert given_to(stage, guests) == {(0, 0)}
    stage.devices["a"].step()
    stage.devices["b"].step()  # the first item is back at a, where the second one is at work
    assert given_to(stage, guests) == {(0, 0), (0, 1), (1, 0)}
    stage.devices["a"].step()
    assert given_to(stage, guests) == {(0, 0), (0, 1), (1, 0), (0, 2), (1, 1)}
    stage.run_all(Random(0))
    assert stage.finished == [0, 1, 2]


def test_a_cancelled_item_that_waits_for_a_lane_ends_at_once() -> None:
    stage = chains("a")
    first, second, third = (stage.start(i, {"x": np.full(4, i, np.int32)}) for i in range(3))
    second.execution.cancel()
    assert stage.finished == [1]
    stage.run_all(Random(0))
    assert stage.finished == [1, 0, 2]
    assert first.execution.is_complete
    assert third.execution.is_complete


def test_lanes_that_plans_share_are_given_one_thing_at_a_time() -> None:
    first, second = chains("a"), chains("a")
    device = first.devices["a"]
    second.devices["a"] = device
    second.open_plan = OpenPlan(second.plan, first.devices, lanes=first.open_plan.lanes)
    second.open_plan.estimates = Known(quick=False)
    second.open_plan.open()
    for stage in (first, second):
        stage.start(0, {"x": np.ones(4, np.int32)})
    assert len(device.queue) == 1
    device.step()
    assert (first.finished, second.finished) == ([0], [])
    device.step()
    assert second.finished == [0]
