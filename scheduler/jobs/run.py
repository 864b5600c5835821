"""One run of a job: feeds its items, gathers rows and failures, and commits them."""

from __future__ import annotations

import logging
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from math import inf
from time import monotonic
from types import FrameType
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import msgspec
import numpy as np

from ...devices.errors import DeviceLostError
from ...graph.core.printing import format_count
from ...graph.core.state import has_assignments
from ...graph.operators.randomness import RANDOM_KEY
from ...graph.values.errors import InternalError, PlaitError
from ..bridges.listed_rows import ListedRows
from ..errors import JobError
from ..profile.limit import describe_limit
from ..runtime.items.item import Item
from ..runtime.opened.feeds import to_feeds
from ..runtime.streaming.item_keys import no_entry_error
from .blocks import SingleRow, StackedRows
from .commits import JobStatus, Parts, commit, explain_damage
from .folders import copy_here
from .sinks import POSITION, JsonLines, Row

if TYPE_CHECKING:
    from .job import Job

RESULT = "result"
SHARD, WHOLE = "shard", "item"
"""An order of a job, and the input of a pipeline that gets whole items."""
RECENT, NOTE_S, LIMIT_S = 200, 60.0, 10.0
"""Items that show the limit of the rate; seconds between two lines of a log, and two limits."""
KEY = "key of the item"
"""An entry of the feeds that no input takes."""
UNFED: Mapping[str, Any] = {"": None}
"""Feeds that fail in any graph: they keep the place of an item that could not be fed."""

logger = logging.getLogger(__name__)

Block: TypeAlias = SingleRow | ListedRows | StackedRows
Pending: TypeAlias = tuple[int, Row | None, Exception | None]
"""An item in flight: its position, the entries to carry, and its error if it could not be fed."""


class Interrupts:
    """Defers SIGTERM and Ctrl-C to the end of a block; a second one takes effect at once."""

    signal = 0
    """The number of the signal that came."""

    def __enter__(self) -> Self:
        is_main = threading.current_thread() is threading.main_thread()
        numbers = (signal.SIGTERM, signal.SIGINT) if is_main else ()
        handled = (one for one in numbers if signal.getsignal(one) != signal.SIG_IGN)
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


