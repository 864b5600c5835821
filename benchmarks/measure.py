"""Fair timing side by side, and results on file: every claim about speed comes through here."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import threadpoolctl
from plait.version import DISTRIBUTION

VECTORS = ("avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile")
"""Flags by which Linux names instruction sets."""

RESULTS = Path(__file__).parent / "results"
PACKAGES = (
    *(DISTRIBUTION, "numpy", "trio", "msgpack", "msgspec", "numba"),
    *("onnxruntime", "onnxruntime-gpu", "torch", "pyopencl"),
    *("cupy-cuda13x", "cupy-cuda12x", "nvidia-cuda-nvrtc", "nvidia-cublas"),
)


def alternate(
    sides: Mapping[str, Callable[[], object]],
    *,
    rounds: int = 9,
    at_least_s: float = 0.05,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Return each side's median seconds per call, the sides taking turns.

    Each turn repeats its call until `at_least_s` seconds are over, so that short calls are timed
    too; taking turns lets drift of the machine hit all sides alike. Where others use the machine as
    well, `time.process_time` as the clock leaves out what they take.
    """
    repeats = {name: _repeats(call, at_least_s) for name, call in sides.items()}
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, call in sides.items():
            start = clock()
            for _ in range(repeats[name]):
                call()
            seconds[name].append((clock() - start) / repeats[name])
    return {name: statistics.median(values) for name, values in seconds.items()}


def quantiles(values: list[float]) -> dict[str, float]:
    """Return the median and the 99th percentile."""
    ordered = sorted(values)
    return {"p50": ordered[len(ordered) // 2], "p99": ordered[int(len(ordered) * 0.99)]}


def save(name: str, figures: Mapping[str, Any]) -> None:
    """Print figures, and write them with machine, versions and date to ``results/NAME.json``."""
    print(write(RESULTS / f"{name}.json", figures))


def write(path: Path, figures: Mapping[str, Any]) -> str:
    """Write figures with machine, versions and date as JSON, and return that."""
    record = {"date": datetime.now(UTC).isoformat(timespec="seconds"), **_machine(), **figures}
    text = json.dumps(record, indent=2)
    path.parent.mkdir(exist_ok=True)
    unfinished = path.with_suffix(".part")
    unfinished.write_text(text + "\n")
    unfinished.replace(path)  # whoever ends the run meanwhile leaves what there was
    return text


def _repeats(call: Callable[[], object], at_least_s: float) -> int:
    start = time.perf_counter()
    call()
    return max(1, int(at_least_s / max(time.perf_counter() - start, 1e-7)))


def _machine() -> dict[str, Any]:
    return {
        "cpu": _cpu_name(),
        "instructions": _list_instruction_sets(),
        "cores": len(os.sched_getaffinity(0)),
        "blas_kernels": _blas_kernels(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES if _version(name)},
    }


def _list_instruction_sets() -> list[str]:
    """Return the instruction sets for vectors that the processor has."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []
    flags = next((x.split(":")[1].split() for x in lines if x.startswith("flags")), [])
    return [name for name in VECTORS if name in flags]


def _blas_kernels() -> list[str]:
    """Return whose kernels numpy's BLAS runs: its own choice, or what OPENBLAS_CORETYPE says."""
    found = threadpoolctl.threadpool_info()
    libraries = (each for each in found if each["user_api"] == "blas")
    return [each.get("architecture", each["internal_api"]) for each in libraries]


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((x.split(":")[1].strip() for x in lines if x.startswith("model name")), "unknown")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
