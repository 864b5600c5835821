"""Models of devices."""

from __future__ import annotations

import json
import math
import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import plait as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plait.devices import find
from plait.devices.errors import DeviceError
from plait.devices.kinds import MODELS, get_model
from plait.devices.model import LONGEST_S, DeviceModel, name_family
from plait.devices.opencl.device import OpenClDevice, estimate_model
from plait.devices.sim import SimDevice, SimModel
from plait.graph.core.ir import Graph
from plait.graph.core.operator import Cost
from pocl import pocl_device

positive = st.floats(1e-12, 1e15)


@given(
    positive,
    st.floats(0, LONGEST_S),
    positive,
    st.none() | st.integers(0, 1 << 40),
    st.integers(0, 2),
    st.none() | positive,
)
def test_a_model_is_the_same_after_a_trip_through_json(
    speed: float,
    launch: float,
    factor: float,
    memory: int | None,
    queues: int,
    peer_speed: float | None,
) -> None:
    model = DeviceModel(
        flops_per_s=speed,
        launch_s=launch,
        memory_bytes=memory,
        copy_queues=queues,
        operators={"Conv": factor},
        supports=frozenset({"Conv", "Relu"}),
        peer_bytes_per_s=peer_speed,
        peers=frozenset({"npu:1", "npu:2"}),
        layout_bytes_per_s=peer_speed,
    )
    assert DeviceModel.from_dict(json.loads(json.dumps(model.to_dict()))) == model


def test_what_a_file_leaves_out_has_its_default() -> None:
    assert DeviceModel.from_dict({"launch_s": 1}) == DeviceModel(launch_s=1.0)


def test_an_operator_can_be_slower_than_its_arithmetic_says() -> None:
    model = DeviceModel(flops_per_s=10, bytes_per_s=1e9, launch_s=1, operators={"Conv": 3})
    assert model.kernel_s("Conv", Cost(20, 0)) == 7
    assert model.kernel_s("Relu", Cost(20, 0)) == 3


TIMES = "copy_latency_s", "launch_s", "submit_s"
SPEEDS = "flops_per_s", "bytes_per_s", "copy_bytes_per_s"

DAMAGED: dict[str, tuple[Any, str]] = {
    "no object": ([], "a device's model is"),
    "unknown": ({"speed": 1}, "has no figure 'speed'"),
    "text": ({"flops_per_s": "fast"}, "flops_per_s is 'fast'"),
    "a boolean": ({"launch_s": True}, "launch_s is True"),
    "no number": ({"launch_s": float("nan")}, "launch_s is nan"),
    "huge": ({"launch_s": 10**400}, "launch_s is 1000"),
    "zero speed": ({"bytes_per_s": 0}, "bytes_per_s is 0"),
    "negative": ({"submit_s": -1}, "submit_s is -1"),
    "half a byte": ({"memory_bytes": 0.5}, "memory_bytes is 0.5"),
    "factors": ({"operators": ["Conv"]}, "operators is"),
    "a factor": ({"operators": {"Conv": 0}}, "factor of 'Conv' is 0"),
    "names": ({"supports": "Conv"}, "supports is 'Conv'"),
    "a name": ({"supports": [1]}, "supports is"),
    "no peer speed": ({"peer_bytes_per_s": 0}, "peer_bytes_per_s is 0"),
    "no layout speed": ({"layout_bytes_per_s": -1}, "layout_bytes_per_s is -1"),
    "peers": ({"peers": "npu:1"}, "peers is 'npu:1'"),
    "a peer": ({"peers": [1]}, "peers is"),
    "queues": ({"copy_queues": 3}, "copy_queues is 3"),
}


@pytest.mark.parametrize(("values", "message"), DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_model_is_refused_with_the_place(values: Any, message: str) -> None:
    with pytest.raises(DeviceError, match=message) as caught:
        DeviceModel.from_dict(values, at="npu.json")
    assert caught.value.at == "npu.json"
    assert caught.value.fix


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, value) for name in TIMES for value in (-1.0, math.nan, math.inf, "1", None)),
        *((name, value) for name in SPEEDS for value in (0, -1, math.nan, "fast", True)),
        *(("memory_bytes", value) for value in (-1, math.nan, math.inf, "much")),
    ],
)
def test_a_figure_beyond_reason_is_refused_by_its_name(name: str, value: Any) -> None:
    with pytest.raises(DeviceError, match=re.escape(f"{name} is {value!r}")) as caught:
        DeviceModel(**{name: value})
    assert caught.value.fix


@pytest.mark.parametrize("factor", [0, -1, math.nan, math.inf, "2", None])
def test_a_factor_beyond_reason_is_refused_with_its_operator(factor: Any) -> None:
    with pytest.raises(DeviceError, match=f"factor of 'Relu' is {factor!r}"):
        DeviceModel(operators={"Relu": factor})


def test_a_peer_is_copied_from_as_fast_as_the_host_unless_the_model_says_otherwise() -> None:
    model = DeviceModel(copy_latency_s=1, copy_bytes_per_s=4)
    assert model.peer_copy_s(8) == model.copy_s(8) == 3
    assert DeviceModel(copy_latency_s=1, peer_bytes_per_s=2).peer_copy_s(8) == 5


