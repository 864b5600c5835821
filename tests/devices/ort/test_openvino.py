"""The device ort:openvino: exact where it says so, every item its own data, every option heard."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import plait as pl
import pytest
import trio
from bound import Bound
from onnx_suite import Case, check_like_onnx, suite
from openvino_anywhere import require_openvino
from plait.devices import find
from plait.devices.device import Device, Profiled
from plait.graph.values.tensor import Array

STRIDE = 12
"""Of ONNX's cases: each is compiled, which takes a fifth of a second."""

SIDE = 64


@pytest.fixture(scope="module")
def device() -> Iterator[Device]:
    require_openvino()
    made = find("ort:openvino")
    made.open()
    yield made
    made.close()


@pl.operator(pl.TensorSpec("float32", (4, SIDE)), name="test_openvino.double")
def double(x: Array) -> Array:
    """Return a new array, which is given away."""
    return x + x


def layers(*, name: str = "layers") -> pl.Graph:
    """Return y = relu(x·w), whose numbers tell float32 from bfloat16."""
    b = pl.GraphBuilder(name)
    weights = np.random.default_rng(1).standard_normal((SIDE, SIDE), np.float32)
    product = b.op("MatMul", b.input("x", "float32", ("n", SIDE)), weights, name="product")
    b.output("y", b.op("Relu", product, name="relu"))
    return b.build()


def rows(seed: int, count: int = 4) -> Array:
    return np.random.default_rng(seed).standard_normal((count, SIDE), np.float32)


def wanted(x: Array) -> Array:
    (weights,) = layers().constants.values()
    return np.maximum(x.astype(np.float64) @ weights.astype(np.float64), 0).astype(np.float32)


# What it is, and takes


def test_it_says_what_it_is(device: Device) -> None:
    software = device.capabilities.software
    assert software.startswith("OpenVINOExecutionProvider 1.")
    assert "of onnxruntime 1." in software


@pytest.mark.parametrize(
    ("op", "dtype", "refused"),
    [
        ("Neg", "float32", ""),
        ("Neg", "float16", ""),
        ("Neg", "int64", "computes int64 in another type"),
        ("Neg", "float64", "computes float64 in another type"),
        ("Det", "float32", "OpenVINOExecutionProvider does not take it"),
    ],
)
def test_what_it_computes_otherwise_goes_elsewhere(
    device: Device, op: str, dtype: str, refused: str
) -> None:
    b = pl.GraphBuilder("one")
    b.output("y", b.op(op, b.input("x", dtype, (2, 3, 3))))
    graph = b.build()
    (node,) = graph.nodes
    answer = device.supports(node, graph.call(node))
    assert answer.ok == (not refused)
    assert refused in answer.reason


def all_cases() -> list[Case]:
    return [case for cases in suite().nodes.values() for case in cases]


@pytest.mark.extended
def test_what_it_takes_gives_what_onnx_says(device: Device) -> None:
    cases = [
        case
        for case in all_cases()[::STRIDE]
        if all(device.supports(node, case.graph.call(node)).ok for node in case.graph.nodes)
    ]
    assert len(cases) > 50
    for case in cases:
        with Bound(device, case.graph) as bound:
            check_like_onnx(case, bound.run(case.inputs))


# What it computes


def test_float32_stays_so_unless_another_precision_is_asked_for(device: Device) -> None:
    x = rows(0)
    exact = pl.run(layers(), {"x": x}, devices=["ort:openvino"])["y"]
    np.testing.assert_allclose(exact, wanted(x), rtol=0, atol=1e-4)
    if "BF16" in _capabilities():
        rounded = pl.run(layers(), {"x": x}, devices=[pl.device("ort:openvino", precision="bf16")])
        assert np.abs(rounded["y"] - wanted(x)).max() > 1e-3


def _capabilities() -> str:
    import onnxruntime

    listed = (one for one in onnxruntime.get_ep_devices() if one.ep_name.startswith("OpenVINO"))
    return " ".join(dict(one.ep_metadata).get("OPTIMIZATION_CAPABILITIES", "") for one in listed)


