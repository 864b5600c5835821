"""What `make gpu` asks, asked at toy sizes of OpenCL on a processor and of a fake GPU."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from cupy_double import CupyDouble
from plait.devices.opencl.device import OpenClDevice
from pocl import pocl_device

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from gpu.question import Row, fact, rows_of, text_of
from gpu.target import Target, Unsuitable

QUESTIONS = {
    "launching": ("submissions",),
    "completion": ("programs", "items"),
    "copies": ("planned",),
    "rounding": ("bits",),
    "integers": ("definitions",),
    "products": ("rates", "errors"),
    "overlap": ("frames", "beside_numpy"),
}
"""What any device can be asked, by module."""


def on_pocl() -> Target:
    device = pocl_device()
    return Target("opencl:0", lambda: OpenClDevice(device=device), small=True)


def on_double() -> Target:
    pocl_device()
    double = CupyDouble(3)
    return Target("cuda:0", double.generating, is_cuda=True, small=True)


@pytest.mark.parametrize("target", [on_pocl, on_double])
@pytest.mark.parametrize("name", QUESTIONS)
def test_a_question_is_answered(name: str, target: Callable[[], Target]) -> None:
    module = import_module(f"gpu.{name}")
    experiments = [getattr(module, experiment) for experiment in QUESTIONS[name]]
    rows = list(rows_of(experiments, target()))
    for r in rows: print(text_of(r))
    assert rows
    assert [row for row in rows if row.status != "measured"] == []
