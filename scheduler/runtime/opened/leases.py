"""Devices that the user gave as objects may serve several sessions: the last one closes them."""

from __future__ import annotations

import threading

from ....devices.device import Device

_lock = threading.Lock()
_users: dict[int, int] = {}
"""How many sessions have opened each device, by its id; they keep it alive."""


def open_shared(device: Device, cores: int | None) -> None:
    """Open a device, unless another session has; blocks."""
    with _lock:
        device.open(cores)
        _users[id(device)] = _users.get(id(device), 0) + 1


def reopen_shared(device: Device, cores: int | None) -> None:
    """Open a device again that was lost, unless another session has; blocks."""
    with _lock:
        device.open(cores)


def close_shared(device: Device) -> None:
    """Close a device, unless another session uses it; blocks."""
    with _lock:
        left = _users.pop(id(device)) - 1
        if left:
            _users[id(device)] = left
        else:
            device.close()
