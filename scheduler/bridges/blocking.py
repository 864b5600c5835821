"""The blocking one-liner, for scripts and notebooks; plans are cached between calls."""

from __future__ import annotations

import sys
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar, overload

import trio

from ...devices.automatic import AUTO
from ...devices.device import Device
from ...devices.lane import is_work, start_thread
from ...graph.core.ir import Graph
from ...graph.values.recent import RecentItems
from ...graph.values.registry import count_registrations
from ...graph.values.tensor import Array
from ..errors import PlanError, SessionError
from ..planner.api import plan
from ..plans.fetches import Fetches
from ..plans.plan import Plan
from ..plans.request import Pins
from ..runtime.session import run_alone
from .loop_thread import run_loop

T = TypeVar("T")


@overload
def run(
    graph: Graph | Plan,
    inputs: Mapping[str, Any],
    devices: str | Device | Iterable[str | Device] = AUTO,
    *,
    pin: Pins | None = None,
    bounds: Mapping[str, int | tuple[int, int]] | None = None,
    fetches: None = None,
    seed: int = 0,
) -> dict[str, Array]: ...


@overload
def run(
    graph: Graph | Plan,
    inputs: Mapping[str, Any],
    devices: str | Device | Iterable[str | Device] = AUTO,
    *,
    pin: Pins | None = None,
    bounds: Mapping[str, int | tuple[int, int]] | None = None,
    fetches: Fetches,
    seed: int = 0,
) -> Any: ...


def run(
    graph: Graph | Plan,
    inputs: Mapping[str, Any],
    devices: str | Device | Iterable[str | Device] = AUTO,
    *,
    pin: Pins | None = None,
    bounds: Mapping[str, int | tuple[int, int]] | None = None,
    fetches: Fetches | None = None,
    seed: int = 0,
) -> Any:
    """Run one item: plan the graph unless its plan is cached, open a session, run, close it.

    Parameters
    ----------
    graph : Graph or Plan
        A plan has its own devices, pins and bounds, so none may be given with it.
    inputs : Mapping of str to array
        One array per graph input.
    devices, pin, bounds
        As in `plan`.
    fetches : str, list, tuple or Mapping, optional
        What to compute instead of all outputs, as for `Session.run`.
    seed : int, default 0
        Seed of random numbers, as for a `Session`.

    Raises
    ------
    SessionError
        If called in a trio task, which it would block.
    PlaitError
        Any error of planning and running.

    Examples
    --------
    >>> import numpy as np
    >>> import plait as pl
    >>> b = pl.GraphBuilder("relu")
    >>> b.output("y", b.op("Relu", b.input("x", "float32", (2,))))
    >>> pl.run(b.build(), {"x": np.array([-1, 1], "float32")})
    {'y': array([0., 1.], dtype=float32)}

    Notes
    -----
    In a notebook, where an asyncio loop runs, it uses a separate thread. The plans of the last four
    graphs are cached, with the graphs, unless these have more than 64 MiB of constants; nothing
    stays open between calls. For more than one item keep a `Session` open: opening one costs more
    than running a small graph.
    """
    if not isinstance(graph, Plan):
        planned = kept_plans.find(graph, devices, pin=pin, bounds=bounds)
    elif pin is None and bounds is None and devices == AUTO:
        planned = graph
    else:
        raise PlanError(
            "a plan has its devices, pins and bounds already", fix="run the graph, or plan it anew"
        )

    once = partial(run_alone, planned, inputs, fetches, seed)
    return block_on(
        once, "plait.run()", "async with Session(plan) as session: await session.run(inputs)"
    )


def block_on(function: Callable[[], Awaitable[T]], called: str, instead: str) -> T:
    """Run `function` on a trio loop, on another thread if this one has a loop.

    Raises SessionError in a trio task, which `called` would block; its fix is to call `instead`.
    """
    if trio.lowlevel.in_trio_run():
        if is_work():  # a quick Python function that a session runs on its loop's thread
            return _Beside(function).wait()
        raise SessionError(f"{called} would block the trio task it is called from", fix=instead)
    return _Beside(function).wait() if _has_asyncio_loop() else run_loop(function)


def _has_asyncio_loop() -> bool:
    """Return whether an asyncio loop runs on this thread: then asyncio is imported."""
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and asyncio._get_running_loop() is not None


class _Beside(Generic[T]):
    """A trio loop on a separate thread; Ctrl-C, which this thread receives, cancels it."""

    def __init__(self, function: Callable[[], Awaitable[T]]) -> None:
        self._function = function
        self._scope = trio.CancelScope()
        self._token: Future[trio.lowlevel.TrioToken] = Future()
        self._outcome: Future[T] = Future()
        self._thread = threading.Thread(target=self._work, name="plait-run")

    def wait(self) -> T:
        start_thread(self._thread, "the run")
        try:
            return self._outcome.result()
        except KeyboardInterrupt:
            with suppress(trio.RunFinishedError):
                self._token.result().run_sync_soon(self._scope.cancel)
            raise
        finally:
            self._thread.join()

    def _work(self) -> None:
        try:
            self._outcome.set_result(run_loop(self._main))
        except BaseException as error:
            self._outcome.set_exception(error)

    async def _main(self) -> T:
        self._token.set_result(trio.lowlevel.current_trio_token())
        with self._scope:
            return await self._function()
        raise KeyboardInterrupt


MOST_PLANS = 4
MOST_NBYTES = 64 << 20
"""Graphs with more bytes of constants are planned each time, and not kept alive."""

_Key: TypeAlias = tuple[Any, ...]


class _Kept(NamedTuple):
    graph: Graph  # so that nothing else has its id
    plan: Plan
    registrations: int


class KeptPlans:
    """The most recent plans, by the identity of their graphs; for any thread."""

    def __init__(self) -> None:
        self._kept: RecentItems[_Key, _Kept] = RecentItems(MOST_PLANS)

    def find(
        self,
        graph: Graph,
        devices: str | Device | Iterable[str | Device],
        **options: Any,
    ) -> Plan:
        """Return the plan of `graph` on `devices` with `options` of `plan`, often a kept one.

        It is made again if an operator or device was registered since.
        """
        if isinstance(devices, Iterable) and not isinstance(devices, str):
            devices = tuple(devices)
        values = options.values()
        try:
            decided = (tuple(one.items()) if hasattr(one, "items") else one for one in values)
            key: _Key = id(graph), devices, *options, *decided
            hash(key)
            keeps = sum(one.nbytes for one in graph.constants.values()) <= MOST_NBYTES
        except (AttributeError, TypeError):  # planning reports their faults
            keeps = False
        if not keeps:
            return plan(graph, devices, **options)
        kept = self._kept.get(key)
        if kept is not None and kept.registrations == count_registrations():
            return kept.plan
        made = plan(graph, devices, **options)
        self._kept[key] = _Kept(graph, made, count_registrations())
        return made


kept_plans = KeptPlans()
