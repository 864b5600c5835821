"""Awaits a session's async functions on the loop of the asyncio program that opened it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from contextvars import copy_context
from functools import partial

import trio

from ...graph.values.errors import is_ctrl_c
from ..runtime.async_calls import Await


def await_on(loop: asyncio.AbstractEventLoop) -> Await:
    """Return a function with which tasks of a trio loop await functions on the asyncio `loop`.

    The functions see the context variables that the caller sees now.
    """
    context = copy_context()

    async def awaits(call: Callable[[], Awaitable[None]]) -> None:
        token, ended = trio.lowlevel.current_trio_token(), trio.Event()
        tasks: list[asyncio.Task[BaseException | None]] = []

        def tell(_: object) -> None:
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(ended.set)

        def start() -> None:
            tasks.append(loop.create_task(_catch_error(call)))
            tasks[0].add_done_callback(tell)

        loop.call_soon_threadsafe(start, context=context.copy())
        try:
            await ended.wait()
        except trio.Cancelled:
            with suppress(RuntimeError):  # the loop is closed: nothing runs there
                loop.call_soon_threadsafe(partial(_cancel, tasks))
                with trio.CancelScope(shield=True):
                    await ended.wait()
            raise
        error = tasks[0].result()
        if error is not None:
            raise error

    return awaits


async def _catch_error(call: Callable[[], Awaitable[None]]) -> BaseException | None:
    """Return the exception of `call`, or None: raised in a task, some would end the loop."""
    try:
        await call()
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        if is_ctrl_c(error):
            raise
        return error
    return None


def _cancel(tasks: Sequence[asyncio.Task[BaseException | None]]) -> None:
    tasks[0].cancel()  # it was started: calls are made in order
