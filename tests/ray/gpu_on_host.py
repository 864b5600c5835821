"""What a host imports to have a GPU that does not exist."""

from __future__ import annotations

from overlapping_gpu import NAME, OverlappingGpu
from plait import devices

devices.register(NAME, OverlappingGpu().device)
