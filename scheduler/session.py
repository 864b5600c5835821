"""The session: an open plan that runs items, one by one or streamed."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any

import trio

from ..graph.tensor import Array
from .errors import SessionError
from .item import Flight
from .planning import Plan
from .profile import Profile
from .runtime import Runtime
from .stream import Results, Source, open_stream


class Session:
    """Owns devices, arenas and lanes from ``async with`` to its end.

    Parameters
    ----------
    plan : Plan
    measure : bool, default False
        Time every node, for `profile`; costs about a microsecond per node.

    Examples
    --------
    ::

        async with pl.Session(plan) as session:
            outputs = await session.run({"x": image})

    Notes
    -----
    Leaving the session cancels what is under way, waits for it to end, and frees everything: no
    thread, process or memory outlives it. A failed or cancelled item leaves it usable. A device
    that was lost stays lost until a session is opened again: items that need it fail.
    """

    def __init__(self, plan: Plan, *, measure: bool = False) -> None:
        if not isinstance(plan, Plan):
            raise SessionError(
                f"a session opens a Plan, not a {type(plan).__name__}",
                fix="Session(plan(graph, devices=...))",
            )
        self.plan = plan
        self._measure = measure
        self._runtime: Runtime | None = None
        self._profile: Profile | None = None

    async def __aenter__(self) -> Session:
        if not trio.lowlevel.in_trio_run():
            raise SessionError(
                "a session runs under trio, and no trio loop runs here",
                fix="trio.run(main) a function that opens it, or use plait.run() for one item",
            )
        if self._runtime is not None:
            raise SessionError("the session is open already", fix="make another Session(plan)")
        runtime = Runtime(self.plan, measure=self._measure)
        await runtime.open()
        self._runtime = runtime
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        runtime, self._runtime = self._open_runtime(), None
        self._profile = runtime.recorder.profile()
        await runtime.close()

    async def run(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        """Run one item and return its outputs by name, as arrays of their own.

        Waits for a free slot where `max_in_flight` items are under way already. When it is
        cancelled, what has not started is skipped and what runs ends before it returns.

        Parameters
        ----------
        inputs : Mapping of str to array
            One array per graph input, of its dtype and shape.

        Raises
        ------
        FeedError
            If an input is missing, unknown, or of the wrong dtype or shape.
        KernelError
            If a kernel or Python function raises.
        DeviceError
            If a device fails.
        """
        runtime = self._open_runtime()
        flight = Flight()
        await runtime.admit(inputs, 1, flight)
        try:
            await flight.done.wait()
        except BaseException:
            await runtime.drain({flight})
            raise
        if flight.error is not None:
            raise flight.error
        return dict(flight.results)

    def stream(
        self, source: Source, *, max_in_flight: int | None = None
    ) -> AbstractAsyncContextManager[Results]:
        """Run the items of a source, several at a time; results come in order.

        Parameters
        ----------
        source : iterable or async iterable of Mapping
            Pulled from only when there is room for one more item. A generator is closed at the end;
            what it raises after the consumer has left is not seen.
        max_in_flight : int, optional
            How many items are alive at most, from before they are pulled until the consumer asks
            for the next result; the plan's number when left out.

        Notes
        -----
        A failing item has its `error` set and the rest go on. What the source raises is raised
        after the results of what it had given. Leaving the context cancels the rest and waits for
        what runs. If that many items of known shapes fit into no memory, entering it raises
        DoesNotFitError.

        Examples
        --------
        ::

            async with session.stream(frames, max_in_flight=4) as results:
                async for item in results:
                    show(item["boxes"])
        """
        runtime = self._open_runtime()
        limit = self.plan.max_in_flight if max_in_flight is None else max_in_flight
        if limit < 1:
            raise SessionError(f"max_in_flight is {limit}", fix="use 1 or more")
        return open_stream(runtime, source, limit)

    def profile(self) -> Profile:
        """Return when everything ran, for the items so far; also after the session has ended."""
        if self._runtime is None and self._profile is not None:
            return self._profile
        return self._open_runtime().recorder.profile()

    def _open_runtime(self) -> Runtime:
        if self._runtime is None:
            raise SessionError("the session is not open", fix="async with Session(plan) as session")
        return self._runtime