def test_a_question_about_nodes_is_not_written_to_a_file() -> None:
    with pytest.raises(DeviceError, match="function"):
        DeviceModel(supports=lambda node: True).to_dict()


def test_a_device_with_a_model_of_its_own_is_taken_at_its_word() -> None:
    model = SimModel(flops_per_s=1)
    assert get_model(SimDevice("sim:slow", model), "sim:slow") is model


def test_kinds_have_built_in_models() -> None:
    assert get_model(find("cpu"), "cpu") is MODELS["cpu"]
    assert get_model(object(), "worker:3") is MODELS["worker"]
    assert get_model(object(), "npu:0") == DeviceModel()


def test_what_nobody_measured_or_told_is_a_guess() -> None:
    assert get_model(find("cpu"), "cpu").is_guess
    assert get_model(object(), "npu:0").is_guess
    assert not DeviceModel().is_guess
    assert not DeviceModel.from_dict(get_model(find("cpu"), "cpu").to_dict()).is_guess


def described(*, processor: bool, units: int, mhz: int, unified: bool = False) -> Any:
    """Return what OpenCL says of a device."""
    return SimpleNamespace(
        type=2 if processor else 4,
        max_compute_units=units,
        max_clock_frequency=mhz,
        global_mem_size=8 << 30,
        host_unified_memory=unified,
    )


def test_an_opencl_device_is_modelled_on_what_opencl_says_of_it() -> None:
    processor = estimate_model(described(processor=True, units=2, mhz=2600))
    card = estimate_model(described(processor=False, units=40, mhz=1700))
    inside = estimate_model(described(processor=False, units=24, mhz=1150, unified=True))
    assert 1e8 < processor.flops_per_s < 1e10
    assert 1e9 < processor.bytes_per_s < 1e10
    assert 1e12 < card.flops_per_s < 1e13
    assert 1e11 < card.bytes_per_s < 1e12
    assert processor.flops_per_s < inside.flops_per_s < card.flops_per_s
    assert inside.bytes_per_s == 3e10
    for model in (processor, card, inside):
        assert model.is_guess
        assert model.memory_bytes == 8 << 30
    assert estimate_model(described(processor=False, units=0, mhz=0)).flops_per_s > 0


def test_pocl_is_predicted_to_be_slower_than_the_cpu() -> None:
    """Its kernels are written for graphics cards."""
    b = pl.GraphBuilder("product")
    x = b.input("x", "float32", (256, 256))
    b.output("y", b.op("MatMul", x, x))
    device = OpenClDevice(device=pocl_device())
    model = get_model(device, "opencl:0")
    plan = pl.plan(b.build(), ["cpu", device])
    assert set(plan.assignment.values()) == {"cpu"}
    assert model.kernel_s("MatMul", Cost(2 * 256**3, 3 << 18)) > 1e-3


# families of kernels


def convolution(features: int, side: int, groups: int) -> Graph:
    b = pl.GraphBuilder("convolution")
    x = b.input("x", "float32", (1, 16, 16, 16))
    weights = np.ones((features, 16 // groups, side, side), np.float32)
    b.output("y", b.op("Conv", x, weights, group=groups))
    return b.build()


@pytest.mark.parametrize(
    ("features", "side", "groups", "expected"),
    [
        (16, 3, 1, "Conv"),
        (9, 3, 1, "Conv"),
        (8, 3, 1, "Conv to 8"),
        (5, 3, 1, "Conv to 8"),
        (3, 3, 1, "Conv to 4"),
        (2, 3, 1, "Conv to 2"),
        (1, 3, 1, "Conv to 1"),
        (16, 1, 1, "Conv pointwise"),
        (1, 1, 1, "Conv pointwise"),
        (16, 3, 8, "Conv depthwise"),
        (8, 1, 8, "Conv depthwise"),
    ],
)
def test_convolutions_of_different_forms_have_kernels_of_their_own(
    features: int, side: int, groups: int, expected: str
) -> None:
    graph = convolution(features, side, groups)
    assert name_family(graph, graph.nodes[0]) == expected


def test_a_family_has_its_operators_factor_unless_it_has_one() -> None:
    model = DeviceModel(flops_per_s=10, launch_s=1, operators={"Conv": 3.0, "Conv depthwise": 5.0})
    assert model.kernel_s("Conv depthwise", Cost(20, 0)) == 11
    assert model.kernel_s("Conv pointwise", Cost(20, 0)) == 7


def test_built_in_figures_know_which_device_is_fast_at_what() -> None:
    large = Cost(10**8, 10**6)
    times = {kind: MODELS[kind].kernel_s("LRN", large) for kind in ("cpu", "compiled", "ort")}
    assert times["ort"] > 5 * times["compiled"]
    times = {k: MODELS[k].kernel_s("Conv to 1", large) for k in ("cpu", "compiled", "ort")}
    assert times["ort"] > 2 * times["cpu"] > 2 * times["compiled"]
    times = {k: MODELS[k].kernel_s("Conv depthwise", large) for k in ("cpu", "compiled", "ort")}
    assert times["cpu"] > times["compiled"] > times["ort"]
