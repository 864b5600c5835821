"""A session for synchronous code: its loop runs on a thread of its own, from opening to closing."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from types import TracebackType
from typing import Any

import trio

from ..graph.tensor import Array
from .errors import SessionError
from .planning import Plan
from .session import Session


class BlockingSession:
    """Owns devices, arenas and lanes until it is closed, as a `Session` does.

    Parameters
    ----------
    plan : Plan

    Raises
    ------
    PlaitError
        Whatever opening a session raises.

    Notes
    -----
    Any thread may run items, several at once. One that is dropped without being closed is closed
    when it is collected, or when the interpreter ends.
    """

    def __init__(self, plan: Plan) -> None:
        self._loop = _Loop(plan)
        self._close = weakref.finalize(self, self._loop.close)

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        """Run one item and return its outputs by name, as `Session.run` does.

        Raises
        ------
        SessionError
            If the session is closed, or a trio task calls, which would be blocked.
        PlaitError
            Whatever running raises.
        """
        if trio.lowlevel.in_trio_run():
            raise SessionError(
                "running would block the trio task it is called from",
                fix="async with Session(plan) as session: await session.run(inputs)",
            )
        try:
            return trio.from_thread.run(self._loop.session.run, inputs, trio_token=self._loop.token)
        except (trio.RunFinishedError, trio.Cancelled):
            raise SessionError("the session is closed", fix="open another one") from None

    def close(self) -> None:
        """Free everything; what is under way is cancelled. Closing twice is allowed."""
        self._close()

    def __enter__(self) -> BlockingSession:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class _Loop:
    """The thread and what runs on it; it knows nothing of who uses it, who may be collected."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._stop = trio.Event()
        self._opened: Future[tuple[trio.lowlevel.TrioToken, Session]] = Future()
        self._failure: BaseException | None = None
        # A daemon, so that the interpreter, when it ends, gets to close it.
        self._thread = threading.Thread(target=self._work, name="plait-session", daemon=True)
        self._thread.start()
        try:
            self.token, self.session = self._opened.result()
        except BaseException:
            with suppress(Exception):  # it may have opened, if Ctrl-C is what brought us here
                token, _ = self._opened.result()
                token.run_sync_soon(self._stop.set)
            self._thread.join()
            raise

    def close(self) -> None:
        with suppress(trio.RunFinishedError):
            self.token.run_sync_soon(self._stop.set)
        if threading.current_thread() is not self._thread:
            self._thread.join()
            if self._failure is not None:
                raise self._failure

    def _work(self) -> None:
        try:
            trio.run(self._main)
        except BaseException as error:
            if self._opened.done():
                self._failure = error
            else:
                self._opened.set_exception(error)

    async def _main(self) -> None:
        async with Session(self._plan) as session:
            self._opened.set_result((trio.lowlevel.current_trio_token(), session))
            await self._stop.wait()
