"""Calls of async functions: tasks on the session's loop, which take no thread and no lane."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import trio

from ...devices.device import OnDone
from ...devices.errors import UnsupportedNodeError
from ...devices.event import CancelledWorkError, Event
from ...devices.program import BoundProgram, kernel_error
from ...graph.operators.each import EACH, RowServer, row_server
from ...graph.values.errors import InternalError, PlaitError, get_text, is_ctrl_c

if TYPE_CHECKING:
    from .virtual_time import VirtualTimeDriver

Await: TypeAlias = Callable[[Callable[[], Awaitable[None]]], Awaitable[None]]
"""Calls a function and awaits its result, on the event loop that async functions are for."""

FOREIGN = (
    "trio got unexpected",
    "trio.run received unrecognized yield message",
    "no running event loop",
    "There is no current event loop",
    "Task got bad yield",
    "must be called from async context",
)
"""The beginnings of errors that a loop raises for awaitables of another loop."""


async def await_here(call: Callable[[], Awaitable[None]]) -> None:
    """Await `call` on the session's own loop."""
    await call()


def launch(
    driver: VirtualTimeDriver,
    program: BoundProgram,
    waits: Sequence[Event],
    on_done: OnDone | None,
    *,
    rows: RowServer | None = None,
) -> Event:
    """Start the function of `program` on the loop of `driver`, and return its event; thread-safe.

    The event calls `on_done` on the loop's thread when the function has ended; cancelling it
    cancels the function. If `rows` is given, it runs the rows of the function. `waits` is empty.
    """
    assert not waits, "its device keeps no order"
    event = Event(on_done)
    driver.call(partial(_start, driver, program, event, rows))
    return event


def call_here(program: BoundProgram) -> None:
    """Run `program`, of an `Each` node, on this thread, with the thread's `row_server`.

    Raises the error of a row that fails.
    """
    try:
        program.fetch().send(None)
    except StopIteration:
        program()
    except UnsupportedNodeError:
        raise
    except BaseException as error:
        raise error if is_ctrl_c(error) else _call_error(error, program) from error
    else:
        raise InternalError("a function of rows waited on a thread that runs them itself")


def _start(
    driver: VirtualTimeDriver, program: BoundProgram, event: Event, rows: RowServer | None
) -> None:
    name = f"{program.graph.nodes[0]}"
    # Each has a copy of the session's context, as tasks of a nursery do.
    context: Context = driver.context.copy()
    if rows is not None:
        context.run(row_server.set, rows)
    ticket = driver.ticket()
    run = partial(_run, driver, program, event, ticket)
    driver.spawn(run, name=name, context=context)


async def _run(driver: VirtualTimeDriver, program: BoundProgram, event: Event, ticket: int) -> None:
    error: BaseException | None = None
    event.started_ns = time.perf_counter_ns()
    scope, is_back = trio.CancelScope(), False
    event.stop_by(partial(driver.call, scope.cancel))
    try:
        with scope:
            # Batches run on the session's own loop.
            is_own = program.graph.nodes[0].op == EACH
            await driver.in_order(ticket)
            await (await_here if is_own else driver.awaits)(program.fetch)
            await driver.in_order(ticket)
        is_back = True
        if event.cancelled:
            error = CancelledWorkError("the work was cancelled while it waited")
        else:
            program.run(event)
    except trio.Cancelled:  # the loop ends
        error = CancelledWorkError("the event loop has ended")
        raise
    except BaseException as raised:
        error = raised if is_back or is_ctrl_c(raised) else _call_error(raised, program)
    finally:
        event.ended_ns = time.perf_counter_ns()
        if event.node_ns is not None:
            event.node_ns = (event.ended_ns - event.started_ns,)
        event.complete(error)
        driver.wake()
        del driver, program, event, error, scope  # the exception holds this frame


def _call_error(error: BaseException, program: BoundProgram) -> PlaitError:
    failure = kernel_error(error, program.graph.nodes[0], program.device)
    failure.__cause__ = error
    if isinstance(error, RuntimeError | TypeError) and get_text(error).startswith(FOREIGN):
        failure.fix = (
            "await what is for the session's loop: trio's, or asyncio's in an AsyncioSession; "
            "libraries built on anyio, such as httpx, run on both"
        )
    return failure
