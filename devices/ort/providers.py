"""Execution providers of ONNX Runtime: which are known, how devices on them are called and told.

``ort:PROVIDER``, then the hardware where it is not the provider's usual one, then a number:
``ort:openvino``, ``ort:openvino:gpu:1``, ``ort:cuda:0``. A provider goes by the short name that it
has here, or by the one that it is registered with at ONNX Runtime.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

from ...graph.extras import how_to_install
from ..errors import DeviceError
from ..options import Option, flag, one_of, threads

KIND = "ort"
SUFFIX = "ExecutionProvider"
"""What names that providers are registered with end in, by custom."""

OWN = "CPUExecutionProvider"
"""ONNX Runtime's own kernels for processors: devices that name no other provider."""

HARDWARE = ("cpu", "gpu", "npu")

ANY = "any"
"""What a provider runs on of which nothing is known here: whatever it lists first."""

_SLIP = 0.85
"""How alike a free name and that of a provider may not be, by `difflib`: one letter of six."""


class Wishes(NamedTuple):
    """What a provider is told about a session.

    Attributes
    ----------
    hardware : str
        ``"cpu"``, ``"gpu"`` or ``"npu"``.
    number : int
        Of several.
    precision : str
        In which products and sums are computed; that of the model's tensors for ``"model"``.
    threads : int
    cache : str
        The folder where it keeps what it compiles; none if empty.
    """

    hardware: str
    number: int
    precision: str
    threads: int
    cache: str


Settings: TypeAlias = Mapping[str, str]
"""A provider's own options, as ONNX Runtime passes them on."""


@dataclass(frozen=True, slots=True)
class Provider:
    """An execution provider.

    Attributes
    ----------
    name : str
        In names of devices.
    registered : str
        At ONNX Runtime.
    hardware : tuple of str
        What it may run on; the first is meant where a name says nothing.
    needs : str
        The hardware in words, for who has none.
    package : str
        What is imported for its library; empty where it is part of ONNX Runtime, if at all.
    install : str
        How to get it.
    systems : tuple of str
        Values of `sys.platform` where there is one.
    precisions : tuple of str
        What `precision` takes beside ``"model"``, which is the default.
    options : frozenset of str
        Which of `threads` and `cache` it can be told.
    serial : bool
        True when it bears one thread at a time, whatever sessions there are.
    settings : callable
        Returns what it is told.
    """

    name: str
    registered: str
    hardware: tuple[str, ...] = HARDWARE
    needs: str = "other hardware"
    package: str = ""
    install: str = "register its library with onnxruntime.register_execution_provider_library"
    systems: tuple[str, ...] = ()
    precisions: tuple[str, ...] = ()
    options: frozenset[str] = frozenset()
    serial: bool = False
    settings: Callable[[Wishes], Settings] = lambda wishes: {}


def _tell_openvino(wishes: Wishes) -> Settings:
    # Left alone it multiplies in bfloat16 where the processor can.
    told: dict[str, Any] = {}
    if wishes.precision != "auto":
        hint = "f32" if wishes.precision == "model" else wishes.precision
        told["INFERENCE_PRECISION_HINT"] = hint
    if wishes.hardware == "cpu":
        # Bound to cores it would share one with whatever else was bound to that.
        told |= {"INFERENCE_NUM_THREADS": str(wishes.threads), "ENABLE_CPU_PINNING": "NO"}
    if wishes.cache:
        told["CACHE_DIR"] = wishes.cache
    return {"load_config": json.dumps({wishes.hardware.upper(): told})}


def _tell_qnn(wishes: Wishes) -> Settings:
    return {"enable_htp_fp16_precision": str(int(wishes.precision == "f16"))}


def _tell_cuda(wishes: Wishes) -> Settings:
    # Said in either case: left alone it multiplies in tf32.
    return {"device_id": str(wishes.number), "use_tf32": str(int(wishes.precision == "tf32"))}


_TENSORRT_FLAGS = {"f16": "trt_fp16_enable", "bf16": "trt_bf16_enable"}


def _tell_tensorrt(wishes: Wishes) -> Settings:
    told = {"device_id": str(wishes.number)}
    if wishes.precision in _TENSORRT_FLAGS:
        told[_TENSORRT_FLAGS[wishes.precision]] = "1"
    if wishes.cache:
        told |= {"trt_engine_cache_enable": "1", "trt_engine_cache_path": wishes.cache}
    return told


