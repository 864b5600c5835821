"""Items going through an open plan, in every order that the test can think of."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np
import plait as pl
import pytest
from fake_devices import SteppedDevice
from hypothesis import given
from hypothesis import strategies as st
from plait.graph.ir import Graph
from plait.graph.tensor import Array
from plait.scheduler.executor import Execution
from plait.scheduler.open_plan import OpenPlan, Slot
from random_graphs import expected, feeds, graphs


class Stage:
    """Devices, an open plan on them, and items whose pace the test decides."""

    def __init__(
        self, graph: Graph, devices: Sequence[SteppedDevice], pins: dict[str, str], slots: int = 1
    ) -> None:
        self.devices = {device.name: device for device in devices}
        self.plan = pl.plan(graph, devices, pin=pins, max_in_flight=slots)
        for device in devices:
            device.open()
        self.open_plan = OpenPlan(self.plan, self.devices)
        self.open_plan.open()
        self.free = [self.open_plan.make_slot() for _ in range(slots)]
        self.finished: list[int] = []

    def start(self, index: int, inputs: dict[str, Array]) -> tuple[Execution, Slot]:
        slot = self.free.pop()
        for name, array in inputs.items():
            slot.feeds[name][...] = array
        execution = Execution(self.open_plan, slot, lambda: self.finished.append(index))
        execution.start()
        return execution, slot

    def busy(self) -> list[SteppedDevice]:
        return [device for device in self.devices.values() if device.queue]

    def run_all(self, random: Random) -> None:
        while busy := self.busy():
            random.choice(busy).step()


def devices() -> list[SteppedDevice]:
    return [SteppedDevice("a"), SteppedDevice("b"), SteppedDevice("c", private=False)]


def pins(graph: Graph, random: Random) -> dict[str, str]:
    return {node.name: random.choice("abc") for node in graph.nodes}


@given(graphs(), st.randoms(use_true_random=False), st.integers(1, 3))
def test_any_order_and_any_number_in_flight_gives_the_same_bits(
    graph: Graph, random: Random, slots: int
) -> None:
    stage = Stage(graph, devices(), pins(graph, random), slots)
    fed = [feeds(graph, seed) for seed in range(5)]
    waiting, under_way = list(range(5)), {}
    while len(stage.finished) < 5:
        if waiting and stage.free and (random.random() < 0.5 or not stage.busy()):
            index = waiting.pop(0)
            under_way[index] = stage.start(index, fed[index])
        elif busy := stage.busy():
            random.choice(busy).step()
        for index in [i for i in stage.finished if i in under_way]:
            execution, slot = under_way.pop(index)
            assert execution.error is None
            for name, array in expected(graph, fed[index]).items():
                np.testing.assert_array_equal(slot.results[name], array)
            stage.free.append(slot)
    stage.open_plan.close()


@given(graphs(), st.randoms(use_true_random=False))
def test_a_step_is_submitted_when_its_count_is_met_and_not_before(
    graph: Graph, random: Random
) -> None:
    stage = Stage(graph, devices(), pins(graph, random))
    execution, _ = stage.start(0, feeds(graph))
    while busy := stage.busy():
        random.choice(busy).step()
        for step in stage.plan.steps:
            events = [execution.events[wait] for wait in step.waits]
            complete = all(event is not None and event.done for event in events)
            assert (execution.events[step.index] is not None) == complete


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
    execution, _ = stage.start(0, {"x": np.arange(4, dtype=np.int32)})
    failing(stage, "b", ValueError("broken"))
    stage.devices["b"].step()
    assert stage.finished == [], "the other branch is still under way"
    stage.run_all(Random(0))
    assert stage.finished == [0]
    assert str(execution.error) == "broken"
    assert not stage.devices["b"].queue


def test_the_first_failure_is_the_one_that_counts() -> None:
    stage = Stage(fork(), devices(), {"long": "a", "short": "b", "after": "b"})
    execution, _ = stage.start(0, {"x": np.arange(4, dtype=np.int32)})
    failing(stage, "b", ValueError("first"))
    failing(stage, "a", ValueError("second"))
    stage.devices["b"].step()
    stage.run_all(Random(0))
    assert str(execution.error) == "first"


def test_a_device_that_refuses_work_fails_the_item() -> None:
    stage = Stage(fork(), devices(), {"long": "a", "short": "b", "after": "b"})

    def refuse(*_: object) -> None:
        raise pl.DeviceLostError("gone")

    stage.free[0] = Slot(
        stage.free[0].feeds, stage.free[0].results, (refuse,) * len(stage.plan.steps)  # type: ignore[arg-type]
    )  # fmt: skip
    execution, _ = stage.start(0, {"x": np.arange(4, dtype=np.int32)})
    assert stage.finished == [0]
    assert isinstance(execution.error, pl.DeviceLostError)


@given(st.integers(0, 12), st.randoms(use_true_random=False))
def test_cancelling_at_any_moment_ends_the_item_once_and_frees_its_slot(
    moment: int, random: Random
) -> None:
    graph = fork()
    stage = Stage(graph, devices(), {"long": "a", "short": "b", "after": "c"})
    execution, slot = stage.start(0, feeds(graph))
    for _ in range(moment):
        if stage.busy():
            random.choice(stage.busy()).step()
    execution.cancel()
    stage.run_all(random)
    assert stage.finished == [0]
    stage.free.append(slot)
    stage.start(1, feeds(graph, 7))
    stage.run_all(random)
    assert stage.finished == [0, 1]
    for name, array in expected(graph, feeds(graph, 7)).items():
        np.testing.assert_array_equal(slot.results[name], array)


def test_cancelled_work_that_has_not_started_is_skipped() -> None:
    stage = Stage(fork(), devices(), {"long": "a", "short": "b", "after": "b"})
    execution, slot = stage.start(0, {"x": np.full(4, 5, np.int32)})
    before = slot.results["slow"].copy()
    execution.cancel()
    stage.run_all(Random(0))
    np.testing.assert_array_equal(slot.results["slow"], before)


def test_arenas_and_programs_are_made_when_opened_and_never_while_items_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage(fork(), devices(), {"long": "a", "short": "b", "after": "c"})

    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError("allocates in the steady state")

    for name in ("arena", "view", "compile"):
        monkeypatch.setattr(SteppedDevice, name, forbidden)
    stage.start(0, feeds(fork()))
    stage.run_all(Random(0))
    assert stage.finished == [0]
