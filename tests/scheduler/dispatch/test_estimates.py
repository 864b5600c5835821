"""Steps that run on the thread that made them ready: which, where, and how many in a row."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from functools import partial

import numpy as np
import plait as pl
import pytest
import trio
from fake_devices import SteppedDevice
from patience import WAIT_S
from plait.devices.cpu import CpuDevice
from plait.devices.event import Event
from plait.scheduler.dispatch.hand_over import NOMINAL_NS
from plait.scheduler.dispatch.inline_policy import SLOW_NS, Estimates
from plait.scheduler.runtime.opened import executor
from plait.scheduler.runtime.opened.executor import Execution
from plait.scheduler.runtime.opened.open_plan import OpenPlan
from plait.scheduler.runtime.opened.trampoline import Trampoline
from staged import Known

ran_on: list[str] = []


def test_a_step_is_quick_only_when_it_was_seen_to_be() -> None:
    estimates = Estimates([1e-6, 1.0, math.inf])
    assert not estimates.is_quick(0)
    estimates.note(0, 1000)
    assert estimates.is_quick(0)
    assert not estimates.is_quick(1)


def test_a_step_that_was_predicted_to_be_slow_has_to_be_quick_often() -> None:
    estimates, runs = Estimates([100e-6]), 0
    while not estimates.is_quick(0):
        estimates.note(0, 5000)
        runs += 1
    assert 5 < runs < 50


def test_some_slow_runs_end_it_and_are_forgotten_after_some_quick_ones() -> None:
    estimates = Estimates([0.0])
    for _ in range(50):
        estimates.note(0, 1000)
    estimates.note(0, 50_000_000)  # others may have held it up
    assert estimates.is_quick(0)
    for _ in range(6):
        estimates.note(0, 50_000_000)
    assert not estimates.is_quick(0)
    for _ in range(50):
        estimates.note(0, 1000)
    assert estimates.is_quick(0)


def runs_until_quick(estimates: Estimates) -> int:
    """Return how often in a row a step has to be quick before it is thought so."""
    for runs in range(1_000_000):
        if estimates.is_quick(0):
            return runs
        estimates.note(0, 1000)
    raise AssertionError("never")


def test_a_function_that_surprises_has_to_be_quick_ever_more_often() -> None:
    estimates, needed = Estimates([0.0], [0]), list[int]()
    for _ in range(4):
        runs_until_quick(estimates)
        estimates.note(0, SLOW_NS + 1)
        needed.append(runs_until_quick(estimates))
    assert needed == [64, 512, 4096, 4096]


def test_a_function_that_is_slow_now_and_then_is_soon_thought_slow() -> None:
    estimates, surprises = Estimates([0.0], [0]), 0
    for run in range(100_000):
        slow = run % 100 == 99
        surprises += slow and estimates.is_quick(0)
        estimates.note(0, 50 * SLOW_NS if slow else 1000)
    assert 1 <= surprises <= 2


def test_a_function_that_was_slow_from_the_beginning_surprises_nobody() -> None:
    estimates = Estimates([0.0], [0])
    for _ in range(20):
        estimates.note(0, SLOW_NS + 1)
    assert runs_until_quick(estimates) < 100


def test_a_function_that_others_held_up_is_trusted_again_each_time() -> None:
    """For the interpreter, which a busy thread keeps for 5 ms, or for a time slice."""
    estimates = Estimates([0.0], [0])
    for _ in range(6):
        runs_until_quick(estimates)
        for _ in range(6):
            estimates.note(0, 8_000_000)
        assert 0 < runs_until_quick(estimates) < 30


def test_a_kernel_that_was_held_up_is_trusted_again_each_time() -> None:
    estimates = Estimates([0.0])
    for _ in range(6):
        runs_until_quick(estimates)
        for _ in range(6):
            estimates.note(0, SLOW_NS + 1)
        assert 0 < runs_until_quick(estimates) < 30


def test_a_step_that_takes_long_as_waking_a_thread_never_gets_quick() -> None:
    estimates = Estimates([0.0])
    for _ in range(1000):
        estimates.note(0, NOMINAL_NS + 8)
    assert not estimates.is_quick(0)


def test_runs_that_were_cut_short_say_nothing_of_how_long_a_step_takes() -> None:
    device = SteppedDevice("cpu", private=False)
    builder = pl.GraphBuilder("relu")
    builder.output("y", builder.op("Relu", builder.input("x", "float32", (2,))))
    open_plan = OpenPlan(pl.plan(builder.build(), device), {"cpu": device})
    device.open()
    open_plan.open()
    for _ in range(100):
        execution = Execution(open_plan, open_plan.make_slot(0), lambda: None)
        execution.start()
        execution.cancel()
        device.step()
    assert not open_plan.estimates.is_quick(0)
    open_plan.close()


def test_what_follows_is_done_by_the_outermost_call_and_what_takes_time_last() -> None:
    trampoline, done = Trampoline(), list[str]()

    def nesting(name: str, *more: str) -> None:
        done.append(name)
        trampoline.later.extend(partial(nesting, one) for one in more)
        trampoline.first.append(lambda: done.append(f"{name} first"))
        trampoline.run()
        done.append(f"{name} ends")

    trampoline.later.append(lambda: nesting("a", "b", "c"))
    trampoline.run()
    assert done == [
        "a", "a ends", "a first", "b", "b ends", "b first", "c", "c ends", "c first",
    ]  # fmt: skip


def test_actions_as_many_as_there_are_do_not_go_deeper() -> None:
    trampoline, left = Trampoline(), [100_000]

    def again() -> None:
        left[0] -= 1
        if left[0]:
            trampoline.first.append(again)
            trampoline.run()

    trampoline.first.append(again)
    trampoline.run()
    assert left == [0]


@pytest.fixture
def operators(forget_operators: None) -> None:
    ran_on.clear()

    @pl.operator(name="test_quick.pure")
    def pure(x: np.ndarray) -> np.ndarray:
        ran_on.append(threading.current_thread().name)
        return x

    @pl.operator(name="test_quick.tap", effects=True)
    def tap(x: np.ndarray) -> np.ndarray:
        ran_on.append(threading.current_thread().name)
        return x


class Stage:
    """A chain of one step each on devices of this process, all of which are taken to be quick."""

    def __init__(self, *ops: str) -> None:
        builder = pl.GraphBuilder("chain")
        last = builder.input("x", "float32", (2,))
        for index, op in enumerate(ops):
            last = builder.op(op, last, name=f"n{index}")
        builder.output("y", last)
        pins = {f"n{index}": "cpu:1" if index % 2 else "cpu" for index in range(len(ops))}
        plan = pl.plan(builder.build(), ["cpu", "cpu:1"], pin=pins)
        self.devices = {name: plan.prototypes[name] for name in plan.devices}
        for device in self.devices.values():
            device.open()
        self.plan = OpenPlan(plan, self.devices)
        self.plan.open()
        self.plan.estimates = Known(quick=True)
        self.slot = self.plan.make_slot(0)

    def run(self) -> Execution:
        """Run one item, and wait for its end."""
        ended = threading.Event()
        execution = Execution(self.plan, self.slot, ended.set)
        execution.start()
        assert ended.wait(WAIT_S)
        assert execution.is_complete
        return execution

    def close(self) -> None:
        self.plan.close()
        for device in self.devices.values():
            device.close()


@pytest.fixture
def here(operators: None) -> Iterator[Stage]:
    stage = Stage(*["test_quick.pure"] * 4)
    yield stage
    stage.close()


def test_quick_steps_run_on_the_thread_that_made_them_ready(here: Stage) -> None:
    execution = here.run()
    assert ran_on == [threading.current_thread().name] * 4
    times = [(event.started_ns, event.ended_ns) for event in execution.events if event is not None]
    assert len(times) == 4
    assert times == sorted(times)
    assert all(
        ready and ready <= start
        for ready, (start, _) in zip(execution.ready_ns, times, strict=True)
    )


def test_a_thread_runs_so_many_quick_steps_in_a_row(
    here: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "MOST_INLINE", 2)
    here.run()
    assert ran_on[:2] == [threading.current_thread().name] * 2
    assert ran_on[2] == "plait-cpu"


def test_what_is_not_quick_runs_on_the_threads_of_its_devices(here: Stage) -> None:
    here.plan.estimates = Known(quick=False)
    here.run()
    assert ran_on == ["plait-cpu", "plait-cpu:1"] * 2


@pytest.mark.usefixtures("operators")
def test_what_has_effects_runs_on_its_device_s_thread() -> None:
    stage = Stage("test_quick.pure", "test_quick.tap")
    stage.run()
    stage.close()
    assert ran_on == [threading.current_thread().name, "plait-cpu:1"]


def test_an_open_plan_knows_its_python_functions(operators: None) -> None:
    builder = pl.GraphBuilder("both")
    middle = builder.op("Relu", builder.input("x", "float32", (2,)), name="kernel")
    builder.output("y", builder.op("test_quick.pure", middle, name="function"))
    pins = {"kernel": "cpu", "function": "cpu:1"}
    plan = pl.plan(builder.build(), ["cpu", "cpu:1"], pin=pins)
    assert [step.calls_python for step in plan.steps] == [
        step.device == "cpu:1" for step in plan.steps
    ]
    estimates = OpenPlan(plan, {name: plan.prototypes[name] for name in plan.devices}).estimates
    kernel, function = 0, len(plan.steps) - 1
    for step in (kernel, function):
        for _ in range(100):
            estimates.note(step, 1000)
        estimates.note(step, SLOW_NS + 1)
        for _ in range(40):
            estimates.note(step, 1000)
    assert estimates.is_quick(kernel)
    assert not estimates.is_quick(function)


def test_a_step_whose_lane_is_at_work_waits_for_it(here: Stage) -> None:
    """Another session may be using the device, of which this one's queue knows nothing."""
    device, busy, going = here.devices["cpu:1"], threading.Event(), threading.Event()
    event = Event()

    def work() -> None:
        busy.set()
        assert going.wait(WAIT_S)

    device._lane.put(event, work)  # type: ignore[attr-defined]
    assert busy.wait(WAIT_S)
    execution = Execution(here.plan, here.slot, lambda: None)
    ended = threading.Event()
    execution._on_finish = ended.set
    execution.start()
    assert ran_on == [threading.current_thread().name]
    going.set()
    assert ended.wait(WAIT_S)
    assert ran_on[1] == "plait-cpu:1"
    assert execution.is_complete


