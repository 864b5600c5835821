"""ONNX Runtime as an oracle of products of bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnxruntime


def make_exact_options() -> Any:
    """Return session options with which sums of products of bytes are exact on any processor.

    Without VNNI, ONNX Runtime's products of uint8 and int8 cut each sum of two off at 16 bits. With
    this option it computes with uint8 alone, where the signed operand is a constant.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("session.x64quantprecision", "1")
    return options


def start_exact_runtime(model: Path | bytes) -> Any:
    """Return a session on ONNX Runtime's own kernels, with `make_exact_options`."""
    return onnxruntime.InferenceSession(
        model, make_exact_options(), providers=["CPUExecutionProvider"]
    )
