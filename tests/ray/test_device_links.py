"""Remote devices over a cluster that is simulated in this process."""

from __future__ import annotations

import gc
import re
import sys
import threading
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import plait as pl
import pytest
from fake_cluster import FakeEngine
from owning_operators import Total, read
from patience import WAIT_S
from plait.devices.errors import DeviceLostError, DeviceUnavailableError, KernelError
from plait.devices.event import CancelledWorkError, Event
from plait.devices.memory import View, host_arena, host_view
from plait.graph.values.extras import get_install_command
from plait.graph.values.tensor import Array, TensorSpec
from plait.scheduler.ray.actors import ActorPlacement
from plait.scheduler.ray.engine import load_ray
from plait.scheduler.ray.remote.device import RayDevice
from plait.scheduler.ray.remote.hosts import RemoteHost
from plait.scheduler.runtime.events import DeviceLost, SessionEvent

N = 64
SPEC = TensorSpec("float32", (N,))


def chain() -> pl.Graph:
    b = pl.GraphBuilder("chain")
    x = b.input("x", "float32", (N,))
    first = b.op("Mul", x, 3.0, name="first")
    b.output("y", b.op("Sigmoid", first, name="second"))
    return b.build()


def numbers(seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=N).astype("float32")


def here() -> View:
    return host_view(host_arena(SPEC.nbytes), 0, SPEC)


@cache
def answer(seed: int) -> Array:
    """Return what a device of this process makes of an input."""
    return pl.run(chain(), {"x": numbers(seed)}, devices="cpu")["y"]


def alone(device: RayDevice, **options: Any) -> pl.Plan:
    return pl.plan(chain(), [device], **options)


def test_what_is_written_is_read_again(host: RemoteHost) -> None:
    device = RayDevice(host, "cpu")
    device.open()
    arena = device.arena(device.name, 256)
    there, source, target = device.view(arena, 0, SPEC), here(), here()
    source.array[:] = numbers()
    written = device.copy(there, source)
    device.copy(target, there, [written]).wait(WAIT_S)
    device.close()
    assert np.array_equal(target.array, numbers())


def test_a_plan_gives_the_bits_that_it_gives_here(host: RemoteHost) -> None:
    outputs = pl.run(alone(RayDevice(host, "cpu")), {"x": numbers()})
    assert np.array_equal(outputs["y"], answer(0))


def test_an_item_takes_one_call(host: RemoteHost, engine: FakeEngine) -> None:
    with pl.BlockingSession(alone(RayDevice(host, "cpu"))) as session:
        session.run({"x": numbers()})
        calls = engine.actors[0].calls
        before = calls.count("command_devices")
        for _ in range(20):
            session.run({"x": numbers()})
        assert calls.count("command_devices") - before <= 40


def test_a_device_with_a_memory_of_its_own_gives_the_same_bits(host: RemoteHost) -> None:
    outputs = pl.run(alone(RayDevice(host, "sim:npu")), {"x": numbers()})
    assert np.array_equal(outputs["y"], answer(0))


@pytest.mark.parametrize(
    ("first", "second"),
    [("cpu", "formal"), ("cpu", "sim:a"), ("sim:a", "cpu"), ("sim:a", "sim:b")],
)
def test_devices_of_one_host_copy_there(host: RemoteHost, first: str, second: str) -> None:
    one, other = RayDevice(host, first), RayDevice(host, second)
    pins = {"first": one.name, "second": other.name}
    plan = pl.plan(chain(), [one, other], pin=pins)
    assert [step.work.source for step in plan.steps if hasattr(step.work, "source")] == [
        "host",
        one.name,
        other.name,
    ]
    y = pl.run(plan, {"x": numbers()})["y"]
    np.testing.assert_allclose(y, answer(0), rtol=1e-6)


def test_a_node_is_asked_about_once(host: RemoteHost, engine: FakeEngine) -> None:
    alone(RayDevice(host, "cpu"))
    asked = engine.actors[0].calls.count("ask_devices answer")
    alone(RayDevice(host, "cpu"))
    assert engine.actors[0].calls.count("ask_devices answer") == asked


def test_what_the_host_lacks_is_refused_with_its_reason(host: RemoteHost) -> None:
    with pytest.raises(pl.DeviceUnavailableError, match="there is no device 'abacus'"):
        alone(RayDevice(host, "abacus"))


def test_a_stream_is_in_order_and_whole(host: RemoteHost) -> None:
    plan = alone(RayDevice(host, "cpu"), max_in_flight=4)
    with pl.BlockingSession(plan) as session:
        source = ({"x": numbers(seed)} for seed in range(60))
        with session.stream(source) as results:
            found = [item["y"].copy() for item in results]
    for seed, y in enumerate(found):
        assert np.array_equal(y, answer(seed))