def test_an_error_in_a_quick_step_is_its_item_s(here: Stage) -> None:
    execution = Execution(here.plan, here.slot, lambda: None)
    execution.cancel()
    finished: list[bool] = []
    execution._on_finish = lambda: finished.append(True)
    execution.start()
    assert finished == [True]
    assert isinstance(execution.error, pl.DeviceError)
    assert ran_on == []


async def test_a_function_that_fails_after_a_long_time_was_slow() -> None:
    threads = list[int]()

    @pl.operator(name="test_quick.impatient")
    def impatient(x: np.ndarray) -> np.ndarray:
        threads.append(threading.get_ident())
        end_ns = time.perf_counter_ns() + 2 * SLOW_NS
        while x[0] > 100 and time.perf_counter_ns() < end_ns:
            pass
        return x if x[0] <= 100 else x[:, :, 0]

    builder = pl.GraphBuilder("outer")
    builder.output("y", builder.call(impatient, builder.input("x", "float32", (2,))))
    async with pl.Session(pl.plan(builder.build())) as session:
        for number in range(60):
            await session.run({"x": np.full(2, number, np.float32)})
        assert threading.get_ident() in threads
        with pytest.raises(pl.KernelError):
            await session.run({"x": np.full(2, 101, np.float32)})
        await session.run({"x": np.zeros(2, np.float32)})
    assert threads[-1] != threading.get_ident()


