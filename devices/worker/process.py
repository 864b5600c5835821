"""The process of a worker: maps arenas, binds programs and runs them, one request at a time.

`main` is the whole life of a process that `launch` starts. It ends on request, and when its parent
dies, at any moment: on Linux the kernel kills it, elsewhere a thread, which needs the
interpreter's lock.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import select
import signal
import socket
import sys
import threading
import time
from array import array
from collections.abc import Callable, Mapping
from typing import Any

import msgpack
import numpy as np
from msgspec import structs

from ...graph.core.ir import Graph
from ...graph.formats.native import load_bytes
from ...graph.values.extras import turn_reports_off
from ...graph.values.tensor import Array, TensorSpec
from ...version import VERSION
from ..errors import DeviceMemoryError
from ..event import CancelledWorkError
from ..function_steps import Step
from ..memory import SHARED, Arena, SharedArena, View, host_view
from ..operator_instances import OperatorInstances
from ..program import BoundProgram, bind_steps
from .modules import Source, import_sources
from .pickles import Cargo, map_file, pack, to_file, unpack
from .remote_errors import describe
from .wire import WINDOW, Channel, Done, Hello, WorkerRequest

serving = False
"""True in a worker."""

PR_SET_PDEATHSIG = 1
"""Option of prctl(2): the signal for a process when the thread that started it ends."""


class ProcessArrays:
    """The memory of a worker process and its array library: numpy's, unless a subclass differs."""

    kind = "cpu"
    """The kind of device that lends its kernels."""
    module: Any = np

    def __init__(self, name: str) -> None:
        self._name = name

    def arena(self, mapping: mmap.mmap) -> Arena:
        """Return the memory that `mapping`, a file of the parent, holds or describes."""
        return Arena(SHARED, len(mapping), np.frombuffer(mapping, np.uint8))

    def view(self, arena: Arena, offset: int, spec: TensorSpec) -> View:
        return host_view(arena, offset, spec)

    def constants(self, graph: Graph) -> Mapping[str, Array]:
        return graph.constants

    def as_array(self, value: Any) -> Array:
        """Convert `value`, the result of a Python function, to an array."""
        return np.asarray(value)

    def measured(self, step: Step) -> Step:
        """Return a step that ends when the work of `step` has ended."""
        return step

    def settle(self) -> None:
        """Wait until all started work has ended.

        Raises DeviceLostError if the process cannot compute any more.
        """


def main(
    name: str,
    connection_fd: int,
    flags_fd: int,
    parent: int,
    make: Callable[[str], ProcessArrays] = ProcessArrays,
) -> None:
    """Serve the parent at the other end of a socket until it sends "end" or closes.

    The socket is `connection_fd`, the device `name`, the parent's process id `parent`. `flags_fd`
    is a shared file of `WINDOW` 64-bit integers: the sequence numbers of cancelled requests. `make`
    makes the process's arrays, given the name.
    """
    global serving
    serving = True
    turn_reports_off()
    _die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, which decides
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # functions may start processes
    connection = socket.socket(fileno=connection_fd)
    connection.set_inheritable(False)
    os.register_at_fork(after_in_child=connection.close)  # else a fork would hide our death
    threading.Thread(target=_exit_with_parent, args=(connection_fd,), daemon=True).start()
    channel = Channel(connection, takes_fds=True)
    arrays = make(name)
    try:
        channel.send(Hello(VERSION))
        with np.errstate(all="ignore"):
            _Worker(name, channel, _map(flags_fd), arrays).serve()
        # Not close: the watching thread's poll holds the connection open.
        connection.shutdown(socket.SHUT_WR)
    except OSError:  # the parent is gone, or the user's code closed a foreign file
        os._exit(1)


