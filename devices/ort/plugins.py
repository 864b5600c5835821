"""Engines of other providers, in ONNX Runtime or in packages with their libraries.

A provider is part of ONNX Runtime's own build, or a plugin in a library, which is registered at
first use. Plugins list the hardware that they found, and run on one of it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ...graph.building.builder import GraphBuilder
from ...graph.core.ir import Node
from ...graph.core.operator import Call
from ...graph.formats.onnx.writer import OLDEST_WRITTEN, to_onnx
from ...graph.values.dtypes import TEXT
from ...graph.values.extras import get_install_command, import_extra
from ...graph.values.tensor import TensorSpec
from ..errors import DeviceUnavailableError
from .engine import ANY_TIME, KEPT_ANSWERS, Engine, Turn
from .openvino import find_openvino_difference
from .providers import ANY, PROVIDERS, Place, Provider, Wishes
from .runtime import INEXACT, find_newest_opset, load_runtime, make_options, summarize
from .threads import ONE_THREAD, Threads

_WOULD_COMPILE = "User disabled EP compilation"
"""ONNX Runtime's message if a provider accepts a model but was told not to compile it."""

_LEFT_OVER = (
    "This session contains graph nodes that are assigned to the default CPU EP, but fallback to "
    "CPU EP has been explicitly disabled by the user."
)
"""ONNX Runtime's message if a provider does not accept all nodes."""

_DIFFERENCES = {"openvino": find_openvino_difference}
"""Known differences of providers that were tested."""

_compiled: dict[tuple[Engine, Hashable], str | None] = {}

_lock = threading.Lock()
_turns: dict[str, Turn] = {one.registered: threading.RLock() for one in PROVIDERS if one.serial}


class Found(NamedTuple):
    listed: Any
    """One piece of hardware; None if the provider is part of ONNX Runtime's build, and chooses its
    hardware itself."""
    version: str
    hardware: str
    """A description; empty if unknown."""


@dataclass(frozen=True)
class ProviderEngine(Engine):
    """A provider on one piece of hardware, with a device's options.

    Sessions run all nodes on it or are refused, without falling back to ONNX Runtime's own kernels.
    """

    place: Place
    precision: str = "model"
    cache: str = ""
    settings: str = "{}"
    copies_inputs: ClassVar[bool] = True
    spins: ClassVar[bool] = False  # no option makes its threads spin
    forms = ()

    def options(
        self, threads: Threads = ONE_THREAD, *, cores: Sequence[int] = (), optimize: bool = True
    ) -> Any:
        """Return options for the provider with the number of `threads`; the `cores` are its own.

        Optimizers are always on, not by `optimize`: some providers accept convolutions only in
        another layout.
        """
        chosen = make_options()
        chosen.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        listed = find(self.place).listed
        if listed is not None:
            chosen.add_provider_for_devices([listed], self._build_settings(threads.count))
        return chosen

    def load(self, model: Any, chosen: Any) -> Any:
        """Create a session of `model`, with options `chosen`; the provider runs all nodes."""
        registered = self._registered
        is_plugin = find(self.place).listed is not None
        with self.turn:
            session = load_runtime().InferenceSession(
                model.SerializeToString(),
                chosen,
                providers=None if is_plugin else [(registered, self._build_settings(1))],
                disabled_optimizers=INEXACT,
                enable_fallback=0,  # otherwise it prints errors, and uses its own kernels
            )
        if session.get_providers()[0] != registered:
            raise RuntimeError(f"ONNX Runtime does not make a session on {registered}")
        return session

    def opset(self) -> int:
        """Return the newest opset that it accepts for convolutions; providers lag."""
        return _find_newest_opset(self)

    def difference(
        self, node: Node, call: Call, outputs: Sequence[TensorSpec | None]
    ) -> str | None:
        if any(spec is not None and spec.dtype == TEXT for spec in (*call.inputs, *outputs)):
            return "text stays in this process"
        found = super().difference(node, call, outputs)
        own = _DIFFERENCES.get(self.place.provider.name)
        return found or (None if own is None else own(node, call, outputs))

    def refusal(self, write: Callable[[bool], Any], like: Hashable) -> str | None:
        """Return why the provider refuses a node, or None.

        It takes 60 ms to compile a model that `write` returns, exact or not, and 5 to ask: so of
        nodes equal in `like` only one is compiled.
        """
        for is_exact in (False, True):  # some need known lengths and constant weights
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

    def _refusal(self, model: Any) -> str | None:
        found = self.failure(model, disable_model_compile="1")
        if found is not None and _WOULD_COMPILE in found:
            return _WOULD_COMPILE
        return f"{self._registered} does not take it" if found == _LEFT_OVER else found

    @property
    def turn(self) -> Turn:  # type: ignore[override]
        """A lock for all programs on a provider that allows one thread at a time."""
        return _turns.get(self._registered, ANY_TIME)

    @property
    def _registered(self) -> str:
        return self.place.provider.registered

    def _build_settings(self, threads: int) -> dict[str, str]:
        provider, hardware, number = self.place
        wishes = Wishes(hardware, number, self.precision, threads, self.cache)
        given: Mapping[str, str] = json.loads(self.settings)
        return {**provider.settings(wishes), **given}


