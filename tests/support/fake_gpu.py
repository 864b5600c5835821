"""GPUs that do not exist: streams that run in the worst order that CUDA allows.

Operations are queued and run only when somebody waits for an event. Which stream then goes first
is up to a seed, bound by nothing but the order within each stream and the waits between them, so
that a missing wait shows for some seed every time, on any machine.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import mmap
import os
import random
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from fake_cuda_errors import (
    ALREADY_REGISTERED,
    CAPTURE_UNSUPPORTED,
    ILLEGAL_ADDRESS,
    INVALID_HANDLE,
    INVALID_VALUE,
    LAUNCH_FAILURE,
    NOT_REGISTERED,
    NOT_SUPPORTED,
    OUT_OF_MEMORY,
    CUDARuntimeError,
)

POISON = 0xA5
DEVICE_BASE = 1 << 52
"""Where device addresses begin: host code that follows one crashes at once."""

ORDERS = tuple(itertools.permutations(range(3)))
SEEDS = tuple(range(len(ORDERS) + 2))
"""All orders of precedence among three streams, and two random ones."""


@dataclass(slots=True)
class Operation:
    """Something queued on a stream; it runs once `ready`."""

    run: Callable[[], Any]
    ready: Callable[[], bool] = lambda: True


class Recording:
    """The state of a CUDA event: how often it was recorded, and how far the GPU has got."""

    def __init__(self, timing: bool) -> None:
        self.timing = timing
        self.recorded = 0
        self.reached = 0
        self.tick = 0
        self._over = {0}

    def reach(self, version: int, tick: int) -> None:
        """Take note that the GPU has got to a recording, whichever comes before or after."""
        self._over.add(version)
        if version > self.reached:
            self.reached, self.tick = version, tick

    def is_over(self, version: int) -> bool:
        """Say whether it has: to that one, not to another on some other stream."""
        return version in self._over


class FakeGpu:
    """Streams, memory and faults of all GPUs of a machine; work reaches the memory of its own only.

    Attributes
    ----------
    live_bytes : int
        Device memory that is allocated.
    locked : dict of int to int
        Page-locked ranges of host memory: address to size.
    pageable_copies : int
        Copies from or to host memory that was not page-locked; real ones block their caller.
    graphs_launched : int
    kernels_on : set of frozenset of int
        The sets of multiprocessors that kernels were queued for; an empty one stands for all.
    current_device : callable
        Returns the device of the calling thread.
    shares : bool
        Whether other processes can open what is allocated; CUDA does not offer that everywhere.
    """

    def __init__(self, seed: int, memory_bytes: int, *, shares: bool = False) -> None:
        self.memory_bytes = memory_bytes
        self.shares = shares
        self.current_device: Callable[[], int] = int
        self._files: dict[int, int] = {}
        """Descriptors of what other processes can open, by address."""
        self.live_bytes = 0
        self.locked: dict[int, int] = {}
        self.pageable_copies = 0
        self.graphs_launched = 0
        self.kernels_on: set[frozenset[int]] = set()
        self.refuses_locking = False
        self.order: list[int] = []
        self._seed = seed
        self._random = random.Random(seed)
        self._changed = threading.Condition(threading.RLock())
        self._queues: list[deque[Operation]] = []
        self._device_of: list[int] = []
        """Of each stream."""
        self._multiprocessors: list[frozenset[int]] = []
        """That each stream's kernels are kept to."""
        self._destroyed: set[int] = set()
        self._captures: dict[int, list[Callable[[], Any]]] = {}
        self._broken: CUDARuntimeError | None = None
        self._breaking: int | None = None
        self._is_paused = False
        self._host_calls = 0
        self._ticks = 0
        self._next_address = DEVICE_BASE
        self._memories: dict[int, np.ndarray[Any, Any]] = {}
        self._owners: dict[int, int] = {}
        """The device that each of them is on."""
        self._thread = threading.local()

    # What tests do

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Run nothing meanwhile: whoever waits, waits until the end of the block."""
        with self._changed:
            self._is_paused = True
        try:
            yield
        finally:
            with self._changed:
                self._is_paused = False
                self._changed.notify_all()

    def break_next(self, status: int = ILLEGAL_ADDRESS) -> None:
        """Fail the next kernel that runs, and with it all that comes after."""
        with self._changed:
            self._breaking = status

    @property
    def is_executing(self) -> bool:
        """True on a thread that is running a queued operation."""
        return getattr(self._thread, "executing", False)

    # Streams and events

    @property
    def executing_device(self) -> int | None:
        """The device whose operation this thread is running."""
        return getattr(self._thread, "device", None)

    def new_stream(self, device: int = 0, multiprocessors: frozenset[int] = frozenset()) -> int:
        with self._changed:
            self._check()
            self._queues.append(deque())
            self._multiprocessors.append(multiprocessors)
            self._device_of.append(device)
            return len(self._queues)

    def destroy_stream(self, stream: int) -> None:
        """Forget a stream: calls that are given it from now on are refused."""
        with self._changed:
            self._destroyed.add(stream)

    def queue(self, stream: int, run: Callable[[], Any]) -> None:
        """Queue an operation on a stream, by its number."""
        with self._changed:
            self._check()
            if stream in self._captures:
                self._captures[stream].append(run)
            else:
                self._queues[stream - 1].append(Operation(run))

    def call_on_host(self, stream: int, function: Callable[[], Any]) -> None:
        """Queue a function of the host's, which runs on a thread: what follows waits for it."""
        over = threading.Event()

        def call() -> None:
            function()
            over.set()
            with self._changed:
                self._host_calls -= 1
                self._changed.notify_all()

        with self._changed:
            self._check()
            self._refuse_if_capturing(stream)

            def begin() -> None:
                self._host_calls += 1
                threading.Thread(target=call, daemon=True).start()

            queue = self._queues[stream - 1]
            queue += (Operation(begin), Operation(lambda: None, over.is_set))

    def launch(self, stream: int, kernel: Callable[[], Any]) -> None:
        """Queue a kernel; one that is captured stays on the multiprocessors of that stream."""
        self.kernels_on.add(self._multiprocessors[stream - 1])
        self.queue(stream, lambda: self._run_kernel(kernel))

    def record(self, stream: int, recording: Recording) -> None:
        with self._changed:
            self._refuse_if_capturing(stream)
            recording.recorded += 1
            version = recording.recorded

            def reach() -> None:
                recording.reach(version, self._ticks)

            self.queue(stream, reach)

    def wait(self, stream: int, recording: Recording) -> None:
        """Hold a stream until the latest recording so far has been reached."""
        with self._changed:
            self._check()
            self._refuse_if_capturing(stream)
            version = recording.recorded
            self._queues[stream - 1].append(
                Operation(lambda: None, lambda: recording.is_over(version))
            )

    def synchronize(self, recording: Recording) -> None:
        with self._changed:
            version = recording.recorded
            self._run_until(lambda: recording.is_over(version))

    def poll(self, recording: Recording) -> bool:
        """Say whether the latest recording was reached, and get on by one operation if not.

        False on a broken GPU, as CuPy's `Event.done`.
        """
        with self._changed:
            version = recording.recorded
            is_due = not recording.is_over(version) and self._broken is None
            if is_due and not self._is_paused and self._is_ready():
                self._run_one()
            return recording.is_over(version)

    def drain(self, stream: int | None = None) -> None:
        """Run until one stream, or all, have nothing left."""
        with self._changed:
            self._refuse_if_capturing(stream)
            queues = self._queues if stream is None else [self._queues[stream - 1]]
            self._run_until(lambda: not any(queues))

    def begin_capture(self, stream: int) -> None:
        """Keep what is queued on a stream from now on, instead of running it."""
        with self._changed:
            self._refuse_if_capturing(stream)
            self._captures[stream] = []

    def end_capture(self, stream: int) -> tuple[Callable[[], Any], ...]:
        """Return what was queued since."""
        with self._changed:
            return tuple(self._captures.pop(stream))

    def is_capturing(self, stream: int) -> bool:
        return stream in self._captures

    def _refuse_if_capturing(self, stream: int | None) -> None:
        if stream in self._captures:
            raise CUDARuntimeError(CAPTURE_UNSUPPORTED)

    def _run_until(self, reached: Callable[[], bool]) -> None:
        self._check()
        while not reached():
            if self._is_paused or not self._is_ready():
                self._changed.wait()
            else:
                self._run_one()
            self._check()

    def _is_ready(self) -> bool:
        """Say whether something can run; else a function of the host's has to end first."""
        is_ready = any(queue and queue[0].ready() for queue in self._queues)
        assert is_ready or self._host_calls, "the streams wait for each other"
        return is_ready

    def _run_one(self) -> None:
        ready = [i for i, queue in enumerate(self._queues) if queue and queue[0].ready()]
        # The first stream made is the one that clocks are set by; the other three do the work.
        if self._seed < len(ORDERS):
            ranks = ORDERS[self._seed]
            chosen = min(ready, key=lambda i: (ranks[(i - 1) % 3], i))
        else:
            chosen = self._random.choice(ready)
        operation = self._queues[chosen].popleft()
        self.order.append(chosen)
        self._ticks += 1
        self._thread.executing, self._thread.device = True, self._device_of[chosen]
        try:
            with np.errstate(all="ignore"):
                operation.run()
        except Exception as error:
            self._break(error)
        finally:
            self._thread.executing, self._thread.device = False, None

    def _break(self, error: Exception) -> None:
        status = error.status if isinstance(error, CUDARuntimeError) else LAUNCH_FAILURE
        self._broken = CUDARuntimeError(status)
        self._broken.__cause__ = None if isinstance(error, CUDARuntimeError) else error
        for queue in self._queues:
            queue.clear()

    def _run_kernel(self, kernel: Callable[[], Any]) -> None:
        if self._breaking is not None:
            raise CUDARuntimeError(self._breaking)
        kernel()

    def _check(self) -> None:
        if self._broken is not None:
            raise CUDARuntimeError(self._broken.status) from self._broken.__cause__

    # Memory

    def allocate(self, nbytes: int, device: int = 0) -> tuple[int, np.ndarray[Any, Any]]:
        """Return an address of a device's memory and the poisoned cells behind it."""
        with self._changed:
            self._check()
            if self.live_bytes + nbytes > self.memory_bytes:
                raise CUDARuntimeError(OUT_OF_MEMORY)
            self.live_bytes += nbytes
            address = self._next_address
            self._next_address += -(-nbytes // 512) * 512 + 512  # with a gap nobody may touch
            if self.shares:
                self._files[address] = file = os.memfd_create("memory of a fake GPU")
                os.ftruncate(file, nbytes)
                cells = np.frombuffer(mmap.mmap(file, nbytes), np.uint8)
                cells.fill(POISON)
            else:
                cells = np.full(nbytes, POISON, np.uint8)
            self._memories[address] = cells
            self._owners[address] = device
            return address, cells

    def get_handle(self, address: int) -> bytes:
        """Return what another process opens an allocation by, while this one keeps it."""
        with self._changed:
            self._check()
            if not self.shares:
                raise CUDARuntimeError(NOT_SUPPORTED)
            if address not in self._files:
                raise CUDARuntimeError(INVALID_VALUE)
            return f"/proc/{os.getpid()}/fd/{self._files[address]}".encode().ljust(64, b"\0")

    def open_handle(self, handle: bytes, device: int) -> int:
        """Return an address of another process's memory, on a device."""
        with self._changed:
            self._check()
            assert len(handle) == 64, "not a handle"
            path = handle.rstrip(b"\0").decode()
            if f"/proc/{os.getpid()}/" in path:  # as CUDA refuses it
                raise CUDARuntimeError(INVALID_VALUE)
            try:
                fd = os.open(path, os.O_RDWR)
            except OSError as error:  # it was freed
                raise CUDARuntimeError(INVALID_VALUE) from error
            try:
                cells = np.frombuffer(mmap.mmap(fd, 0), np.uint8)
            finally:
                os.close(fd)
            address = self._next_address
            self._next_address += -(-cells.nbytes // 512) * 512 + 512
            self._memories[address], self._owners[address] = cells, device
            return address

    def close_handle(self, address: int) -> None:
        """Take another process's memory out of reach."""
        with self._changed:
            del self._memories[address], self._owners[address]

    def memory_info(self) -> tuple[int, int]:
        """Return how many bytes are free, of how many; a broken GPU answers with its error."""
        with self._changed:
            self._check()
            return self.memory_bytes - self.live_bytes, self.memory_bytes

    def free(self, address: int) -> None:
        with self._changed:
            self.live_bytes -= self._memories.pop(address).nbytes
            del self._owners[address]
            if (file := self._files.pop(address, None)) is not None:
                os.close(file)

    def check_freed(self) -> None:
        """Fail if memory is left allocated, or that of the host page-locked, but by garbage."""
        if self.live_bytes or self.locked:  # else there is nothing that collecting could change
            gc.collect()
        assert self.live_bytes == 0, "device memory was left allocated"
        assert self.locked == {}, "host memory was left page-locked"

    def memset(self, address: int, value: int, nbytes: int, stream: int) -> None:
        self.queue(stream, lambda: self.cells(address, nbytes).fill(value))

    def copy(self, target: int, source: int, nbytes: int, kind: int, stream: int) -> None:
        """Queue a copy; what it reads and writes is looked up when it runs."""
        if not nbytes and stream in self._captures:  # a graph has no copies of nothing
            raise CUDARuntimeError(INVALID_VALUE)
        if kind == 3 and min(target, source) >= DEVICE_BASE:
            self.queue(stream, lambda: self._copy_inside(target, source, nbytes))
            return
        host, device = (source, target) if kind == 1 else (target, source)
        if kind not in (1, 2) or not host < DEVICE_BASE <= device:
            raise CUDARuntimeError(INVALID_VALUE)
        if not self._is_locked(host, nbytes):
            self._copy_pageable(target, source, nbytes, kind, stream)
            return

        def run() -> None:
            assert self._is_locked(host, nbytes), "host memory was unlocked under a copy"
            self._copy_now(target, source, nbytes, kind)

        self.queue(stream, run)

    def copy_peer(
        self, target: int, here: int, source: int, there: int, nbytes: int, stream: int
    ) -> None:
        """Queue a copy from one device's memory to another's, each named with its device."""
        self.queue(stream, lambda: self._copy_over((target, here), (source, there), nbytes))

    def _copy_over(self, target: tuple[int, int], source: tuple[int, int], nbytes: int) -> None:
        (to, to_begin), (of, of_begin) = (
            self.memory(address, nbytes, device) for address, device in (target, source)
        )
        np.copyto(to[to_begin : to_begin + nbytes], of[of_begin : of_begin + nbytes])

    def _copy_inside(self, target: int, source: int, nbytes: int) -> None:
        assert abs(target - source) >= nbytes, "a copy onto itself"
        np.copyto(self.cells(target, nbytes), self.cells(source, nbytes))

    def _copy_pageable(self, target: int, source: int, nbytes: int, kind: int, stream: int) -> None:
        self._refuse_if_capturing(stream)
        self.pageable_copies += 1
        if kind == 1:  # staged by the driver before the call returns
            staged = _host(source, nbytes).copy()
            self.queue(stream, lambda: np.copyto(self.cells(target, nbytes), staged))
        else:
            self.drain(stream)
            self._copy_now(target, source, nbytes, kind)

    def _copy_now(self, target: int, source: int, nbytes: int, kind: int) -> None:
        if kind == 1:
            np.copyto(self.cells(target, nbytes), _host(source, nbytes))
        else:
            np.copyto(_host(target, nbytes), self.cells(source, nbytes))

    def cells(self, address: int, nbytes: int) -> np.ndarray[Any, Any]:
        """Return the bytes behind an address."""
        memory, offset = self.memory(address, nbytes)
        return memory[offset : offset + nbytes]

    def owner(self, address: int) -> int:
        """Return the device that an address is on."""
        for base, cells in self._memories.items():
            if base <= address <= base + cells.nbytes:
                return self._owners[base]
        raise CUDARuntimeError(INVALID_VALUE)

    def device_of(self, stream: int) -> int:
        """Return the device of a stream."""
        if stream in self._destroyed:
            raise CUDARuntimeError(INVALID_HANDLE)
        return self._device_of[stream - 1]

    def memory(
        self, address: int, nbytes: int = 0, device: int | None = None
    ) -> tuple[np.ndarray[Any, Any], int]:
        """Return the allocation that holds these bytes, and where in it they begin.

        It must be on that device, or where the operation runs that asks for it; page-locked memory
        of the host is on all of them.
        """
        wanted = self.executing_device if device is None else device
        for base, cells in self._memories.items():
            inside = base <= address and address + nbytes <= base + cells.nbytes
            if inside and wanted in (None, self._owners[base]):
                return cells, address - base
        for base, size in list(self.locked.items()):
            if base <= address and address + nbytes <= base + size:
                return _host(address, base + size - address), 0
        raise CUDARuntimeError(ILLEGAL_ADDRESS)

    def lock(self, address: int, nbytes: int) -> None:
        """Page-lock host memory; whole pages are, so ranges must not share one."""
        with self._changed:
            self._check()
            if self.refuses_locking:
                raise CUDARuntimeError(NOT_SUPPORTED)
            if any(_pages(address, nbytes) & _pages(*known) for known in self.locked.items()):
                raise CUDARuntimeError(ALREADY_REGISTERED)
            self.locked[address] = nbytes

    def unlock(self, address: int) -> None:
        with self._changed:
            if self.locked.pop(address, None) is None:
                raise CUDARuntimeError(NOT_REGISTERED)

    def _is_locked(self, address: int, nbytes: int) -> bool:
        return any(
            base <= address and address + nbytes <= base + size
            for base, size in list(self.locked.items())
        )


def _pages(address: int, nbytes: int) -> set[int]:
    return set(range(address // 4096, (address + max(nbytes, 1) - 1) // 4096 + 1))


def _host(address: int, nbytes: int) -> np.ndarray[Any, Any]:
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))
