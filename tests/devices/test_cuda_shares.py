"""Shares of a GPU as devices: names, multiprocessors, streams, results; on a fake GPU."""

from __future__ import annotations

import sys
from contextlib import closing
from itertools import pairwise
from typing import Any

import numpy as np
import plait as pl
import pytest
import trio
from cuda_core_double import CudaCoreDouble, CUDAError
from cupy_double import CupyDouble
from fake_gpu import SEEDS
from hypothesis import given, settings
from hypothesis import strategies as st
from patience import WAIT_S
from plait.devices import Device
from plait.devices.cuda.device import CudaDevice
from plait.devices.cuda.names import parse_name, parse_share
from plait.devices.cuda.shares import Share, find_share
from plait.devices.errors import DeviceUnavailableError
from plait.devices.kinds import guess, guess_memory
from plait.graph.values.extras import get_install_command
from plait.scheduler.plans.placement import Transfer
from virtual_streams import layered_graphs

from .rig import chain
from .test_cuda_peers import results_of

LOW, HIGH = "cuda:0/0-40", "cuda:0/40-100"


def shares(double: CupyDouble, *names: str, **options: Any) -> list[CudaDevice]:
    core = CudaCoreDouble(double)
    return [double.device(name, core=core, **options) for name in names]


def numbers_of(share: Share) -> list[int]:
    return sorted(number for resource in share.resources for number in resource.numbers)


@pytest.mark.parametrize(
    "name",
    ["cuda:0/", "cuda:0/40", "cuda:0/40-40", "cuda:0/50-40", "cuda:0/0-101", "cuda:x/0-40",
     "cuda:0/0-40%", "cuda:0/0-40/2", "cuda:0/-40", "cuda:0/0..40"],
)  # fmt: skip
def test_what_is_no_range_of_percent_is_no_share(name: str) -> None:
    with pytest.raises(DeviceUnavailableError, match="is not a share of a CUDA device") as raised:
        pl.device(name)
    assert "'cuda:0/0-40' and 'cuda:0/40-100'" in (raised.value.fix or "")


@pytest.mark.parametrize("name", ["cuda", "cuda:0", "cpu", "worker:1", "ray:enc/cuda:0/0-40"])
def test_other_devices_are_no_shares(name: str) -> None:
    assert parse_share(name) is None


def test_a_name_says_what_is_known_without_a_gpu() -> None:
    assert guess_memory(LOW) == guess_memory("cuda:0") == "cuda:0"
    whole, part = guess("cuda:0"), guess(LOW)
    assert part.flops_per_s == pytest.approx(0.4 * whole.flops_per_s)
    assert part.bytes_per_s == pytest.approx(0.4 * whole.bytes_per_s)
    assert part.copy_bytes_per_s == whole.copy_bytes_per_s
    assert part.is_guess


@given(
    st.lists(st.integers(1, 99), unique=True, max_size=5).map(sorted),
    st.integers(8, 200),
    st.sampled_from([1, 2, 4, 8]),
)
def test_ranges_that_meet_divide_a_gpu(cuts: list[int], count: int, granularity: int) -> None:
    core = CudaCoreDouble(CupyDouble(), count, granularity)
    ends, found = [0, *cuts, 100], []
    for first, last in pairwise(ends):
        name = f"cuda:0/{first}-{last}"
        try:
            share = find_share(name, parse_name(name), core)
        except DeviceUnavailableError:
            assert (last - first) / 100 * count < 3 * granularity, "empty though large enough"
            continue
        assert share.total == count
        assert share.multiprocessors == len(numbers_of(share))
        assert abs(share.multiprocessors - (last - first) / 100 * count) <= 3 * granularity
        found += numbers_of(share)
    assert found == list(range(count))  # none twice, none left out


def test_a_share_is_in_the_memory_of_its_gpu(double: CupyDouble) -> None:
    low, high = shares(double, LOW, HIGH)
    for device, count in ((low, 56), (high, 76)):
        offers = device.capabilities
        assert offers.memory == "cuda:0"
        assert offers.accesses == {"cuda:0"}
        assert offers.software == f"cupy 14.0.1, {count} of 132 multiprocessors"


