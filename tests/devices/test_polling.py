"""Work of streams that is polled for, beside the threads that wait for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import chain as concatenated

import numpy as np
import plait as pl
import pytest
from cupy_double import CupyDouble
from fake_gpu import SEEDS
from hypothesis import given, settings
from hypothesis import strategies as st
from plait.devices.cuda.queues import CudaBackend
from plait.devices.errors import DeviceLostError
from plait.devices.event import Event

from .rig import Rig, Stream, chain, evaluate, some_items


def always() -> bool:
    return True


def events_of(stream: Stream) -> list[Event]:
    return [*concatenated(*stream.uploaded), *stream.computed, *concatenated(*stream.downloaded)]


@pytest.fixture
def sleepless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that wait for a stream fail the test.

    All memory can be page-locked, whoever shares a page of it: what goes by way of staging needs a
    thread.
    """

    def synchronize(self: object, event: object) -> None:
        raise AssertionError("a thread waits")

    monkeypatch.setattr("plait.devices.cuda.queues.CudaBackend.synchronize", synchronize)
    monkeypatch.setattr("fake_gpu._pages", lambda address, nbytes: {address})


@pytest.mark.usefixtures("sleepless")
@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_polled_for_ends_on_the_polling_thread(seed: int) -> None:
    graph = chain("Relu", "Add")
    [item] = some_items(graph, 1)
    device = CupyDouble(seed).device()
    with Rig(device, graph) as rig:
        device.attend(always)
        stream, threads = rig.stream([item]), set[int]()
        events_of(stream)[-1].on_done(lambda _: threads.add(threading.get_ident()))
        while device.poll():
            pass
        [result] = stream.results()
    assert threads == {threading.get_ident()}
    np.testing.assert_array_equal(result["y"], evaluate(graph, item)["y"])


@settings(max_examples=30)
@given(
    st.sampled_from(SEEDS),
    st.lists(st.booleans(), min_size=1, max_size=12),
    st.lists(st.sampled_from(["poll", "watch", "nothing"]), max_size=12),
)
def test_polls_and_threads_share_the_work(
    seed: int, attended: list[bool], between: list[str]
) -> None:
    """Whoever finds it over: each event ends once, in order, and its native event is free once."""
    answers, double, graph = iter(attended), CupyDouble(seed), chain("Relu")
    items = some_items(graph, 8)
    device, ended = double.device(), list[Event]()
    with Rig(device, graph) as rig:
        device.attend(lambda: next(answers, True))
        todo: dict[str, Callable[[], object]]
        todo = {"poll": device.poll, "watch": device.watch, "nothing": lambda: None}
        stream = rig.stream(items)
        for event in events_of(stream):
            event.on_done(ended.append)
        for each in between:
            todo[each]()
        device.watch()
        results = stream.results()
        assert device._open is not None
        backend = device._open.queues._backend
        assert isinstance(backend, CudaBackend)
    for item, result in zip(items, results, strict=True):
        np.testing.assert_array_equal(result["y"], evaluate(graph, item)["y"])
    assert sorted(map(id, ended)) == sorted(map(id, events_of(stream)))
    for lane in (stream.computed, [*concatenated(*stream.downloaded)]):
        assert [event for event in ended if event in lane] == lane
    free = [id(event) for pool in backend._pools.values() for event in pool._free]
    assert len(free) == len(set(free)) <= len(ended)


def test_many_threads_may_poll_while_others_wait() -> None:
    graph, items = chain("Relu", "Add", "Identity"), 40
    device, over = CupyDouble(len(SEEDS)).device(), threading.Event()
    with Rig(device, graph) as rig:

        def poll() -> None:
            while not over.is_set():
                device.poll()

        pollers = [threading.Thread(target=poll) for _ in range(3)]
        for each in pollers:
            each.start()
        feeds = some_items(graph, items)
        results = rig.stream(feeds).results()
        over.set()
        for each in pollers:
            each.join()
    for item, result in zip(feeds, results, strict=True):
        np.testing.assert_array_equal(result["y"], evaluate(graph, item)["y"])


def test_a_closed_device_has_nothing_under_way(double: CupyDouble) -> None:
    device = double.device()
    assert not device.poll()
    device.watch()
    device.leave(always)


def test_what_nobody_polls_for_any_more_is_waited_for_when_the_device_is_closed() -> None:
    device, graph = CupyDouble().device(), chain("Relu")
    with Rig(device, graph) as rig:
        device.attend(always)
        rig.stream(some_items(graph, 2))


def test_a_broken_device_is_found_out_by_its_thread(double: CupyDouble) -> None:
    device, graph = double.device(), chain("Relu")
    with pytest.raises(DeviceLostError), Rig(device, graph) as rig:
        device.attend(always)
        double.gpu.break_next()
        stream = rig.stream(some_items(graph, 1))
        while device.poll() and double.gpu._broken is None:
            pass
        assert device.poll(), "an error was taken for an end"
        device.watch()
        stream.results()


@pytest.mark.usefixtures("sleepless")
def test_sessions_poll_for_what_is_over_soon(
    double: CupyDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    poller = "plait.scheduler.runtime.completion_poller"
    monkeypatch.setattr(f"{poller}.PATIENCE_NS", 1 << 60)  # on any machine
    graph = chain("Relu", "Add")
    [item] = some_items(graph, 1)
    results = pl.run(graph, item, devices=[double.device()])
    np.testing.assert_array_equal(results["y"], evaluate(graph, item)["y"])


def test_what_the_host_has_a_part_in_is_left_to_a_thread(double: CupyDouble) -> None:
    """A result that is copied out of staging, which may take long."""
    double.gpu.refuses_locking = True
    device, graph = double.device(), chain("Relu")
    [item] = some_items(graph, 1)
    with Rig(device, graph) as rig:
        device.attend(always)
        stream = rig.stream([item])
        while device.poll():
            pass
        [result] = stream.results()
    np.testing.assert_array_equal(result["y"], evaluate(graph, item)["y"])
