"""The host's own share of an item's time, and the devices that compute there."""

from __future__ import annotations

from ...devices.device import Device, Remote
from ...devices.memory import HOST, SHARED

INLINE_BYTES = 1 << 21
"""More than this is copied on a thread, so that the loop is not held up.

To have a thread copy 2 MB takes as much of the processor's time again (0.2 ms), and two more turns
of the loop.
"""

ALONE_BYTES = 6 << 20
"""The same for an item that is alone in its session, where no other one waits for the loop.

On the host of an H200 a thread took 0.1 ms to wake up, and as much again to wake the loop: half of
what it takes to copy so many bytes. For that long, 0.5 ms, other tasks of the program wait, and
twice as long where items may run again: their inputs are copied once more.
"""

AFTER_LAST_BYTES = 1 << 22
"""More results than this are not copied by the thread that ended the last step: its lane waits."""

HOST_BYTES_PER_S = 10e9
"""How fast inputs are written and results read."""


def computes_here(device: Device) -> bool:
    """True when a device's kernels keep the host's cores busy."""
    if issubclass(type(device), Remote):  # known of a class; isinstance looks at members each time
        return False
    offers = device.capabilities
    return offers.runs_python or not offers.accesses.isdisjoint((HOST, SHARED))
