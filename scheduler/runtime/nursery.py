"""A nursery that raises a single error as it is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio


@asynccontextmanager
async def open_nursery() -> AsyncIterator[trio.Nursery]:
    """Open a nursery; a single error is raised without the group that nurseries put around it."""
    failure: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            yield nursery
    except BaseExceptionGroup as group:
        failure = group.exceptions[0] if len(group.exceptions) == 1 else group
    if failure is not None:
        raise failure  # outside of the handler: it keeps its own cause
