"""Arrays that callers hand over where they lie, and take where they are made: the protocol for it.

The order between what a caller has queued on a device and what plait queues there is kept by the
device. Nobody waits on the host for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeGuard, runtime_checkable

import numpy as np

from ..graph.tensor import Array, TensorSpec
from .device import Device
from .memory import View


@dataclass(frozen=True, slots=True)
class Loan:
    """An array of a caller's on a device, for that device to copy from.

    Attributes
    ----------
    view : View
        It keeps the array alive.
    """

    view: View

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of its elements."""
        return self.view.spec.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The lengths of its axes."""
        return self.view.spec.static_shape

    @property
    def nbytes(self) -> int:
        """How much of it the host copies: nothing."""
        return 0


@runtime_checkable
class Exchange(Device, Protocol):
    """A device that shares arrays with other libraries.

    Its `copy` also reads what was borrowed or staged, and writes where there is room. `borrow`,
    `room` and `follow` are called on the thread of the caller, whose current streams are meant.
    `borrow` may raise anything.
    """

    def takes(self, value: object) -> bool:
        """Say whether a value is an array in the device's memory."""
        ...

    def borrow(self, value: Any) -> Loan:
        """Return an array in the device's memory for `copy` to read.

        What is copied from now on sees what the caller has queued before.
        """
        ...

    def stage(self, array: Array) -> View:
        """Return a view of a copy of a host's array, for `copy` to read."""
        ...

    def room(self, spec: TensorSpec) -> View:
        """Return a new array for `copy` to write a result to, which is the caller's then.

        It may lie where another did that the caller has let go, but still reads: such copies wait
        for what the caller has queued.
        """
        ...

    def follow(self) -> None:
        """Have what is submitted from now on wait for what the caller has queued."""
        ...


def exchanges(device: Device) -> TypeGuard[Exchange]:
    """Say whether a device shares arrays with other libraries."""
    return isinstance(device, Exchange)
