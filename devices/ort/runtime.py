"""ONNX Runtime itself: found or not, its options, the newest opset it reads, its errors."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

from ...graph.builder import GraphBuilder
from ...graph.extras import how_to_install, import_extra
from ...graph.formats.onnx.forms import ELEMENT_TYPE_OF
from ...graph.formats.onnx.upgrade import NEWEST_OPSET
from ...graph.formats.onnx.writer import OLDEST_WRITTEN, to_onnx
from ...graph.ir import Graph
from ...graph.unknown_operators import EXTENSIONS_DOMAIN
from ..errors import DeviceUnavailableError
from .threads import ONE_THREAD, SPIN_US, Threads

PROVIDERS = ["CPUExecutionProvider"]
INEXACT = ["WeightBiasQuantization"]
"""Optimizers left out: this one rounds float weights between quantized tensors to 8 bits."""

_EXACT = {"session.qdq_matmulnbits_accuracy_level": "1"}
"""Weights that are decoded by blocks multiply floats, which it would round to 8 bits otherwise."""

_SILENT = 4
"""The level of log messages that nothing reaches: what matters is raised too."""

_MAX_SUMMARY = 300
_UNSUPPORTED = re.compile(
    r"not (?:yet )?(?:supported|implemented)|unsupported|does not support|only supports?\b"
    r"|provided for output .* but the computed output shape",
    re.IGNORECASE | re.DOTALL,
)
_CODE = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ")
_PLACE = re.compile(r"^(?P<file>\S+\.(?:cc|cpp|cu|h|hpp)):\d+ ")
_SIGNATURE = re.compile(r"^[^(]*\([^()]*\)(?: const)?(?: \[with [^\]]*\])? ")
_CONDITION = re.compile(r"^.* was false\. ?(?=\S)")


@cache
def runtime() -> Any:
    """Return the module `onnxruntime`.

    Raises
    ------
    DeviceUnavailableError
        If it, or `onnx`, which writes the models for it, is not installed or does not load.
    """
    _import("onnx")
    return _import("onnxruntime")


def operator_schemas() -> Sequence[Any]:
    """Return the schemas of all operators that ONNX Runtime knows, in all versions.

    Raises
    ------
    DeviceUnavailableError
        As `runtime`.
    """
    runtime()
    # The one door to them; there is no public one.
    state = import_module("onnxruntime.capi.onnxruntime_pybind11_state")
    found: Sequence[Any] = state.get_all_operator_schema()
    return found


def options(
    threads: Threads = ONE_THREAD, *, cores: Sequence[int] = (), optimize: bool = True
) -> Any:
    """Return the options of a quiet session that computes on these threads, and on these cores.

    Between runs its threads sleep: those that spin take cores from others. The first of them is
    the caller's; ONNX Runtime counts cores from 1.
    """
    ort = runtime()
    chosen = ort.SessionOptions()
    chosen.intra_op_num_threads = threads.count
    chosen.inter_op_num_threads = 1
    chosen.log_severity_level = _SILENT
    entries = {"session.intra_op.allow_spinning": "0"}
    if threads.spinning:
        entries = {
            "session.intra_op.allow_spinning": "1",
            "session.intra_op.spin_duration_us": str(SPIN_US),  # since 1.26
            "session.force_spinning_stop": "1",
        }
    if cores and threads.count > 1:
        bound = ",".join(str(core + 1) for core in cores)
        entries["session.intra_op_thread_affinities"] = ";".join([bound] * (threads.count - 1))
    for name, value in {**entries, **_EXACT}.items():
        chosen.add_session_config_entry(name, value)
    if not optimize:
        chosen.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return chosen


def load(model: Any, chosen: Any) -> Any:
    """Return ONNX Runtime's session for a model; whatever it raises goes through."""
    if any(entry.domain == EXTENSIONS_DOMAIN for entry in model.opset_import):
        chosen.register_custom_ops_library(
            import_module("onnxruntime_extensions").get_library_path()
        )
    return runtime().InferenceSession(
        model.SerializeToString(), chosen, providers=PROVIDERS, disabled_optimizers=INEXACT
    )


def is_refusal(error: Exception) -> bool:
    """Return True if ONNX Runtime failed for want of a kernel, not for the values that it was fed.

    Some kernels look at attributes, dtypes and shapes only while they run.
    """
    return type(error).__name__ == "NotImplemented" or bool(_UNSUPPORTED.search(str(error)))


@cache
def newest_opset() -> int:
    """Return the newest opset that plait, `onnx` and ONNX Runtime know, and have kernels of.

    A release may read an opset before it has kernels for what changed in it: the newest forms of
    quantized models, which would be written out in floats, decide.

    Raises
    ------
    DeviceUnavailableError
        If there is none, or one of the packages is missing.
    """
    version = runtime().__version__
    refused: Exception | None = None
    for opset in range(NEWEST_OPSET, OLDEST_WRITTEN - 1, -1):
        try:
            load(to_onnx(_rounding(), opset=opset), options(optimize=False))
        except Exception as error:
            refused = error
        else:
            return opset
    raise DeviceUnavailableError(
        f"onnxruntime {version} does not run a quantized model: {refused and summary(refused)}",
        fix="pip install --upgrade onnx onnxruntime",
    ) from refused


@cache
def binds_extensions() -> bool:
    """Say whether buffers of dtypes that numpy lacks can be bound: since 1.23."""
    binding = load(to_onnx(_rounding(), opset=newest_opset()), options()).io_binding()
    place = np.zeros(1, np.int64)
    try:
        binding.bind_input("x", "cpu", 0, ELEMENT_TYPE_OF["bfloat16"], (1,), place.ctypes.data)
    except Exception:
        return False
    return True


@cache
def gives_empty_parts() -> bool:
    """Say whether Split gives a last part without elements, as ONNX asks: since 1.29 or later."""
    b = GraphBuilder("probe")
    for part in b.op("Split", b.input("x", "float32", (1,)), outputs=2, num_outputs=2):
        b.output(part, part)
    try:
        load(to_onnx(b.build(), opset=newest_opset()), options(optimize=False)).run(
            None, {"x": np.zeros(1, np.float32)}
        )
    except Exception:
        return False
    return True


def summary(error: Exception) -> str:
    """Return what ONNX Runtime says, without its codes and the places in its source."""
    return told(str(error)) or type(error).__name__


def told(message: str) -> str:
    """Return the first line of a message that is for users, and announces no other.

    In front of it may be a code, a place in a source file, the function that is there, and the
    condition of a check, which stays where nothing else is said.
    """
    text = _CODE.sub("", message.strip())
    place = _PLACE.match(text)
    if place is not None:
        text = text[place.end() :]
        if "/" in place["file"]:
            text = text.replace("(anonymous namespace)", "").replace("operator()", "")
            text = _SIGNATURE.sub("", text)
        else:  # the function's name alone
            text = text.partition(" ")[2] or text
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    first = next((line for line in lines if not line.endswith(":")), lines[0] if lines else "")
    return _CONDITION.sub("", first)[:_MAX_SUMMARY]


def _rounding() -> Graph:
    b = GraphBuilder("probe")
    scale, zero = np.float32(1), np.int8(0)
    rounded = b.op("QuantizeLinear", b.input("x", "float32", (1,)), scale, zero)
    b.output("y", b.op("DequantizeLinear", rounded, scale, zero))
    return b.build()


def _import(package: str) -> Any:
    missing = f"'ort' devices take the package {package!r}, which is not installed"
    return import_extra(package, missing, how_to_install("ort"), DeviceUnavailableError)
