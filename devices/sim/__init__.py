"""The sim device: right results at modelled speed, on a clock that tests can control."""

from .clock import RealClock, VirtualClock
from .device import SimDevice
from .model import Faults, SimModel

__all__ = ["Faults", "RealClock", "SimDevice", "SimModel", "VirtualClock"]