@lru_cache(maxsize=64)
def _find_newest_opset(engine: ProviderEngine) -> int:
    b = GraphBuilder("probe")
    weights = np.ones((1, 1, 3, 3), np.float32)
    b.output("y", b.op("Conv", b.input("x", "float32", (1, 1, 4, 4)), weights))
    graph, newest = b.build(), find_newest_opset()
    for opset in range(newest, OLDEST_WRITTEN - 1, -1):
        if engine._refusal(to_onnx(graph, opset=opset)) in (None, _WOULD_COMPILE):
            return opset
    return newest


def find(place: Place) -> Found:
    """Return the provider and hardware of `place`, registering its library if necessary.

    Raises DeviceUnavailableError if it is not installed, or finds no such hardware.
    """
    ort, provider = load_runtime(), place.provider
    with _lock:
        listed = _list_hardware(ort, provider)
        if not listed:
            if provider.registered in ort.get_available_providers():
                return Found(None, ort.__version__, "")
            _register(ort, provider)
            listed = _list_hardware(ort, provider)
    fitting = [one for one in listed if place.hardware in (ANY, _get_type(one))]
    if place.number >= len(fitting):
        there = ", ".join(sorted({_get_type(one) for one in listed})) or "nothing"
        raise DeviceUnavailableError(
            f"{provider.registered} finds no {_describe_place(place)} here that it runs on: "
            f"it takes {provider.needs}, and found {there}",
            fix="choose another device",
        )
    one = fitting[place.number]
    metadata = dict(one.ep_metadata)
    named = metadata.get("FULL_DEVICE_NAME") or f"{one.device.vendor} {_get_type(one)}"
    return Found(one, metadata.get("version", "").partition("+")[0], named)


def _list_hardware(ort: Any, provider: Provider) -> list[Any]:
    """Return the hardware of `provider` that `ort` finds, without virtual devices for compiling."""
    if not hasattr(ort, "get_ep_devices"):  # before 1.23
        return []
    return [
        one
        for one in ort.get_ep_devices()
        if one.ep_name == provider.registered and dict(one.device.metadata).get("is_virtual") != "1"
    ]


def _register(ort: Any, provider: Provider) -> None:
    missing = f"ONNX Runtime has no {provider.registered}"
    if not provider.package:
        raise DeviceUnavailableError(missing, fix=provider.install)
    package = provider.package
    missing_package = f"{missing}: the package {package!r} is not installed"
    module = import_extra(package, missing_package, provider.install, DeviceUnavailableError)
    if not hasattr(ort, "register_execution_provider_library"):
        raise DeviceUnavailableError(
            f"onnxruntime {ort.__version__} takes no provider from a library: 1.23 does",
            fix=f"pip install --upgrade onnxruntime; {get_install_command('ort')}",
        )
    try:
        ort.register_execution_provider_library(provider.registered, module.get_library_path())
    except Exception as error:
        if "already registered" in str(error):
            return
        raise DeviceUnavailableError(
            f"the library of {package!r} does not load: {summarize(error)}", fix=provider.install
        ) from error


def _get_type(listed: Any) -> str:
    return str(listed.device.type.name).lower()


def _describe_place(place: Place) -> str:
    words = {"cpu": "processor", "gpu": "graphics processor", "npu": "NPU", ANY: "hardware"}
    return f"{words[place.hardware]}{f' {place.number}' if place.number else ''}"
