"""On how many threads ONNX Runtime computes a program, and when these spin."""

from __future__ import annotations

from typing import Any

import numpy as np
import plait as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plait.devices.device import Scaling
from plait.devices.memory import host_arena
from plait.devices.ort import device as ort_device
from plait.devices.ort.device import OrtDevice
from plait.devices.ort.program import OrtProgram
from plait.devices.ort.session import Sessions
from plait.devices.ort.threads import (
    ONE_THREAD,
    Threads,
    choose_threads,
    compute_speedup,
    estimate_work_s,
)
from plait.graph.core.ir import Graph
from small_graphs import doubling

pytest.importorskip("onnxruntime")
SPINNING = "session.intra_op.allow_spinning"
STOPPING = "session.force_spinning_stop"


def products(length: int, side: int = 128) -> Graph:
    b = pl.GraphBuilder("products")
    weight = b.constant(np.eye(side, dtype=np.float32))
    last = b.input("x", "float32", (side, side))
    for _ in range(length):
        last = b.op("MatMul", last, weight)
    b.output("y", last)
    return b.build()


LARGE = products(200)


def chosen(device: OrtDevice, graph: Graph, cores: int | None) -> Any:
    """Return the options of the ONNX Runtime session that a graph is compiled to."""
    specs = {name: graph.tensors[name] for name in (*graph.inputs, *graph.outputs)}
    device.open(1)
    try:
        views = {n: device.view(host_arena(spec.nbytes), 0, spec) for n, spec in specs.items()}
        program = (
            device.compile(graph, views)
            if cores is None
            else device.compile_on(cores, graph, views)
        )
        assert isinstance(program, OrtProgram)
        return program._session.inference.get_session_options()
    finally:
        device.close()


@pytest.fixture(autouse=True)
def _four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ort_device, "count_cores", lambda: 4)


@pytest.mark.parametrize(
    ("cores", "count", "spins"), [(None, 1, "0"), (1, 1, "0"), (3, 3, "0"), (4, 4, "1")]
)
def test_a_large_program_has_the_cores_and_spins_on_all_of_them(
    cores: int | None, count: int, spins: str
) -> None:
    found = chosen(OrtDevice(), LARGE, cores)
    assert found.intra_op_num_threads == count
    assert found.get_session_config_entry(SPINNING) == spins
    if spins == "1":
        assert found.get_session_config_entry(STOPPING) == "1", "not between runs"


def test_a_small_program_has_no_threads_of_its_own() -> None:
    found = chosen(OrtDevice(), doubling(), 4)
    assert found.intra_op_num_threads == 1
    assert found.get_session_config_entry(SPINNING) == "0"


@pytest.mark.parametrize("cores", [1, 4])
def test_what_the_user_says_of_threads_is_taken_at_their_word(cores: int) -> None:
    found = chosen(OrtDevice(threads=2, spinning=cores == 1), doubling(), cores)
    assert found.intra_op_num_threads == 2
    assert found.get_session_config_entry(SPINNING) == ("1" if cores == 1 else "0")


def test_threads_are_no_more_than_the_cores_that_they_are_bound_to() -> None:
    assert chosen(OrtDevice(affinity=(0,)), LARGE, 4).intra_op_num_threads == 1
    assert chosen(OrtDevice(affinity=(0, 1)), LARGE, 4).intra_op_num_threads == 2


def test_many_small_programs_have_one_pool_between_them_that_is_none() -> None:
    sessions = Sessions("ort")
    device = OrtDevice()
    threads = {device._threads_for(products(n, 8), 4) for n in range(1, 13)}
    assert threads == {ONE_THREAD}
    first, second = (sessions.of(graph, ONE_THREAD) for graph in (doubling(), doubling()))
    assert first.model is second.model


def test_no_thread_spins_while_other_programs_want_the_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spins = []
    for figures, load in (("off", 99.0), ("on", 1.9), ("on", 2.0)):
        monkeypatch.setenv("PLAIT_FIGURES", figures)
        monkeypatch.setattr("os.getloadavg", lambda of=load: (of * 4, 0.0, 0.0))
        device = OrtDevice(threads=2)
        spins.append(device._threads_for(doubling(), 4).spinning)
    assert spins == [True, True, False]
    assert OrtDevice(threads=2, spinning=True)._threads_for(doubling(), 1).spinning


def test_a_thread_for_each_core_spins_though_the_plan_leaves_it_one() -> None:
    assert OrtDevice(threads=4)._threads_for(doubling(), 1) == Threads(4, True)
    assert OrtDevice(threads=2)._threads_for(doubling(), 1) == Threads(2, False)


def test_a_network_of_half_a_millisecond_has_one_thread() -> None:
    assert choose_threads(0.9e-3, 8, spinning=True) == ONE_THREAD
    assert choose_threads(1e-3, 8, spinning=True) == Threads(2, True)


@given(st.floats(0, 1, allow_nan=False), st.integers(1, 64), st.booleans())
def test_more_work_never_has_fewer_threads_nor_more_than_there_are(
    seconds: float, most: int, spinning: bool
) -> None:
    found = choose_threads(seconds, most, spinning=spinning)
    more = choose_threads(2 * seconds, most, spinning=spinning)
    assert 1 <= found.count <= more.count <= most
    assert found.spinning == (spinning and found.count > 1)
    assert 1 <= compute_speedup(found) <= found.count


def test_work_is_that_of_the_model() -> None:
    one = estimate_work_s(products(1), "ort")
    assert estimate_work_s(products(20), "ort") == pytest.approx(20 * one)
    assert estimate_work_s(products(20), "ort", 4.5 * one) == pytest.approx(5 * one), (
        "that is enough"
    )


def test_it_says_how_much_faster_it_is_and_on_what_it_computes() -> None:
    device = OrtDevice()
    assert isinstance(device, Scaling)
    assert device.speedup(1.0, 1) == device.speedup(1e-6, 4) == 1.0
    assert device.speedup(1.0, 4) > device.speedup(1.0, 3) > 1.0
    assert device.computes_on(1) == "1 thread"
    assert device.computes_on(3) == "3 threads"
    assert device.computes_on(4) == "4 threads, spinning"
    assert OrtDevice(threads=2).computes_on(1) == "2 threads"


@pytest.mark.parametrize(("text", "value"), [("yes", True), ("no", False), ("True", True)])
def test_spinning_is_said_as_a_value_or_as_text(text: str, value: bool) -> None:
    for said in (text, value):
        device = pl.device("ort", spinning=said)
        assert isinstance(device, OrtDevice)
        assert device.options == {"spinning": value}


@pytest.mark.parametrize("said", ["2", 1, None, "ye"])
def test_spinning_is_yes_or_no(said: object) -> None:
    with pytest.raises(pl.DeviceError, match="option 'spinning'") as raised:
        pl.device("ort", spinning=said)
    assert raised.value.fix == "it takes True or False; as text yes or no"
    with pytest.raises(pl.DeviceError, match="has no option 'spinning'"):
        pl.device("cpu", spinning=True)


def test_threads_that_spin_compute_the_same() -> None:
    x = np.random.default_rng(0).standard_normal((128, 128), np.float32)
    given = [pl.device("ort", threads=2, spinning=True)]
    found = pl.run(products(3), {"x": x}, devices=given)["y"]
    np.testing.assert_allclose(found, x, rtol=1e-5)
    assert Threads(2, True) != Threads(2)
