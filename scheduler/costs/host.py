"""The host's own share of an item's time, and the devices that compute there."""

from __future__ import annotations

from ...devices.device import Device, Remote
from ...devices.memory import HOST, SHARED

INLINE_BYTES = 1 << 21
"""Larger inputs are copied on a thread, so that the loop is not blocked.

A thread doubles the processor's time for 2 MB (0.2 ms), and adds two turns of the loop.
"""

ALONE_BYTES = 6 << 20
"""The limit for an item that is alone in its session, where no other one waits for the loop.

On the host of an H200 a thread took 0.1 ms to wake up, and as long again to wake the loop: half of
the time of the copy. Other tasks of the program wait for 0.5 ms, and twice as long if items may
run again: their inputs are copied once more.
"""

AFTER_LAST_BYTES = 1 << 22
"""Larger results are not copied by the thread that ended the last step: its lane waits."""

HOST_BYTES_PER_S = 10e9
"""Speed of writing inputs and reading results."""


def is_on_host(device: Device) -> bool:
    """Return whether a device's kernels occupy the host's cores."""
    if issubclass(type(device), Remote):  # isinstance would check all members each time
        return False
    offers = device.capabilities
    return offers.runs_python or not offers.accesses.isdisjoint((HOST, SHARED))
