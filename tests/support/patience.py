"""The patience of tests: it is spent only where plait hangs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

WAIT_S = 300.0
"""On the slowest machine, and the busiest: no test is about how fast something happens."""


async def until(condition: Callable[[], object]) -> None:
    """Wait, on asyncio's loop, for another thread; there is nothing to be told by."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.001)
