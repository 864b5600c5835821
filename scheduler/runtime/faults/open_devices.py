"""The devices of a session: opened with a share of the cores, closed in reverse.

Devices that the user gave as objects may serve several sessions: the last one closes them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial

from ....devices.device import Device
from ....devices.errors import DeviceError
from ....devices.host import may_run_anywhere
from ....devices.registry import find
from ....graph.values.errors import PlaitError, describe_error
from ...dispatch.core_shares import find_shared_lanes, list_planned, share_equally
from ...plans.plan import Plan
from ...plans.replicas import list_devices

_lock = threading.Lock()
_users: dict[int, int] = {}
"""How many sessions have opened each device, by its id; they keep it alive."""


def open_shared(device: Device, cores: int | None) -> None:
    """Open `device` for one more session, on `cores` cores or on all for None; blocks."""
    with _lock:
        device.open(cores)
        _users[id(device)] = _users.get(id(device), 0) + 1


def reopen_shared(device: Device, cores: int | None) -> None:
    """Reopen `device`, which was lost, for the same sessions on `cores` cores; blocks."""
    with _lock:
        device.open(cores)


def close_shared(device: Device) -> None:
    """Close `device`, unless another session uses it; blocks."""
    with _lock:
        left = _users.pop(id(device)) - 1
        if left:
            _users[id(device)] = left
        else:
            device.close()


class OpenDevices:
    """Opens the devices of a plan; `open` and the functions of `closings` block."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._shared_lanes = find_shared_lanes(plan)
        self.by_name: dict[str, Device] = {}

    @property
    def used(self) -> list[Device]:
        used = list_devices(list_planned(self._plan), self._plan.replicas)
        return [device for name, device in self.by_name.items() if name in used]

    def open(self, name: str) -> Device:
        if name in self._plan.request.given:
            device = self._plan.prototypes[name]
            open_shared(device, share_equally(self._plan))
        else:
            device = find(name)
            self._share_thread(name, device)
            device.open(share_equally(self._plan))
        self.by_name[name] = device
        return device

    def _share_thread(self, name: str, device: Device) -> None:
        for other in map(self.by_name.get, self._shared_lanes.get(name, ())):
            if may_run_anywhere(device) and may_run_anywhere(other):
                device.share_thread(other)

    def reopen(self, name: str) -> None:
        device = self.by_name[name]
        if name in self._plan.request.given:
            reopen_shared(device, share_equally(self._plan))
        else:
            device.open(share_equally(self._plan))

    def closings(self) -> Iterator[Callable[[], None]]:
        for name, device in reversed(self.by_name.items()):
            shared = name in self._plan.request.given
            yield partial(_close, name, partial(close_shared, device) if shared else device.close)
        self.by_name.clear()


def _close(name: str, close: Callable[[], None]) -> None:
    try:
        close()
    except PlaitError as error:
        error.at = error.at or f"device {name!r}, which was closed"
        raise
    except Exception as error:
        what = f"closing it failed: {describe_error(error)}"
        raise DeviceError(what, at=f"device {name!r}") from error
