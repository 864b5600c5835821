"""The protocol for arrays that callers pass and receive in a device's memory.

The device keeps the order between the work that a caller has queued on it and plait's work,
without waits on the host.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ..graph.values.tensor import Array, TensorSpec
from .device import Device
from .memory import View


@dataclass(frozen=True, slots=True)
class Loan:
    """A caller's array on a device, for that device to copy from."""

    view: View
    """It keeps the array alive."""

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.view.spec.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.view.spec.static_shape

    @property
    def nbytes(self) -> int:
        """Bytes that the host copies: 0."""
        return 0


@runtime_checkable
class Exchange(Device, Protocol):
    """A device that shares arrays with other libraries.

    Its `copy` also reads borrowed and staged views, and writes to views from `room`. `borrow`,
    `room` and `follow` are called on the caller's thread and refer to its current streams. `borrow`
    may raise anything.
    """

    def takes(self, value: object) -> bool:
        """Return whether `value` is an array in the device's memory."""

    def borrow(self, value: Any) -> Loan:
        """Return a loan of `value`, an array in the device's memory, for `copy` to read.

        Later copies see the work that the caller has queued before.
        """

    def stage(self, array: Array) -> View:
        """Return a view of a copy of `array`, a host's, for `copy` to read."""

    def room(self, spec: TensorSpec) -> View:
        """Return a view of a new array of `spec` for `copy` to write to, which the caller owns.

        It may reuse memory that the caller has released but still reads: such copies wait for the
        caller's queued work.
        """

    def follow(self) -> None:
        """Make later submissions wait for the work that the caller has queued."""