def _tell_coreml(wishes: Wishes) -> Settings:
    units = {"cpu": "CPUOnly", "gpu": "CPUAndGPU", "npu": "CPUAndNeuralEngine"}
    told = {"ModelFormat": "MLProgram", "MLComputeUnits": units[wishes.hardware]}
    told["AllowLowPrecisionAccumulationOnGPU"] = str(int(wishes.precision == "f16"))
    return told | ({"ModelCacheDirectory": wishes.cache} if wishes.cache else {})


def _tell_rtx(wishes: Wishes) -> Settings:
    return {"nv_runtime_cache_path": wishes.cache} if wishes.cache else {}


_DESKTOP = ("linux", "win32")

PROVIDERS = (
    Provider(
        "openvino",
        "OpenVINOExecutionProvider",
        needs="processors, graphics processors and NPUs of Intel",
        package="onnxruntime_ep_openvino",
        install=how_to_install("openvino"),
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
        install=how_to_install("webgpu"),
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
        settings=_tell_qnn,
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
        settings=_tell_rtx,
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
    """What a name of a device stands for: a provider, its hardware, and which one of several."""

    provider: Provider
    hardware: str
    number: int

    @property
    def kind(self) -> str:
        """What devices of it have in common: their name without the number."""
        usual = self.hardware == self.provider.hardware[0]
        return ":".join((KIND, self.provider.name, *([] if usual else [self.hardware])))


@lru_cache(maxsize=1024)
def place_of(name: str) -> Place | None:
    """Return what a name of a device stands for; None where it names no provider.

    Raises
    ------
    DeviceError
        If it names one, and more than there is to say; or one that is misspelt.
    """
    kind, _, rest = name.partition(":")
    named, *more = rest.split(":")
    provider = _find(named) if kind == KIND else None
    if provider is None:
        if kind == KIND and (meant := _misspelt(named)):
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


def kind_of(name: str) -> str | None:
    """Return the kind of a device on a provider; None where a name stands for none."""
    try:
        place = place_of(name)
    except DeviceError:  # whoever makes the device says so
        return None
    return None if place is None else place.kind


def device_names() -> tuple[str, ...]:
    """Return the names worth showing: ONNX Runtime's own, and providers that this system may have.

    By their usual hardware.
    """
    others = (one.name for one in PROVIDERS if sys.platform in one.systems)
    return (KIND, *(f"{KIND}:{name}" for name in others))


NAN = ("runtime", "formal")
"""The kernels of ONNX Runtime for special values, or only those that compute by definition."""


def options_of(name: str, own: Mapping[str, Option]) -> Mapping[str, Option]:
    """Return the options of a device of that name; `own` are those where it names no provider."""
    place = place_of(name)
    if place is None:
        return own
    provider = place.provider
    known: dict[str, Option] = {}
    if provider.precisions:
        known["precision"] = one_of(("model", *provider.precisions))
    if "threads" in provider.options and place.hardware == "cpu":
        known["threads"] = threads
    if "cache" in provider.options:
        known["cache"] = _folder
    return {**known, "settings": _settings, "telemetry": flag, "nan": one_of(NAN)}


def _find(named: str) -> Provider | None:
    known = _BY_NAME.get(named.lower())
    # Plugins that others register have names like this: it is for ONNX Runtime to say no.
    if known is None and named.endswith(SUFFIX) and named not in (SUFFIX, OWN):
        return Provider(named, named, (ANY, *HARDWARE))
    return known


def _misspelt(named: str) -> str | None:
    """Return the provider that a free name is too close to, which may be a slip."""
    from difflib import get_close_matches

    close = get_close_matches(named.lower(), _BY_NAME, 1, _SLIP)
    return close[0] if close else None


def _folder(value: Any) -> str:
    if not isinstance(value, str | os.PathLike) or not os.fspath(value):
        raise ValueError("the path of a folder")
    return os.path.abspath(os.fsdecode(value))


def _settings(value: Any) -> str:
    """Return a provider's own options as JSON; written as that, or ``name=value,name=value``."""
    wanted = "its own options by name, as JSON or name=value,name=value"
    if isinstance(value, str):
        value = _parsed(value, wanted)
    if not isinstance(value, Mapping) or not all(map(str, value)):
        raise ValueError(wanted)
    return json.dumps({str(name): str(one) for name, one in sorted(value.items())})


def _parsed(text: str, wanted: str) -> object:
    if text.lstrip().startswith("{"):
        try:
            return json.loads(text)
        except ValueError:
            raise ValueError(wanted) from None
    pairs = [part.partition("=") for part in text.split(",")]
    if not all(name.strip() and equals for name, equals, _ in pairs):
        raise ValueError(wanted)
    return {name.strip(): value.strip() for name, _, value in pairs}
