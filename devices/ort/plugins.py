"""Engines on other providers: found at ONNX Runtime, or in the packages that bring their libraries.

A provider is part of ONNX Runtime's own build, or a plugin in a library, which is registered when
the provider is first asked for. Plugins list the hardware that they found, and run on one of it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ...graph.builder import GraphBuilder
from ...graph.dtypes import TEXT
from ...graph.extras import how_to_install, import_extra
from ...graph.formats.onnx.writer import OLDEST_WRITTEN, to_onnx
from ...graph.ir import Graph, Node
from ...graph.operator import Call
from ...graph.tensor import TensorSpec
from ..errors import DeviceUnavailableError
from .engine import ANY_TIME, KEPT_ANSWERS, Engine, Turn
from .openvino import openvino_difference
from .providers import ANY, PROVIDERS, Place, Provider, Wishes
from .runtime import INEXACT, newest_opset, options, runtime, summary
from .threads import ONE_THREAD, Threads

_WOULD_COMPILE = "User disabled EP compilation"
"""What ONNX Runtime says where a provider takes a model that it is told not to compile."""

_LEFT_OVER = (
    "This session contains graph nodes that are assigned to the default CPU EP, but fallback to "
    "CPU EP has been explicitly disabled by the user."
)
"""What it says where a provider does not take all nodes."""

_DIFFERENCES = {"openvino": openvino_difference}
"""What is known of providers that were run."""

_compiled: dict[tuple[Engine, Hashable], str | None] = {}

_lock = threading.Lock()
_turns: dict[str, Turn] = {one.registered: threading.RLock() for one in PROVIDERS if one.serial}


class Found(NamedTuple):
    """A provider that is there, and what it runs on.

    Attributes
    ----------
    listed : onnxruntime.OrtEpDevice or None
        One piece of hardware; None where the provider is part of ONNX Runtime's build, and finds
        its hardware itself.
    version : str
    hardware : str
        In words; empty where that is not known.
    """

    listed: Any
    version: str
    hardware: str


@dataclass(frozen=True)
class ProviderEngine(Engine):
    """A provider on one piece of hardware, told what devices are told.

    Sessions run all nodes on it, or are refused: none falls back to ONNX Runtime's own kernels.
    """

    place: Place
    precision: str = "model"
    cache: str = ""
    settings: str = "{}"
    copies_inputs: ClassVar[bool] = True

    def options(
        self, threads: Threads = ONE_THREAD, *, cores: Sequence[int] = (), optimize: bool = True
    ) -> Any:
        """Return options that name the provider; threads are its own, where it has any.

        Always with optimizers: some providers take convolutions in another layout alone.
        """
        chosen = options()
        chosen.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        listed = find(self.place).listed
        if listed is not None:
            chosen.add_provider_for_devices([listed], self._told(threads.count))
        return chosen

    def load(self, model: Any, chosen: Any) -> Any:
        """Return ONNX Runtime's session for a model, all of which the provider runs."""
        registered = self._registered
        is_plugin = find(self.place).listed is not None
        with self.turn:
            session = runtime().InferenceSession(
                model.SerializeToString(),
                chosen,
                providers=None if is_plugin else [(registered, self._told(1))],
                disabled_optimizers=INEXACT,
                enable_fallback=0,  # else what fails is printed, and its own kernels run
            )
        if session.get_providers()[0] != registered:
            raise RuntimeError(f"ONNX Runtime does not make a session on {registered}")
        return session

    def opset(self) -> int:
        """Return the newest opset whose convolutions it takes: providers are behind the runtime."""
        return _newest_opset(self)

    def difference(
        self, node: Node, call: Call, outputs: Sequence[TensorSpec | None]
    ) -> str | None:
        """Return what the provider would do otherwise, or ONNX Runtime on any; None if nothing."""
        if any(spec is not None and spec.dtype == TEXT for spec in (*call.inputs, *outputs)):
            return "text stays in this process"
        found = super().difference(node, call, outputs)
        own = _DIFFERENCES.get(self.place.provider.name)
        return found or (None if own is None else own(node, call, outputs))

    def refusal(self, write: Callable[[bool], Any], like: Hashable) -> str | None:
        """Return why the provider does not take a node.

        To compile one takes some 60 ms where to ask takes 5, so one of those that are alike is.
        """
        for is_exact in (False, True):  # some want numbers, and weights that do not change
            refused = self._refusal(write(is_exact))
            if refused in (None, _WOULD_COMPILE):
                break
        if refused != _WOULD_COMPILE:
            return refused
        key = self, like
        if key not in _compiled:
            if len(_compiled) >= KEPT_ANSWERS:
                _compiled.clear()
            _compiled[key] = self.failure(write(True))
        return _compiled[key]

    def formed(self, graph: Graph) -> Graph:
        """Return the graph: what others are exact and fast in is their own business."""
        return graph

    def _refusal(self, model: Any) -> str | None:
        """Return why the provider does not take a model, which it need not compile."""
        found = self.failure(model, disable_model_compile="1")
        if found is not None and _WOULD_COMPILE in found:
            return _WOULD_COMPILE
        return f"{self._registered} does not take it" if found == _LEFT_OVER else found

    @property
    def turn(self) -> Turn:  # type: ignore[override]
        """A lock that all programs on a provider take which bears one thread at a time."""
        return _turns.get(self._registered, ANY_TIME)

    @property
    def _registered(self) -> str:
        return self.place.provider.registered

    def _told(self, threads: int) -> dict[str, str]:
        provider, hardware, number = self.place
        wishes = Wishes(hardware, number, self.precision, threads, self.cache)
        given: Mapping[str, str] = json.loads(self.settings)
        return {**provider.settings(wishes), **given}


