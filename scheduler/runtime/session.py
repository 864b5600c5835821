"""The session: an open plan that runs items, one by one or streamed."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from itertools import count
from time import perf_counter_ns
from typing import Any, Never, NoReturn, Unpack, overload

import trio

from ...graph.values.tensor import Array
from ..dispatch.inline_policy import WAITED
from ..errors import SessionError, forked_session_error, make_keyword_error
from ..planner.plannable import Plannable, to_plan
from ..plans.fetches import Fetches
from ..plans.plan import Plan
from ..profile import Profile
from ..profile.timestamps import Timestamps
from .async_calls import Await, await_here
from .events import Announcer, Observer
from .faults import FaultPolicy
from .opened.feeds import ItemFeeds, Keys, to_feeds
from .opened.results import Results as ItemResults
from .plan_holder import PlanHolder
from .queue import QueuePlace
from .running.inline_runner import InlineTerms
from .runtime import Runtime
from .status import Status
from .streaming.carrier import Carrier
from .streaming.item_run import run_now, run_one
from .streaming.options import StreamArguments, stream_options
from .streaming.sources import Source
from .streaming.stream import Results, open_stream
from .variables.carried import Carried
from .variables.files import load_values, save_values


class Session(PlanHolder):
    """An open plan: owns devices, arenas and lanes within ``async with``.

    Parameters
    ----------
    plan : Plan, Graph, path or Pipeline
        A graph, or the model of a path, is planned for ``"auto"``.
    measure : bool, default False
        Time every node, for `profile`; costs about a microsecond per node.
    trace : bool, default True
        Keep the times of the latest items, for `profile`; costs about 1 µs per item.
    on_event : callable, optional
        Called with the session's events: items that ended, devices lost and restarted. It is called
        on the session's loop and should return at once; errors that it raises are logged.
    faults : FaultPolicy, optional
        How to handle devices that die or hang.
    seed : int, default 0
        Seed of random numbers, below 2⁶⁴. Together with the number of the item, counted from 0 in
        the order of calls and sources, it determines them; a graph that draws none ignores it.

    Examples
    --------
    >>> import numpy as np
    >>> import plait as pl
    >>> import trio
    >>> b = pl.GraphBuilder("double")
    >>> b.output("y", b.op("Mul", b.input("x", "float32", (1,)), 2.0))
    >>> plan = pl.plan(b.build())
    >>> async def main():
    ...     async with pl.Session(plan) as session:
    ...         outputs = await session.run({"x": np.array([3], "float32")})
    ...     print(outputs["y"])
    >>> trio.run(main)
    [6.]

    Notes
    -----
    Leaving the session cancels items in flight, waits for them to end, and frees everything: no
    thread, process or memory outlives the session. After a failed or cancelled item the session
    stays usable. A lost device is started again; items that were in flight there run again from
    their inputs.
    """

    def __init__(
        self,
        plan: Plannable,
        *,
        measure: bool = False,
        trace: bool = True,
        on_event: Observer | None = None,
        faults: FaultPolicy | None = None,
        seed: int = 0,
        **unknown: Never,
    ) -> None:
        if unknown:
            known = ("measure", "trace", "on_event", "faults", "seed")
            raise make_keyword_error(unknown, type(self).__name__, known)
        self.plan = to_plan(plan)
        self._measure, self._trace = measure, trace
        self._announcer = Announcer(on_event)
        self._faults = faults or FaultPolicy()
        self._seed = seed
        Keys(self.plan, seed)  # checks the seed
        self._runtime: Runtime | None = None
        self._profile: Profile | None = None
        self._streams = count(1)
        self._has_loop_alone = False
        self._awaits: Await = await_here

    def __enter__(self) -> NoReturn:
        raise SessionError(
            "a Session is entered by 'async with'",
            fix="async with Session(plan) as session, or with BlockingSession(plan) as session",
        )

    def __exit__(self, *error: object) -> None:
        raise AssertionError("it is never entered")

    @trio.lowlevel.enable_ki_protection  # Ctrl-C waits until the session knows its open resources
    async def __aenter__(self) -> Session:
        if not trio.lowlevel.in_trio_run():
            raise _no_trio_error()
        if self._runtime is not None:
            raise SessionError("the session is open already", fix="make another Session(plan)")
        runtime = Runtime(
            self.plan,
            measure=self._measure,
            trace=self._trace,
            announcer=self._announcer,
            faults=self._faults,
            seed=self._seed,
            has_loop_alone=self._has_loop_alone,
            awaits=self._awaits,
        )
        await runtime.open()
        self._runtime = runtime
        return self

    @trio.lowlevel.enable_ki_protection  # nor does it keep the session from closing
    async def __aexit__(self, *_: object) -> None:
        if self._runtime is not None and self._runtime.is_inherited:
            return  # it is for the process that this one was forked from to close
        runtime = self._open_runtime()
        self._profile = runtime.recorder.profile()  # first: other threads may ask for it just now
        self._runtime = None
        await runtime.close()

    @overload
    async def run(
        self,
        inputs: Mapping[str, Any] | Array,
        fetches: None = None,
        *,
        deadline_s: float | None = None,
    ) -> dict[str, Array]: ...

    @overload
    async def run(
        self,
        inputs: Mapping[str, Any] | Array,
        fetches: Fetches,
        *,
        deadline_s: float | None = None,
    ) -> Any: ...

    async def run(
        self,
        inputs: Mapping[str, Any] | Array,
        fetches: Fetches | None = None,
        *,
        deadline_s: float | None = None,
        **unknown: Never,
    ) -> Any:
        """Run one item and return copies of its outputs by name, or of the fetched tensors.

        Waits for a free slot if `max_in_flight` items are in flight already. Cancelling skips the
        steps that have not started, and returns when running steps have ended. Items that complete
        at once still let other tasks run every 0.1 ms.

        Parameters
        ----------
        inputs : Mapping of str to array, or array
            One array per graph input, of its dtype and shape; inputs that `fetches` do not need may
            be left out. The array alone if there is one input.
        fetches : str, list, tuple or Mapping, optional
            Names of tensors of the graph, nested in any way: the result has the same structure,
            with None for groups. Only the nodes that they need run. By default, all outputs are
            returned by name, and all effects take place.
        deadline_s : float, optional
            Fail with a DeadlineError after this many seconds.

        Raises
        ------
        FetchError
            If the graph has no tensor with one of the names.
        FeedError
            If an input is missing, unknown, or of the wrong dtype or shape.
        DeadlineError
            If the item misses its deadline.
        KernelError
            If a kernel or Python function raises.
        DeviceError
            If a device fails.
        """
        if unknown:
            raise make_keyword_error(unknown, "run", ("fetches", "deadline_s"))
        graph = self.plan.graph
        inputs = ItemFeeds(inputs) if type(inputs) is dict else to_feeds(graph, inputs, fetches)
        return await run_one(self._open_runtime(), inputs, fetches, deadline_s)

    __call__ = run

    def stream(
        self, source: Source, **arguments: Unpack[StreamArguments]
    ) -> AbstractAsyncContextManager[Results]:
        """Run the items of a source, several at a time.

        Parameters
        ----------
        source : iterable or async iterable of Mapping, array or Stamped
            Pulled from only when there is room for one more item. A generator or trio channel is
            closed at the end, and leaving the context raises the errors of closing it. Other errors
            of a source after the consumer has left are ignored.
        max_in_flight : int, optional
            The largest number of items alive, from before they are pulled until the consumer asks
            for the next result. By default the plan's number times `batch`.
        ordered : bool, default True
            Return results in the order of the source; otherwise as soon as they are ready.
        batch : int, optional
            Run this many items at once, stacked along the first axis of every input; with a key,
            items of different keys that are ready, along an axis of 1.
        max_delay_s : float, optional
            Start a batch that is not full after this many seconds. By default, only the last batch
            may be smaller.
        deadline_s : float, optional
            An item that is not done this many seconds after it was pulled fails with a
            DeadlineError; its run ends after the current kernel.
        on_error : {"yield", "raise"}
            Whether a failed item is returned, with its `error` set, or raises the error. The stream
            continues in both cases.
        copy : bool, default True
            Copy results. Otherwise they are read-only views into memory of the session, valid until
            the item is released; until then, finished items keep their slots.
        fetches : str, list, tuple or Mapping, optional
            The tensors to compute instead of all outputs, as for `run`. An item has them as
            `fetched`, in the same structure, and by their names.
        keep : "latest" or int, optional
            Read the source as fast as it produces items, on a thread if it blocks, and let this
            many items wait for room; ``"latest"`` is one. Further items are dropped and counted. By
            default, the source waits.
        drop : {"oldest", "newest"}, optional
            Which items to drop: those that have waited longest, the default, or new ones.
        pad : str, optional
            A symbol of the inputs' shapes, such as ``"tokens"``: items of a batch are filled up
            with zeros along it, and results cut back. The mask of a model has to be fed.
        key : str or callable, optional
            Items of each key have their own state, made from the initial values: variables that the
            graph assigns, and instances of ordered classes. Items of one key run in order, others
            overlap. A name is that of an input, or of an entry that is not fed; a function gets the
            item, on the thread that reads the source, and returns a hashable value.
        max_keys : int, default 1024
            The number of keys in memory. The stream that was opened last decides.
        evict : "error", "drop" or Path, default "error"
            For one key more: fail its item with a FeedError, drop the state of the
            least recently used key, or write that to a file in a folder until the key comes back.

        Raises
        ------
        SessionError
            If the options do not fit together; when the context is entered, if the graph takes no
            batches.
        FetchError
            When the context is entered, if the graph has no such tensor.
        DoesNotFitError
            When the context is entered, if that many items of known shapes do not fit into memory.

        Notes
        -----
        If the source raises an error, the stream raises it after the results of all earlier items.
        Leaving the context cancels the remaining items and waits for running ones.

        Examples
        --------
        ::

            async with session.stream(frames, max_in_flight=4) as results:
                async for item in results:
                    show(item["boxes"])
        """
        runtime = self._open_runtime()
        options = stream_options(self.plan, arguments)
        return open_stream(runtime, source, options, next(self._streams))

    @property
    def variables(self) -> Mapping[str, Array]:
        """The values of variables by name, read-only, as of the moment of each lookup.

        Looking up a variable on a GPU waits for a copy. While an item is in flight, a lookup raises
        a SessionError if variables are changing at that moment; `fetch_variables` waits.
        """
        return self._open_runtime().variables.values

    async def fetch_variables(self, *, key: Hashable = None) -> dict[str, Array]:
        """Return the values of all variables at one moment, after an item that is assigning.

        With a `key`, they are those that its next item will read.

        Raises
        ------
        FeedError
            If the key is unknown.
        DeviceError
            If a value was on a device that was lost.
        """
        return await self._open_runtime().variables.fetch(key)

    async def assign(self, values: Mapping[str, Any], *, key: Hashable = None) -> None:
        """Set variables to new `values` atomically, after the items in flight.

        With a `key`, its variables are set; if it is new, the others have initial values.

        Raises
        ------
        FeedError
            If a variable is unknown, or a value does not have its dtype and shape.
        """
        await self._open_runtime().variables.assign({key: values})

    async def list_keys(self) -> tuple[Hashable, ...]:
        """Return the keys of streams by key, the least recently used first."""
        return await self._open_runtime().variables.list_keys()

    async def drop_keys(self, keys: Iterable[Hashable] | None = None) -> None:
        """Forget the state of `keys`, or of all, after the items in flight.

        Raises
        ------
        FeedError
            If a key is unknown; then all stay.
        """
        await self._open_runtime().variables.drop_keys(keys)

    async def reset_variables(self, names: Iterable[str] | None = None) -> None:
        """Reset variables to their initial values: all of them, or those in `names`.

        As with `assign`, this is atomic and happens after the items in flight. Step counters and
        the state of an optimizer are variables too.

        Raises
        ------
        FeedError
            If a variable is unknown.
        """
        await self._open_runtime().variables.reset(names)

    async def carry_variables(self, values: Mapping[str, Any]) -> Carried:
        """Set variables from `values` of another graph, by name, and report differences.

        Values of the same name, dtype and shape are assigned, as by `assign`. Other values are
        ignored, and variables without a value stay as they are.
        """
        return await self._open_runtime().variables.carry(values)

    async def save_variables(self, path: str | os.PathLike[str]) -> None:
        """Write the values of all variables, also those of keys, to file `path`, atomically.

        Raises
        ------
        DeviceError
            If a value was on a device that was lost.
        GraphError
            If the file cannot be written, or a key is no text, number, or tuple of them.
        """
        states = await self._open_runtime().variables.fetch_states()
        await trio.to_thread.run_sync(save_values, states, path)

    async def load_variables(self, path: str | os.PathLike[str]) -> None:
        """Set variables to values that `save_variables` wrote to `path`; others stay as they are.

        Raises
        ------
        ParseError
            If the file is missing, damaged or foreign.
        FeedError
            If a value in the file belongs to no variable here, or has another dtype or shape.
        """
        states = await trio.to_thread.run_sync(load_values, path)
        await self._open_runtime().variables.assign(states)

    def profile(self) -> Profile:
        """Return the times of everything that ran so far; also after the session has ended."""
        runtime = self._runtime  # looked up once: the session may be closed just now
        if runtime is None and self._profile is not None:
            return self._profile
        return _get_open(runtime).recorder.profile()

    def status(self) -> Status:
        """Return the current state: items, devices and their queues, memory."""
        return self._open_runtime().status()

    def _open_runtime(self) -> Runtime:
        return _get_open(self._runtime)


def _get_open(runtime: Runtime | None) -> Runtime:
    if runtime is None:
        raise SessionError("the session is not open", fix="async with Session(plan) as session")
    if runtime.is_inherited:
        raise forked_session_error()
    return runtime


async def run_in_turn(
    session: Session,
    inputs: Mapping[str, Any],
    fetches: Fetches | None,
    deadline_s: float | None,
    place: QueuePlace,
) -> Any:
    try:
        return await run_one(session._open_runtime(), inputs, fetches, deadline_s, place)
    finally:
        place.leave()


async def run_alone(
    plan: Plan, inputs: Mapping[str, Any], fetches: Fetches | None, seed: int
) -> Any:
    """Run `inputs` in a session of `plan` with `seed`, and return the `fetches`: `plait.run`."""
    session = Session(plan, seed=seed)
    # No other task uses this loop: calls may block it, which saves threads.
    session._has_loop_alone = True
    async with session:
        return await run_one(session._open_runtime(), inputs, fetches, None, limit=WAITED)


def run_inline(
    session: object, inputs: Mapping[str, Any], marks: Timestamps, terms: InlineTerms
) -> ItemResults | None:
    """Return the results for `inputs`, if likely within the limit in `terms`, or else None.

    The caller must have the session while its loop does nothing with it. Times go to `marks`.
    """
    if not isinstance(session, Session):
        return None
    runtime = session._open_runtime()
    return None if runtime.needs_its_loop else run_now(runtime, inputs, marks, terms)


def may_run_here(session: object) -> bool:
    """Return whether brief items of `session` may run on other threads than that of its loop."""
    return isinstance(session, Session) and not session._open_runtime().needs_its_loop


def is_caller(session: object) -> bool:
    """Return whether the caller is a function of an item of `session`, on a device's thread."""
    runtime = session._runtime if isinstance(session, Session) else None
    return runtime is not None and runtime.is_caller()


def find_clock(session: object) -> Callable[[], int]:
    """Return the clock that items of `session`, or of a pool, are timed with, in ns."""
    runtime = session._runtime if isinstance(session, Session) else None
    return perf_counter_ns if runtime is None else runtime.now_ns


def get_carrier(session: Session) -> Carrier:
    return session._open_runtime()


def take_stream_number(session: Session) -> int:
    """Return the number for another stream of `session`; called on any thread."""
    return next(session._streams)


def borrow_inputs(session: object, inputs: Any) -> Any:
    """Return `inputs` for `session`, which runs on another thread than the caller's.

    Arrays on devices become loans, which wait for the work that the caller has queued so far.
    """
    runtime = session._runtime if isinstance(session, Session) else None
    return inputs if runtime is None else runtime.borrowed(inputs)


def _no_trio_error() -> SessionError:
    import asyncio  # which programs under trio do without

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return SessionError(
            "a session runs under trio, and no trio loop runs here",
            fix="trio.run(main) a function that opens it; code without a loop uses "
            "BlockingSession(plan), or plait.run() for one item",
        )
    return SessionError(
        "a session runs under trio, and this is a loop of asyncio",
        fix="open an AsyncioSession(plan): its methods are the same",
    )
