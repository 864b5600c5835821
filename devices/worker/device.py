"""The worker device: numpy kernels and Python functions in another process.

The process has its own interpreter, so its Python functions run in parallel to those of this
process, and a crash affects nothing else. Tensors lie in shared memory and are not copied. `open`
starts the process. The parts: launch.py starts it, client.py sends requests, objects.py tracks its
objects, process.py runs inside it, wire.py defines the messages.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from ...graph.core.ir import Graph, Node
from ...graph.core.operator import Call, Specs
from ...graph.values.errors import PlaitError
from ...graph.values.tensor import TensorSpec
from .. import program as programs
from ..device import Capabilities, OnDone, Program, Support
from ..errors import DeviceError, DeviceLostError, DeviceUnavailableError
from ..event import Event
from ..host import collect_options, read_physical_memory
from ..kernels.fused import takes
from ..lane import ThreadLane
from ..memory import SHARED, Arena, SharedArena, View, host_view
from ..operator_instances import OperatorInstances
from . import process
from .client import WorkerClient, WorkerEvent, closed_error
from .launch import PROCESS
from .modules import GUARD, MAIN, list_node_sources, on_nesting
from .objects import WorkerObjects, WorkerProgram
from .pickles import Cargo, pack, to_file


class WorkerDevice:
    """Runs numpy kernels, and Python functions, in order in another process.

    Parameters
    ----------
    threads : int, optional
        The number of BLAS threads in the process; the session's share of the cores if left out.
    affinity : sequence of int, optional
        The cores that the process is bound to.

    Attributes
    ----------
    generation : int
        How many times a process has been started.
    on_failure : list of callable
        Called, on any thread, when the process dies.
    """

    _module = PROCESS
    """The module that defines the process's `main`."""

    def __init__(
        self,
        name: str = "worker:0",
        *,
        threads: int | None = None,
        affinity: Sequence[int] | None = None,
    ) -> None:
        self.name = name
        self.options: Mapping[str, Any] = collect_options(threads, affinity)
        self.generation = 0
        self.on_failure: list[Callable[[], object]] = []
        self._lifecycle = threading.Lock()
        self._client: WorkerClient | None = None
        self._objects: WorkerObjects | None = None
        self._copies = ThreadLane(f"plait-{name}-copy")

    @cached_property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            memory=SHARED,
            accesses=frozenset({SHARED}),
            memory_bytes=read_physical_memory(),
            runs_python=True,
            takes_objects=True,
        )

    @property
    def pid(self) -> int | None:
        """The id of the worker's process; None while it is closed."""
        return None if self._client is None else self._client.pid

    @property
    def failure(self) -> DeviceLostError | None:
        """The error of a lost process; None while it lives, and when it is closed."""
        error = None if self._client is None else self._client.error
        return error if isinstance(error, DeviceLostError) else None

    @property
    def can_restart(self) -> bool:
        return True

    def kill(self, event: Event, reason: str) -> bool:
        client = self._client
        return client is not None and client.kill(event, reason)

    def supports(self, node: Node, call: Call) -> Support:
        """Return whether `node` has a kernel for `call`, or a function a worker can import."""
        # A worker is a cpu elsewhere: the same kernels, in another process.
        support = programs.supports(node, "cpu", runs_python=True, keeps_lives=True, call=call)
        try:
            if support.ok:
                list_node_sources(node)
        except DeviceError as error:
            return Support(False, error.what)
        return support

    def scratch(self, node: Node, call: Call, outputs: Specs) -> tuple[TensorSpec, ...]:
        return programs.scratch(node, "cpu", call, outputs)

    def chains(self, node: Node, call: Call) -> bool:
        return takes(node, call)

    def open(self, cores: int | None = None) -> None:
        """Start the process on `cores` threads, replacing one that has died.

        Raises
        ------
        DeviceUnavailableError
            If it does not start, or this process is a worker itself.
        """
        if process.serving:
            for end in on_nesting:
                end()
            raise DeviceUnavailableError(
                "a worker cannot start workers",
                at=self.name,
                fix=f"let a script do its work under {GUARD}",
            )
        # Pickles from the process refer to the script's classes through this module.
        sys.modules.setdefault(MAIN, sys.modules["__main__"])
        with self._lifecycle:
            if self._client is not None:
                # Opening twice is allowed; a process that died is cleaned up before it is replaced.
                if self._client.error is None:
                    return
                self._client.close()
            threads, bound = self.options.get("threads", cores), self.options.get("affinity", ())
            client = WorkerClient(self.name, threads, self._tell_failure, bound, self._module)
            try:
                self._objects = self._ship_to(client)
            except BaseException:
                client.close()
                raise
            self._client = client
            self._copies.open()
            # Programs bound before are stale; their owners compare generations.
            self.generation += 1

    def arena(self, memory: str, nbytes: int) -> Arena:
        return SharedArena(nbytes)

    def view(self, arena: Arena, offset: int, spec: TensorSpec) -> View:
        return host_view(arena, offset, spec)

    def compile(
        self, subgraph: Graph, views: Mapping[str, View], *, measure: bool = False
    ) -> Program:
        """Bind `subgraph` to `views` in the process, which gets the subgraph at its first use.

        The process binds it after the work that is queued; with `measure` it measures nodes. Raises
        DeviceError if a Python function cannot be imported there, or the process has died.
        """
        if self._objects is None:
            raise closed_error(self.name)
        return self._objects.bind(subgraph, views, measure=measure)

    def compile_with(
        self,
        subgraph: Graph,
        views: Mapping[str, View],
        lives: OperatorInstances,
        *,
        measure: bool = False,
    ) -> Program:
        """Bind `subgraph` to `views` with `lives`, resources that the process opens and closes.

        With `measure` it measures nodes. It raises the errors of `compile`, and OperatorError if a
        resource cannot be opened.
        """
        if self._objects is None:
            raise closed_error(self.name)
        return self._objects.bind(subgraph, views, lives, measure=measure)

    def submit(
        self, program: Program, waits: Sequence[Event] = (), on_done: OnDone | None = None
    ) -> Event:
        """Queue `program`; the event, which calls `on_done`, fails at once if the process died.

        The process works in order, so `waits` are not read.
        """
        if self._client is None:
            raise closed_error(self.name)
        assert isinstance(program, WorkerProgram)
        label, cargo = f"subgraph {program.graph.name!r}", program.cargo
        if cargo is None or not cargo.inputs:
            work = WorkerEvent("run", program.number, on_done, label=label, cargo=cargo)
            program.client.put(work)
            return work
        return _submit_objects(program, cargo, on_done, label)

    def copy(
        self, target: View, source: View, waits: Sequence[Event] = (), on_done: OnDone | None = None
    ) -> Event:
        """Queue a copy from `source` to `target` on a thread of this process, in order.

        Its event calls `on_done`; `waits` are not read.
        """
        event = Event(on_done)
        self._copies.put(event, lambda: np.copyto(target.array, source.array))
        return event

    def close(self) -> None:
        """Finish queued work, end the process and the threads."""
        with self._lifecycle:
            self._end()

    def _ship_to(self, client: WorkerClient) -> WorkerObjects:
        return WorkerObjects(client)

    def _tell_failure(self) -> None:
        for callback in list(self.on_failure):
            callback()

    def _end(self) -> None:
        if self._client is not None:
            self._client.close()
        self._client = self._objects = None
        self._copies.close()


def _submit_objects(
    program: WorkerProgram, cargo: Cargo, on_done: OnDone | None, label: str
) -> Event:
    """Queue `program` with the Python objects of `cargo`; `label` names it in errors.

    Return its event, which calls `on_done`.
    """
    number = program.number
    try:
        packed = pack(cargo.inputs, label)
        file = to_file(packed)
    except PlaitError as error:
        failed = Event(on_done)
        failed.complete(error)
        return failed
    if file is None:
        work = WorkerEvent("run", number, on_done, data=bytes(packed), label=label, cargo=cargo)
    else:
        work = WorkerEvent("run", number, on_done, fd=file.fd, label=label, held=file, cargo=cargo)
        work.on_done(lambda _: file.close())
    program.client.put(work)
    return work