@lru_cache(maxsize=64)
def _newest_opset(engine: ProviderEngine) -> int:
    b = GraphBuilder("probe")
    weights = np.ones((1, 1, 3, 3), np.float32)
    b.output("y", b.op("Conv", b.input("x", "float32", (1, 1, 4, 4)), weights))
    graph, newest = b.build(), newest_opset()
    for opset in range(newest, OLDEST_WRITTEN - 1, -1):
        if engine._refusal(to_onnx(graph, opset=opset)) in (None, _WOULD_COMPILE):
            return opset
    return newest


def find(place: Place) -> Found:
    """Return a provider on its hardware; its library is registered if that is new.

    Raises
    ------
    DeviceUnavailableError
        If it is not installed, or finds no such hardware.
    """
    ort, provider = runtime(), place.provider
    with _lock:
        listed = _listed(ort, provider)
        if not listed:
            if provider.registered in ort.get_available_providers():
                return Found(None, ort.__version__, "")
            _register(ort, provider)
            listed = _listed(ort, provider)
    fitting = [one for one in listed if place.hardware in (ANY, _type_of(one))]
    if place.number >= len(fitting):
        there = ", ".join(sorted({_type_of(one) for one in listed})) or "nothing"
        raise DeviceUnavailableError(
            f"{provider.registered} finds no {_wanted(place)} here that it runs on: it takes "
            f"{provider.needs}, and found {there}",
            fix="choose another device",
        )
    one = fitting[place.number]
    metadata = dict(one.ep_metadata)
    named = metadata.get("FULL_DEVICE_NAME") or f"{one.device.vendor} {_type_of(one)}"
    return Found(one, metadata.get("version", "").partition("+")[0], named)


def _listed(ort: Any, provider: Provider) -> list[Any]:
    """Return the hardware that a plugin found; what is made up to compile for is left out."""
    if not hasattr(ort, "get_ep_devices"):  # before 1.23
        return []
    return [
        one
        for one in ort.get_ep_devices()
        if one.ep_name == provider.registered and dict(one.device.metadata).get("is_virtual") != "1"
    ]


def _register(ort: Any, provider: Provider) -> None:
    """Let ONNX Runtime load a provider's library; nothing happens where it has done so."""
    missing = f"ONNX Runtime has no {provider.registered}"
    if not provider.package:
        raise DeviceUnavailableError(missing, fix=provider.install)
    package = provider.package
    told = f"{missing}: the package {package!r} is not installed"
    module = import_extra(package, told, provider.install, DeviceUnavailableError)
    if not hasattr(ort, "register_execution_provider_library"):
        raise DeviceUnavailableError(
            f"onnxruntime {ort.__version__} takes no provider from a library: 1.23 does",
            fix=f"pip install --upgrade onnxruntime; {how_to_install('ort')}",
        )
    try:
        ort.register_execution_provider_library(provider.registered, module.get_library_path())
    except Exception as error:
        if "already registered" in str(error):
            return
        raise DeviceUnavailableError(
            f"the library of {package!r} does not load: {summary(error)}", fix=provider.install
        ) from error


def _type_of(listed: Any) -> str:
    return str(listed.device.type.name).lower()


def _wanted(place: Place) -> str:
    words = {"cpu": "processor", "gpu": "graphics processor", "npu": "NPU", ANY: "hardware"}
    return f"{words[place.hardware]}{f' {place.number}' if place.number else ''}"
