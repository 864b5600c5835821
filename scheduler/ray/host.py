"""A host: the one actor that plait runs on nodes of a cluster. The driver calls its methods."""

from __future__ import annotations

import asyncio
import os
import platform
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...devices import names
from ...version import VERSION
from .engine import get_node_id
from .nodes import INLINE_LIMIT
from .pools.serving_sessions import Asked, ServingSessions
from .remote.commands import Described
from .remote.serving_devices import Answer as DevicesAnswer
from .remote.serving_devices import ServingDevices


class Host:
    """Holds devices, and sessions, for one driver."""

    def __init__(self, name: str) -> None:
        self._names = list(names())
        self._devices = ServingDevices(name)
        self._sessions = ServingSessions()

    async def hello(self) -> dict[str, Any]:
        """Return versions, process, node, devices, and the limit of values sent inline."""
        return {
            "plait": VERSION,
            "python": platform.python_version(),
            "numpy": np.__version__,
            "pid": os.getpid(),
            "node": get_node_id(),
            "devices": self._names,
            "inline_limit": int(os.environ.get(INLINE_LIMIT, 100 << 10)),
        }

    async def clock_ns(self) -> int:
        """Return the process's `time.perf_counter_ns`."""
        return time.perf_counter_ns()

    async def stay(self) -> None:
        """Never answer, so that the call fails as soon as the host is lost."""
        await asyncio.get_running_loop().create_future()

    async def echo(self, value: Any) -> Any:
        return value

    async def ask_devices(self, what: str, *arguments: Any) -> DevicesAnswer:
        return await self._devices.ask(what, *arguments)

    async def command_devices(self, call: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        return await self._devices.command(call)

    async def open_session(self, *packed: Any) -> Described | None:
        return await self._sessions.open(*packed)

    async def run_items(self, asked: Sequence[Asked]) -> tuple[Any, ...]:
        """Run the items `asked`; return plain tuples of `ServingSessions.run`, faster to pickle."""
        outcomes, *work = await self._sessions.run(asked)
        return tuple(map(tuple, outcomes)), *work

    async def cancel_items(self, numbers: Sequence[int]) -> None:
        await self._sessions.cancel(numbers)

    async def close_session(self) -> None:
        await self._sessions.close()

    def close(self) -> None:
        """Close the devices of a process that lives on."""
        self._devices.close()
