"""Objects that a worker process holds for its parent: arenas, graphs, programs, each sent once.

The process knows them by number, and drops an object when the parent's counterpart is freed.
"""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import msgpack
import numpy as np

from ...graph.core.ir import Graph
from ...graph.formats.native import dump_bytes
from ...graph.values.dtypes import name_of
from ..errors import DeviceLostError
from ..memory import Arena, SharedArena, View
from ..operator_instances import OperatorInstances
from ..owners import Owners
from ..program import find_calls
from .client import WorkerClient, WorkerEvent
from .launch import list_module_path
from .modules import Source, list_sources
from .pickles import Cargo
from .wire import MOST_DATA, RequestKind

Document: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class WorkerProgram:
    """A subgraph bound to views in a worker process."""

    graph: Graph
    client: WorkerClient
    number: int
    objects: WorkerObjects
    cargo: Cargo | None = None

    def rebound(self, views: Mapping[str, View]) -> WorkerProgram | None:
        """Return the program for `views` of other lengths; None unless only functions need them."""
        return self.objects.rebind(self, views)


class WorkerObjects:
    """Sends objects to one worker process; methods block.

    `describe` describes an arena so that the process can find its memory; without it, the process
    maps the arena's own file. A described arena stays allocated until the process has dropped it.
    """

    def __init__(
        self, client: WorkerClient, describe: Callable[[Arena], bytes] | None = None
    ) -> None:
        self._client = client
        self._describe = describe
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._numbering = threading.Lock()
        self._arenas: WeakKeyDictionary[Arena, int] = WeakKeyDictionary()
        self._graphs: dict[int, int] = {}  # by id: hashing a graph would hash all of it
        self._lives: WeakKeyDictionary[OperatorInstances, int] = WeakKeyDictionary()
        self._defined: set[Source] = set()
        self._held = held = dict[int, object]()
        self._owners = Owners(lambda number: client.forget(number, held.pop(number, None)))
        self._graph_ids = Owners(self._graphs.pop)

    def bind(
        self,
        graph: Graph,
        views: Mapping[str, View],
        lives: OperatorInstances | None = None,
        *,
        measure: bool,
    ) -> WorkerProgram:
        """Bind `graph` to `views` in the worker, with resources `lives`, if any.

        Return the program, which measures nodes with `measure`. Raises DeviceError if the worker
        cannot import a Python function, or is dead.
        """
        with self._lock:
            self._import(graph)
            document = {
                "graph": self._graph(graph),
                "lives": None if lives is None else (self._life(lives), sorted(lives.once)),
                "measure": measure,
                "views": {name: self._view(view) for name, view in views.items()},
            }
            number = self._number()
            self._call("bind", number, _pack(document))
        return self._program(graph, number, Cargo.of(graph, views))

    def rebind(self, program: WorkerProgram, views: Mapping[str, View]) -> WorkerProgram | None:
        """Bind `program` to other `views`, without waiting for a worker that may be busy.

        Errors are raised when the program runs. Returns None if it has to be bound anew.
        """
        is_shared = self._describe is None  # numpy's arrays, in files of shared memory
        # Without the lock: a thread that waits for the worker to bind holds it.
        calls = find_calls(program.graph, views) if is_shared else None
        if calls is None:
            return None
        seen = {name for node in calls.values() for name in (*node.inputs, *node.outputs)}
        found = {name: views[name] for name in seen & views.keys()}
        if any(view.arena not in self._arenas for view in found.values()):
            return None
        places = {name: self._view(view) for name, view in found.items()}
        data = _pack({"program": program.number, "views": places})
        if len(data) > MOST_DATA:
            return None
        number = self._number()
        # Requests are served in order, so that it is bound before it can run.
        self._client.put(WorkerEvent("rebind", number, data=data))
        cargo = None if program.cargo is None else program.cargo.with_views(views)
        return self._program(program.graph, number, cargo)

    def _number(self) -> int:
        with self._numbering:
            return next(self._numbers)

    def _program(self, graph: Graph, number: int, cargo: Cargo | None) -> WorkerProgram:
        program = WorkerProgram(graph, self._client, number, self, cargo)
        self._owners.add(program, number)
        return program

    def _import(self, graph: Graph) -> None:
        wanted = [source for source in list_sources(graph) if source not in self._defined]
        if wanted:
            document = {"path": list_module_path(), "argv": sys.argv, "sources": wanted}
            self._call("import", 0, _pack(document))
            self._defined.update(wanted)

    def _graph(self, graph: Graph) -> int:
        key = id(graph)
        if key not in self._graphs:
            number = self._number()
            self._call("load", number, dump_bytes(graph))
            self._graphs[key] = number
            self._owners.add(graph, number)
            self._graph_ids.add(graph, key)
        return self._graphs[key]

    def _life(self, lives: OperatorInstances) -> int:
        """Return the worker's number for the resources `lives`, which close when those here do."""
        if lives not in self._lives:
            self._lives[lives] = number = self._number()
            lives.on_close(partial(self._end_lives, number))
        return self._lives[lives]

    def _end_lives(self, number: int) -> None:
        with suppress(DeviceLostError):  # a process that died has released them
            self._client.call("close", number)

    def share(self, arena: Arena) -> int:
        """Return the number of `arena`, mapping it in the process at first use."""
        if arena not in self._arenas:
            number = self._number()
            if self._describe is None:
                assert isinstance(arena, SharedArena), f"a worker cannot map {arena.memory!r}"
                self._client.call("map", number, arena)
            else:
                self._call("map", number, self._describe(arena))
                self._held[number] = arena.buffer
            self._arenas[arena] = number
            self._owners.add(arena, number)
        return self._arenas[arena]

    def _view(self, view: View) -> tuple[int, int, str, tuple[int, ...]]:
        spec = view.spec
        return self.share(view.arena), view.offset, name_of(spec.dtype), spec.static_shape

    def _call(self, kind: RequestKind, number: int, data: bytes) -> None:
        file = SharedArena(len(data))
        try:
            file.buffer[:] = np.frombuffer(data, np.uint8)
            self._client.call(kind, number, file)
        finally:
            file.close()


def _pack(document: Document) -> bytes:
    packed: bytes = msgpack.packb(document, unicode_errors="surrogatepass")
    return packed
