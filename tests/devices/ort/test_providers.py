"""Devices on providers of ONNX Runtime: their names, options, what is listed, and what is said.

The providers are made up: parts of a runtime that lists them, and computes on the processor.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import plait as pl
import pytest
import trio

pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")

import onnxruntime
from bound import Bound
from plait.devices import find, probe
from plait.devices.errors import DeviceError
from plait.devices.event import CancelledWorkError, Event
from plait.devices.kinds import get_kind, guess, guess_memory
from plait.devices.memory import HOST
from plait.devices.ort import plugins, support
from plait.devices.ort.program import OrtProgram
from plait.devices.ort.providers import PROVIDERS, Wishes, list_device_names, parse_place
from plait.graph.values.extras import get_install_command
from plait.scheduler.costs import Costs
from plait.scheduler.costs.host import is_on_host
from releases import newer_ort
from small_graphs import X, doubling

CUDA, TENSORRT = "CUDAExecutionProvider", "TensorrtExecutionProvider"


@dataclass
class Runtime:
    """ONNX Runtime with providers that it lacks; their sessions are its own."""

    built_in: tuple[str, ...] = ()
    libraries: Mapping[str, list[Any]] = field(default_factory=dict)
    listed: list[Any] = field(default_factory=list)
    told: list[tuple[str, Mapping[str, str]]] = field(default_factory=list)
    falls_back: bool = False
    __version__: str = "1.99.0"

    def get_available_providers(self) -> list[str]:
        return [*self.built_in, "CPUExecutionProvider"]

    def get_ep_devices(self) -> list[Any]:
        return self.listed

    def register_execution_provider_library(self, name: str, path: str) -> None:
        if path not in self.libraries:
            raise RuntimeError(f"[ONNXRuntimeError] : 1 : FAIL : {path} is damaged")
        self.listed = [*self.listed, *self.libraries[path]]

    def InferenceSession(  # noqa: N802
        self, model: bytes, options: Any, providers: list[Any] | None, **more: Any
    ) -> Any:
        assert options.get_session_config_entry("session.disable_cpu_ep_fallback") == "1"
        assert more["enable_fallback"] == 0
        ((registered, settings),) = providers or [(self.listed[0].ep_name, {})]
        self.told.append((registered, settings))
        own = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        first = "CPUExecutionProvider" if self.falls_back else registered
        own.get_providers = lambda: [first, "CPUExecutionProvider"]
        return own


def hardware(registered: str, kind: str, **metadata: str) -> Any:
    device = SimpleNamespace(type=SimpleNamespace(name=kind.upper()), vendor="ACME", metadata={})
    return SimpleNamespace(ep_name=registered, device=device, ep_metadata=metadata)


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Runtime]:
    """Return one with CUDA and TensorRT built in, of which nothing is known yet."""
    made = Runtime(built_in=(CUDA, TENSORRT))
    monkeypatch.setattr(plugins, "load_runtime", lambda: made)
    monkeypatch.setattr(support, "_answers", {})
    plugins._find_newest_opset.cache_clear()
    yield made
    plugins._find_newest_opset.cache_clear()


def package(monkeypatch: pytest.MonkeyPatch, name: str, path: str) -> None:
    module: Any = ModuleType(name)
    module.get_library_path = lambda: path
    monkeypatch.setitem(sys.modules, name, module)


# Names


@pytest.mark.parametrize(
    ("name", "kind", "hardware", "number"),
    [
        ("ort:openvino", "ort:openvino", "cpu", 0),
        ("ort:openvino:1", "ort:openvino", "cpu", 1),
        ("ort:openvino:cpu:1", "ort:openvino", "cpu", 1),
        ("ort:openvino:gpu", "ort:openvino:gpu", "gpu", 0),
        ("ort:openvino:gpu:1", "ort:openvino:gpu", "gpu", 1),
        ("ort:OpenVINOExecutionProvider", "ort:openvino", "cpu", 0),
        ("ort:cuda:1", "ort:cuda", "gpu", 1),
        ("ort:qnn", "ort:qnn", "npu", 0),
        ("ort:AcmeExecutionProvider:2", "ort:AcmeExecutionProvider", "any", 2),
        ("ort:AcmeExecutionProvider:npu", "ort:AcmeExecutionProvider:npu", "npu", 0),
    ],
)
def test_a_name_says_provider_hardware_and_number(
    name: str, kind: str, hardware: str, number: int
) -> None:
    place = parse_place(name)
    assert place is not None
    assert (place.kind, place.hardware, place.number) == (kind, hardware, number)
    assert get_kind(name) == kind
    assert guess_memory(name) == HOST


@pytest.mark.parametrize("name", ["ort", "ort:0", "ort:find", "ort:cpu", "cpu", "worker:openvino"])
def test_other_names_are_what_they_were(name: str) -> None:
    assert parse_place(name) is None
    assert get_kind(name) == name.partition(":")[0]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("ort:openvno", "did you mean 'ort:openvino'"),
        ("ort:openvino:gpuu", "then 'cpu' or 'gpu' or 'npu' if need be, then a number"),
        ("ort:webgpu:cpu", "write ort:webgpu, then 'gpu'"),
        ("ort:openvino:0-1", "'ort:openvino:0..1'"),
        ("ort:openvino:0..1", "name one of them: 'ort:openvino:0'"),
    ],
)
def test_slips_are_told_what_to_write(name: str, told: str) -> None:
    with pytest.raises(DeviceError) as raised:
        find(name)
    assert told in str(raised.value)


def test_every_provider_has_names_of_its_own() -> None:
    names = [name for one in PROVIDERS for name in (one.name, one.registered)]
    assert len(set(names)) == len(names)
    for one in PROVIDERS:
        assert parse_place(f"ort:{one.name}") == parse_place(f"ort:{one.registered}")


# What is known of them ahead


def test_what_was_measured_of_one_provider_is_nothing_of_another() -> None:
    model = guess("cpu")
    costs = Costs(models={"ort": model, "ort:cuda": model})
    assert costs.model("ort:openvino") is not model
    assert costs.model("ort:openvino") == guess("ort:openvino")
    assert costs.model("ort:cuda:1") is model, "of its kind"
    assert guess("ort:openvino:gpu") != guess("ort:openvino")
    assert guess("ort:AcmeExecutionProvider").is_guess


# Finding them


def test_a_provider_that_is_built_in_is_found(runtime: Runtime) -> None:
    assert find("ort:cuda:0").capabilities.software == f"{CUDA} 1.99.0 of onnxruntime " + (
        onnxruntime.__version__
    )


def test_a_package_is_registered_once_and_its_hardware_chosen(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    registered = "WebGpuExecutionProvider"
    first = hardware(registered, "gpu", version="0.4.0+x", FULL_DEVICE_NAME="one")
    runtime.libraries = {"webgpu.so": [first, hardware(registered, "gpu", version="0.4.0")]}
    package(monkeypatch, "onnxruntime_ep_webgpu", "webgpu.so")
    for _ in range(2):
        assert find("ort:webgpu").capabilities.software.startswith(f"{registered} 0.4.0 of ")
        assert find("ort:webgpu:1").capabilities.software.endswith(", on ACME gpu")
    assert find("ort:webgpu").capabilities.software.endswith(", on one")
    assert len(runtime.listed) == 2
    status = probe("ort:webgpu:2")
    assert "finds no graphics processor 2 here" in status.reason
    assert "found gpu" in status.reason


def test_hardware_that_is_made_up_to_compile_for_is_none(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    virtual = hardware("QNNExecutionProvider", "npu")
    virtual.device.metadata = {"is_virtual": "1"}
    runtime.libraries = {"qnn.so": [virtual]}
    package(monkeypatch, "onnxruntime_qnn", "qnn.so")
    assert "found nothing" in probe("ort:qnn").reason


def test_a_provider_that_somebody_registered_is_found_by_its_name(runtime: Runtime) -> None:
    runtime.listed = [hardware("AcmeExecutionProvider", "npu", version="3")]
    assert find("ort:AcmeExecutionProvider").capabilities.software.startswith("AcmeExecution")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (
            "ort:webgpu",
            f"'onnxruntime_ep_webgpu' is not installed; {get_install_command('webgpu')}",
        ),
        ("ort:dml", "has no DmlExecutionProvider; pip install onnxruntime-directml"),
        ("ort:AcmeExecutionProvider", "register its library with onnxruntime.register_"),
    ],
)
def test_one_that_is_missing_says_what_brings_it(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch, name: str, told: str
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime_ep_webgpu", None)
    assert told in probe(name).reason


def test_a_library_that_does_not_load_says_so(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    package(monkeypatch, "onnxruntime_ep_webgpu", "webgpu.so")
    assert "does not load: webgpu.so is damaged" in probe("ort:webgpu").reason


def test_devices_of_this_system_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {"ort", "ort:openvino", "ort:webgpu"} <= set(list_device_names())
    assert set(list_device_names()) <= set(pl.devices.names())
    monkeypatch.setattr(sys, "platform", "darwin")
    assert list_device_names() == ("ort", "ort:webgpu", "ort:coreml")


# Options


def wishes(**given: Any) -> Wishes:
    return Wishes(**{"hardware": "gpu", "number": 1, "precision": "model", "threads": 2,
                     "cache": "", **given})  # fmt: skip


TOLD = {
    ("openvino", "cpu", "model", ""): {
        "load_config": {
            "CPU": {
                "INFERENCE_PRECISION_HINT": "f32",
                "INFERENCE_NUM_THREADS": "2",
                "ENABLE_CPU_PINNING": "NO",
            }
        }
    },
    ("openvino", "gpu", "f16", "/kept"): {
        "load_config": {"GPU": {"INFERENCE_PRECISION_HINT": "f16", "CACHE_DIR": "/kept"}}
    },
    ("openvino", "npu", "auto", ""): {"load_config": {"NPU": {}}},
    ("cuda", "gpu", "model", ""): {"device_id": "1", "use_tf32": "0"},
    ("cuda", "gpu", "tf32", ""): {"device_id": "1", "use_tf32": "1"},
    ("tensorrt", "gpu", "bf16", "/kept"): {
        "device_id": "1",
        "trt_bf16_enable": "1",
        "trt_engine_cache_enable": "1",
        "trt_engine_cache_path": "/kept",
    },
    ("tensorrt_rtx", "gpu", "model", "/kept"): {"nv_runtime_cache_path": "/kept"},
    ("qnn", "npu", "model", ""): {"enable_htp_fp16_precision": "0"},
    ("coreml", "npu", "model", ""): {
        "ModelFormat": "MLProgram",
        "MLComputeUnits": "CPUAndNeuralEngine",
        "AllowLowPrecisionAccumulationOnGPU": "0",
    },
    ("dml", "gpu", "model", ""): {"device_id": "1"},
    ("webgpu", "gpu", "model", ""): {},
}


@pytest.mark.parametrize("case", TOLD, ids=lambda case: "-".join(filter(None, case)))
def test_options_reach_a_provider_in_its_own_words(case: tuple[str, str, str, str]) -> None:
    """By default none computes in fewer bits than the model has."""
    name, where, precision, cache = case
    (provider,) = (one for one in PROVIDERS if one.name == name)
    told: dict[str, Any] = dict(
        provider.settings(wishes(hardware=where, precision=precision, cache=cache))
    )
    if "load_config" in told:
        told["load_config"] = json.loads(told["load_config"])
    assert told == TOLD[case]


def test_a_provider_takes_its_own_options_and_keeps_all(tmp_path: Path) -> None:
    device: Any = pl.device(
        "ort:tensorrt:0", precision="f16", cache=tmp_path, settings={"trt_max_workspace_size": 9}
    )
    assert device.options == {
        "precision": "f16",
        "cache": str(tmp_path),
        "settings": '{"trt_max_workspace_size": "9"}',
    }


@pytest.mark.parametrize("text", ['{"b": 2, "a": "x,y"}', {"a": "x,y", "b": 2}])
def test_settings_are_json_or_a_mapping(text: Any) -> None:
    device: Any = pl.device("ort:dml", settings=text)
    assert device.options == {"settings": '{"a": "x,y", "b": "2"}'}


def test_settings_are_pairs_as_well() -> None:
    device: Any = pl.device("ort:qnn:npu", settings="backend_path=libHtp.so, profiling_level=off")
    assert json.loads(device.options["settings"]) == {
        "backend_path": "libHtp.so",
        "profiling_level": "off",
    }


@pytest.mark.parametrize(
    ("name", "option", "told"),
    [
        ("ort:openvino", {"precision": "f8"}, "one of model, f32, f16, bf16, auto"),
        ("ort:openvino:gpu", {"threads": 2}, "no option 'threads'"),
        ("ort:webgpu", {"precision": "f16"}, "no option 'precision'"),
        ("ort:cuda:0", {"spinning": True}, "its options: precision, settings"),
        ("ort:cuda:0", {"settings": "fast"}, "as JSON or name=value,name=value"),
        ("ort:cuda:0", {"settings": "{"}, "as JSON or name=value,name=value"),
        ("ort:tensorrt", {"cache": ""}, "the path of a folder"),
        ("ort", {"precision": "f32"}, "no option 'precision'"),
    ],
)
def test_wrong_options_are_refused(name: str, option: dict[str, Any], told: str) -> None:
    with pytest.raises(DeviceError) as raised:
        pl.device(name, **option)
    assert told in str(raised.value)


@newer_ort
def test_options_reach_sessions_of_saved_plans(runtime: Runtime, tmp_path: Path) -> None:
    more = {"cudnn_conv_algo_search": "HEURISTIC"}
    device = pl.device("ort:cuda:1", precision="tf32", settings=more)
    plan = pl.plan(doubling(), [device])
    plan.save(tmp_path / "doubling.plan")
    loaded = pl.load_plan(tmp_path / "doubling.plan", devices=[device])
    runtime.told.clear()
    np.testing.assert_array_equal(pl.run(loaded, {"x": X})["y"], X + X)
    assert runtime.told == [(CUDA, {"device_id": "1", "use_tf32": "1", **more})]


# What runs there


@newer_ort
def test_hardware_of_its_own_takes_no_cores_from_others(runtime: Runtime) -> None:
    """And has no replicas by itself: nobody knows how many there are."""
    plan = pl.plan(doubling(), ["ort:cuda", "cpu"], strategy="preference", max_in_flight=4)
    assert plan.assignment == {"add": "ort:cuda"}
    assert not plan.replicas
    assert "\n  ort:cuda: by ONNX Runtime, on hardware that it finds\n" in plan.report()
    assert not is_on_host(plan.prototypes["ort:cuda"])
    assert is_on_host(find("ort"))


def test_a_run_is_cancelled_by_its_options(runtime: Runtime) -> None:
    """In the midst of it, between two nodes: the options are those that ONNX Runtime looks at."""
    device: Any = find("ort:cuda:0")
    with closing(device):
        device.open()
        with Bound(device, doubling()) as bound:
            bound.put({"x": X})
            program = bound.program
            assert isinstance(program, OrtProgram)
            run, seen = program._run, list[bool]()

            def cancel_first(binding: Any, options: Any) -> None:
                event.cancel()
                seen.append(options.terminate)
                run(binding, options)

            program._run = cancel_first
            event = Event()
            with pytest.raises(CancelledWorkError, match="while it ran"):
                program.run(event)
            assert seen == [True]
            program._run = run
            np.testing.assert_array_equal(bound.run(x=X)["y"], X + X)


def test_a_provider_that_bears_one_thread_is_loaded_and_run_in_turn(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime.built_in = ("DmlExecutionProvider",)
    turn = Turns()
    monkeypatch.setitem(plugins._turns, "DmlExecutionProvider", turn)
    device = find("ort:dml")
    with closing(device):
        device.open()
        with Bound(device, doubling()) as bound:
            assert turn.taken > 0
            turn.taken = 0
            np.testing.assert_array_equal(bound.run(x=X)["y"], X + X)
            assert turn.taken == 1


class Turns:
    """Counts how often it is entered."""

    taken = 0

    def __enter__(self) -> None:
        self.taken += 1

    def __exit__(self, *error: object) -> None: ...


@newer_ort
def test_a_session_that_falls_back_is_refused(runtime: Runtime) -> None:
    runtime.falls_back = True
    with pytest.raises(pl.PlanError, match=f"does not make a session on {CUDA}"):
        pl.plan(doubling(), ["ort:cuda:0"])


def negated_then(name: str, op: str) -> pl.Graph:
    b = pl.GraphBuilder(name)
    b.output("y", b.op(op, b.op("Neg", b.input("x", "float32", ("n",)))))
    return b.build()


@newer_ort
def test_two_models_on_two_providers_are_streamed(runtime: Runtime) -> None:
    b = pl.GraphBuilder("two")
    first = b.include(negated_then("first", "Abs"), {"x": b.input("x", "float32", (4,))}, "first/")
    second = b.include(negated_then("second", "Exp"), {"x": first["y"]}, "second/")
    b.output("z", second["y"])
    pins = {"first/*": "ort:cuda:0", "second/*": "ort:tensorrt:0"}
    plan = pl.plan(b.build(), ["ort:cuda:0", "ort:tensorrt:0"], pin=pins, max_in_flight=3)
    assert [one.device for one in plan.subgraphs] == ["ort:cuda:0", "ort:tensorrt:0"]
    items = [np.random.default_rng(n).standard_normal(4).astype(np.float32) for n in range(8)]

    async def stream() -> list[Any]:
        async with pl.Session(plan) as session, session.stream({"x": x} for x in items) as results:
            return [result["z"].copy() async for result in results]

    for x, z in zip(items, trio.run(stream), strict=True):
        np.testing.assert_allclose(z, np.exp(-np.abs(x)), rtol=1e-6)
    assert {registered for registered, _ in runtime.told} == {CUDA, TENSORRT}
