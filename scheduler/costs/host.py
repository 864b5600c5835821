"""What the host takes for its share of an item, and which devices compute there."""

from __future__ import annotations

from ...devices.device import Device, Remote
from ...devices.memory import HOST, SHARED

INLINE_BYTES = 1 << 20
"""More than this is copied on a thread."""

HOST_BYTES_PER_S = 10e9
"""How fast inputs are written and results read."""


def computes_here(device: Device) -> bool:
    """True when a device's kernels keep the host's cores busy."""
    if isinstance(device, Remote):
        return False
    offers = device.capabilities
    return offers.runs_python or not offers.accesses.isdisjoint((HOST, SHARED))
