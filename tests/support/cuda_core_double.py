"""A double of the part of `cuda.core` that plait uses, on the fake GPU: shares of a GPU.

What it refuses, CUDA refuses: contexts of groups from different splits or of two GPUs, or made
while no context is current; and a split into more than there is. Like an H200 under driver 580, it
makes fewer groups than would fit.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from cupy_double import CupyDouble


class CUDAError(Exception):
    """Of `cuda.core`."""


@dataclass(frozen=True)
class SMResourceOptions:
    count: Sequence[int]


class ContextOptions(NamedTuple):
    resources: Sequence[SMResource]


class SMResource(NamedTuple):
    device: int
    split_number: int | None
    numbers: frozenset[int]
    core: CudaCoreDouble

    @property
    def sm_count(self) -> int:
        return len(self.numbers)

    @property
    def min_partition_size(self) -> int:
        return self.core.granularity

    @property
    def coscheduled_alignment(self) -> int:
        return self.core.granularity

    def split(self, options: SMResourceOptions) -> tuple[list[SMResource], SMResource]:
        assert self.split_number is None, "split again without a context"
        if sum(options.count) > len(self.numbers) or not options.count:
            raise CUDAError("CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION: invalid configuration")
        left, number = sorted(self.numbers), next(self.core.splits)
        groups = []
        for count in options.count[: self.core.most_groups]:
            assert count % self.core.granularity == 0, "not aligned"
            taken, left = left[:count], left[count:]
            groups.append(self._replace(split_number=number, numbers=frozenset(taken)))
        return groups, self._replace(split_number=number, numbers=frozenset(left))


class CudaCoreDouble:
    """Stands in for the module `cuda.core`.

    Parameters
    ----------
    double : CupyDouble
    multiprocessors : int
        Of each GPU.
    granularity : int
        Into groups of how many they are split.
    """

    SMResourceOptions = SMResourceOptions
    ContextOptions = ContextOptions

    def __init__(
        self, double: CupyDouble, multiprocessors: int = 132, granularity: int = 8
    ) -> None:
        self.double = double
        self.multiprocessors = multiprocessors
        self.granularity = granularity
        self.most_groups = max(1, multiprocessors // granularity - 1)
        self.splits = itertools.count()

    def Device(self, index: int) -> Device:  # noqa: N802 - the name in cuda.core
        return Device(self, index)


class Device:
    def __init__(self, core: CudaCoreDouble, index: int) -> None:
        assert 0 <= index < core.double.devices
        self._core = core
        self._index = index

    @property
    def resources(self) -> Any:
        return self

    @property
    def sm(self) -> SMResource:
        numbers = frozenset(range(self._core.multiprocessors))
        return SMResource(self._index, None, numbers, self._core)

    def set_current(self) -> None:
        self._core.double.current.use(self._index)

    def create_context(self, options: ContextOptions) -> Context:
        (split,) = {resource.split_number for resource in options.resources}
        (device,) = {resource.device for resource in options.resources}
        assert split is not None, "not from a split"
        assert device == self._index == self._core.double.current.context
        numbers = frozenset[int]().union(*(one.numbers for one in options.resources))
        return Context(self._core, device, numbers)


class Context:
    def __init__(self, core: CudaCoreDouble, device: int, numbers: frozenset[int]) -> None:
        self._core = core
        self._device = device
        self._numbers = numbers

    def create_stream(self) -> Stream:
        gpu = self._core.double.gpu
        return Stream(gpu.new_stream(self._device, self._numbers))


class Stream:
    def __init__(self, ptr: int) -> None:
        self._ptr = ptr

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._ptr
