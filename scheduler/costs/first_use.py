"""Figures of devices of which the kind says little, measured before they first matter, and kept.

An OpenCL device is a graphics card of any size, or a processor in the place of one: what is built
in may be wrong by a factor of a thousand. So the first plan that has to choose between it and
others measures it, in a second or two; what is found is kept for this hardware in the user's cache
folder.
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

from ...devices.cache_folder import cache_folder, is_off
from ...devices.device import Device, Varying
from ...devices.errors import DeviceError
from ...devices.kinds import device_kind
from ...devices.model import DeviceModel
from ...graph.errors import ParseError
from ...version import VERSION
from ..errors import PlanError
from .costs import Costs
from .measure import Clock, measure

FOLDER = "PLAIT_FIGURES"
"""The variable of the environment that names another folder, or ``off``: nothing is measured."""

LIMIT_S = 0.5
"""So long runs of one figure may disagree: a plan is waited for."""

_lock = threading.Lock()
_known: dict[str, DeviceModel | None] = {}
"""What this process knows, by hardware; None where nothing could be measured."""


def with_first_use(
    costs: Costs, devices: Mapping[str, Device], *, clock: Clock = perf_counter_ns
) -> Costs:
    """Return costs with measured figures of devices that vary, where nothing better is known."""
    if is_off(FOLDER):
        return costs
    found = {}
    for name, device in devices.items():
        if isinstance(device, Varying) and costs.is_guess(name):
            model = _figures(device, clock)
            if model is not None:
                found[name] = model
    return costs.merged(Costs(found)) if found else costs


def _figures(device: Varying, clock: Clock) -> DeviceModel | None:
    """Return the figures of a device, as they are kept, or as measured now."""
    hardware = device.hardware()
    with _lock:
        if hardware not in _known:
            # Other releases may have other kernels.
            path = _path(f"plait {VERSION}, {hardware}")
            _known[hardware] = _kept(path) or _measured(device.spare(), path, clock)
        return _known[hardware]


def _path(told: str) -> Path | None:
    folder = cache_folder(FOLDER, "figures")
    return folder and folder / f"{sha256(told.encode()).hexdigest()}.json"


def _kept(path: Path | None) -> DeviceModel | None:
    """Return what a file holds; None where there is none, or it is damaged."""
    with suppress(ParseError):
        if path is not None:
            return next(iter(Costs.load(path).models.values()), None)
    return None


def _measured(device: Device, path: Path | None, clock: Clock) -> DeviceModel | None:
    """Measure a closed device, and keep what is found, unless some of it is in doubt."""
    doubts = list[str]()
    try:
        costs = measure({device.name: device}, clock=clock, note=doubts.append, limit_s=LIMIT_S)
    except DeviceError:  # whoever runs on it is told
        return None
    memory = device.capabilities.memory
    links = [link for ends, link in costs.links.items() if memory in ends]
    model = replace(
        costs.model(device.name),
        # Bytes that go there come back: the mean of both ways.
        copy_latency_s=statistics.mean(link.latency_s for link in links),
        copy_bytes_per_s=statistics.harmonic_mean([link.bytes_per_s for link in links]),
    )
    # Only files are written to: a pipe without a reader waits forever.
    if path is not None and not doubts and (path.is_file() or not path.exists()):
        with suppress(OSError, PlanError):  # no room, no rights: it is measured again another time
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            Costs({device_kind(device.name): model}).save(path)
    return model
