"""OpenVINO's queue of requests over a model; the package is an option."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .pipeline import NotInstalledError


def queue(path: Path) -> Any:
    """Return a queue of as many requests as OpenVINO finds best for throughput."""
    model = compiled(path)
    import openvino

    return openvino.AsyncInferQueue(model)


def compiled(path: Path) -> Any:
    """Return a model compiled for throughput on the processor, in the precision it has."""
    try:
        import openvino
    except ModuleNotFoundError:
        raise NotInstalledError("pip install openvino") from None
    core = openvino.Core()
    return core.compile_model(
        path, "CPU", {"PERFORMANCE_HINT": "THROUGHPUT", "INFERENCE_PRECISION_HINT": "f32"}
    )
