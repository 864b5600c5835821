"""Known execution providers of ONNX Runtime, with names and options of devices on them.

Names are ``ort:PROVIDER``, the hardware unless it is the provider's usual one, and a number:
``ort:openvino``, ``ort:openvino:gpu:1``, ``ort:cuda:0``. A provider has a short name here, besides
its name in ONNX Runtime.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

from ...graph.values.extras import get_install_command
from ..errors import DeviceError
from ..options import Option, accept_words, parse_flag, threads

KIND = "ort"
SUFFIX = "ExecutionProvider"
"""The customary suffix of providers' names in ONNX Runtime."""

OWN = "CPUExecutionProvider"
"""ONNX Runtime's own kernels for processors, used by devices without a provider."""

HARDWARE = ("cpu", "gpu", "npu")

ANY = "any"
"""The hardware of an unknown provider: the first that it lists."""

_SLIP = 0.85
"""Similarity by `difflib` of a free name and a provider's that counts as a misspelling."""


class Wishes(NamedTuple):
    hardware: str
    """``"cpu"``, ``"gpu"`` or ``"npu"``."""
    number: int
    """Index among several."""
    precision: str
    """Dtype of products and sums; ``"model"`` for that of the model's tensors."""
    threads: int
    cache: str
    """The folder for compiled models; empty for none."""


Settings: TypeAlias = Mapping[str, str]
"""A provider's own options, in ONNX Runtime's form."""


@dataclass(frozen=True, slots=True)
class Provider:
    name: str
    """In names of devices."""
    registered: str
    """Its name in ONNX Runtime."""
    hardware: tuple[str, ...] = HARDWARE
    """Supported hardware, the usual one first."""
    needs: str = "other hardware"
    """The hardware in words, for errors."""
    package: str = ""
    """Imported for its library; empty if it is part of a build of ONNX Runtime."""
    install: str = "register its library with onnxruntime.register_execution_provider_library"
    """How to install it."""
    systems: tuple[str, ...] = ()
    """Supported values of `sys.platform`."""
    precisions: tuple[str, ...] = ()
    """Values of `precision` other than ``"model"``, the default."""
    options: frozenset[str] = frozenset()
    """The supported ones of `threads` and `cache`."""
    serial: bool = False
    """True if it allows one thread at a time, over all sessions."""
    settings: Callable[[Wishes], Settings] = lambda wishes: {}
    """Returns its options for a session's wishes."""


def _tell_openvino(wishes: Wishes) -> Settings:
    # By default it multiplies in bfloat16 if the processor can.
    settings: dict[str, Any] = {}
    if wishes.precision != "auto":
        hint = "f32" if wishes.precision == "model" else wishes.precision
        settings["INFERENCE_PRECISION_HINT"] = hint
    if wishes.hardware == "cpu":
        # Bound to cores it would share one with other software that is bound to it.
        settings |= {"INFERENCE_NUM_THREADS": str(wishes.threads), "ENABLE_CPU_PINNING": "NO"}
    if wishes.cache:
        settings["CACHE_DIR"] = wishes.cache
    return {"load_config": json.dumps({wishes.hardware.upper(): settings})}


def _tell_cuda(wishes: Wishes) -> Settings:
    # Always set: by default it multiplies in tf32.
    return {"device_id": str(wishes.number), "use_tf32": str(int(wishes.precision == "tf32"))}


_TENSORRT_FLAGS = {"f16": "trt_fp16_enable", "bf16": "trt_bf16_enable"}


def _tell_tensorrt(wishes: Wishes) -> Settings:
    settings = {"device_id": str(wishes.number)}
    if wishes.precision in _TENSORRT_FLAGS:
        settings[_TENSORRT_FLAGS[wishes.precision]] = "1"
    if wishes.cache:
        settings |= {"trt_engine_cache_enable": "1", "trt_engine_cache_path": wishes.cache}
    return settings


