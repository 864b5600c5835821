"""The module of ONNX Runtime: its options, newest opset, probes and errors."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

from ...graph.building.builder import GraphBuilder
from ...graph.core.ir import Graph
from ...graph.formats.onnx.forms import ELEMENT_TYPE_OF
from ...graph.formats.onnx.upgrade import NEWEST_OPSET
from ...graph.formats.onnx.writer import OLDEST_WRITTEN, to_onnx
from ...graph.formats.unknown_operators import EXTENSIONS_DOMAIN
from ...graph.values.extras import get_install_command, import_extra
from ..errors import DeviceUnavailableError
from .threads import ONE_THREAD, SPIN_US, Threads

PROVIDERS = ["CPUExecutionProvider"]
INEXACT = ["WeightBiasQuantization"]
"""Disabled optimizers: this one rounds float weights between quantized tensors to 8 bits."""

_EXACT = {"session.qdq_matmulnbits_accuracy_level": "1"}
"""Makes weights that are decoded by blocks multiply floats, not floats rounded to 8 bits."""

_SILENT = 4
"""Log level above all messages: errors are raised as well."""

_MAX_SUMMARY = 300
_UNSUPPORTED = re.compile(
    r"not (?:yet )?(?:supported|implemented)|unsupported|does not support|only supports?\b"
    r"|provided for output .* but the computed output shape",
    re.IGNORECASE | re.DOTALL,
)
_CODE = re.compile(r"^(\[ONNXRuntimeError\] : \d+ : \w+ : )?(Exception during initialization: )?")
_PLACE = re.compile(r"^(?P<file>\S+\.(?:cc|cpp|cu|h|hpp)):\d+ ")
_SIGNATURE = re.compile(r"^[^(]*\([^()]*\)(?: const)?(?:::<lambda\(\)>)?(?: \[with [^\]]*\])? ")
_CONDITION = re.compile(r"^.* was false\. ?(?=\S)")


@cache
def load_runtime() -> Any:
    """Return the module `onnxruntime`.

    Raises DeviceUnavailableError if it, or `onnx`, which writes its models, is not installed or
    does not load.
    """
    _import("onnx")
    return _import("onnxruntime")


def list_schemas() -> Sequence[Any]:
    """Return the schemas of all operators in ONNX Runtime, in all versions.

    Raises DeviceUnavailableError as in `load_runtime`.
    """
    load_runtime()
    # They have no public access.
    state = import_module("onnxruntime.capi.onnxruntime_pybind11_state")
    found: Sequence[Any] = state.get_all_operator_schema()
    return found


def make_options(
    threads: Threads = ONE_THREAD, *, cores: Sequence[int] = (), optimize: bool = True
) -> Any:
    """Return the options of a quiet session on `threads`, which are bound to `cores`, if any.

    Its threads sleep between runs, because spinning would take cores from others. The first thread
    is the caller's; ONNX Runtime counts cores from 1. `optimize` lets it rewrite the model.
    """
    ort = load_runtime()
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
    """Create a session of `model` with options `chosen`; its errors pass through."""
    if any(entry.domain == EXTENSIONS_DOMAIN for entry in model.opset_import):
        chosen.register_custom_ops_library(
            import_module("onnxruntime_extensions").get_library_path()
        )
    return load_runtime().InferenceSession(
        model.SerializeToString(), chosen, providers=PROVIDERS, disabled_optimizers=INEXACT
    )


def is_refusal(error: Exception) -> bool:
    """Return whether `error` is for lack of a kernel, rather than for the fed values.

    Some kernels check attributes, dtypes and shapes only at run time.
    """
    return type(error).__name__ == "NotImplemented" or bool(_UNSUPPORTED.search(str(error)))


@cache
def find_newest_opset() -> int:
    """Return the newest opset that plait, `onnx` and ONNX Runtime know, and have kernels for.

    A release may read an opset before it has kernels for its changes. The newest forms of quantized
    models, which it would expand to floats, decide. Raises DeviceUnavailableError if no opset
    works, or a package is missing.
    """
    version = load_runtime().__version__
    refused: Exception | None = None
    for opset in range(NEWEST_OPSET, OLDEST_WRITTEN - 1, -1):
        try:
            load(to_onnx(_build_probe(), opset=opset), make_options(optimize=False))
        except Exception as error:
            refused = error
        else:
            return opset
    raise DeviceUnavailableError(
        f"onnxruntime {version} does not run a quantized model: {refused and summarize(refused)}",
        fix="pip install --upgrade onnx onnxruntime",
    ) from refused


@cache
def can_bind_extensions() -> bool:
    """Return whether buffers of dtypes that numpy lacks can be bound: since 1.23."""
    binding = load(to_onnx(_build_probe(), opset=find_newest_opset()), make_options()).io_binding()
    place = np.zeros(1, np.int64)
    try:
        binding.bind_input("x", "cpu", 0, ELEMENT_TYPE_OF["bfloat16"], (1,), place.ctypes.data)
    except Exception:
        return False
    return True


@cache
def can_give_empty_parts() -> bool:
    """Return whether Split can return an empty last part, as in ONNX: since 1.29 or later."""
    b = GraphBuilder("probe")
    for part in b.op("Split", b.input("x", "float32", (1,)), outputs=2, num_outputs=2):
        b.output(part, part)
    try:
        load(to_onnx(b.build(), opset=find_newest_opset()), make_options(optimize=False)).run(
            None, {"x": np.zeros(1, np.float32)}
        )
    except Exception:
        return False
    return True


def summarize(error: Exception) -> str:
    """Return the message of `error`, from ONNX Runtime, without codes and places in its source."""
    return extract_message(str(error)) or type(error).__name__


def extract_message(message: str) -> str:
    """Return the first line of `message` that is for users.

    Before it may be a code, a place in a source file, the function there, and the condition of a
    check, which stays if it is the only text.
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


def _build_probe() -> Graph:
    b = GraphBuilder("probe")
    scale, zero = np.float32(1), np.int8(0)
    rounded = b.op("QuantizeLinear", b.input("x", "float32", (1,)), scale, zero)
    b.output("y", b.op("DequantizeLinear", rounded, scale, zero))
    return b.build()


def _import(package: str) -> Any:
    missing = f"'ort' devices take the package {package!r}, which is not installed"
    return import_extra(package, missing, get_install_command("ort"), DeviceUnavailableError)