def test_a_host_that_is_killed_is_replaced_and_nothing_is_lost(
    host: RemoteHost, engine: FakeEngine
) -> None:
    plan = alone(RayDevice(host, "cpu"), max_in_flight=4)
    seen: list[SessionEvent] = []

    def source() -> Iterator[dict[str, Array]]:
        for seed in range(60):
            if seed in (20, 45):
                engine.actors[-1].kill()
            yield {"x": numbers(seed)}

    with pl.BlockingSession(plan, on_event=seen.append) as session:
        with session.stream(source()) as results:
            found = [item["y"].copy() for item in results]
    assert len(found) == 60
    assert all(np.array_equal(y, answer(seed)) for seed, y in enumerate(found))
    assert sum(isinstance(one, DeviceLost) for one in seen) == 2


def test_a_host_that_is_killed_leaves_state_that_items_hand_on_whole(
    host: RemoteHost, engine: FakeEngine
) -> None:
    b = pl.GraphBuilder("sums")
    tripled = b.op("Mul", b.input("x", "float32", (N,)), 3.0, name="first")
    total = b.variable("total", np.zeros(N, "float32"))
    b.output("sum", total.assign(total + tripled))
    device = RayDevice(host, "cpu")
    pins = {"first": device.name, "*": "cpu"}
    plan = pl.plan(b.build(), [device, "cpu"], pin=pins, max_in_flight=4)

    def source() -> Iterator[dict[str, Array]]:
        for index in range(60):
            if index in (20, 45):
                engine.actors[-1].kill()
            yield {"x": np.full(N, index, np.float32)}

    with pl.BlockingSession(plan) as session:
        with session.stream(source()) as results:
            found = [float(item["sum"][0]) for item in results]
        assert session.variables["total"][0] == found[-1]
    assert found == np.cumsum(3 * np.arange(60)).tolist()


def test_a_silent_host_is_lost(engine: FakeEngine) -> None:
    host = RemoteHost("enc", engine, ActorPlacement(), silence_s=0.3)
    device = RayDevice(host, "cpu")
    device.open()
    arena = device.arena(device.name, 256)
    there = device.view(arena, 0, SPEC)
    engine.actors[-1].cut()
    event = device.copy(there, here())
    with pytest.raises(DeviceLostError, match="no answer for 0"):
        event.wait(WAIT_S)
    assert device.failure is not None
    device.close()
    host.close()


def test_a_host_that_is_started_on_a_dead_node_is_started_again(
    host: RemoteHost, engine: FakeEngine
) -> None:
    engine.dead = 1
    assert host.link().error is None
    assert len(engine.actors) == 2


def test_a_host_that_dies_at_each_start_is_unavailable(
    host: RemoteHost, engine: FakeEngine
) -> None:
    engine.dead = 100
    with pytest.raises(pl.DeviceUnavailableError, match="cannot be started: the actor died"):
        host.link()
    assert len(engine.actors) == 2


def test_a_host_that_no_node_takes_is_unavailable(engine: FakeEngine) -> None:
    engine.full = True
    host = RemoteHost("enc", engine, ActorPlacement({"gpu": "b"}), start_s=0.05)
    with pytest.raises(DeviceUnavailableError, match="no node has taken host 'enc'") as raised:
        RayDevice(host, "cpu").open()
    assert raised.value.at == "wanted: gpu=b; there are 1 nodes: gpu=a"
    host.close()


def test_work_of_a_closed_device_is_refused(host: RemoteHost) -> None:
    device = RayDevice(host, "cpu")
    with pytest.raises(DeviceUnavailableError, match="is closed"):
        device.arena(device.name, 64)


def test_what_waits_for_work_that_failed_does_not_run(host: RemoteHost) -> None:
    device = RayDevice(host, "cpu")
    device.open()
    arena = device.arena(device.name, 256)
    there, target = device.view(arena, 0, SPEC), here()
    target.array[:] = 7
    failed = Event()
    failed.complete(KernelError("out of order"))
    event = device.copy(target, there, [failed])
    with pytest.raises(KernelError, match="out of order"):
        event.wait(WAIT_S)
    device.close()
    assert (target.array == 7).all()


def test_cancelled_work_completes_and_so_does_what_waits_for_it(host: RemoteHost) -> None:
    device = RayDevice(host, "cpu")
    device.open()
    arena = device.arena(device.name, 256)
    there = device.view(arena, 0, SPEC)
    link = host.link()
    with link._changed:  # nothing is sent meanwhile
        first = device.copy(there, here())
        first.cancel()
        second = device.copy(here(), there, [first])
    with pytest.raises(CancelledWorkError):
        second.wait(WAIT_S)
    device.close()


def test_closing_ends_all_threads(engine: FakeEngine) -> None:
    before = threading.active_count()
    host = RemoteHost("enc", engine, ActorPlacement())
    host.link()
    host.close()
    deadline = time.monotonic() + WAIT_S
    while threading.active_count() > before and time.monotonic() < deadline:
        threading.Event().wait(0.005)
    assert threading.active_count() <= before


@pytest.mark.parametrize("seed", range(3))
def test_calls_that_overtake_each_other_keep_their_order(seed: int) -> None:
    engine = FakeEngine(seed)
    host = RemoteHost("enc", engine, ActorPlacement())
    plan = alone(RayDevice(host, "cpu"), max_in_flight=4)
    with pl.BlockingSession(plan) as session:
        with session.stream({"x": numbers(n)} for n in range(40)) as results:
            found = [item["y"].copy() for item in results]
    host.close()
    assert all(np.array_equal(y, answer(n)) for n, y in enumerate(found))


