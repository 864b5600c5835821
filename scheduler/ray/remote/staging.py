"""Host memory in which bytes are on their way between messages and a device's own memory.

A message lies where the cluster has put it, in memory that a device would copy from slowly, and not
beside other work. So what is written passes through memory that was made for the device's copies,
page-locked for a GPU; what is read is sent from there. Each place has as many such buffers as were
ever in use at a time, one or two as a rule, made when they are first needed.
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
from ....graph.tensor import Array, TensorSpec


@dataclass(frozen=True, slots=True)
class StagedBytes:
    """A buffer that is in use, and where it goes afterwards."""

    view: View
    _unused: list[View]

    def free(self) -> None:
        """Let it be used again."""
        self._unused.append(self.view)

    def lend(self) -> Array:
        """Return an array on it; when that is garbage, it may be used again.

        Whoever pickles the array refers to it for as long as its bytes are needed.
        """
        array = self.view.array.view()
        weakref.finalize(array, self.free).atexit = False
        return array


class Staging:
    """The buffers of one arena, by device and place; any thread may take and free them."""

    def __init__(self) -> None:
        self._unused: dict[Hashable, list[View]] = {}

    def take(self, device: Device, key: Hashable, spec: TensorSpec) -> StagedBytes:
        """Return a buffer that nothing else uses, from and to which the device can copy.

        Raises
        ------
        DeviceMemoryError
            If there is too little memory for another one.
        """
        unused = self._unused.setdefault(key, [])
        try:
            view = unused.pop()
        except IndexError:
            view = device.view(_whole_pages(spec.nbytes), 0, spec)
        return StagedBytes(view, unused)


def _whole_pages(nbytes: int) -> Arena:
    """Allocate pages that nothing else lies on: of two neighbours on one only one is locked."""
    try:
        pages = mmap.mmap(-1, max(nbytes, 1))
    except (OSError, OverflowError) as error:
        raise DeviceMemoryError(
            f"cannot allocate {nbytes} bytes of host memory to copy from and to",
            fix="free memory on the host, or lower max_in_flight",
        ) from error
    return Arena(HOST, nbytes, np.frombuffer(pages, np.uint8, nbytes))
