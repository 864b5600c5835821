"""The device that is measured."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from plait import devices
from plait.devices import Device
from plait.devices.cuda.driver import load_cupy

T = TypeVar("T")

WAYS: Mapping[str, Mapping[str, Any]] = {
    "CUDA graphs": {},
    "one by one": {"graphs": False},
    "CuPy's kernels": {"compiler": None},
}
"""How a CUDA device can be told to launch, by its options."""


class Unsuitable(Exception):  # noqa: N818 - it is no error: the question does not arise
    """A device has nothing to say to a question, or something it needs is not installed."""


@dataclass(frozen=True)
class Target:
    """A device, and how large what it is given is.

    Attributes
    ----------
    name : str
    make : callable
        Returns a new device that is not open, given options of its kind.
    is_cuda : bool
        Whether it takes the options of `CudaDevice`.
    has_cupy : bool
        Whether CuPy can be asked about it directly.
    small : bool
        Sizes to try questions out with; the figures mean nothing then.
    make_next : callable, optional
        Returns the device with the next number, where that is of the same kind.
    make_share : callable, optional
        Returns a share of the device, given its range of percent.
    """

    name: str
    make: Callable[..., Device]
    is_cuda: bool = False
    has_cupy: bool = False
    small: bool = False
    make_next: Callable[..., Device] | None = None
    make_share: Callable[[str], Device] | None = None

    @classmethod
    def named(cls, name: str, *, small: bool = False) -> Target:
        """Return a device by its name."""
        if name.partition(":")[0] != "cuda":
            return cls(name, partial(devices.find, name), small=small)
        from plait.devices.cuda.device import CudaDevice

        following = f"cuda:{index_of(name) + 1}"
        make, make_next = partial(CudaDevice, name), partial(CudaDevice, following)
        return cls(name, make, True, True, small, make_next, lambda of: CudaDevice(f"{name}/{of}"))

    @property
    def ways(self) -> Mapping[str, Mapping[str, Any]]:
        """How it can be told to launch: options of `make`, by what they are called."""
        return WAYS if self.is_cuda else {"queued": {}}

    def size(self, full: T, small: T) -> T:
        """Return one or the other."""
        return small if self.small else full

    @contextmanager
    def opened(self, **options: Any) -> Iterator[Device]:
        """Open a device of its own, and close it."""
        device = self.make(**options)
        device.open()
        try:
            yield device
        finally:
            device.close()

    def cupy(self) -> Any:
        """Return CuPy, with the device current.

        Raises
        ------
        Unsuitable
            If it is no device of CuPy's.
        """
        if not self.has_cupy:
            raise Unsuitable("asked of CuPy alone")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of things that are none of our business
            cupy = load_cupy()
        cupy.cuda.Device(index_of(self.name)).use()
        return cupy


def index_of(name: str) -> int:
    """Return N of ``cuda:N``."""
    return int(name.partition(":")[2] or 0)
