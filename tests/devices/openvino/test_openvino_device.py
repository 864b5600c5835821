"""The device `openvino`: definitions of ONNX, data of each item, exact integers, its package."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from importlib.util import find_spec
from typing import Any

import numpy as np
import plait as pl
import pytest
import trio
from bound import Bound
from onnx_suite import Case, check_like_onnx, suite
from plait.devices import find, probe
from plait.devices.openvino import device as device_module
from plait.devices.openvino import engine
from plait.graph.values.extras import get_install_command
from plait.graph.values.tensor import Array

SIDE = 64

needs_openvino = pytest.mark.skipif(find_spec("openvino") is None, reason="openvino is missing")


@pl.operator(pl.TensorSpec("float32", (4, SIDE)), name="test_openvino_device.double")
def double(x: Array) -> Array:
    return x + x


def make_layers(rows: int | str = "n") -> pl.Graph:
    """Return y = relu(x·w), with weights that OpenVINO reads in place."""
    b = pl.GraphBuilder("layers")
    weights = np.random.default_rng(1).standard_normal((SIDE, SIDE), np.float32)
    product = b.op("MatMul", b.input("x", "float32", (rows, SIDE)), weights, name="product")
    b.output("y", b.op("Relu", product, name="relu"))
    return b.build()


def make_rows(seed: int, count: int = 4) -> Array:
    return np.random.default_rng(seed).standard_normal((count, SIDE), np.float32)


def compute(x: Array) -> Array:
    (weights,) = make_layers().constants.values()
    return np.maximum(x.astype(np.float64) @ weights.astype(np.float64), 0).astype(np.float32)


@pytest.mark.parametrize("package", ["openvino", "onnx"])
def test_without_its_packages_it_says_what_to_install(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("openvino", "onnx"):
        monkeypatch.setitem(sys.modules, name, None if name == package else object())
    with pytest.raises(pl.DeviceUnavailableError, match=f"'{package}', which is not") as raised:
        engine.load_runtime.__wrapped__()
    assert raised.value.fix == get_install_command("openvino")


def test_a_failed_import_is_no_refusal_of_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "version", lambda _: "2026.4.1")
    for module in (engine, device_module):
        monkeypatch.setattr(module, "load_runtime", fail)
    monkeypatch.setattr(engine, "_make_core", fail)
    device = find("openvino")
    assert device.capabilities.software == "openvino 2026.4.1"
    device.open()
    with pytest.raises(pl.DeviceUnavailableError, match="does not load"):
        device.compile(make_layers(2), {})
    device.close()


def fail() -> None:
    raise pl.DeviceUnavailableError("it does not load")


@needs_openvino
def test_it_passes_the_check_and_computes_in_float32() -> None:
    assert probe("openvino").found
    x = make_rows(0)
    exact = pl.run(make_layers(), {"x": x}, "openvino")["y"]
    np.testing.assert_allclose(exact, compute(x), rtol=0, atol=1e-4)


@needs_openvino
def test_its_import_is_not_reported() -> None:
    """In a process of its own, as openvino reports each first import."""
    code = (
        "import sys, plait as pl; pl.devices.probe('openvino'); "
        "print([m for m in sys.modules if m.startswith('openvino_telemetry') and sys.modules[m]])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@needs_openvino
@pytest.mark.parametrize(
    ("op", "dtype", "attributes", "refused"),
    [
        ("Relu", "float32", {}, ""),
        ("Abs", "int32", {}, ""),
        ("Abs", "int64", {}, "int64 in another type"),
        ("Relu", "float64", {}, "float64 in another type"),
        ("ReduceMax", "float32", {}, "largest finite"),
        ("Dropout", "float32", {}, "passes on an input"),
    ],
)
def test_differences_from_onnx_are_refused(
    op: str, dtype: str, attributes: dict[str, Any], refused: str
) -> None:
    b = pl.GraphBuilder("one")
    b.output("y", b.op(op, b.input("x", dtype, (2, 3, 3)), **attributes))
    graph = b.build()
    (node,) = graph.nodes
    answer = find("openvino").supports(node, graph.call(node))
    assert answer.ok == (not refused)
    assert refused in answer.reason


@needs_openvino
@pytest.mark.extended
def test_supported_cases_of_onnx_have_its_results() -> None:
    cases: list[Case] = [case for cases in suite().nodes.values() for case in cases]
    device, checked = find("openvino"), 0
    device.open()
    with closing(device):
        for case in (*cases, *suite().functions):
            if all(device.supports(node, case.graph.call(node)).ok for node in case.graph.nodes):
                with Bound(device, case.graph) as bound:
                    check_like_onnx(case, bound.run(case.inputs))
                checked += 1
    assert checked > 900


@needs_openvino
@pytest.mark.parametrize(
    "devices",
    [["openvino"], ["openvino:0..1"], ["openvino", "cpu"], ["openvino", "worker:0"]],
    ids=",".join,
)
def test_items_in_flight_have_their_own_data(devices: list[str]) -> None:
    b = pl.GraphBuilder("two")
    x = b.input("x", "float32", ("n", SIDE))
    first = b.include(make_layers(), {"x": x}, "first/")
    b.output("y", b.include(make_layers(), {"x": first["y"]}, "second/")["y"])
    pins = {"second/*": devices[-1]} if len(devices) > 1 else {}
    plan = pl.plan(b.build(), devices, pin=pins, max_in_flight=4)
    items = [make_rows(n, 1 + n % 3) for n in range(12)]

    async def stream() -> list[Any]:
        async with pl.Session(plan) as session, session.stream({"x": x} for x in items) as results:
            return [result["y"].copy() async for result in results]

    for x_, y in zip(items, trio.run(stream), strict=True):
        np.testing.assert_allclose(y, compute(compute(x_)), rtol=1e-5, atol=1e-3)


@needs_openvino
def test_donated_results_of_functions_are_read_in_place() -> None:
    b = pl.GraphBuilder("donated")
    doubled = b.call(double, b.input("x", "float32", (4, SIDE)))
    b.output("y", b.include(make_layers(), {"x": doubled}, "net/")["y"])
    plan = pl.plan(b.build(), ["openvino", "cpu"], pin={"net/*": "openvino"})
    with pl.BlockingSession(plan) as session:
        for seed in range(3):
            x = make_rows(seed)
            np.testing.assert_allclose(session.run({"x": x})["y"], compute(x + x), 1e-5, 1e-3)


@needs_openvino
@pytest.mark.parametrize("length", [1, 5])
def test_lengths_within_bounds_share_a_plan(length: int) -> None:
    plan = pl.plan(make_layers(), ["openvino"], bounds={"n": 6})
    with pl.BlockingSession(plan) as session:
        x = make_rows(length, length)
        np.testing.assert_allclose(session.run({"x": x})["y"], compute(x), 1e-5, 1e-3)


@needs_openvino
def test_the_report_says_on_how_many_threads() -> None:
    plan = pl.plan(make_layers(4), [pl.device("openvino", threads=2)])
    assert "openvino: 2 threads" in plan.report()
