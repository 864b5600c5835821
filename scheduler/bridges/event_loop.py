"""The event loop for callers without one, with errors that explain why it did not start."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from ..errors import SessionError

T = TypeVar("T")


def run_loop(function: Callable[[], Awaitable[T]]) -> T:
    """Run trio's event loop on this thread until `function` is done, and return its result.

    Raises SessionError if the system has no descriptors left for a loop.
    """
    is_running = False

    async def main() -> T:
        nonlocal is_running
        is_running = True
        return await function()

    try:
        return trio.run(main)
    except OSError as error:
        if is_running:  # then it is what the function raised
            raise
        raise SessionError(
            f"no event loop can be started: {error.strerror}",
            fix="close sessions and files, or raise the limit of open files: ulimit -n",
        ) from error