async def test_a_function_that_is_quick_mostly_may_block_like_any_other() -> None:
    inner = pl.GraphBuilder("inner")
    inner.output("y", inner.op("Neg", inner.input("x", "float32", (2,))))
    negated, threads = pl.plan(inner.build()), set[int]()

    @pl.operator(name="test_quick.rarely")
    def rarely(x: np.ndarray) -> np.ndarray:
        threads.add(threading.get_ident())
        return pl.run(negated, {"x": x})["y"] if x[0] > 100 else x

    builder = pl.GraphBuilder("outer")
    builder.output("y", builder.call(rarely, builder.input("x", "float32", (2,))))
    async with pl.Session(pl.plan(builder.build())) as session:
        for number in (*range(60), 101):
            found = await session.run({"x": np.full(2, number, np.float32)})
    assert threading.get_ident() in threads, "it ran on the loop's thread"
    assert found["y"].tolist() == [-101, -101]


async def test_a_device_that_cannot_run_a_step_here_fails_the_item(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Broken(CpuDevice):
        def run_inline(self, program: object, event: Event) -> bool:
            raise OSError("broken")

    monkeypatch.setattr(Estimates, "is_quick", lambda *_: True)
    b = pl.GraphBuilder("one")
    b.output("y", b.op("Relu", b.input("x", "float32", (2,))))
    with trio.fail_after(WAIT_S):
        async with pl.Session(pl.plan(b.build(), [Broken("cpu:9")])) as session:
            with pytest.raises(OSError, match="broken"):
                await session.run({"x": np.ones(2, np.float32)})
