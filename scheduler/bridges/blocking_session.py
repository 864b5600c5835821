"""A session for synchronous code: its loop runs on a separate thread, from opening to closing."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, Never, TypeVar, Unpack, overload

import trio

from ...devices.lane import is_work
from ...graph.values.tensor import Array
from ..dispatch.inline_policy import WAITED, WAITED_ALONE
from ..errors import SessionError, make_keyword_error
from ..planner.plannable import Plannable, to_plan
from ..plans.fetches import Fetches
from ..profile import Profile
from ..runtime.items.deadlines import begin_deadline, check_deadline
from ..runtime.items.input_staging import copy_inputs
from ..runtime.opened.feeds import ItemFeeds, to_feeds
from ..runtime.plan_holder import PlanHolder
from ..runtime.session import Session, borrow_inputs
from ..runtime.status import Status
from ..runtime.streaming.options import StreamArguments, stream_options
from ..runtime.streaming.sources import SourceItem, check_source
from ..runtime.variables.carried import Carried
from .blocking_results import BlockingResults
from .inline import Callers, run_item
from .loop_thread import LoopJob, LoopThread, SessionArguments
from .submitted_items import AwaitedItem, ItemSubmitter, SubmittedItem

T = TypeVar("T")


class BlockingSession(PlanHolder):
    """An open plan, like `Session`: owns devices, arenas and lanes until it is closed.

    Parameters
    ----------
    plan : Plan, Graph, path or Pipeline
        A graph, or the model of a path, is planned for ``"auto"``.
    **arguments
        As for a `Session`.

    Raises
    ------
    PlaitError
        Any error of opening a session.

    Examples
    --------
    >>> import numpy as np
    >>> import plait as pl
    >>> b = pl.GraphBuilder("double")
    >>> b.output("y", b.op("Mul", b.input("x", "float32", (1,)), 2.0))
    >>> plan = pl.plan(b.build(), max_in_flight=2)
    >>> feeds = ({"x": np.array([n], "float32")} for n in range(3))
    >>> with pl.BlockingSession(plan) as session:
    ...     print(session.run({"x": np.array([7], "float32")})["y"])
    ...     print([item["y"].item() for item in session.stream(feeds)])
    [14.]
    [0.0, 2.0, 4.0]

    Notes
    -----
    Several threads may run items at the same time, each on a replica if there are any. A session
    that is not closed is closed when it is garbage-collected, or when the interpreter ends.
    """

    def __init__(self, plan: Plannable, **arguments: Unpack[SessionArguments]) -> None:
        self._callers = Callers()
        self.plan = to_plan(plan)
        self._loop = LoopThread(Session(self.plan, **arguments), owner=self)
        self._loop.open()
        self._submitter = ItemSubmitter(self._loop, owner=self)

    @property
    def is_closed(self) -> bool:
        """True after `close`, and in a process that was forked from the one that opened it."""
        return self._loop.is_closed or self._loop.is_inherited

    @overload
    def run(
        self,
        inputs: Mapping[str, Any] | Array,
        fetches: None = None,
        *,
        deadline_s: float | None = None,
    ) -> dict[str, Array]: ...

    @overload
    def run(
        self,
        inputs: Mapping[str, Any] | Array,
        fetches: Fetches,
        *,
        deadline_s: float | None = None,
    ) -> Any: ...

    def run(
        self,
        inputs: Mapping[str, Any] | Array,
        fetches: Fetches | None = None,
        *,
        deadline_s: float | None = None,
        **unknown: Never,
    ) -> Any:
        """Run `inputs` within `deadline_s`; return the outputs or `fetches`, like `Session.run`.

        Raises
        ------
        SessionError
            If the session is closed, or the caller is a trio task, which would be blocked.
        PlaitError
            Any error of running.
        """
        check_no_trio()
        if unknown:
            raise make_keyword_error(unknown, "run", ("fetches", "deadline_s"))
        graph = self.plan.graph
        inputs = ItemFeeds(inputs) if type(inputs) is dict else to_feeds(graph, inputs, fetches)
        session = self._loop.session
        check_time = None if deadline_s is None else begin_deadline(deadline_s)
        is_alone = self._callers.note()
        shares = self._callers.are_several and not is_alone and self._submitter.may_wait
        if shares:
            done = self._submitter.run_here(inputs, fetches, check_time)
        else:
            limit = WAITED_ALONE if is_alone else WAITED
            done = run_item(self._loop, inputs, fetches, limit, check_time)
        if done is not None:
            return done[0]
        own = borrow_inputs(session, inputs)
        if not shares:
            return run_on(self._loop, partial(session.run, own, fetches, deadline_s=deadline_s))
        self._loop.check_outside()
        item = AwaitedItem(self, deadline_s, check_time)
        self._submitter.submit(item, own, fetches, None, priority=0)
        try:
            item.wait()
        except KeyboardInterrupt:
            item.cancel()
            item.ended.result()
            raise
        return item.result()

    __call__ = run

    def map(
        self,
        items: Iterable[SourceItem],
        *,
        progress: Callable[[int], object] | None = None,
        **arguments: Unpack[StreamArguments],
    ) -> list[dict[str, Array]]:
        """Return the outputs of all items in a list, in order: `stream` to its end.

        Parameters
        ----------
        items : iterable of Mapping or array
        progress : callable, optional
            Called with the number of items done so far, after each.
        **arguments
            As for `stream`.

        Raises
        ------
        PlaitError
            If an item fails.
        """
        found: list[dict[str, Array]] = []
        with self.stream(items, **arguments) as results:
            for item in results:
                found.append(dict(item.outputs))
                if progress is not None:
                    progress(len(found))
        return found

    def submit(
        self,
        inputs: Mapping[str, Any] | Array,
        fetches: Fetches | None = None,
        *,
        deadline_s: float | None = None,
        priority: int = 0,
    ) -> Future[Any]:
        """Start an item and return a future of its outputs, or of the fetched tensors.

        Items are admitted by priority, then in the order of submission; they also assign to
        variables and draw random numbers in this order. Any number of items may be submitted;
        those without a slot wait with copies of their inputs. For endless sources use `stream`.

        Parameters
        ----------
        inputs : Mapping of str to array
            As for `run`; arrays are copied, and may be changed immediately.
        fetches : str, list, tuple or Mapping, optional
            As for `run`.
        deadline_s : float, optional
            Fail with a DeadlineError this many seconds after the call.
        priority : int, default 0
            Items of a higher priority are admitted before those that wait for a slot, and their
            steps run before those of other items that wait for the same device. From -1000 to 1000.

        Returns
        -------
        concurrent.futures.Future
            `result` waits, for a number of seconds if one is given, and returns or raises what
            `run` would; Ctrl-C ends the waiting, not the item. `cancel` cancels the item unless it
            is `done`. When the session is closed, unfinished items fail with SessionError.
            Callbacks run on a thread of the session: they must return at once and not block.

        Raises
        ------
        SessionError
            If the session is closed, the deadline is not in the future, or the priority invalid.

        Examples
        --------
        ::

            pending = [session.submit({"x": image}) for image in images]
            show(pending[0].result(timeout=1.0)["boxes"])
        """
        check_deadline(deadline_s)
        session = self._loop.session
        graph = self.plan.graph
        inputs = ItemFeeds(inputs) if type(inputs) is dict else to_feeds(graph, inputs, fetches)
        own = copy_inputs(borrow_inputs(session, inputs), {}, session.plan.graph.object_inputs)
        item = SubmittedItem(owner=self)
        self._submitter.submit(item, own, fetches, deadline_s, priority)
        return item

    def stream(
        self, source: Iterable[SourceItem], **arguments: Unpack[StreamArguments]
    ) -> BlockingResults:
        """Run the items of a source, several at a time; iterate over the result.

        Parameters
        ----------
        source : iterable of Mapping, array or Stamped
            Read on the iterating thread, while it waits for the next result; with `keep`, on a
            separate thread. A generator is closed at the end.
        **arguments
            As for `Session.stream`. Results are always copies.

        Raises
        ------
        SessionError
            If the session is closed, the caller is a trio task, or the arguments are invalid.
        PlaitError
            Any error of opening a stream.

        Notes
        -----
        A stream that is not iterated to its end is closed when it is garbage-collected; as a
        context manager, or by `close`, it is closed at once.
        """
        check_no_trio()
        self._loop.check_outside()
        check_source(source, blocking=True)
        options = stream_options(self._loop.session.plan, arguments)
        return BlockingResults(self._loop, source, options, self, self._submitter.threads)

    @property
    def variables(self) -> Mapping[str, Array]:
        """The values of all variables at one moment, as `fetch_variables` returns them."""
        return self.fetch_variables()

    def assign(self, values: Mapping[str, Any], *, key: Hashable = None) -> None:
        """Set variables, or those of `key`, to new `values`, like `Session.assign`."""
        run_on(self._loop, partial(self._loop.session.assign, values, key=key))

    def fetch_variables(self, *, key: Hashable = None) -> dict[str, Array]:
        """Return all variables at one moment, like `Session.fetch_variables`.

        With a `key` these are the variables of that key.
        """
        return run_on(self._loop, partial(self._loop.session.fetch_variables, key=key))

    def list_keys(self) -> tuple[Hashable, ...]:
        """Return the keys of streams by key, like `Session.list_keys`."""
        return run_on(self._loop, self._loop.session.list_keys)

    def drop_keys(self, keys: Iterable[Hashable] | None = None) -> None:
        """Forget the state of `keys`, or of all, like `Session.drop_keys`."""
        run_on(self._loop, partial(self._loop.session.drop_keys, keys))

    def reset_variables(self, names: Iterable[str] | None = None) -> None:
        """Reset all variables, or `names`, to initial values, like `Session.reset_variables`."""
        run_on(self._loop, partial(self._loop.session.reset_variables, names))

    def carry_variables(self, values: Mapping[str, Any]) -> Carried:
        """Set variables from the `values` of another graph, like `Session.carry_variables`."""
        return run_on(self._loop, partial(self._loop.session.carry_variables, values))

    def save_variables(self, path: str | os.PathLike[str]) -> None:
        """Write the values of all variables to file `path`, like `Session.save_variables`."""
        run_on(self._loop, partial(self._loop.session.save_variables, path))

    def load_variables(self, path: str | os.PathLike[str]) -> None:
        """Set variables to the values in file `path`, like `Session.load_variables`."""
        run_on(self._loop, partial(self._loop.session.load_variables, path))

    def profile(self) -> Profile:
        """Return the times of everything that ran, like `Session.profile`; also when closed."""
        return self._loop.session.profile()

    def status(self) -> Status:
        """Return the current state, like `Session.status`."""
        check_no_trio()
        status: Status = self._loop.status().result()
        return status

    def close(self) -> None:
        """Cancel items in flight and free everything. Closing twice is allowed."""
        self._submitter.close()

    def __enter__(self) -> BlockingSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def get_loop(session: BlockingSession) -> LoopThread[Session]:
    return session._loop


def run_on(loop: LoopThread[Any], work: Callable[[], Awaitable[T]]) -> T:
    """Run `work` on `loop` and wait for it; Ctrl-C cancels it."""
    check_no_trio()
    loop.check_outside()
    job: LoopJob[T] = loop.start(work)
    return job.result()


def check_no_trio() -> None:
    """Raise SessionError in trio tasks, which the caller would block.

    Functions of items may wait, even if a session runs them on its loop's thread.
    """
    if trio.lowlevel.in_trio_run() and not is_work():
        raise SessionError(
            "this would block the trio task it is called from",
            fix="async with Session(plan) as session: await session.run(inputs)",
        )