def _tell_coreml(wishes: Wishes) -> Settings:
    units = {"cpu": "CPUOnly", "gpu": "CPUAndGPU", "npu": "CPUAndNeuralEngine"}
    settings = {"ModelFormat": "MLProgram", "MLComputeUnits": units[wishes.hardware]}
    settings["AllowLowPrecisionAccumulationOnGPU"] = str(int(wishes.precision == "f16"))
    return settings | ({"ModelCacheDirectory": wishes.cache} if wishes.cache else {})


_DESKTOP = ("linux", "win32")

PROVIDERS = (
    Provider(
        "openvino",
        "OpenVINOExecutionProvider",
        needs="processors, graphics processors and NPUs of Intel",
        package="onnxruntime_ep_openvino",
        install=get_install_command("ort-openvino"),
        systems=_DESKTOP,
        precisions=("f32", "f16", "bf16", "auto"),
        options=frozenset({"threads", "cache"}),
        settings=_tell_openvino,
    ),
    Provider(
        "webgpu",
        "WebGpuExecutionProvider",
        hardware=("gpu",),
        needs="a graphics processor with Vulkan, Metal or Direct3D 12",
        serial=True,  # two threads end the process
        package="onnxruntime_ep_webgpu",
        install=get_install_command("webgpu"),
        systems=(*_DESKTOP, "darwin"),
    ),
    Provider(
        "qnn",
        "QNNExecutionProvider",
        hardware=("npu", "gpu", "cpu"),
        needs="an NPU or GPU of Qualcomm",
        package="onnxruntime_qnn",
        install="pip install onnxruntime-qnn",
        systems=_DESKTOP,
        precisions=("f32", "f16"),
        settings=lambda wishes: {"enable_htp_fp16_precision": str(int(wishes.precision == "f16"))},
    ),
    Provider(
        "cuda",
        "CUDAExecutionProvider",
        hardware=("gpu",),
        needs="a GPU of NVIDIA",
        install="pip install onnxruntime-gpu, in place of onnxruntime",
        systems=_DESKTOP,
        precisions=("f32", "tf32"),
        settings=_tell_cuda,
    ),
    Provider(
        "tensorrt",
        "TensorrtExecutionProvider",
        hardware=("gpu",),
        needs="a GPU of NVIDIA",
        install="pip install onnxruntime-gpu tensorrt, in place of onnxruntime",
        systems=_DESKTOP,
        precisions=("f16", "bf16"),
        options=frozenset({"cache"}),
        settings=_tell_tensorrt,
    ),
    Provider(
        "tensorrt_rtx",
        "NvTensorRTRTXExecutionProvider",
        hardware=("gpu",),
        needs="an RTX GPU of NVIDIA",
        package="onnxruntime_ep_nv_tensorrt_rtx",
        install="pip install onnxruntime-ep-nv-tensorrt-rtx",
        systems=_DESKTOP,
        options=frozenset({"cache"}),
        settings=lambda wishes: {"nv_runtime_cache_path": wishes.cache} if wishes.cache else {},
    ),
    Provider(
        "coreml",
        "CoreMLExecutionProvider",
        hardware=("npu", "gpu", "cpu"),
        needs="a Mac",
        install="pip install onnxruntime, which has it on a Mac",
        systems=("darwin",),
        precisions=("f32", "f16"),
        options=frozenset({"cache"}),
        settings=_tell_coreml,
    ),
    Provider(
        "dml",
        "DmlExecutionProvider",
        hardware=("gpu",),
        needs="a graphics processor with Direct3D 12",
        serial=True,
        install="pip install onnxruntime-directml, in place of onnxruntime",
        systems=("win32",),
        settings=lambda wishes: {"device_id": str(wishes.number)},
    ),
)
_BY_NAME = {name.lower(): one for one in PROVIDERS for name in (one.name, one.registered)}


class Place(NamedTuple):
    """A parsed name of a device: a provider, its hardware, and the index among several."""

    provider: Provider
    hardware: str
    number: int

    @property
    def kind(self) -> str:
        """The common part of names of its devices, without the number."""
        usual = self.hardware == self.provider.hardware[0]
        return ":".join((KIND, self.provider.name, *([] if usual else [self.hardware])))


