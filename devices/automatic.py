"""The devices of ``"auto"``: those of this machine that are worth planning on."""

from __future__ import annotations

import os
from functools import cache

from ..graph.values.errors import PlaitError
from .registry import find, import_later

AUTO = "auto"
FROZEN = "frozen"
"""Stands for the devices of `AUTO`, where sessions measure nothing."""
EXACT = "exact"
"""Stands for `cpu`: results of numpy differ between machines by rounding at most."""

list_workers = import_later(".cuda.driver:list_workers")

RUNTIMES = ("ort", "openvino")
"""Devices for whole subgraphs of networks. Plans use the first; the others take over subgraphs for
which measurements on real items showed them to be faster."""

VARIABLE = "PLAIT_DEVICES"
"""The variable of the environment that lists other devices for ``"auto"``, by commas."""


def find_automatic_devices() -> tuple[str, ...]:
    """Return the devices that are installed and compute here, in order of preference.

    GPUs by CUDA, then ONNX Runtime, or compiled kernels without any runtime, then numpy, then other
    runtimes. OpenCL is left out: its devices may be this processor, slower than numpy on it.
    """
    listed = os.environ.get(VARIABLE, "")
    return tuple(name for name in listed.split(",") if name) or _find_usable_devices()


@cache
def _find_usable_devices() -> tuple[str, ...]:
    gpus = [name for name in list_workers(kind="cuda") if _is_usable(name)]
    runtimes = [name for name in RUNTIMES if _is_usable(name)]
    first = runtimes[:1] or [name for name in ("compiled",) if _is_usable(name)]
    return (*gpus, *first, "cpu", *runtimes[1:])


def _is_usable(name: str) -> bool:
    try:
        return bool(find(name).capabilities)
    except PlaitError:
        return False
