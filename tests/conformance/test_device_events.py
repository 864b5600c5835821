"""The device protocol's promises of order, events and failures, asked of every device."""

from __future__ import annotations

from queue import SimpleQueue

import numpy as np
import plait as pl
import pytest
from bound import Bound, submit_from_threads
from every_device import Subject
from patience import WAIT_S
from plait.devices import Device
from plait.devices.event import CancelledWorkError, Event
from plait.devices.memory import View
from small_graphs import FLOATS, IN_PLACE, X, counting, doubling, flattened, unary


def require_native_waits(device: Device) -> None:
    if not device.capabilities.native_waits:
        pytest.skip(f"{device.name} takes no events to wait for: the caller keeps the order")


# Order


def test_programs_run_in_the_order_of_their_submission(device: Device) -> None:
    """Doubling and counting up in turn over the same bytes: any other order gives other numbers."""
    with Bound(device, doubling(), onto=IN_PLACE) as twice:
        views = {"x": twice.views["x"], "y": twice.views["x"]}
        one_more = device.compile(counting(), views)
        twice.put({"x": X})
        last = [event for _ in range(5) for event in (twice.submit(), device.submit(one_more))][-1]
        last.wait(WAIT_S)
        expected = X
        for _ in range(5):
            expected = 2 * expected + 1
        np.testing.assert_array_equal(twice.get()["y"], expected)
        views.clear()


def test_submitting_waits_for_nothing(subject: Subject, device: Device) -> None:
    with Bound(device, counting(), onto=IN_PLACE) as bound:
        bound.put({"x": X})
        with subject.hold(device):
            events = [bound.submit() for _ in range(10)]
            assert not any(event.done for event in events)
        for event in events:
            event.wait(WAIT_S)
        np.testing.assert_array_equal(bound.get()["y"], X + 10)


def test_items_chained_by_waits_alone_do_not_mix(subject: Subject, device: Device) -> None:
    """Upload, program and download of several items through the same bytes, all submitted first."""
    require_native_waits(device)
    items = [X * factor for factor in (1, -2, 3)]
    outputs: list[View] = []
    uploads, runs, downloads = list[Event](), list[Event](), list[Event]()
    with Bound(device, doubling()) as bound:
        for number, item in enumerate(items):
            places = bound.place({"x": FLOATS, "y": FLOATS}, None)
            np.copyto(places["x"].array, item)
            x, y = bound.views["x"], bound.views["y"]
            uploads.append(device.copy(x, places["x"], runs[number - 1 :]))
            runs.append(bound.submit([uploads[-1], *downloads[number - 1 :]]))
            downloads.append(device.copy(places["y"], y, runs[-1:]))
            outputs.append(places["y"])
        downloads[-1].wait(WAIT_S)
        for item, output in zip(items, outputs, strict=True):
            np.testing.assert_array_equal(output.array, item + item)
        outputs.clear()
        del places, x, y, output


def test_many_threads_may_submit(device: Device) -> None:
    with Bound(device, counting(), onto=IN_PLACE) as bound:
        bound.put({"x": X})
        submit_from_threads(bound.submit, 25)
        np.testing.assert_array_equal(bound.get()["y"], X + 100)


# Events


def test_callbacks_run_once_whenever_they_are_registered(subject: Subject) -> None:
    calls: list[tuple[str, Event]] = []
    with subject.opened() as device, Bound(device, doubling()) as bound:
        bound.put({"x": X})
        event = bound.submit(on_done=lambda event: calls.append(("at submission", event)))
        event.on_done(lambda event: calls.append(("after it", event)))
        event.wait(WAIT_S)
        event.on_done(lambda event: calls.append(("when it was done", event)))
        copied = bound.device.copy(
            bound.hosts["y"],
            bound.views["y"],
            (),
            lambda event: calls.append(("at the copy", event)),
        )
        copied.wait(WAIT_S)
        bound.submit().wait(WAIT_S)
        device.close()  # all callbacks have run by then
    assert sorted(calls, key=lambda call: call[0]) == [
        ("after it", event),
        ("at submission", event),
        ("at the copy", copied),
        ("when it was done", event),
    ]


def test_a_callback_may_submit_what_comes_next(device: Device) -> None:
    submitted: SimpleQueue[Event] = SimpleQueue()
    with Bound(device, counting(), onto=IN_PLACE) as bound:

        def go_on(_: Event, more: int) -> None:
            if more:
                submitted.put(bound.submit(on_done=lambda event: go_on(event, more - 1)))

        bound.put({"x": X})
        bound.submit(on_done=lambda event: go_on(event, 5)).wait(WAIT_S)
        for _ in range(5):
            submitted.get(timeout=WAIT_S).wait(WAIT_S)
        np.testing.assert_array_equal(bound.get()["y"], X + 6)