class JobRun:
    """A run, from the position of the last commit to the end of the source, or to a signal."""

    def __init__(self, job: Job, session: Any, status: JobStatus, interrupts: Interrupts) -> None:
        self._job, self._session, self._interrupts = job, session, interrupts
        self._blocks = job.blocks
        self.status, self._failed = status, status.failed
        self._begin = self._position = self._fed = status.position
        self._begun_s = self._committed_s = monotonic()
        self._is_stateful = has_assignments(job.plan.fed)
        # Of the last block: its rows, the time of one, and the moment at which it was there.
        self._n_rows, self._row_s, self._settled_s = 1, inf, self._begun_s
        specs = [(name, job.plan.fed.tensors[name]) for name in job.plan.fed.inputs]
        self._is_random = RANDOM_KEY in job.plan.fed.inputs
        self._inputs = [
            (name, spec.dtype == np.uint8, len(spec.shape or ())) for name, spec in specs
        ]
        is_whole = job.is_whole and self._inputs == [(WHOLE, False, 0)]
        self._is_plain = is_whole and not (self._is_random or job.stream.get("key"))
        self._bytes_in, self._bytes_out = status.bytes_in, status.bytes_out - job.sink.nbytes
        self._noted_s, self._described_s = self._begun_s, -LIMIT_S
        self._pending: deque[tuple[Block, list[Pending]]] = deque()
        self._end: Exception | None = None  # of the source: its error, or StopIteration
        self._was_lost = False
        more = job.part_items, status.position, self._make_write_error
        self.parts = Parts(job.folder / "parts", job.sink, status.parts, *more)
        self._errors = Parts(job.folder / "errors", JsonLines(), status.errors, *more)

    def run(self, progress: Callable[[int], object] | None) -> None:
        """Run the remaining items and call `progress`; raise a source's error after a commit."""
        if self.status.variables:
            file = self._job.folder / self.status.variables
            with explain_damage(file), copy_here(file) as path:
                self._session.load_variables(path)
        items = enumerate(self._job.source.open_at(self._position), self._position)
        while self._end is None and not self._interrupts.signal:
            self._stream(items, progress, commits=True)
            self._commit(is_last=isinstance(self._end, StopIteration))
        if self._end is not None and not isinstance(self._end, StopIteration):
            raise self._end

    def repair(
        self, failures: Mapping[int, bytes], progress: Callable[[int], object] | None
    ) -> None:
        """Run items again and commit the rows; `failures` are their lines in the errors part."""
        self._failed = self._fed = 0
        self._stream(self._read_again(failures), progress, commits=False)
        left = [line for position, line in failures.items() if position >= self._fed]
        self._failed += len(left)
        self.parts.grows &= not self.parts.names
        self._pack()
        self._errors.rows += left
        self._errors.names.clear()
        self.parts.write_repaired(len(self.parts.names))
        self._errors.write_repaired(len(self.parts.names))
        self.publish()

    def _read_again(self, positions: Iterable[int]) -> Iterator[tuple[int, Any]]:
        """Yield the items at `positions`; a source of unknown length is opened only once."""
        source, items, at = self._job.source, iter(()), 0
        for position in positions:
            if at == 0 or source.total is not None or self._job.order == SHARD:
                items, at = iter(source.open_at(position)), position
            missing = LookupError("the source ends before this item")
            yield position, next(islice(items, position - at, None), missing)
            at = position + 1

    def _stream(
        self,
        items: Iterator[tuple[int, Any]],
        progress: Callable[[int], object] | None,
        *,
        commits: bool,
    ) -> None:
        options = self._blocks.options.copy()
        if options.get("key") is not None:
            options["key"] = KEY
        with self._session.stream(self._feed(items), **options) as results:
            for item in results:
                self._settle(item, progress, commits=commits)

    def _feed(self, items: Iterator[tuple[int, Any]]) -> Iterator[Mapping[str, Any]]:
        """Yield feeds of blocks; stop at the next commit if items change variables."""
        begin, more = self._fed, self._read(items)
        held: tuple[int, Any] | None = None  # it did not fit into the block before
        while not self._interrupts.signal:
            if self._is_stateful and self._fed > begin and self._is_due(self._fed):
                return
            block, rows = self._blocks.begin(), list[Pending]()
            limit = self._blocks.limit(self._n_rows, self._row_s, self._job.commit_s)
            while len(rows) < limit and (one := held or next(more, None)):
                (position, value), carried, error, held = one, None, None, None
                bytes_before = self._bytes_in
                try:
                    feeds = self._to_feeds(position, value)
                    if self._job.carry:
                        names = self._job.carry
                        carried = {n: _get_entry(value, n, "which carry= names") for n in names}
                    if not block.add(feeds):
                        held, self._bytes_in = one, bytes_before
                        break
                except Exception as failure:
                    error = failure
                rows.append((position, carried, error))
            if not rows:
                return
            self._n_rows, self._fed = len(rows), rows[-1][0] + 1
            self._pending.append((block, rows))
            yield block.join() if block.rows else UNFED

    def _read(self, items: Iterator[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
        try:
            yield from items
            self._end = StopIteration()
        except Exception as error:
            self._end = error

    def _to_feeds(self, position: int, value: Any) -> Mapping[str, Any]:
        if isinstance(value, BaseException):
            raise value
        job = self._job
        if self._is_plain:
            self._bytes_in += count_bytes(value)
            return {WHOLE: value}
        given = {WHOLE: value} if job.is_whole else value
        if not isinstance(given, Mapping):
            given = to_feeds(job.plan.fed, given)
        feeds = {}
        for name, is_bytes, rank in self._inputs:
            if name not in given:
                continue
            array = given[name]
            if is_bytes and type(array) is bytes:
                array = np.frombuffer(array, np.uint8)
            if rank and type(array) is np.ndarray and rank == array.ndim + 1:
                array = array[None]  # a row of a batch of one
            feeds[name] = array
            self._bytes_in += array.nbytes if type(array) is np.ndarray else count_bytes(array)
        if self._is_random:  # the numbers of an item do not depend on the run
            feeds[RANDOM_KEY] = np.array([job.seed, position], np.uint64)
        key = job.stream.get("key")
        if key is not None:
            use = "which is to be its key"
            feeds[KEY] = key(value) if callable(key) else _get_entry(value, key, use)
        return feeds

    def _settle(
        self, item: Item, progress: Callable[[int], object] | None, *, commits: bool
    ) -> None:
        """Note rows and errors of `item`, call `progress`; with `commits`, commit if it is due."""
        block, rows = self._pending.popleft()
        before_s, self._settled_s = max(self._settled_s, self._committed_s), monotonic()
        row_s = (self._settled_s - before_s) / len(rows)
        self._row_s = min(2 * row_s, (self._row_s + row_s) / 2)
        again = len(block.rows) > 1 or bool(self._blocks.options.get("batch"))
        found = iter(self._find_outputs(lambda: item.outputs, block, again=again))
        done = [(n, carried, error or next(found)) for n, carried, error in rows]
        sizes = self._job.part_items, self._job.commit_items
        while done:
            count = min(size - done[0][0] % size for size in sizes)
            part, done = done[:count], done[count:]
            self._note(part)
            position = part[-1][0] + 1
            if commits:
                self._position = position
                if not self._is_stateful and self._is_due(position):
                    self._commit()
            if progress is not None:
                for number, *_ in part:
                    progress(number + 1)

    def _note(self, done: Sequence[tuple[int, Row | None, Any]]) -> None:
        with suppress(Exception):
            self.parts.extend([_make_row(*one) for one in done])
            self._was_lost = False
            return
        for one in done:
            try:
                self.parts.extend([_make_row(*one)])
                self._was_lost = False
            except Exception as failure:
                self._note_failure(one[0], failure)

    def _find_outputs(self, read: Callable[[], Any], block: Block, *, again: bool) -> Sequence[Any]:
        """Return results or errors of `block` from `read`; if it fails, `again` runs rows alone."""
        try:
            return block.divide(read())
        except Exception as error:
            if not again or self._is_stateful:
                return [error] * len(block.rows)
        found = list[Any]()
        for feeds in block.rows:
            one = self._blocks.begin()
            one.add(feeds)
            found += self._find_outputs(partial(self._session.run, one.join()), one, again=False)
        return found

    def _note_failure(self, position: int, error: Exception) -> None:
        was_lost, self._was_lost = self._was_lost, isinstance(error, DeviceLostError)
        if isinstance(error, InternalError) or (was_lost and self._was_lost):
            raise error  # it is not the item's fault: all others would fail, too
        self._failed += 1
        if isinstance(error, PlaitError):
            error.item = position  # that in the stream depends on where the job resumed
        describe = self._job.source.describe
        row = {
            POSITION: position,
            "item": describe and describe(position),
            "kind": type(error).__name__,
            "error": str(error),
            "at": getattr(error, "at", None),
            "traceback": "".join(traceback.format_exception(error)),
        }
        self._errors.extend([row])
        self._check_failures(f"item {position:,}", error)

    def _check_failures(self, at: str, error: Exception | None = None) -> None:
        most = self._job.max_failed
        if most is not None and self._failed > most:
            raise JobError(
                f"{format_count(self._failed, 'item')} failed, and max_failed is {most}",
                at=at,
                fix=f"mend the cause, and run() again from item {self.status.position:,}; or "
                "raise max_failed=",
            ) from error

    def _is_due(self, position: int) -> bool:
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
        """Commit the rows and failures since the last commit; if `is_last`, the job is done."""
        position = self._position
        if position == self.status.position and is_last == self.status.is_done:
            return
        variables = ""
        if self._is_stateful:
            variables = f"variables/variables-{position:012d}.plait"
            with copy_here(self._job.folder / variables, self._make_write_error) as path:
                self._session.save_variables(path)
        self._pack()
        self.parts.write(position, is_last=is_last)
        self._errors.write(position, is_last=is_last)
        self._publish_progress(is_done=is_last, variables=variables)

    def _pack(self) -> None:
        """Pack the rows since the last commit, and note those that do not fit the schema."""
        for failure in self.parts.pack():
            self._note_failure(*failure)
        self._errors.rows.sort(key=lambda line: msgspec.json.decode(line)[POSITION])

    def _publish_progress(self, **changes: Any) -> None:
        """Publish the position, `changes` and figures of this run; log them once a minute."""
        now_s, rate = monotonic(), self._position - self._begin
        profile = getattr(self._session, "profile", None)  # hosts have their own
        if profile and (changes.get("is_done") or now_s >= self._described_s + LIMIT_S):
            self._described_s = now_s
            found = profile()
            recent = replace(found, records=found.records[-RECENT:])  # all of them would take long
            changes["limit"] = describe_limit(recent)
        changes["items_per_second"] = rate / max(now_s - self._begun_s, 1e-9)
        self.publish(position=self._position, **changes)
        if now_s - self._noted_s >= NOTE_S:
            self._noted_s = now_s
            logger.info("%s: %s", self._job.folder, self.status)
        self._committed_s = monotonic()

    def publish(self, **changes: Any) -> None:
        after = self._make_status(**changes)
        commit(self._job.folder, self.status, after, self._make_write_error)
        self.status = after

    def _make_status(self, **changes: Any) -> JobStatus:
        made = self.parts.nbytes + self._errors.nbytes + self._job.sink.nbytes
        return msgspec.structs.replace(
            self.status,
            failed=self._failed,
            parts=tuple(self.parts.names),
            errors=tuple(self._errors.names),
            bytes_in=self._bytes_in,
            bytes_out=self._bytes_out + made,
            **changes,
        )


def count_bytes(value: Any) -> int:
    """Return the size of arrays, bytes and texts in `value`; other objects count as zero."""
    if isinstance(value, bytes | bytearray | str):
        return len(value)
    if (nbytes := getattr(value, "nbytes", None)) is not None:
        return int(nbytes)
    is_mapping = type(value) is dict or isinstance(value, Mapping)
    return sum(map(count_bytes, value.values())) if is_mapping else 0


def _get_entry(item: Any, name: str, use: str) -> Any:
    try:
        return item[name]
    except (LookupError, TypeError, ValueError) as error:  # ValueError: of arrays
        raise no_entry_error(name, item, use) from error


def _make_row(position: int, carried: Row | None, outputs: Any) -> Row:
    if isinstance(outputs, Exception):
        raise outputs
    result = outputs.get(RESULT)
    if len(outputs) == 1 and (type(result) is dict or isinstance(result, Mapping)):
        outputs = result
    if POSITION in outputs:
        raise JobError(f"a result is called {POSITION!r}, as is the item's number", fix="rename it")
    outputs = {**carried, **outputs} if carried else outputs
    return {POSITION: position, **outputs}
