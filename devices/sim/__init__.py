"""The sim device: right results at modelled speed, on a clock that tests can control."""

from typing import TYPE_CHECKING

from ...lazily import lazily

if TYPE_CHECKING:
    from .clock import RealClock, VirtualClock
    from .device import Faults, SimDevice, SimModel

__all__ = ["Faults", "RealClock", "SimDevice", "SimModel", "VirtualClock"]

__getattr__, __dir__ = lazily(
    __name__, {".clock": "RealClock VirtualClock", ".device": "Faults SimDevice SimModel"}
)
