"""A remote device: a device of any kind on a host of a cluster, with the `Device` protocol.

Its results stay in its memory until another device, or the caller, needs them. Writing an input,
running a subgraph and reading a result are commands to the host; those of an item go there in one
call, since the host keeps their order itself.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from ....devices import program as programs
from ....devices.device import Capabilities, OnDone, Program, Support
from ....devices.errors import DeviceError, DeviceLostError
from ....devices.event import Event
from ....devices.kinds import get_kernel_kind
from ....devices.memory import HOST_MEMORIES, Arena, View, check_fits, host_view
from ....devices.model import DeviceModel
from ....devices.operator_instances import OperatorInstances
from ....devices.worker.launch import list_module_path
from ....devices.worker.modules import Source, list_node_sources, list_sources
from ....graph.core.ir import Graph, Node
from ....graph.core.operator import Call, Specs
from ....graph.formats.native import dump_bytes
from ....graph.values.tensor import TensorSpec
from .commands import Command, RemoteEvent, RemoteTensor
from .hosts import RemoteHost
from .link import HostLink, closed_host_error
from .support_queries import SupportReply, ask


class RemoteArena(Arena):
    """Memory on a host, known there by a number."""

    def __init__(self, memory: str, nbytes: int, link: HostLink, number: int) -> None:
        super().__init__(memory, nbytes, None)
        self.link = link
        self.number = number
        self._release = weakref.finalize(self, link.forget, number)
        self._release.atexit = False

    def close(self) -> None:
        self._release()


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class RemoteProgram:
    """A subgraph bound to views on a host."""

    graph: Graph
    link: HostLink
    number: int


class RemoteObjects:
    """Ships each graph, with its weights, once to one process of a host, for one device; blocks."""

    def __init__(self, link: HostLink, device: int) -> None:
        self._link = link
        self._device = device
        self._lock = threading.Lock()
        self._lives: WeakKeyDictionary[OperatorInstances, int] = WeakKeyDictionary()

    def bind(
        self,
        graph: Graph,
        views: Mapping[str, View],
        lives: OperatorInstances | None = None,
        *,
        measure: bool,
    ) -> RemoteProgram:
        """Bind `graph`, a subgraph, to `views` on the host; `measure` times its nodes.

        `lives` are the instances of its operators, if it has any. Raises DeviceError if the host
        cannot import a Python function, refuses the graph, or is lost.
        """
        with self._lock:
            import_on_host(self._link, list_sources(graph))
            loaded = self._graph(graph)
            places = {name: tuple(locate_view(view)) for name, view in views.items()}
            own = None if lives is None else self._life(lives)
            number = self._link.ask("bind", self._device, loaded, places, own, measure)
        program = RemoteProgram(graph, self._link, number)
        self._link.owners.add(program, number)
        return program

    def _graph(self, graph: Graph) -> int:
        """Return the number of `graph` on the host, where it is kept while the local one exists."""
        key, shipped = id(graph), self._link.shipped
        with self._link.shipping:
            if key not in shipped:
                data = np.frombuffer(dump_bytes(graph), np.uint8)
                shipped[key] = number = self._link.ask("load", data)
                self._link.owners.add(graph, number)
                self._link.graph_ids.add(graph, key)
            return shipped[key]

    def _life(self, lives: OperatorInstances) -> int:
        """Return the number of resources on the host for `lives`, closed with those here."""
        if lives not in self._lives:
            self._lives[lives] = number = self._link.ask("lives", sorted(lives.once))
            lives.on_close(partial(self._end_lives, number))
        return self._lives[lives]

    def _end_lives(self, number: int) -> None:
        with suppress(DeviceLostError):  # a host that is lost has taken them along
            self._link.ask("end", number)


def import_on_host(link: HostLink, wanted: Iterable[Source]) -> None:
    missing = [source for source in wanted if source not in link.imported]
    if missing:
        link.ask("import", list_module_path(), [tuple(source) for source in missing])
        link.imported.update(missing)


def locate_view(view: View) -> RemoteTensor:
    assert isinstance(view.arena, RemoteArena), f"memory {view.arena.memory!r} is not on a host"
    spec = view.spec
    return RemoteTensor(view.arena.number, view.offset, spec.dtype.name, spec.static_shape)


MOST_ANSWERS = 50_000
"""The limit of cached answers about nodes."""

COMMAND_S = 50e-6
"""Approximate overhead of a host per program."""


class _OpenDevice:
    def __init__(self, link: HostLink, number: int) -> None:
        self.link = link
        self.number = number
        self.objects = RemoteObjects(link, number)


class RayDevice:
    """A device on a host of a Ray cluster.

    `kind` is its name on the host: ``"cuda:0"``; `generation` counts how often it has been opened
    on a host. Functions in `on_failure` are called on any thread when the host is lost.
    """

    def __init__(self, host: RemoteHost, kind: str) -> None:
        self.name = f"ray:{host.name}/{kind}"
        self.generation = 0
        self.on_failure: list[Callable[[], object]] = []
        self._host = host
        self._kind = kind
        self._lifecycle = threading.Lock()
        self._open: _OpenDevice | None = None
        host.memories.add(self.name)

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities; the first access starts the host."""
        return replace(self._offers, copies_from=frozenset(self._host.memories - {self.name}))

    @property
    def model(self) -> DeviceModel:
        """The model of the device on the host, with the measured latency of calls and copies."""
        latency = self._host.latency
        return replace(
            DeviceModel.from_dict(self._found[1]),
            # A copy goes one way, a call there and back.
            copy_latency_s=latency.call_s / 2,
            copy_bytes_per_s=latency.bytes_per_s,
            submit_s=COMMAND_S,
            copy_queues=2,
        )

    @property
    def failure(self) -> DeviceLostError | None:
        """The loss of the host, or None while it lives or the device is closed."""
        error = None if self._open is None else self._open.link.error
        return error if isinstance(error, DeviceLostError) else None

    can_restart = True  # on a node with room for the host

    def way_from(self, memory: str) -> str:
        """Describe the path of copies from `memory` of another remote device."""
        return f"on host {self._host.name}"

    def reached(self) -> str:
        """Describe its place and the latency of calls."""
        latency = self._host.latency
        speed = f"{latency.bytes_per_s / 1e6:.0f} MB/s"
        return f"on host {self._host.name}, {latency.call_s * 1e3:.2f} ms there and back, {speed}"

    def kill(self, event: Event, reason: str) -> bool:
        """Kill the host for `reason` if it may work on `event`; return whether it did."""
        opened = self._open
        return opened is not None and opened.link.kill(event, reason)

    def supports(self, node: Node, call: Call) -> Support:
        """Return whether the remote device runs `node`, by `call`, and can import its operator."""
        try:
            import_on_host(self._host.link(), list_node_sources(node))
        except DeviceLostError:
            raise
        except DeviceError as error:
            # A missing module is the reason only for nodes that would run there otherwise.
            kernels = programs.supports(
                node, get_kernel_kind(self._kind), runs_python=True, call=call
            )
            return Support(False, error.what if kernels.ok else kernels.reason)
        verdict = self._verdict(node, call, None)
        return Support(verdict.ok, verdict.reason)

    def scratch(self, node: Node, call: Call, outputs: Specs) -> tuple[TensorSpec, ...]:
        verdict = self._verdict(node, call, outputs)
        return tuple(TensorSpec(dtype, shape) for dtype, shape in verdict.scratch)

    def chains(self, node: Node, call: Call) -> bool:
        return self._verdict(node, call, None).chains

    def open(self, cores: int | None = None) -> None:
        """Open the remote device; starts the host unless it runs, or replaces a lost one.

        `cores` are those of this machine: the remote device uses the host's. Raises
        DeviceUnavailableError if no node has room for the host, or the host lacks the device.
        """
        with self._lifecycle:
            if self._open is not None and self._open.link.error is None:
                return
            link = self._host.link()
            # If this fails, the device stays as it was, open or lost.
            try:
                number = link.ask("open", self._kind, self._host.cores)
            except DeviceLostError:  # the host, or its GPU, was lost while idle
                link = self._host.link()
                number = link.ask("open", self._kind, self._host.cores)
            link.names[number] = self._kind, self.name
            # A lost device is kept until here, so that its users get its error meanwhile.
            self._forget()
            self._open = _OpenDevice(link, number)
            self._host.on_failure.append(self._report_failure)
            self.generation += 1

    def arena(self, memory: str, nbytes: int) -> Arena:
        assert memory == self.name, memory
        opened = self._require_open()
        return RemoteArena(
            self.name, nbytes, opened.link, opened.link.ask("arena", opened.number, nbytes)
        )

    def view(self, arena: Arena, offset: int, spec: TensorSpec) -> View:
        """Return a view of `spec` at `offset` of `arena`; views of remote memory have no array."""
        if arena.memory in HOST_MEMORIES:
            return host_view(arena, offset, spec)
        check_fits(arena, offset, spec, self._offers.alignment)
        return View(arena, offset, spec, None)

    def compile(
        self, subgraph: Graph, views: Mapping[str, View], *, measure: bool = False
    ) -> Program:
        """Send `subgraph` unless the host has it, and bind it to `views` there; `measure` times it.

        Raises DeviceError if the host cannot import a Python function, or is lost.
        """
        return self._require_open().objects.bind(subgraph, views, measure=measure)

    def compile_with(
        self,
        subgraph: Graph,
        views: Mapping[str, View],
        lives: OperatorInstances,
        *,
        measure: bool = False,
    ) -> Program:
        """Compile `subgraph` with nodes that own resources, `lives`, opened and closed there.

        `views` and `measure` are those of `compile`.
        Raises OperatorError or DeviceError if a resource cannot be opened, or `compile` fails.
        """
        return self._require_open().objects.bind(subgraph, views, lives, measure=measure)

    def submit(
        self, program: Program, waits: Sequence[Event] = (), on_done: OnDone | None = None
    ) -> Event:
        """Queue `program` on the host after `waits`; the returned event calls `on_done`."""
        assert isinstance(program, RemoteProgram)
        # The number is given when the command is sent, in the order of sending.
        command = Command(0, self._require_open().number, "run", program=program.number)
        label = f"subgraph {program.graph.name!r}"
        work = RemoteEvent(command, tuple(waits), on_done, label=label, keeps=program)
        program.link.put(work)
        return work

    def copy(
        self, target: View, source: View, waits: Sequence[Event] = (), on_done: OnDone | None = None
    ) -> Event:
        """Queue a copy of `source` to `target` after `waits`; its event calls `on_done`."""
        command = Command(0, self._require_open().number, "copy")
        keeps = (target, source)
        if source.arena.memory in HOST_MEMORIES:
            command = command._replace(kind="write", target=locate_view(target), array=source.array)
            work = RemoteEvent(command, tuple(waits), on_done, keeps=keeps)
        elif target.arena.memory in HOST_MEMORIES:
            command = command._replace(kind="read", source=locate_view(source))
            work = RemoteEvent(command, tuple(waits), on_done, into=target.array, keeps=keeps)
        else:
            command = command._replace(target=locate_view(target), source=locate_view(source))
            work = RemoteEvent(command, tuple(waits), on_done, keeps=keeps)
        # A restarted host has other objects: the command goes to the one that has the memory.
        arena = target.arena if isinstance(target.arena, RemoteArena) else source.arena
        assert isinstance(arena, RemoteArena)
        arena.link.put(work)
        return work

    def close(self) -> None:
        """Finish the queued work, then close the remote device; the host stays."""
        with self._lifecycle:
            opened = self._open
            if opened is None:
                return
            self._forget()
            # The host closes the device at once, so its queues must be empty.
            opened.link.drain(opened.number)
            with suppress(DeviceLostError):  # a host that is lost has closed it
                opened.link.ask("close", opened.number)

    @cached_property
    def _found(self) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        key = "found", self._kind
        if key not in self._host.answers:
            self._host.answers[key] = self._host.link().ask("find", self._kind)
        found: tuple[Mapping[str, Any], Mapping[str, Any]] = self._host.answers[key]
        return found

    @cached_property
    def _offers(self) -> Capabilities:
        return Capabilities(
            memory=self.name, accesses=frozenset({self.name}), native_waits=True, **self._found[0]
        )

    def _verdict(self, node: Node, call: Call, outputs: Specs | None) -> SupportReply:
        question = ask(node, call, outputs)
        key = self._kind, question.key
        answers = self._host.answers
        if key not in answers:
            # Answers can be asked for again: they do not change while a host lives.
            if len(answers) >= MOST_ANSWERS:
                answers.clear()
            answers[key] = self._host.link().ask("answer", self._kind, tuple(question))
        return SupportReply(*answers[key])

    def _require_open(self) -> _OpenDevice:
        opened = self._open
        if opened is None:
            raise closed_host_error(self.name)
        return opened

    def _forget(self) -> None:
        if self._open is not None:
            self._open = None
            self._host.on_failure.remove(self._report_failure)

    def _report_failure(self) -> None:
        for callback in list(self.on_failure):
            callback()
