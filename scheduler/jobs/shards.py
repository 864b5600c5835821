"""Jobs by shards: hosts run whole shards and write their parts, and the driver commits the names.

A shard is a range of positions. Its parts depend on the shard alone, so one that was lost with a
host is run again by any other, which writes the same files.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from ...devices.worker.launch import list_module_path
from ...graph.building.builder import GraphBuilder
from ...graph.core.operator import unregister_operator
from ...graph.functions.by_value import Sent
from ...graph.functions.python import operator
from ...graph.values.tensor import Array, TensorSpec, spec_of
from ..bridges.blocking_session import BlockingSession
from ..errors import JobError, SourceError
from ..planner.api import plan as make_plan
from .commits import JobStatus, delete_leftovers
from .run import SHARD, Interrupts, JobRun
from .sources import JobSource, hash_texts

if TYPE_CHECKING:
    from .job import Job

STRIDE = 100_000_000
"""Positions of a file with an unknown number of items; names of parts have room for 10,000."""


class Shard(NamedTuple):
    """Positions that are run, and run again, as a whole."""

    number: int
    begin: int
    end: int


def split_source(source: JobSource, part_items: int) -> tuple[JobSource, tuple[Shard, ...], str]:
    """Divide a source into shards; return it by positions of these, the shards, and their digest.

    A source with a known number of items has a shard for each `part_items`, any other one for each
    file. Raises SourceError if it has neither.
    """
    if (total := source.total) is not None:
        begins = range(0, total, part_items)
        shards = (Shard(n, at, min(at + part_items, total)) for n, at in enumerate(begins))
        return source, tuple(shards), f"{total} by {part_items}"
    if not (files := source.shards):
        raise SourceError(
            "the source has no shards: neither a number of items nor files of its own",
            fix="give several files, a sequence, or JobSource(total=...); or leave order= out",
        )
    stride = -(-STRIDE // part_items) * part_items
    found = JobSource(
        partial(_open_shard, files, stride),
        digest=source.digest,
        describe=partial(_describe_item, files, stride),
    )
    shards = (Shard(n, n * stride, (n + 1) * stride) for n in range(len(files)))
    return found, tuple(shards), hash_texts(one.digest for one in files)


def _open_shard(files: Sequence[JobSource], stride: int, position: int) -> Iterable[Any]:
    number, inside = divmod(position, stride)
    return files[number].open_at(inside)


def _describe_item(files: Sequence[JobSource], stride: int, position: int) -> str:
    number, inside = divmod(position, stride)
    describe = files[number].describe
    return f"item {inside} of shard {number}" if describe is None else describe(inside)


class ShardRun(JobRun):
    """Runs one shard, and leaves the commit to the driver."""

    def run_shard(self, shard: Shard) -> JobStatus:
        """Write the parts of a shard; return a status with their names and the number of items.

        An error of the source fails the shard as a whole.
        """
        first = self.status.parts
        # A shard does not know the types that others find.
        self.parts.fills = self.parts.grows
        items = islice(self._job.source.open_at(shard.begin), shard.end - shard.begin)
        self._stream(enumerate(items, shard.begin), None, commits=True)
        if not isinstance(self._end, StopIteration):
            assert self._end is not None
            raise self._end
        self._commit(is_last=True)
        count = self._position - shard.begin
        if self._job.source.total is None and self._position == shard.end:
            raise SourceError(
                f"the shard has {count:,} items or more", fix="split the file into smaller ones"
            )
        more = {"parts": tuple(name for name in self.status.parts if name not in first)}
        return msgspec.structs.replace(self.status, position=count, shards=(shard[0],), **more)

    def _is_due(self, position: int) -> bool:
        return position % self._job.part_items == 0

    def publish(self, **changes: Any) -> None:
        self.status = self._make_status(**changes)


def run_shard(job: Job, session: Any, shard: Shard, first: Sequence[str]) -> JobStatus:
    """Run `shard` of `job` in `session`; new parts have the schema of the part `first`, if any."""
    before = JobStatus(position=shard.begin, parts=tuple(first))
    return ShardRun(job, session, before, Interrupts()).run_shard(shard)


class ShardedRun(JobRun):
    """Runs all shards that are left, here or on hosts, and commits each that is done."""

    def run(self, progress: Callable[[int], object] | None) -> None:
        done, job = set(self.status.shards), self._job
        left = iter([one for one in job.shards if one.number not in done])
        # The schema of the first part holds for all others: shards wait until there is one.
        while job.sink.suffix and not self.status.parts and (shard := self._take(left)):
            self._commit_shard(self._run_one(shard), progress)
        for found in self._run_all(left):
            self._commit_shard(found, progress)
        is_done = len(self.status.shards) == len(job.shards)
        if is_done != self.status.is_done:
            self.publish(is_done=is_done)
        if is_done and job.cluster is not None:  # hosts that died have left drafts
            delete_leftovers(job.folder, self.status)

    def _take(self, shards: Iterator[Shard]) -> Shard | None:
        return None if self._interrupts.signal or self._end else next(shards, None)

    def _run_one(self, shard: Shard) -> JobStatus:
        first = self.status.parts[:1]
        if self._job.cluster is None:
            return run_shard(self._job, self._session, shard, first)
        found: JobStatus = self._session.run({SHARD: (*shard, *first)})[DONE]
        for name in found.files:
            if not (self._job.folder / name).exists():
                raise JobError(
                    f"a host wrote {name}, which this process does not see",
                    at=str(self._job.folder),
                    fix="name a folder that all machines share, such as one of an object store",
                )
        return found

    def _run_all(self, shards: Iterator[Shard]) -> Iterator[JobStatus]:
        """Yield the results of `shards`; after a signal, those running on other hosts finish."""
        taken = iter(partial(self._take, shards), None)
        if self._job.cluster is None:
            yield from map(self._run_one, taken)
            return
        first = self.status.parts[:1]
        feeds = ({SHARD: (*shard, *first)} for shard in taken)
        with self._session.stream(feeds, ordered=False) as results:
            for item in results:
                if item.error is None:
                    yield item[DONE]
                else:  # those on other hosts end
                    self._end = self._end or item.error
        if self._end is not None:
            raise self._end

    def _commit_shard(self, found: JobStatus, progress: Callable[[int], object] | None) -> None:
        self._position += found.position
        self._failed += found.failed
        self._bytes_in += found.bytes_in
        self._bytes_out += found.bytes_out
        self.parts.add_names(found.parts)
        self._errors.add_names(found.errors)
        done = tuple(sorted(self.status.shards + found.shards))
        self._publish_progress(shards=done, limit=found.limit or self.status.limit)
        self._check_failures(f"shard {found.shards[0]}")
        if progress is not None:
            progress(self._position)


DONE = "done"
_OBJECT = TensorSpec("object", ())


def make_runner(folder: str, path: Sequence[str], pickled: bytes) -> type:
    """Return the class of an operator that runs shards of the `pickled` job, in its own session.

    It searches modules in `path`, and starts relative paths at `folder`, like the driver.
    """

    class RunShards:
        def open(self, inputs: Sequence[Array | None]) -> None:
            sys.path += [entry for entry in path if entry not in sys.path]
            with suppress(OSError):  # paths may all be absolute, or URLs
                os.chdir(folder)
            make_plan, self._job = pickle.loads(pickled)
            self._job.plan = make_plan(inputs[1])
            self._session = BlockingSession(self._job.blocks.plan)

        def run(self, shard: Sequence[Any], model: Array) -> Any:
            number, begin, end, *first = shard
            return run_shard(self._job, self._session, Shard(number, begin, end), first)

        def close(self) -> None:
            self._session.close()

    return RunShards


@contextmanager
def open_hosts(job: Job, model: Any) -> Iterator[Any]:
    cluster, arguments = job.cluster, dict(job.replicas)
    planning = {name: arguments.pop(name, None) for name in ("devices", "planning")}
    data, pickled = cluster.dump(model, job, **planning)
    name, parts = f"plait.jobs.{os.urandom(8).hex()}", (os.getcwd(), list_module_path(), pickled)
    given: dict[str, Any] = {"outputs": _OBJECT, "inputs": [_OBJECT, spec_of(data)], "name": name}
    # The operator is sent by value: a name in a file could not lead to a pickle.
    sent = Sent(name, make_runner, parts, given, ())
    try:
        run = operator(**given, by_value=sent)(make_runner(*parts))
        b = GraphBuilder("shards")
        b.output(DONE, b.call(run, b.input(SHARD, "object", ()), b.constant(data)))
        plan = make_plan(b.build(), "cpu")
        # Each host has one shard: none waits there while another host is free.
        with cluster.blocking_replicas(plan, max_in_flight=1, **arguments) as pool:
            yield pool
    finally:
        unregister_operator(name)
