"""ONNX Runtime itself: found or not, its options, the newest opset it reads, its errors."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from ...graph.extras import import_extra
from ...graph.formats.onnx.upgrade import NEWEST_OPSET
from ...graph.formats.onnx.writer import OLDEST_WRITTEN, to_onnx
from ...graph.ir import Graph, Node
from ...graph.tensor import TensorSpec
from ..errors import DeviceUnavailableError

PROVIDERS = ["CPUExecutionProvider"]
_INEXACT = ["WeightBiasQuantization"]
"""Optimisers left out: this one rounds float weights between quantised tensors to 8 bits."""

_SILENT = 4
"""The level of log messages that nothing reaches: what matters is raised too."""

_MAX_SUMMARY = 300
_PREFIX = re.compile(r"\[ONNXRuntimeError\] : \d+ : \w+ : (\S+\.(cc|h):\d+ )?")


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


def options(threads: int, *, optimise: bool = True) -> Any:
    """Return the options of a quiet session that computes on so many threads.

    Its threads sleep when there is nothing to do: those that spin take cores from others.
    """
    ort = runtime()
    chosen = ort.SessionOptions()
    chosen.intra_op_num_threads = threads
    chosen.inter_op_num_threads = 1
    chosen.log_severity_level = _SILENT
    chosen.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if not optimise:
        chosen.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return chosen


def load(model: Any, chosen: Any) -> Any:
    """Return ONNX Runtime's session for a model; whatever it raises goes through."""
    return runtime().InferenceSession(
        model.SerializeToString(), chosen, providers=PROVIDERS, disabled_optimizers=_INEXACT
    )


@cache
def newest_opset() -> int:
    """Return the newest opset that plait, `onnx` and ONNX Runtime know.

    Raises
    ------
    DeviceUnavailableError
        If there is none, or one of the packages is missing.
    """
    version = runtime().__version__
    refused: Exception | None = None
    for opset in range(NEWEST_OPSET, OLDEST_WRITTEN - 1, -1):
        try:
            load(to_onnx(_negation(), opset=opset), options(1, optimise=False))
        except Exception as error:
            refused = error
        else:
            return opset
    raise DeviceUnavailableError(
        f"onnxruntime {version} does not run a negation: {refused and summary(refused)}",
        fix="pip install --upgrade onnx onnxruntime",
    ) from refused


def summary(error: Exception) -> str:
    """Return what ONNX Runtime says, without its codes and the places in its source."""
    lines = _PREFIX.sub("", str(error)).strip().splitlines()
    return lines[0][:_MAX_SUMMARY] if lines else type(error).__name__


def _negation() -> Graph:
    node, spec = Node("probe", "Neg", ("x",), ("y",)), TensorSpec("float32", (1,))
    return Graph("probe", ("x",), ("y",), (node,), {"x": spec, "y": spec}, {})


def _import(package: str) -> Any:
    missing = f"'ort' devices take the package {package!r}, which is not installed"
    return import_extra(package, missing, "pip install 'plait[onnx,ort]'", DeviceUnavailableError)