@lru_cache(maxsize=1024)
def parse_place(name: str) -> Place | None:
    """Parse `name` of a device; None without a provider.

    Raises DeviceError if it has a provider and unknown parts, or a misspelt provider.
    """
    kind, _, rest = name.partition(":")
    named, *more = rest.split(":")
    provider = _find(named) if kind == KIND else None
    if provider is None:
        if kind == KIND and (meant := _find_misspelt(named)):
            raise DeviceError(
                f"{name!r} names no provider of ONNX Runtime",
                fix=f"did you mean {f'{KIND}:{_BY_NAME[meant].name}'!r}?",
            )
        return None
    hardware = more.pop(0) if more and more[0] in provider.hardware else provider.hardware[0]
    number = more.pop(0) if more and more[0].isdecimal() else "0"
    if more:
        listed = " or ".join(map(repr, provider.hardware))
        raise DeviceError(
            f"{name!r} is not the name of a device: {more[0]!r} is neither hardware nor a number",
            fix=f"write {KIND}:{named}, then {listed} if need be, then a number: "
            f"{KIND}:{named}:{provider.hardware[-1]}:0",
        )
    return Place(provider, hardware, int(number))


def get_provider_kind(name: str) -> str | None:
    try:
        place = parse_place(name)
    except DeviceError:  # creating the device reports it
        return None
    return None if place is None else place.kind


def list_device_names() -> tuple[str, ...]:
    """Return the names worth showing: ONNX Runtime's own, and providers for this system.

    By their usual hardware.
    """
    others = (one.name for one in PROVIDERS if sys.platform in one.systems)
    return (KIND, *(f"{KIND}:{name}" for name in others))


NAN = ("runtime", "formal")
"""The kernels of ONNX Runtime for special values, or only those that compute by definition."""


def list_options(name: str, own: Mapping[str, Option]) -> Mapping[str, Option]:
    """Return the options of the device `name`; `own` are those without a provider."""
    place = parse_place(name)
    if place is None:
        return own
    provider = place.provider
    known: dict[str, Option] = {}
    if provider.precisions:
        known["precision"] = accept_words(("model", *provider.precisions))
    if "threads" in provider.options and place.hardware == "cpu":
        known["threads"] = threads
    if "cache" in provider.options:
        known["cache"] = _parse_folder
    return {**known, "settings": _parse_settings, "telemetry": parse_flag, "nan": accept_words(NAN)}


def _find(named: str) -> Provider | None:
    known = _BY_NAME.get(named.lower())
    # Plugins that others register have such names; ONNX Runtime refuses unknown ones.
    if known is None and named.endswith(SUFFIX) and named not in (SUFFIX, OWN):
        return Provider(named, named, (ANY, *HARDWARE))
    return known


def _find_misspelt(named: str) -> str | None:
    from difflib import get_close_matches

    close = get_close_matches(named.lower(), _BY_NAME, 1, _SLIP)
    return close[0] if close else None


def _parse_folder(value: Any) -> str:
    if not isinstance(value, str | os.PathLike) or not os.fspath(value):
        raise ValueError("the path of a folder")
    return os.path.abspath(os.fsdecode(value))


def _parse_settings(value: Any) -> str:
    """Return `value`, a provider's options as JSON or ``name=value,name=value``, as JSON."""
    wanted = "its own options by name, as JSON or name=value,name=value"
    if isinstance(value, str):
        value = _parse_pairs(value, wanted)
    if not isinstance(value, Mapping) or not all(map(str, value)):
        raise ValueError(wanted)
    return json.dumps({str(name): str(one) for name, one in sorted(value.items())})


def _parse_pairs(text: str, wanted: str) -> object:
    if text.lstrip().startswith("{"):
        try:
            return json.loads(text)
        except ValueError:
            raise ValueError(wanted) from None
    pairs = [part.partition("=") for part in text.split(",")]
    if not all(name.strip() and equals for name, equals, _ in pairs):
        raise ValueError(wanted)
    return {name.strip(): value.strip() for name, _, value in pairs}
