"""Staging buffers in host memory between messages and a device's own memory.

Messages lie in memory of the cluster, from which a device copies slowly and not concurrently with
other work. So written values pass through buffers made for the device's copies, page-locked for a
GPU, and read values are sent from them. A place has as many buffers as were ever in use at the same
time, usually one or two, allocated on demand.
"""

from __future__ import annotations

import mmap
import weakref
from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np

from ....devices.device import Device
from ....devices.errors import DeviceMemoryError
from ....devices.memory import HOST, Arena, View
from ....graph.values.tensor import Array, TensorSpec


@dataclass(frozen=True, slots=True)
class StagedBytes:
    """A buffer in use, and the list of unused ones to return it to."""

    view: View
    _unused: list[View]

    def free(self) -> None:
        self._unused.append(self.view)

    def lend(self) -> Array:
        """Return an array on the buffer, which is freed with the array.

        A pickler refers to the array as long as it needs the bytes.
        """
        array = self.view.array.view()
        weakref.finalize(array, self.free).atexit = False
        return array


class Staging:
    """The buffers of one arena, by device and place. Thread-safe."""

    def __init__(self) -> None:
        self._unused: dict[Hashable, list[View]] = {}

    def take(self, device: Device, key: Hashable, spec: TensorSpec) -> StagedBytes:
        """Return a free buffer of `spec` for `key` that `device` can copy; or DeviceMemoryError."""
        unused = self._unused.setdefault(key, [])
        try:
            view = unused.pop()
        except IndexError:
            view = device.view(_allocate_pages(spec.nbytes), 0, spec)
        return StagedBytes(view, unused)


def _allocate_pages(nbytes: int) -> Arena:
    try:
        pages = mmap.mmap(-1, max(nbytes, 1))
    except (OSError, OverflowError) as error:
        raise DeviceMemoryError(
            f"cannot allocate {nbytes} bytes of host memory to copy from and to",
            fix="free memory on the host, or lower max_in_flight",
        ) from error
    return Arena(HOST, nbytes, np.frombuffer(pages, np.uint8, nbytes))