class _Worker:
    """Serves requests; the parent assigns numbers to objects."""

    def __init__(
        self, name: str, channel: Channel, flags: mmap.mmap, arrays: ProcessArrays
    ) -> None:
        self._name = name
        self._arrays = arrays
        self._channel = channel
        self._cancelled = memoryview(flags).cast("q")
        self._objects: dict[int, Any] = {}
        self._data = b""
        self._file: SharedArena | None = None
        self._serve: dict[str, Callable[[WorkerRequest], bytes | None]] = {
            "map": self._map_arena,
            "import": self._import,
            "load": self._load,
            "bind": self._bind,
            "rebind": self._rebind,
            "run": self._run,
            "close": self._close,
            "forget": self._forget,
            "end": lambda _: None,
        }

    def serve(self) -> None:
        while (request := self._channel.receive(WorkerRequest)) is not None:
            answer = self._answer(request)
            file, self._file = self._file, None
            self._channel.send(answer, None if file is None else file.fd)
            if file is not None:
                file.close()
            if request.kind == "end":
                return

    def _answer(self, request: WorkerRequest) -> Done:
        node_ns, error = None, None
        started_ns = time.perf_counter_ns()
        self._data = b""
        try:
            if request.kind == "run" and request.has_file:  # received in any case, in order
                request = structs.replace(request, data=map_file(self._channel.take_fd()))
            if self._cancelled[request.sequence % WINDOW] == request.sequence:
                error = _encode_error(
                    CancelledWorkError("the work was cancelled before it started")
                )
            else:
                node_ns = self._do(request)
        except BaseException as raised:  # a worker survives all exceptions of user functions
            error = _encode_error(raised)
        ended_ns, has_file = time.perf_counter_ns(), self._file is not None
        return Done(
            request.sequence, started_ns, ended_ns, node_ns, error, self._data, has_file=has_file
        )

    def _do(self, request: WorkerRequest) -> bytes | None:
        try:
            return self._serve[request.kind](request)
        finally:
            self._arrays.settle()

    def _map_arena(self, request: WorkerRequest) -> None:
        try:
            mapping = _map(self._channel.take_fd())
        except OSError as error:
            raise DeviceMemoryError(
                f"{self._name!r} cannot map an arena: {error.strerror}",
                fix="free memory, or lower max_in_flight",
            ) from error
        self._objects[request.number] = self._arrays.arena(mapping)

    def _import(self, request: WorkerRequest) -> None:
        def end(error: BaseException) -> None:
            now_ns, encoded = time.perf_counter_ns(), _encode_error(error)
            self._channel.send(Done(request.sequence, now_ns, now_ns, None, encoded), None)
            os._exit(1)

        document = self._document()
        sys.path[:], sys.argv[:] = document["path"], document["argv"]
        import_sources([Source(*fields) for fields in document["sources"]], end)

    def _load(self, request: WorkerRequest) -> None:
        mapping = _map(self._channel.take_fd(), writable=False)
        graph = load_bytes(memoryview(mapping), at=f"the graph sent to {self._name}")
        self._objects[request.number] = graph, self._arrays.constants(graph)

    def _bind(self, request: WorkerRequest) -> None:
        document, arrays = self._document(), self._arrays
        graph: Graph
        constants: Mapping[str, Array]
        graph, constants = self._objects[document["graph"]]
        views = self._views(document)
        living = {}
        if document["lives"] is not None:
            key, once = document["lives"]
            lives: OperatorInstances = self._objects.setdefault(key, OperatorInstances(once))
            living = lives.of(self._name, graph, views, constants=constants)
        steps = bind_steps(
            arrays.module, arrays.kind, graph, views, constants, living, arrays.as_array
        )
        measure: bool = document["measure"]
        if measure:
            steps = [(node, arrays.measured(step)) for node, step in steps]
        program = BoundProgram(self._name, graph, steps, measure)
        self._objects[request.number] = _Loaded(program, Cargo.of(graph, views))

    def _rebind(self, request: WorkerRequest) -> None:
        try:
            document = _unpack_document(request.data)
            loaded: _Loaded = self._objects[document["program"]]
            self._objects[request.number] = loaded.rebound(self._views(document))
        except Exception as error:  # no thread waits for the answer: running it raises
            self._objects[request.number] = _Unbound(error)

    def _views(self, document: Any) -> dict[str, View]:
        return {
            name: self._arrays.view(self._objects[arena], offset, TensorSpec(dtype, shape))
            for name, (arena, offset, dtype, shape) in document["views"].items()
        }

    def _run(self, request: WorkerRequest) -> bytes | None:
        loaded: _Loaded | _Unbound = self._objects[request.number]
        running = _Running(self._cancelled, request.sequence)
        packed = loaded.run(running, request.data)
        if packed is not None:
            self._file = to_file(packed)
            self._data = b"" if self._file is not None else bytes(packed)
        return None if running.node_ns is None else array("q", running.node_ns).tobytes()

    def _close(self, request: WorkerRequest) -> None:
        lives: OperatorInstances | None = self._objects.pop(request.number, None)
        if lives is not None:  # else binding failed before there were any
            lives.close()

    def _forget(self, request: WorkerRequest) -> None:
        self._objects.pop(request.number, None)

    def _document(self) -> Any:
        return _unpack_document(_map(self._channel.take_fd(), writable=False))


def _unpack_document(data: Any) -> Any:
    return msgpack.unpackb(data, unicode_errors="surrogatepass")


def _encode_error(error: BaseException) -> str:
    return json.dumps(describe(error))


class _Loaded:
    """A bound program and its Python objects."""

    def __init__(self, program: BoundProgram, cargo: Cargo | None) -> None:
        self._program = program
        self._cargo = cargo

    def run(self, running: _Running, data: Any) -> bytearray | None:
        cargo, at = self._cargo, f"subgraph {self._program.graph.name!r}"
        if cargo is None:
            self._program.run(running)
            return None
        try:
            if cargo.inputs:
                unpack(data, cargo.inputs, at)
            self._program.run(running)
            return pack(cargo.outputs, at) if cargo.outputs else None
        finally:
            cargo.clear()

    def rebound(self, views: Mapping[str, View]) -> _Loaded:
        cargo = None if self._cargo is None else self._cargo.with_views(views)
        program = self._program.rebound(views)
        assert program is not None, "the parent rebinds only programs for which that works"
        return _Loaded(program, cargo)


class _Unbound:
    def __init__(self, error: Exception) -> None:
        self._error = error

    def run(self, _: _Running, __: Any) -> None:
        raise self._error


class _Running:
    """A running program, which the parent cancels through the shared flags."""

    def __init__(self, flags: memoryview, sequence: int) -> None:
        self._flags = flags
        self._sequence = sequence
        self.node_ns: tuple[int, ...] | None = None

    @property
    def cancelled(self) -> bool:
        return bool(self._flags[self._sequence % WINDOW] == self._sequence)


def _map(fd: int, *, writable: bool = True) -> mmap.mmap:
    """Map the whole shared file `fd`, populated, and close it; it is `writable` by default."""
    populate = getattr(mmap, "MAP_POPULATE", 0)
    access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    try:
        return mmap.mmap(fd, 0, flags=mmap.MAP_SHARED | populate, prot=access)
    finally:
        os.close(fd)


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when `parent` ends, on Linux.

    This works even if the process is stopped, if a function keeps the interpreter's lock, or if a
    fork of the parent keeps the connection open.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
    if os.getppid() != parent:  # it ended before
        os._exit(1)


def _exit_with_parent(connection_fd: int) -> None:
    """End the process as soon as the other side of `connection_fd` is gone."""
    poller = select.poll()
    poller.register(connection_fd, 0)  # a hang-up is always reported, data never
    poller.poll()
    os._exit(1)
