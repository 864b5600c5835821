"""Named pipes at which functions in other processes wait: tests know when these have got there."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import trio


class Gate:
    """A named pipe that functions open for reading, and read until it is closed."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self._writer = -1
        os.mkfifo(path)

    async def reached(self, then: Callable[[], None] = lambda: None) -> None:
        """Wait until a function waits there, as it does until the gate is closed."""
        while self._writer < 0:
            with suppress(OSError):  # nobody reads yet
                self._writer = os.open(self.path, os.O_WRONLY | os.O_NONBLOCK)
            await trio.sleep(0.001)
        then()

    def close(self) -> None:
        """Let the function go on."""
        if self._writer >= 0:
            os.close(self._writer)
            self._writer = -1
