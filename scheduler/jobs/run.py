"""One run of a job: feeds its items, gathers rows and failures, and commits them."""

from __future__ import annotations

import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from time import monotonic
from types import FrameType
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import msgspec
import numpy as np

from ...devices.errors import DeviceLostError
from ...graph.errors import InternalError, PlaitError
from ...graph.operators.randomness import RANDOM_KEY
from ...graph.state import has_assignments
from ..bridges.blocking_session import BlockingSession
from ..errors import JobError
from ..runtime.items.feeds import to_feeds
from ..runtime.items.item import Item
from .commits import JobStatus, Parts, commit
from .sinks import JsonLines, Row

if TYPE_CHECKING:
    from .job import Job

POSITION, RESULT = "position", "result"
NO_ROW: Row = {}
KEY = "key of the item"
"""An entry of the feeds that no input takes."""


class Interrupts:
    """Defers SIGTERM and Ctrl-C to the end of a block; a second one takes effect at once."""

    signal = 0
    """The number of the signal that came."""

    def __enter__(self) -> Self:
        is_main = threading.current_thread() is threading.main_thread()
        handled = (signal.SIGTERM, signal.SIGINT) if is_main else ()
        self._before = {number: signal.signal(number, self._note) for number in handled}
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler or signal.SIG_DFL)

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._restore()
        if self.signal and error is None:
            signal.raise_signal(self.signal)


_Pending: TypeAlias = tuple[int, Row, Any, BaseException | None]
"""The position of an item, its entries to carry, its feeds for another try, and its error if it
could not be fed."""


