"""Copies between a GPU and host memory, or another GPU, on the stream of each direction."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from ...graph.values.tensor import Array
from ..device import OnDone
from ..event import Event
from ..memory import View
from ..streams.queues import DOWNLOAD, SETUP, UPLOAD, Queues
from ..streams.waiter import StreamJob
from .driver import CuPy, count_devices
from .exchange import ArrayArena
from .memory import CudaArena, HostView

HOST_TO_DEVICE, DEVICE_TO_HOST, WITHIN_DEVICE = 1, 2, 3
"""cudaMemcpyKind."""


class StagedDownload(Event):
    """A download from staging, which the host finishes: no stream sees its end."""

    def __init__(self, target: HostView, on_done: OnDone | None) -> None:
        super().__init__(on_done)
        self.target = target


class Copies:
    def __init__(self, cupy: CuPy, queues: Queues) -> None:
        self._cupy = cupy
        self._queues = queues

    def queue(
        self, target: View, source: View, waits: tuple[Event, ...], on_done: OnDone | None
    ) -> Event:
        """Queue a copy from `source` to `target` after `waits`; one of the views is on this device.

        Return its event, which calls `on_done` at its end.
        """
        if isinstance(source, HostView):
            return self._copy_in(target, source, waits, on_done)
        if isinstance(target, HostView):
            return self._copy_out(target, source, waits, on_done)
        if isinstance(source.arena, ArrayArena) or isinstance(target.arena, ArrayArena):
            return self._copy_inside(target, source, waits, on_done)
        return self._copy_over(target, source, waits, on_done)

    def upload(self, view: View, array: Array) -> None:
        source, stream = np.ascontiguousarray(array), self._queues.stream(SETUP)
        address = view.array.data.ptr, source.ctypes.data
        self._cupy.cuda.runtime.memcpyAsync(*address, source.nbytes, HOST_TO_DEVICE, stream.ptr)
        stream.synchronize()

    def _copy_in(
        self, target: View, source: HostView, waits: tuple[Event, ...], on_done: OnDone | None
    ) -> Event:
        staged = _find_staged(source, waits)
        if staged is not None:  # not blocking: this may be the thread that finishes it
            begin = staged.address + source.offset - staged.offset
        else:
            begin = source.address
            if source.staging is not None:
                np.copyto(source.staging, source.array)
        job = StreamJob(Event(on_done), waits, held=(target, source, staged))
        address = target.array.data.ptr, begin
        return self._memcpy(UPLOAD, job, *address, source.array.nbytes, HOST_TO_DEVICE)

    def _copy_out(
        self, target: HostView, source: View, waits: tuple[Event, ...], on_done: OnDone | None
    ) -> Event:
        job = StreamJob(Event(on_done), waits, held=(target, source))
        if target.staging is not None:
            job.event = StagedDownload(target, on_done)
            job.land = partial(np.copyto, target.array, target.staging)
        address = target.address, source.array.data.ptr
        return self._memcpy(DOWNLOAD, job, *address, target.array.nbytes, DEVICE_TO_HOST)

    def _copy_inside(
        self, target: View, source: View, waits: tuple[Event, ...], on_done: OnDone | None
    ) -> Event:
        """Queue a copy from `source` to `target`, a caller's or this device's, after `waits`.

        Its event calls `on_done`.
        """
        lane = DOWNLOAD if isinstance(target.arena, ArrayArena) else UPLOAD
        job = StreamJob(Event(on_done), waits, held=(target, source))
        if not source.spec.nbytes:  # CuPy's empty arrays have no address
            return self._queues.put(lane, job, _skip)
        address = target.array.data.ptr, source.array.data.ptr
        return self._memcpy(lane, job, *address, source.spec.nbytes, WITHIN_DEVICE)

    def _copy_over(
        self, target: View, source: View, waits: tuple[Event, ...], on_done: OnDone | None
    ) -> Event:
        assert isinstance(target.arena, CudaArena)
        assert isinstance(source.arena, CudaArena)
        there, here = source.arena.index, target.arena.index
        if there == here:
            return self._copy_inside(target, source, waits, on_done)
        ends = target.array.data.ptr, here, source.array.data.ptr, there
        stream = self._queues.stream(UPLOAD).ptr
        memcpy = self._cupy.cuda.runtime.memcpyPeerAsync
        copy = partial(memcpy, *ends, source.spec.nbytes, stream)
        job = StreamJob(Event(on_done), waits, held=(target, source))
        return self._queues.put(UPLOAD, job, copy)

    def _memcpy(
        self, lane: str, job: StreamJob, target: int, source: int, nbytes: int, kind: int
    ) -> Event:
        memcpy, stream = self._cupy.cuda.runtime.memcpyAsync, self._queues.stream(lane).ptr
        copy = partial(memcpy, target, source, nbytes, kind, stream)
        return self._queues.put(lane, job, copy)


def _skip() -> None:
    pass


def _find_staged(source: HostView, waits: Sequence[Event]) -> HostView | None:
    for wait in waits:
        if isinstance(wait, StagedDownload) and not wait.done and source.lies_in(wait.target):
            return wait.target
    return None


ALREADY_ENABLED, TOO_MANY = 704, 711
"""cudaErrorPeerAccessAlreadyEnabled: by another library; cudaErrorTooManyPeers."""


def list_peer_memories(cupy: CuPy, index: int) -> frozenset[str]:
    """Return the memories of all devices of `cupy` but `index`: CUDA copies between any two.

    Without a direct route the driver stages the bytes in host memory, in order.
    """
    return frozenset(f"cuda:{other}" for other in range(count_devices(cupy)) if other != index)


def is_direct(cupy: CuPy, index: int, other: int) -> bool:
    """Return whether the hardware gives device `index` access to the memory of `other`.

    `cupy` is the module that is asked.
    """
    return bool(cupy.cuda.runtime.deviceCanAccessPeer(index, other))


class Peers:
    """Opens direct routes between a device and others, if there are any."""

    def __init__(self, cupy: CuPy, index: int) -> None:
        self._cupy = cupy
        self._index = index
        self._reached: set[int] = set()

    def reach(self, other: int) -> None:
        """Enable direct copies from device `other`, which is in use, if possible.

        Not earlier: an idle device would get a context, which takes memory and time.
        """
        if other not in self._reached:
            for one, peer in ((self._index, other), (other, self._index)):
                if is_direct(self._cupy, one, peer):
                    self._enable(one, peer)
            self._reached.add(other)

    def _enable(self, one: int, peer: int) -> None:
        runtime = self._cupy.cuda.runtime
        with self._cupy.cuda.Device(one):
            try:
                runtime.deviceEnablePeerAccess(peer)
            except runtime.CUDARuntimeError as error:
                if error.status not in (ALREADY_ENABLED, TOO_MANY):
                    raise