@pytest.mark.parametrize(
    "devices",
    [
        ["ort:openvino"],
        ["ort:openvino:0..1"],
        ["ort:openvino", "cpu"],
        ["ort:openvino", "ort"],
        ["ort:openvino", "worker:0"],
    ],
    ids=",".join,
)
def test_every_item_of_a_stream_has_its_own_data(device: Device, devices: list[str]) -> None:
    """Also two models one behind the other, and lengths that differ."""
    b = pl.GraphBuilder("two")
    x = b.input("x", "float32", ("n", SIDE))
    first = b.include(layers(), {"x": x}, "first/")
    b.output("y", b.include(layers(), {"x": first["y"]}, "second/")["y"])
    pins = {"second/*": devices[-1]} if len(devices) > 1 else {}
    plan = pl.plan(b.build(), devices, pin=pins, max_in_flight=4)
    items = [rows(n, 1 + n % 3) for n in range(12)]

    async def stream() -> list[Any]:
        async with pl.Session(plan) as session, session.stream({"x": x} for x in items) as results:
            return [result["y"].copy() async for result in results]

    for index, (x_, y) in enumerate(zip(items, trio.run(stream), strict=True)):
        found = wanted(wanted(x_))
        np.testing.assert_allclose(y, found, rtol=1e-5, atol=1e-3, err_msg=f"item {index}")


def test_a_donated_result_is_read_where_it_lies(device: Device) -> None:
    b = pl.GraphBuilder("donated")
    doubled = b.call(double, b.input("x", "float32", (4, SIDE)))
    b.output("y", b.include(layers(), {"x": doubled}, "net/")["y"])
    plan = pl.plan(b.build(), ["ort:openvino", "cpu"], pin={"net/*": "ort:openvino"})
    with pl.BlockingSession(plan) as session:
        for seed in range(3):
            x = rows(seed)
            np.testing.assert_allclose(
                session.run({"x": x})["y"], wanted(x + x), rtol=1e-5, atol=1e-3
            )


# Options and costs


def test_what_is_compiled_is_kept_where_it_is_told_to(device: Device, tmp_path: Path) -> None:
    chosen = pl.device("ort:openvino", cache=tmp_path, threads=1)
    pl.run(layers(name="kept"), {"x": rows(0)}, devices=[chosen])
    assert [*tmp_path.iterdir()]


def test_a_saved_plan_makes_its_device_with_the_same_options(
    device: Device, tmp_path: Path
) -> None:
    chosen = pl.device("ort:openvino", precision="f16", threads=1)
    plan = pl.plan(layers(), [chosen])
    plan.save(tmp_path / "layers.plan")
    loaded: Any = pl.load_plan(tmp_path / "layers.plan").prototypes["ort:openvino"]
    assert loaded.options == {"threads": 1, "precision": "f16"}


def test_a_saved_plan_makes_no_folder(device: Device, tmp_path: Path) -> None:
    chosen = pl.device("ort:openvino", cache=tmp_path / "cache")
    pl.plan(layers(), [chosen]).save(tmp_path / "layers.plan")
    shutil.rmtree(tmp_path / "cache", ignore_errors=True)
    with pytest.raises(pl.ParseError, match="may not choose: cache"):
        pl.load_plan(tmp_path / "layers.plan")
    assert [one.name for one in tmp_path.iterdir()] == ["layers.plan"]
    loaded = pl.load_plan(tmp_path / "layers.plan", devices=[chosen])
    assert loaded.prototypes["ort:openvino"] is chosen


def test_the_report_says_on_how_many_threads(device: Device) -> None:
    chosen = pl.device("ort:openvino", threads=1)
    assert "\n  ort:openvino: 1 thread\n" in pl.plan(layers(), [chosen]).report()


def test_measured_costs_are_its_own(device: Device) -> None:
    from plait.scheduler.costs.measure import measure

    costs = measure({"ort:openvino": device})
    assert set(costs.models) == {"ort:openvino"}
    assert costs.model("ort:openvino:1") is costs.models["ort:openvino"]
    assert costs.model("ort").is_guess


def test_tuning_weighs_it_beside_others(device: Device) -> None:
    tuned = pl.tune(layers(), ["cpu", "ort:openvino"], feeds={"x": rows(0)})
    assert {"all on cpu", "all on ort:openvino"} <= {trial.name for trial in tuned.trials}
    assert "ort:openvino" in tuned.costs.programs
    assert "ort" not in tuned.costs.programs


def test_nobody_knows_how_nodes_share_its_time(device: Device) -> None:
    """They are one node to ONNX Runtime's profiler."""
    assert isinstance(device, Profiled)
    (part,) = pl.plan(layers(), ["ort:openvino"], shapes={"x": (4, SIDE)}).subgraphs
    assert device.shares(part.graph) == {}
