"""Models of simulated devices: speeds, sizes, faults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..model import DeviceModel


@dataclass(frozen=True, slots=True)
class Faults:
    """Faults injected into a simulated device.

    Attributes
    ----------
    fail_nodes : Mapping of str to Exception
        Exceptions raised by the kernels of nodes, by node name, on every run.
    lost_after : int or None
        Programs and copies accepted before the device is lost. Incomplete and later work then
        fails, until the device is opened again.
    """

    fail_nodes: Mapping[str, Exception] = field(default_factory=dict)
    lost_after: int | None = None


@dataclass(frozen=True, slots=True)
class SimModel(DeviceModel):
    """The figures of a simulated device, and its faults.

    Attributes
    ----------
    memory_bytes : int
        The size of its memory.

    Notes
    -----
    All other figures are those of `DeviceModel`. Copies always have one queue for each direction.
    """

    memory_bytes: int = 4 << 30
    faults: Faults = field(default_factory=Faults)