class JobRun:
    """A run, from the position of the last commit to the end of the source, or to a signal."""

    def __init__(
        self,
        job: Job,
        session: BlockingSession,
        status: JobStatus,
        interrupts: Interrupts,
        progress: Callable[[int], object] | None,
    ) -> None:
        self._job, self._session, self._interrupts = job, session, interrupts
        self.status = status
        self._progress = progress or (lambda done: None)
        self._is_stateful = has_assignments(job.plan.fed)
        self._begin = self._position = self._fed = status.position
        self._begun_s = self._committed_s = monotonic()
        self._rows: list[Any] = []
        self._failures: list[bytes] = []
        self._failed = status.failed
        self._pending: deque[_Pending] = deque()
        self._is_exhausted = False
        self._error: Exception | None = None
        self._commits, self._was_lost = True, False
        self._lines, where = JsonLines(), job.folder
        size, at = job.part_items, status.position
        self._parts = Parts(where, "parts", job.sink, size, status.parts, at)
        self._errors = Parts(where, "errors", self._lines, size, status.errors, at)

    def run(self) -> None:
        """Run all items that are left; the error of a source is raised once they are committed."""
        if self.status.variables:
            self._session.load_variables(self._job.folder / self.status.variables)
        items = self._read()
        while not (self._is_exhausted or self._error or self._interrupts.signal):
            self._stream(items)
            self._commit(is_last=self._is_exhausted)
        if self._error is not None:
            raise self._error

    def repair(self, failures: Mapping[int, bytes]) -> None:
        """Run failed items again, given by the lines of the errors part, and commit the rows."""
        self._commits, self._failed, self._fed = False, 0, 0
        self._stream((position, self._read_one(position)) for position in failures)
        left = [line for position, line in failures.items() if position >= self._fed]
        self._parts.write_repaired(self._rows, len(self._parts.names), self._make_write_error)
        self._errors.names.clear()
        self._errors.write_repaired(
            self._failures + left, len(self._parts.names), self._make_write_error
        )
        self._failed += len(left)
        self.publish()

    def _read(self) -> Iterator[tuple[int, Any]]:
        yield from enumerate(self._job.source.open_at(self._begin), self._begin)

    def _read_one(self, position: int) -> Any:
        missing = LookupError("the source ends before this item")
        return next(iter(self._job.source.open_at(position)), missing)

    def _stream(self, items: Iterator[tuple[int, Any]]) -> None:
        options = self._job.stream.copy()
        if options.get("key") is not None:
            options["key"] = KEY
        with self._session.stream(self._feed(items), **options) as results:
            for item in results:
                self._settle(item)
        self._flush()

    def _feed(self, items: Iterator[tuple[int, Any]]) -> Iterator[Mapping[str, Any]]:
        """Yield feeds to the stream, up to the next commit if items change variables."""
        begin = self._fed
        while not self._interrupts.signal:
            if self._is_stateful and self._fed > begin and self._is_due(self._fed):
                return
            try:
                position, value = next(items)
            except StopIteration:
                self._is_exhausted = True
                return
            except Exception as error:
                self._error = error
                return
            self._fed = position + 1
            try:
                feeds = self._to_feeds(position, value)
                kept = {name: value[name] for name in self._job.carry}
            except Exception as error:
                self._pending.append((position, {}, None, error))
                self._flush()
            else:
                is_batched = self._job.stream.get("batch") is not None
                self._pending.append((position, kept, feeds if is_batched else None, None))
                yield feeds

    def _to_feeds(self, position: int, value: Any) -> Mapping[str, Any]:
        if isinstance(value, BaseException):
            raise value
        graph = self._job.plan.fed
        convert = self._job.to_feeds or partial(to_feeds, graph)
        given = convert(value)
        feeds = {name: given[name] for name in graph.inputs if name in given}
        for name, array in feeds.items():
            dtype, shape = graph.tensors[name].dtype, graph.tensors[name].shape
            if isinstance(array, bytes) and dtype == np.uint8:
                feeds[name] = array = np.frombuffer(array, np.uint8)
            if isinstance(array, np.ndarray) and shape and len(shape) == array.ndim + 1:
                feeds[name] = array[None]  # a row of a batch of one
        if RANDOM_KEY in graph.inputs:  # the numbers of an item do not depend on the run
            feeds[RANDOM_KEY] = np.array([self._job.seed, position], np.uint64)
        key = self._job.stream.get("key")
        if key is not None:
            feeds[KEY] = key(value) if callable(key) else value[key]
        return feeds

    def _settle(self, item: Item) -> None:
        """Note the result of the oldest item that was fed."""
        self._flush()
        position, kept, feeds, _ = self._pending.popleft()
        error, outputs = item.error, None if item.error else item.outputs
        if error is not None and feeds is not None and not self._is_stateful:
            try:  # a batch fails as a whole: find the items at fault
                outputs, error = self._session.run(feeds), None
            except PlaitError as failure:
                error = failure
        self._finish(position, error, outputs, kept)

    def _flush(self) -> None:
        """Note the items that could not be fed, as far as no item before them is in flight."""
        while self._pending and self._pending[0][-1] is not None:
            position, *_, error = self._pending.popleft()
            self._finish(position, error)

    def _finish(
        self, position: int, error: BaseException | None, outputs: Any = None, kept: Row = NO_ROW
    ) -> None:
        if error is None:
            try:
                self._rows.append(self._job.sink.encode(_make_row(position, kept, outputs)))
            except Exception as failure:
                error = failure
        if error is not None:
            self._note_failure(position, error)
        self._was_lost = isinstance(error, DeviceLostError)
        if self._commits:
            self._position = position + 1
            if not self._is_stateful and self._is_due(self._position):
                self._commit()
        self._progress(position + 1)

    def _note_failure(self, position: int, error: BaseException) -> None:
        if isinstance(error, InternalError) or (
            isinstance(error, DeviceLostError) and self._was_lost
        ):
            raise error  # it is not the item's fault: all others would fail, too
        self._failed += 1
        job, describe = self._job, self._job.source.describe
        row: Row = {POSITION: position, "item": describe and describe(position)}
        row |= {"kind": type(error).__name__, "error": str(error)}
        row |= {"at": getattr(error, "at", None)}
        row |= {"traceback": "".join(traceback.format_exception(error))}
        self._failures.append(self._lines.encode(row))
        if job.max_failed is not None and self._failed > job.max_failed:
            raise JobError(
                f"{self._failed:,} items failed, and {job.max_failed:,} may",
                at=f"item {position:,}",
                fix=f"mend the cause, and run() again from item {self.status.position:,}; or "
                "raise max_failed=",
            ) from error

    def _is_due(self, position: int) -> bool:
        """True if a commit is due when all items up to a position are done."""
        job = self._job
        return (
            position % job.part_items == 0
            or position % job.commit_items == 0
            or monotonic() - self._committed_s >= job.commit_s
        )

    def _make_write_error(self, what: str, fix: str = "") -> PlaitError:
        return JobError(
            what,
            fix="make room, or let this process write there, and run() again: the job goes on at "
            f"item {self.status.position:,}",
        )

    def _commit(self, *, is_last: bool = False) -> None:
        """Write what was gathered, and name it in the manifest."""
        if self._position == self.status.position and is_last == self.status.is_done:
            return
        variables = ""
        if self._is_stateful:
            variables = f"variables/variables-{self._position:012d}.plait"
            self._session.save_variables(self._job.folder / variables)
        rows, self._rows, failures, self._failures = self._rows, [], self._failures, []
        self._parts.write(rows, self._position, self._make_write_error, is_last=is_last)
        self._errors.write(failures, self._position, self._make_write_error, is_last=is_last)
        seconds = max(monotonic() - self._begun_s, 1e-9)
        self.publish(
            position=self._position,
            is_done=is_last,
            variables=variables,
            items_per_second=(self._position - self._begin) / seconds,
        )
        self._committed_s = monotonic()

    def publish(self, **changes: Any) -> None:
        """Replace the manifest by one that names the present files."""
        names = {"parts": tuple(self._parts.names), "errors": tuple(self._errors.names)}
        after = msgspec.structs.replace(self.status, failed=self._failed, **names, **changes)
        commit(self._job.folder, self.status, after, self._make_write_error)
        self.status = after


def _make_row(position: int, kept: Row, outputs: Mapping[str, Any]) -> Row:
    """Return the row of an item; a single result that is a mapping gives the columns."""
    if tuple(outputs) == (RESULT,) and isinstance(outputs[RESULT], Mapping):
        outputs = outputs[RESULT]
    if POSITION in outputs:
        raise JobError(f"a result is called {POSITION!r}, as is the item's number", fix="rename it")
    return {POSITION: position, **kept, **outputs}
