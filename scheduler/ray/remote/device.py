"""A remote device: a device of any kind, on a host of a cluster, behind the same protocol.

What it computes stays in its memory until another device, or the caller, needs it. Writing an
input, running a subgraph and reading a result are commands to the host; those of an item go there
in one call, for the host keeps their order itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import Any

from ....devices import program as programs
from ....devices.device import Capabilities, OnDone, Program, Support
from ....devices.errors import DeviceError, DeviceLostError
from ....devices.event import Event
from ....devices.kinds import kernels_of
from ....devices.memory import HOST_MEMORIES, Arena, View, check_fits, host_view
from ....devices.model import DeviceModel
from ....devices.operator_instances import OperatorInstances
from ....devices.worker.modules import sources_of
from ....graph.ir import Graph, Node
from ....graph.operator import Call, Specs
from ....graph.tensor import TensorSpec
from .commands import Command
from .hosts import RemoteHost
from .link import HostLink, closed_host_error
from .objects import RemoteArena, RemoteObjects, RemoteProgram, imported, place_of
from .support_queries import SupportReply, ask
from .work import RemoteEvent

MOST_TOLD = 50_000
"""So many answers about nodes are remembered."""

COMMAND_S = 50e-6
"""What a host adds to the time of each program, about."""


class _Opened:
    """What a device has on its host while it is open."""

    def __init__(self, link: HostLink, number: int) -> None:
        self.link = link
        self.number = number
        self.objects = RemoteObjects(link, number)


class RayDevice:
    """Runs what a device runs that is on a host of a Ray cluster, there.

    Parameters
    ----------
    host : RemoteHost
    kind : str
        The device's name on the host: ``"cuda:0"``.

    Attributes
    ----------
    generation : int
        How many times it has been opened on a host.
    on_failure : list of callable
        What to call, on any thread, when the host is lost.
    """

    def __init__(self, host: RemoteHost, kind: str) -> None:
        self.name = f"ray:{host.name}/{kind}"
        self.generation = 0
        self.on_failure: list[Callable[[], object]] = []
        self._host = host
        self._kind = kind
        self._lifecycle = threading.Lock()
        self._open: _Opened | None = None
        host.memories.add(self.name)

    @property
    def capabilities(self) -> Capabilities:
        """What it is like; starts the host when first asked."""
        return replace(self._offers, copies_from=frozenset(self._host.memories - {self.name}))

    @property
    def model(self) -> DeviceModel:
        """What its times are estimated from: those of its kind, and the way to it as measured."""
        way = self._host.way
        return replace(
            DeviceModel.from_dict(self._found[1]),
            # A copy is one way, a call is there and back.
            copy_latency_s=way.call_s / 2,
            copy_bytes_per_s=way.bytes_per_s,
            submit_s=COMMAND_S,
            copy_queues=2,
        )

    @property
    def failure(self) -> DeviceLostError | None:
        """Why the host is lost; None while it lives, and when the device is closed."""
        error = None if self._open is None else self._open.link.error
        return error if isinstance(error, DeviceLostError) else None

    @property
    def can_restart(self) -> bool:
        """True: the host can be started again, where a node has room for it."""
        return True

    def way_from(self, memory: str) -> str:
        """Say where copies from another remote device's memory are made."""
        return f"on host {self._host.name}"

    def reached(self) -> str:
        """Say where it is, and how long calls to there take."""
        way = self._host.way
        speed = f"{way.bytes_per_s / 1e6:.0f} MB/s"
        return f"on host {self._host.name}, {way.call_s * 1e3:.2f} ms there and back, {speed}"

    def kill(self, event: Event, reason: str) -> bool:
        """Kill the host if it may be working at this event; say whether it did."""
        opened = self._open
        return opened is not None and opened.link.kill(event, reason)

    def supports(self, node: Node, call: Call) -> Support:
        """Say whether the device there runs a node, and can import what it needs for it."""
        try:
            imported(self._host.link(), sources_of(node))
        except DeviceLostError:
            raise
        except DeviceError as error:
            # What is missing there is told only of nodes that would run there otherwise.
            kernels = programs.supports(node, kernels_of(self._kind), runs_python=True, call=call)
            return Support(False, error.what if kernels.ok else kernels.reason)
        verdict = self._verdict(node, call, None)
        return Support(verdict.ok, verdict.reason)

    def scratch(self, node: Node, call: Call, outputs: Specs) -> tuple[TensorSpec, ...]:
        """Return the scratch buffers that the kernel there needs."""
        verdict = self._verdict(node, call, outputs)
        return tuple(TensorSpec(dtype, shape) for dtype, shape in verdict.scratch)

    def chains(self, node: Node, call: Call) -> bool:
        """Say whether the device there wants a node as part of a chain."""
        return self._verdict(node, call, None).chains

    def open(self, cores: int | None = None) -> None:
        """Open the device there; start the host unless it runs, in place of one that is lost.

        `cores` are those of this machine: the host's own device takes its own.

        Raises
        ------
        DeviceUnavailableError
            If no node has room for the host, or the host lacks the device.
        """
        with self._lifecycle:
            if self._open is not None and self._open.link.error is None:
                return
            link = self._host.link()
            # May fail, and leaves what was open before, lost or not, as it is.
            try:
                number = link.ask("open", self._kind, self._host.cores)
            except DeviceLostError:  # while nobody asked for it, as its GPU may have been
                link = self._host.link()
                number = link.ask("open", self._kind, self._host.cores)
            link.names[number] = self._kind, self.name
            # What was lost stays until then: whoever uses it meanwhile is told that it is.
            self._forget()
            self._open = _Opened(link, number)
            self._host.on_failure.append(self._tell_failure)
            self.generation += 1

    def arena(self, memory: str, nbytes: int) -> Arena:
        """Allocate there."""
        assert memory == self.name, memory
        opened = self._opened()
        return RemoteArena(
            self.name, nbytes, opened.link, opened.link.ask("arena", opened.number, nbytes)
        )

    def view(self, arena: Arena, offset: int, spec: TensorSpec) -> View:
        """Return a view; what lies on the host has no array here."""
        if arena.memory in HOST_MEMORIES:
            return host_view(arena, offset, spec)
        check_fits(arena, offset, spec, self._offers.alignment)
        return View(arena, offset, spec, None)

    def compile(
        self, subgraph: Graph, views: Mapping[str, View], *, measure: bool = False
    ) -> Program:
        """Send the subgraph over, unless it is there already, and bind it to views there.

        Raises
        ------
        DeviceError
            If the host cannot import a Python function, or is lost.
        """
        return self._opened().objects.bind(subgraph, views, measure=measure)

    def compile_with(
        self,
        subgraph: Graph,
        views: Mapping[str, View],
        lives: OperatorInstances,
        *,
        measure: bool = False,
    ) -> Program:
        """Do so for nodes that own something, which is opened and closed on the host.

        Raises
        ------
        OperatorError, DeviceError
            If something cannot be opened, as for `compile` besides.
        """
        return self._opened().objects.bind(subgraph, views, lives, measure=measure)

    def submit(
        self, program: Program, waits: Sequence[Event] = (), on_done: OnDone | None = None
    ) -> Event:
        """Queue on the host; never blocks."""
        assert isinstance(program, RemoteProgram)
        # The number is given when the command is sent, in the order of sending.
        command = Command(0, self._opened().number, "run", program=program.number)
        label = f"subgraph {program.graph.name!r}"
        work = RemoteEvent(command, tuple(waits), on_done, label=label, keeps=program)
        program.link.put(work)
        return work

    def copy(
        self,
        target: View,
        source: View,
        waits: Sequence[Event] = (),
        on_done: OnDone | None = None,
    ) -> Event:
        """Queue a copy to, from or on the host; never blocks."""
        command = Command(0, self._opened().number, "copy")
        keeps = (target, source)
        if source.arena.memory in HOST_MEMORIES:
            command = command._replace(kind="write", target=place_of(target), array=source.array)
            work = RemoteEvent(command, tuple(waits), on_done, keeps=keeps)
        elif target.arena.memory in HOST_MEMORIES:
            command = command._replace(kind="read", source=place_of(source))
            work = RemoteEvent(command, tuple(waits), on_done, into=target.array, keeps=keeps)
        else:
            command = command._replace(target=place_of(target), source=place_of(source))
            work = RemoteEvent(command, tuple(waits), on_done, keeps=keeps)
        # To the life of the host that the memory is in: a later one has other things there.
        arena = target.arena if isinstance(target.arena, RemoteArena) else source.arena
        assert isinstance(arena, RemoteArena)
        arena.link.put(work)
        return work

    def close(self) -> None:
        """Finish what is queued, then close the device there; the host stays."""
        with self._lifecycle:
            opened = self._open
            if opened is None:
                return
            self._forget()
            # The host closes what it is told to at once: nothing may be queued there any more.
            opened.link.drain(opened.number)
            with suppress(DeviceLostError):  # a host that is lost has closed it
                opened.link.ask("close", opened.number)

    @cached_property
    def _found(self) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """What the host has said of the device: capabilities, and its model."""
        key = "found", self._kind
        if key not in self._host.told:
            self._host.told[key] = self._host.link().ask("find", self._kind)
        found: tuple[Mapping[str, Any], Mapping[str, Any]] = self._host.told[key]
        return found

    @cached_property
    def _offers(self) -> Capabilities:
        return Capabilities(
            memory=self.name,
            accesses=frozenset({self.name}),
            native_waits=True,
            **self._found[0],
        )

    def _verdict(self, node: Node, call: Call, outputs: Specs | None) -> SupportReply:
        question = ask(node, call, outputs)
        key = self._kind, question.key
        told = self._host.told
        if key not in told:
            # Asked anew where need be: answers do not change while a host lives.
            if len(told) >= MOST_TOLD:
                told.clear()
            told[key] = self._host.link().ask("answer", self._kind, tuple(question))
        return SupportReply(*told[key])

    def _opened(self) -> _Opened:
        opened = self._open
        if opened is None:
            raise closed_host_error(self.name)
        return opened

    def _forget(self) -> None:
        if self._open is not None:
            self._open = None
            self._host.on_failure.remove(self._tell_failure)

    def _tell_failure(self) -> None:
        for callback in list(self.on_failure):
            callback()