def test_an_event_says_when_its_work_ran(device: Device) -> None:
    with Bound(device, doubling()) as bound:
        bound.put({"x": X})
        first, second = bound.submit(), bound.submit()
        copied = device.copy(bound.views["x"], bound.hosts["x"])
        for event in (first, second, copied):
            event.wait(WAIT_S)
            assert event.started_ns <= event.ended_ns
        assert first.started_ns <= second.started_ns
        assert first.ended_ns <= second.ended_ns


def test_a_measured_program_says_how_long_each_node_took(device: Device) -> None:
    if device.capabilities.atomic_programs:
        pytest.skip(f"{device.name} runs programs as one piece")
    x = np.ones((2, 3), np.float32)
    with Bound(device, flattened(), measure=True, onto={"flat": "x"}) as bound:
        bound.put({"x": x})
        event = bound.submit()
        event.wait(WAIT_S)
        assert event.node_ns is not None
        reshape_ns, relu_ns = event.node_ns
        assert reshape_ns == 0, "a view takes no step"
        # Times are rounded: a microsecond is allowed for it.
        assert 0 <= relu_ns <= event.ended_ns - event.started_ns + 1_000
        np.testing.assert_array_equal(bound.get()["y"], np.ones(6))


def test_a_program_that_does_not_measure_has_no_times_of_nodes(device: Device) -> None:
    with Bound(device, doubling()) as bound:
        bound.put({"x": X})
        event = bound.submit()
        event.wait(WAIT_S)
        assert event.node_ns is None


# What goes wrong


def test_cancelled_work_that_has_not_started_is_skipped(subject: Subject, device: Device) -> None:
    """Where a device cannot cancel what is queued, the work is done as if nobody had asked."""
    with Bound(device, counting(), onto=IN_PLACE) as bound:
        bound.put({"x": X})
        with subject.hold(device):
            before, cancelled, after = (bound.submit() for _ in range(3))
            cancelled.cancel()
        before.wait(WAIT_S)
        after.wait(WAIT_S)
        assert cancelled.done
        assert isinstance(cancelled.error, CancelledWorkError) == subject.cancels
        np.testing.assert_array_equal(bound.get()["y"], X + (2 if subject.cancels else 3))


def test_cancelling_what_is_done_changes_nothing(device: Device) -> None:
    with Bound(device, doubling()) as bound:
        bound.put({"x": X})
        event = bound.submit()
        event.wait(WAIT_S)
        event.cancel()
        assert event.error is None
        np.testing.assert_array_equal(bound.run(x=X)["y"], X + X)


def test_a_program_that_fails_names_the_node_and_the_device_goes_on(subject: Subject) -> None:
    with subject.failing() as (device, graph, injecting):
        with Bound(device, graph) as broken, Bound(device, counting(), onto=IN_PLACE) as healthy:
            broken.put({"x": X})
            healthy.put({"x": X})
            before = healthy.submit()
            with injecting():
                failed = broken.submit()
            after = healthy.submit()
            with pytest.raises(pl.KernelError, match="injected") as raised:
                failed.wait(WAIT_S)
            assert raised.value.at is not None
            assert "'bad'" in raised.value.at
            assert device.name in raised.value.at
            before.wait(WAIT_S)
            after.wait(WAIT_S)
            np.testing.assert_array_equal(healthy.get()["y"], X + 2)
            del raised, failed


def test_what_waits_for_failed_work_fails_with_its_error(subject: Subject) -> None:
    with subject.failing() as (device, graph, injecting):
        require_native_waits(device)
        with Bound(device, graph) as broken, Bound(device, counting(), onto=IN_PLACE) as bound:
            broken.put({"x": X})
            bound.put({"x": X})
            with injecting():
                failed = broken.submit()
            waiting = bound.submit([failed])
            copied = device.copy(bound.hosts["y"], bound.views["y"], [waiting])
            for event in (failed, waiting, copied):
                with pytest.raises(pl.KernelError, match="injected"):
                    event.wait(WAIT_S)
            assert failed.error is waiting.error is copied.error
            np.testing.assert_array_equal(bound.get()["y"], X)
            del failed, waiting, copied, event


def test_what_follows_failed_work_without_waiting_for_it_runs(subject: Subject) -> None:
    with subject.failing() as (device, graph, injecting):
        with Bound(device, graph) as broken, Bound(device, unary("Neg")) as bound:
            broken.put({"x": X})
            bound.put({"x": X})
            with injecting():
                failed = broken.submit()
            bound.submit().wait(WAIT_S)
            assert failed.done
            np.testing.assert_array_equal(bound.get()["y"], -X)
            del failed
