"""The blocking one-liner, for scripts and notebooks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import trio

from ..devices.device import Device
from ..graph.ir import Graph
from ..graph.tensor import Array
from .errors import SessionError
from .partition import Pins
from .planning import Plan, plan
from .session import Session

T = TypeVar("T")


def run(
    graph: Graph | Plan,
    inputs: Mapping[str, Any],
    devices: str | Device | Sequence[str | Device] = ("cpu",),
    *,
    pin: Pins | None = None,
) -> dict[str, Array]:
    """Plan a graph, open a session, run one item, close the session.

    Parameters
    ----------
    graph : Graph or Plan
        With a plan, `devices` and `pin` are not looked at.
    inputs : Mapping of str to array
        One array per graph input.
    devices, pin
        As in `plan`.

    Raises
    ------
    SessionError
        If called from inside a trio task, which it would block.
    PlaitError
        Whatever planning and running raise.

    Notes
    -----
    In a notebook, where an asyncio loop runs, it works on a thread of its own. For more than one
    item keep a `Session` open: opening one costs more than running a small graph.
    """
    planned = graph if isinstance(graph, Plan) else plan(graph, devices, pin=pin)

    async def once() -> dict[str, Array]:
        async with Session(planned) as session:
            return await session.run(inputs)

    return _block_on(lambda: trio.run(once))


def _block_on(call: Callable[[], T]) -> T:
    """Call something that runs a trio loop, on another thread if an asyncio loop runs on this."""
    if trio.lowlevel.in_trio_run():
        raise SessionError(
            "plait.run() would block the trio task it is called from",
            fix="async with Session(plan) as session: await session.run(inputs)",
        )
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return call()
    outcome: list[Any] = []

    def work() -> None:
        try:
            outcome.extend((call(), None))
        except BaseException as error:
            outcome.extend((None, error))

    thread = threading.Thread(target=work, name="plait-run")
    thread.start()
    thread.join()
    result, error = outcome
    if error is not None:
        raise error
    return result  # type: ignore[no-any-return]