def test_a_share_that_rounds_to_nothing_says_how_large_one_is(double: CupyDouble) -> None:
    (device,) = shares(double, "cuda:0/10-12")
    with pytest.raises(DeviceUnavailableError, match="'cuda:0/10-12' has no multi") as raised:
        device.open()
    assert "the 132 of cuda:0 are divided by 8" in raised.value.what
    assert raised.value.fix == "give it more: 8 are 7 %"


def test_without_cuda_core_the_message_says_how_to_get_it(
    double: CupyDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cuda.core", None)
    with pytest.raises(DeviceUnavailableError, match="which divides a GPU into shares, is not in"):
        double.device(LOW).capabilities  # noqa: B018
    status = _probed(double.device(LOW))
    assert get_install_command("cuda") in (status.fix or "")
    with closing(double.device("cuda:0")) as whole:
        whole.open()  # needs none


def _probed(device: CudaDevice) -> DeviceUnavailableError:
    with pytest.raises(DeviceUnavailableError) as raised:
        device.open()
    return raised.value


def test_a_driver_without_shares_is_named(
    double: CupyDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise CUDAError("CUDA_ERROR_NOT_SUPPORTED: operation not supported\nmore")

    (device,) = shares(double, LOW)
    monkeypatch.setattr("cuda_core_double.SMResource.split", refuse)
    error = _probed(device)
    assert "cuda:0 cannot be divided into shares: CUDA_ERROR_NOT_SUPPORTED" in error.what
    assert "'cuda:0'" in (error.fix or "")
    assert "580" in (error.fix or "")


def test_a_share_that_does_not_start_is_unavailable(
    double: CupyDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise CUDAError("CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION: invalid")

    (device,) = shares(double, LOW)
    monkeypatch.setattr("cuda_core_double.Device.create_context", refuse)
    assert f"{LOW!r} does not start: CUDA_ERROR_INVALID_RESOURCE" in _probed(device).what


@pytest.mark.parametrize("graphs", [True, False], ids=["as graphs", "one by one"])
def test_all_kernels_of_a_share_run_on_its_multiprocessors(
    double: CupyDouble, graphs: bool
) -> None:
    pytest.importorskip("pyopencl")
    b = pl.GraphBuilder()
    x = b.input("x", "float32", (4, 6))
    product = b.op("MatMul", b.op("Relu", x), np.eye(6, dtype=np.float32))
    b.output("y", b.op("Einsum", b.op("Transpose", product), equation="ij->i"))
    core = CudaCoreDouble(double)
    for name, numbers in ((LOW, range(56)), (HIGH, range(56, 132))):
        double.gpu.kernels_on.clear()
        device = double.generating(name, core=core, graphs=graphs)
        x_item = np.arange(24, dtype=np.float32).reshape(4, 6)
        plan = pl.plan(b.build(), [device])
        with pl.BlockingSession(plan) as session:
            found = session.run({"x": x_item})["y"]
        assert found.tolist() == x_item.sum(0).tolist()
        assert double.gpu.kernels_on == {frozenset(numbers)}


def test_a_share_closes_and_opens_again(double: CupyDouble) -> None:
    (device,) = shares(double, LOW)
    for _ in range(2):
        with closing(device):
            device.open()
            device.arena("cuda:0", 512).close()


def diamond() -> pl.Graph:
    """Return x → Relu → (Add | Neg) → Mul → y, for two devices to share."""
    b = pl.GraphBuilder("diamond")
    x = b.op("Relu", b.input("x", "float32", (8,)), name="first")
    left, right = b.op("Add", x, x, name="left"), b.op("Neg", x, name="right")
    b.output("y", b.op("Mul", left, right, name="last"))
    return b.build()


PINS = {"first": LOW, "left": LOW, "right": HIGH, "last": HIGH}


@pytest.mark.parametrize("seed", SEEDS)
def test_shares_read_what_others_wrote_where_it_is(seed: int) -> None:
    double = CupyDouble(seed)
    plan = pl.plan(diamond(), shares(double, LOW, HIGH), pin=PINS, max_in_flight=3)
    assert plan.placement is not None
    moved = [step.work.name for step in plan.placement.steps if isinstance(step.work, Transfer)]
    assert len(moved) == 2, "more than the input and the result"
    items = [np.arange(8, dtype=np.float32) - number for number in range(6)]

    async def run() -> None:
        with trio.fail_after(WAIT_S):
            async with pl.Session(plan) as session:
                async with session.stream({"x": x} for x in items) as results:
                    async for item in results:
                        x = np.maximum(items[item.index], 0)
                        assert item["y"].tolist() == (-2 * x * x).tolist()

    trio.run(run)


@settings(max_examples=25, deadline=None)
@given(layered_graphs(), st.integers(0, 15), st.integers(1, 3), st.data())
def test_a_graph_over_shares_and_the_cpu_is_right_in_any_order(
    graph: pl.Graph, seed: int, in_flight: int, data: st.DataObject
) -> None:
    """With more items than slots: memory is used again, by whichever share is next."""
    double = CupyDouble(seed)
    places = st.sampled_from([LOW, HIGH, LOW, HIGH, "cpu"])
    pins = {node.name: data.draw(places) for node in graph.nodes}
    used: list[Device | str] = [*shares(double, LOW, HIGH), "cpu"]
    plan = pl.plan(graph, used, pin=pins, max_in_flight=in_flight)
    feeds = [
        {name: np.arange(64, dtype=np.int32) * (item + 2) - 9 for name in graph.inputs}
        for item in range(in_flight + 3)
    ]
    for fed, found in zip(feeds, trio.run(results_of, plan, double, feeds), strict=True):
        for name, wanted in pl.run(graph, fed, ["cpu"]).items():
            np.testing.assert_array_equal(found[name], wanted)


def test_a_share_does_not_wait_on_the_host_for_another(double: CupyDouble) -> None:
    low, high = shares(double, LOW, HIGH)
    low.open()
    high.open()
    arena = low.arena("cuda:0", 1024)
    spec = pl.TensorSpec("float32", (4,))
    inside = [low.view(arena, offset, spec) for offset in (0, 512)]
    programs = [
        device.compile(chain("Relu"), dict(zip(names, inside, strict=True)))
        for device, names in ((low, ("x", "y")), (high, ("y", "x")))
    ]
    with double.gpu.paused():
        event = low.submit(programs[0])
        later = high.submit(programs[1], [event])
        assert not later.done
    later.wait(WAIT_S)
    for device in (low, high):
        device.close()
    del programs, inside
    arena.close()


def test_costs_of_a_share_follow_those_measured_of_its_gpu(double: CupyDouble) -> None:
    measured = pl.Costs(models={"cuda:0": pl.DeviceModel(flops_per_s=1e13, bytes_per_s=1e12)})
    plan = pl.plan(chain("Relu"), shares(double, LOW, HIGH), costs=measured)
    for name, fraction in ((LOW, 0.4), (HIGH, 0.6)):
        model = plan.costs.model(name)
        assert model.flops_per_s == pytest.approx(fraction * 1e13)
        assert not model.is_guess
    own = measured.merged(pl.Costs(models={LOW: pl.DeviceModel(flops_per_s=7e12)}))
    assert own.model(LOW).flops_per_s == 7e12
    kind = pl.Costs(models={"cuda": pl.DeviceModel(flops_per_s=2e13)})
    assert kind.model(HIGH).flops_per_s == pytest.approx(1.2e13)


def test_independent_halves_are_predicted_side_by_side() -> None:
    double = CupyDouble()
    b = pl.GraphBuilder()
    for name in "ab":
        x = b.input(f"x{name}", "float32", (512, 512))
        for number in range(16):
            x = b.op("MatMul", x, x, name=f"{name}{number}")
        b.output(f"y{name}", x)
    graph = b.build()
    pins = {"a*": "cuda:0/0-50", "b*": "cuda:0/50-100"}
    both = shares(double, "cuda:0/0-50", "cuda:0/50-100")
    together = pl.simulate(pl.plan(graph, both, pin=pins)).makespan_s
    alone = pl.simulate(pl.plan(graph, both[:1])).makespan_s
    assert together < 0.75 * alone
