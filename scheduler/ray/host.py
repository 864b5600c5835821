"""A host: the one actor that plait runs on nodes of a cluster. Its methods are called from afar."""

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
from .engine import node_here
from .nodes import INLINE_LIMIT
from .pools.serving_sessions import Asked, Described, ServingSessions
from .remote.serving_devices import Answer as DevicesAnswer
from .remote.serving_devices import ServingDevices


class Host:
    """Holds devices, and sessions, for one driver.

    Parameters
    ----------
    name : str
    """

    def __init__(self, name: str) -> None:
        self._names = list(names())
        self._devices = ServingDevices(name)
        self._sessions = ServingSessions()

    async def hello(self) -> dict[str, Any]:
        """Say who is there: versions, process, node, devices, and how much it sends inline."""
        return {
            "plait": VERSION,
            "python": platform.python_version(),
            "numpy": np.__version__,
            "pid": os.getpid(),
            "node": node_here(),
            "devices": self._names,
            "inline_limit": int(os.environ.get(INLINE_LIMIT, 100 << 10)),
        }

    async def clock_ns(self) -> int:
        """Return the process's `time.perf_counter_ns`."""
        return time.perf_counter_ns()

    async def stay(self) -> None:
        """Never answer: whoever has called fails as soon as the host is lost."""
        await asyncio.get_running_loop().create_future()

    async def echo(self, value: Any) -> Any:
        """Return what was sent, for measuring."""
        return value

    async def ask_devices(self, what: str, *arguments: Any) -> DevicesAnswer:
        """Do something that takes long, as `ServingDevices.ask` does."""
        return await self._devices.ask(what, *arguments)

    async def command_devices(self, call: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """Have devices work, as `ServingDevices.command` does."""
        return await self._devices.command(call)

    async def open_session(self, *packed: Any) -> Described | None:
        """Open a session, as `ServingSessions.open` does."""
        return await self._sessions.open(*packed)

    async def run_items(self, asked: Sequence[Asked]) -> tuple[Any, ...]:
        """Run items, as `ServingSessions.run` does; plain tuples are pickled faster."""
        outcomes, *work = await self._sessions.run(asked)
        return tuple(map(tuple, outcomes)), *work

    async def cancel_items(self, numbers: Sequence[int]) -> None:
        """Give up items, as `ServingSessions.cancel` does."""
        await self._sessions.cancel(numbers)

    async def close_session(self) -> None:
        """Close the session, as `ServingSessions.close` does."""
        await self._sessions.close()

    def close(self) -> None:
        """Close the devices, where the process is to live on."""
        self._devices.close()