def test_ten_restarts_leave_nothing_behind(host: RemoteHost, engine: FakeEngine) -> None:
    before: set[int] = set()
    with pl.BlockingSession(alone(RayDevice(host, "cpu"))) as session:
        for number in range(11):
            assert np.array_equal(session.run({"x": numbers()})["y"], answer(0))
            threads = {thread.ident or 0 for thread in threading.enumerate()}
            if number == 0:
                before = threads
            assert len(threads) <= len(before) + 1
            if number < 10:
                engine.actors[-1].kill()
    assert len(engine.actors) == 11


def test_objects_are_freed_on_the_host_when_nobody_uses_them(
    host: RemoteHost, engine: FakeEngine
) -> None:
    plan = alone(RayDevice(host, "cpu"))
    for _ in range(5):
        pl.run(plan, {"x": numbers()})
    objects = engine.actors[-1].made._devices._objects
    deadline = time.monotonic() + WAIT_S
    while (left := len(objects)) > 1 and time.monotonic() < deadline:
        gc.collect()
        threading.Event().wait(0.005)
    assert left <= 1, "at most the graph, which the plan keeps"


def test_another_version_of_plait_is_refused(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plait.scheduler.ray.host.VERSION", "0.0.1")
    host = RemoteHost("enc", engine, ActorPlacement())
    with pytest.raises(DeviceUnavailableError, match=r"'enc' has plait 0\.0\.1, this process"):
        host.link()


def test_a_node_that_sends_little_inline_is_warned_about(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_max_direct_call_object_size")
    host = RemoteHost("enc", engine, ActorPlacement())
    with pytest.warns(UserWarning, match="over 102400 bytes through Ray's object store"):
        host.link()
    host.close()


def test_what_nodes_own_is_opened_and_closed_on_the_host(host: RemoteHost, tmp_path: Path) -> None:
    diary = tmp_path / "diary"
    b = pl.GraphBuilder("owning")
    b.output("y", b.call(Total, b.input("x", "float32", (2,)), diary=str(diary), name="total"))
    plan = pl.plan(b.build(), [RayDevice(host, "cpu")])
    with pl.BlockingSession(plan) as session:
        for _ in range(2):
            session.run({"x": np.ones(2, "float32")})
    assert "open" in read(diary)[0]
    assert "close" in read(diary)[-1]


def test_a_host_is_killed_only_while_it_works_at_the_event(host: RemoteHost) -> None:
    device = RayDevice(host, "cpu")
    device.open()
    done = device.copy(here(), device.view(device.arena(device.name, 256), 0, SPEC))
    done.wait(WAIT_S)
    assert not device.kill(done, "it is late")
    assert device.failure is None
    device.close()


def test_reports_say_how_a_host_is_reached(host: RemoteHost) -> None:
    plan = alone(RayDevice(host, "cpu"))
    assert re.search(r"ray:enc/cpu: on host enc, [\d.]+ ms there and back, \d+ MB/s", plan.report())


def test_a_device_on_no_cluster_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules["plait.scheduler.ray.cluster"]
    monkeypatch.setattr(module, "_entered", [])  # tests before this one may have joined one
    with pytest.raises(DeviceUnavailableError, match="on a Ray cluster, and none is joined"):
        pl.plan(chain(), ["ray:enc/cpu"])


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(DeviceUnavailableError) as raised:
        load_ray()
    assert raised.value.fix == get_install_command("ray")


def test_closing_a_host_ends_its_start(engine: FakeEngine) -> None:
    engine.full = True
    host = RemoteHost("enc", engine, ActorPlacement(), start_s=WAIT_S)
    raised: list[BaseException] = []

    def start() -> None:
        try:
            host.link()
        except DeviceUnavailableError as error:
            raised.append(error)

    starting = threading.Thread(target=start)
    starting.start()
    host.close()
    starting.join(WAIT_S)
    assert [str(error).splitlines()[0] for error in raised] == ["'ray:enc' is closed"]


def test_small_work_stays_here_where_the_planner_chooses(host: RemoteHost) -> None:
    plan = pl.plan(chain(), [RayDevice(host, "cpu"), "cpu"], strategy="auto")
    assert set(plan.assignment.values()) == {"cpu"}


def test_memory_of_a_life_that_is_over_is_not_looked_for_in_the_next(
    host: RemoteHost, engine: FakeEngine
) -> None:
    device = RayDevice(host, "cpu")
    device.open()
    there = device.view(device.arena(device.name, 256), 0, SPEC)
    engine.actors[-1].kill()
    deadline = time.monotonic() + WAIT_S
    while device.failure is None and time.monotonic() < deadline:
        threading.Event().wait(0.001)
    device.open()
    device.arena(device.name, 256)
    with pytest.raises(DeviceLostError):
        device.copy(there, here()).wait(WAIT_S)
    assert (device.generation, device.failure) == (2, None)
    device.close()
