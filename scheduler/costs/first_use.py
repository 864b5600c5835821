"""Figures of devices of unpredictable speed, measured before their first use and kept.

An OpenCL device is a graphics card of any size, or a processor in place of one: built-in figures
may be wrong by a factor of a thousand. So the first plan that chooses between it and others
measures it, in a second or two, and keeps the figures for this hardware in the user's cache folder.
"""

from __future__ import annotations

import statistics
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from time import perf_counter_ns

from ...devices.cache_folder import FIGURES, find_cache_folder, hash_sources, is_off
from ...devices.device import Device, Varying
from ...devices.errors import DeviceError
from ...devices.kinds import get_kind
from ...devices.model import DeviceModel
from ...graph.values.errors import ParseError
from ..errors import PlanError
from .costs import Costs
from .measure import Clock, measure

LIMIT_S = 0.5
"""Limit of the time for disagreeing runs of one figure: a plan waits for it."""

_lock = threading.Lock()
_known: dict[str, DeviceModel | None] = {}
"""Models by hardware; None if nothing could be measured."""


def with_first_use(
    costs: Costs, devices: Mapping[str, Device], *, clock: Clock = perf_counter_ns
) -> Costs:
    """Return `costs` with measured figures of `devices` that vary, unless better ones are known."""
    if is_off(FIGURES):
        return costs
    found = {}
    for name, device in devices.items():
        if isinstance(device, Varying) and costs.is_guess(name):
            model = _find_figures(device, clock)
            if model is not None:
                found[name] = model
    return costs.merged(Costs(found)) if found else costs


def _find_figures(device: Varying, clock: Clock) -> DeviceModel | None:
    hardware = device.hardware()
    with _lock:
        if hardware not in _known:
            path = _find_path(f"plait {hash_sources('codegen', 'opencl')}, {hardware}")
            _known[hardware] = _read_kept(path) or _measure(device.spare(), path, clock)
        return _known[hardware]


def _find_path(description: str) -> Path | None:
    folder = find_cache_folder(FIGURES, "figures")
    return folder and folder / f"{sha256(description.encode()).hexdigest()}.json"


def _read_kept(path: Path | None) -> DeviceModel | None:
    with suppress(ParseError):
        if path is not None:
            return next(iter(Costs.load(path).models.values()), None)
    return None


def _measure(device: Device, path: Path | None, clock: Clock) -> DeviceModel | None:
    """Measure the closed `device`, and save figures to `path` unless some are doubtful."""
    doubts = list[str]()
    try:
        costs = measure({device.name: device}, clock=clock, note=doubts.append, limit_s=LIMIT_S)
    except DeviceError:  # running on it reports the error
        return None
    memory = device.capabilities.memory
    links = [link for ends, link in costs.links.items() if memory in ends]
    model = replace(
        costs.model(device.name),
        # Copied bytes return: the mean of both directions.
        copy_latency_s=statistics.mean(link.latency_s for link in links),
        copy_bytes_per_s=statistics.harmonic_mean([link.bytes_per_s for link in links]),
    )
    # Only to regular files: a pipe without a reader blocks forever.
    if path is not None and not doubts and (path.is_file() or not path.exists()):
        with suppress(OSError, PlanError):  # no room or rights: it is measured again later
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            Costs({get_kind(device.name): model}).save(path)
    return model
