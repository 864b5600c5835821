"""Calls that block, from trio or asyncio: on a thread, and to their end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

import sniffio
import trio

from ...bridges.asyncio_results import settled

T = TypeVar("T")


async def to_its_end(function: Callable[[], T]) -> T:
    """Call a function on a thread; when this is cancelled, the function ends all the same."""
    if sniffio.current_async_library() == "trio":
        with trio.CancelScope(shield=True):
            return await trio.to_thread.run_sync(function)
    calling = asyncio.get_running_loop().run_in_executor(None, function)
    await settled(calling)
    return calling.result()
