"""The host's side of remote devices: devices of this process, used by a driver elsewhere.

Slow requests (opening devices, binding programs) come one by one and run on a thread; the work of
items comes as commands, many in a call. The latest call is answered as soon as there is an outcome
that the driver waits for, even of a command of an earlier call: results do not wait for the other
commands of their call.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeAlias

from ....devices.device import Device, StatefulDevice, is_device
from ....devices.host import count_cores
from ....devices.kinds import get_model
from ....devices.operator_instances import OperatorInstances
from ....devices.registry import find
from ....devices.worker.modules import Source, import_sources
from ....devices.worker.remote_errors import describe
from ....graph.core.ir import Graph
from ....graph.formats.native import load_bytes
from ....graph.values.errors import WireError
from ....graph.values.tensor import Array
from .command_queues import CommandQueues
from .commands import Command, CommandOutcome, Described, RemoteCall, RemoteTensor, to_plain_tuples
from .serving_work import HostWork, Memory
from .support_queries import SupportQuery, SupportReply

Answer: TypeAlias = tuple[Any, Described | None]
"""A value, or the error in its place."""


class ServingDevices:
    """Devices, arenas, graphs and programs of a driver, by number; called in one asyncio loop.

    `name` is the host's.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._numbers = itertools.count(1)
        self._objects: dict[int, Any] = {}
        self._prototypes: dict[str, Device] = {}
        self._work = HostWork(self._objects)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="plait-host")
        self._queues = CommandQueues(self._work, self._note)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._next = 0
        self._early: dict[int, RemoteCall] = {}
        self._outcomes: deque[CommandOutcome] = deque()
        self._is_awaited = False
        self._waiting: asyncio.Future[None] | None = None
        self._asks: Mapping[str, Callable[..., Any]] = {
            "find": self._find,
            "answer": self._answer,
            "open": self._open,
            "close": self._close,
            "arena": self._arena,
            "import": self._import,
            "load": self._load,
            "bind": self._bind,
            "lives": lambda once: self._add(OperatorInstances(once)),
            "end": self._end_lives,
        }

    async def ask(self, what: str, *arguments: Any) -> Answer:
        """Answer a slow request with `arguments` on its thread, in the order of arrival."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._asked, what, arguments)

    async def command(self, call: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """Start commands of `call`; return outcomes as soon as the driver waits for one of them."""
        made = RemoteCall(*call)
        self._loop = asyncio.get_running_loop()
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)  # one call is enough to be answered later
        answer = self._waiting = self._loop.create_future()
        # Calls of actors may arrive in another order; commands must run in theirs.
        self._early[made.number] = made
        while (one := self._early.pop(self._next, None)) is not None:
            self._next += 1
            self._take(one)
        self._answer_call()
        await answer
        self._is_awaited = False
        return [to_plain_tuples(self._outcomes.popleft()) for _ in range(len(self._outcomes))]

    def close(self) -> None:
        for made in list(self._objects.values()):
            if is_device(made):
                made.close()
        self._thread.shutdown()

    def _take(self, call: RemoteCall) -> None:
        for number in call.forgotten:
            # On the thread, after earlier requests, which may still use it.
            self._thread.submit(self._forget, number)
        commands = tuple(_read_command(one) for one in call.commands)
        if commands:
            self._queues.add(commands)
        self._queues.cancel(call.cancelled)
        self._queues.note(call.noted)

    def _note(self, command: Command, outcome: CommandOutcome) -> None:
        """Keep `outcome` of `command`, and answer the driver if it waits; on any thread."""
        array = self._work.take_read(command.number)
        if array is not None and not outcome.is_failure:
            outcome = outcome._replace(array=array)
        self._outcomes.append(outcome)
        if command.kind == "read" or outcome.is_failure or not self._queues.n_left:
            self._is_awaited = True
            assert self._loop is not None
            self._loop.call_soon_threadsafe(self._answer_call)

    def _answer_call(self) -> None:
        if self._waiting is not None and (self._is_awaited or not self._queues.n_left):
            waiting, self._waiting = self._waiting, None
            if not waiting.done():
                waiting.set_result(None)

    def _asked(self, what: str, arguments: tuple[Any, ...]) -> Answer:
        try:
            return self._asks[what](*arguments), None
        except Exception as error:
            return None, describe(error)

    def _add(self, made: Any) -> int:
        number = next(self._numbers)
        self._objects[number] = made
        return number

    def _find(self, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
        device = self._prototype(name)
        offers = device.capabilities
        fields = {
            "alignment": offers.alignment,
            "memory_bytes": offers.memory_bytes,
            "runs_python": offers.runs_python,
            "atomic_programs": offers.atomic_programs,
            "software": offers.software,
        }
        # Support is asked for node by node, since functions are not sent.
        model = replace(get_model(device, name), supports=None)
        return fields, model.to_dict()

    def _prototype(self, name: str) -> Device:
        if name not in self._prototypes:
            self._prototypes[name] = find(name)
        return self._prototypes[name]

    def _answer(self, name: str, question: tuple[Any, ...]) -> SupportReply:
        return SupportQuery(*question).answer(self._prototype(name))

    def _open(self, name: str, cores: int | None) -> int:
        # Not the prototype: several sessions open devices of one name.
        device = find(name)
        device.open(count_cores() if cores is None else cores)
        return self._add(device)

    def _close(self, number: int) -> None:
        device: Device = self._objects.pop(number)
        device.close()

    def _arena(self, number: int, nbytes: int) -> int:
        device: Device = self._objects[number]
        return self._add(Memory(device.arena(device.capabilities.memory, nbytes), device))

    def _import(self, path: list[str], sources: list[tuple[Any, ...]]) -> None:
        # After the host's own entries, which must not be hidden.
        sys.path += [entry for entry in path if entry not in sys.path]
        import_sources([Source(*fields) for fields in sources])

    def _load(self, data: Array) -> int:
        return self._add(load_bytes(memoryview(data), at=f"the graph sent to {self._name!r}"))

    def _bind(
        self,
        number: int,
        graph: int,
        places: Mapping[str, RemoteTensor],
        lives: int | None,
        measure: bool,
    ) -> int:
        device: Device = self._objects[number]
        views = {
            name: self._work.view(number, RemoteTensor(*place)) for name, place in places.items()
        }
        subgraph: Graph = self._objects[graph]
        if lives is None:
            return self._add(device.compile(subgraph, views, measure=measure))
        assert isinstance(device, StatefulDevice)
        kept: OperatorInstances = self._objects[lives]
        return self._add(device.compile_with(subgraph, views, kept, measure=measure))

    def _end_lives(self, number: int) -> None:
        lives: OperatorInstances = self._objects.pop(number)
        lives.close()

    def _forget(self, number: int) -> None:
        made = self._objects.pop(number, None)
        if isinstance(made, Memory):
            made.arena.close()


def _read_command(fields: Any) -> Command:
    """Return the command of received `fields`, or raise WireError."""
    try:
        command = Command(*fields)
        target, source = command.target, command.source
        return command._replace(
            target=None if target is None else RemoteTensor(*target),
            source=None if source is None else RemoteTensor(*source),
        )
    except TypeError as error:
        raise WireError("a message describes no command") from error
