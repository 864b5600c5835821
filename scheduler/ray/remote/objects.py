"""Objects of a remote device on its host: memory, graphs and programs.

A graph, with its weights, is shipped once to each process of a host.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from weakref import WeakKeyDictionary

import numpy as np

from ....devices.errors import DeviceLostError
from ....devices.memory import Arena, View
from ....devices.operator_instances import OperatorInstances
from ....devices.worker.launch import list_module_path
from ....devices.worker.modules import Source, list_sources
from ....graph.core.ir import Graph
from ....graph.formats.native import dump_bytes
from .commands import RemoteTensor
from .link import HostLink


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
    """Ships graphs to one process of a host, for one device there; methods block."""

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
