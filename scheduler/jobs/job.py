"""A job over a data set, which can be stopped at any moment and resumed."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from hashlib import sha256
from inspect import signature
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Unpack, cast

import msgspec

from ...graph.core.ir import Graph
from ...graph.core.nested import list_graphs, walk_nodes
from ...graph.core.state import has_assignments
from ...graph.functions.function_digest import hash_function
from ...graph.operators.item_order import CALLS, explain_order, find_kept
from ..bridges.blocking_session import BlockingSession
from ..costs.signature import to_text
from ..errors import JobError, check_progress, make_keyword_error
from ..planner.plannable import Plannable, to_plan
from ..plans.plan import Plan
from ..runtime.streaming.options import StreamArguments
from .blocks import RowBlocks, SingleRow, choose_blocks
from .commits import (
    JobStatus,
    delete_leftovers,
    explain_damage,
    lock_folder,
    read_status,
    show_status,
)
from .folders import is_local, to_path
from .run import SHARD, WHOLE, Interrupts, JobRun
from .shards import ShardedRun, open_hosts, split_source
from .sinks import POSITION, to_sink
from .sources import hash_texts, to_source

STREAMED = StreamArguments.__annotations__.keys() - {
    *("copy", "drop", "fetches", "keep", "on_error", "ordered")
}
FORMAT, SHARDS = "format", "shards"
"""Parts of a job that cannot change: pieces of parts are read again, and shards have numbers."""


class Job:
    """A pipeline or plan over all items of a source, with the results in files of a folder.

    The job can be stopped at any moment, also by SIGKILL and loss of power: `run` goes on from the
    last commit, and the files that it ends with are those of a run that was never stopped. Values
    of variables are part of each commit.

    Parameters
    ----------
    work : Pipeline, Plan, Graph or path
        Inputs of a plan take the columns of their names.
    source : sequence, path, callable or JobSource
        A path names Parquet or Arrow files, JSON lines, or a folder or pattern of other files; see
        `plait.jobs`. A function gets a position, and returns the items from there on.
    sink : {"parquet", "arrow", "jsonl", "npz"}, str, Parquet, Arrow, Files or callable
        The format of the rows, which have the columns ``position`` and the names of the outputs, or
        the keys if a pipeline ends with a mapping; a template for a file of each, such as
        ``"out/{position}.json"``; or a function, which gets the rows of each commit.
    folder : str or path
        Gets ``parts/``, ``errors/`` and the manifest; it may be the URL of an object store. One
        job, one folder.
    commit_s : float, default 10.0
        The longest time between two commits, if items end in it.
    commit_items : int, optional
        Also commit after this many items.
    part_items : int, default 10_000
        The number of items of a part; their results are held in memory.
    carry : sequence of str, optional
        The entries of each item to copy to its row, such as an id.
    max_failed : int, optional
        Stop if more items fail.
    seed : int, default 0
        Seed of random numbers, as for a `Session`.
    order : {"item", "shard"}, default "item"
        By shard, parts are written and committed as they come, by hosts of the cluster if there is
        one. A shard is a part of a source with a known number of items, otherwise a file.
    cluster : plait.ray.Cluster, optional
        Runs the items, or whole shards, on hosts; the plan must have no variables.
    replicas : Mapping of str to object, optional
        Arguments of `plait.ray.Cluster.blocking_replicas`, such as ``{"n": (1, 16)}``.
    accept_changes : bool, default False
        Resume although the model, the code, the source or the sink has changed.
    **stream
        Arguments of a stream: ``batch``, ``max_in_flight``, ``key`` of the source's item and
        others. All but the key may change between runs.

    Raises
    ------
    JobError
        If an argument is invalid.
    SourceError
        If the source cannot be read.

    Examples
    --------
    >>> import tempfile
    >>> import plait as pl
    >>> pipe = pl.pipeline(lambda text: {"words": len(text.split())}, example="a b")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     job = pl.Job(pipe, ["one", "now three words"], "jsonl", folder)
    ...     status = job.run()
    ...     print(status.position, status.is_done, (job.folder / status.parts[0]).read_text())
    2 True {"position":0,"words":1}
    {"position":1,"words":3}
    <BLANKLINE>
    """

    def __init__(
        self,
        work: Plannable,
        source: Any,
        sink: Any,
        folder: str | os.PathLike[str],
        *,
        commit_s: float = 10.0,
        commit_items: int | None = None,
        part_items: int = 10_000,
        carry: Sequence[str] = (),
        max_failed: int | None = None,
        seed: int = 0,
        order: Literal["item", "shard"] = "item",
        cluster: Any = None,
        replicas: Mapping[str, Any] = MappingProxyType({}),
        accept_changes: bool = False,
        **stream: Unpack[StreamArguments],
    ) -> None:
        commit_items = part_items if commit_items is None else commit_items
        for name, count in (("part_items", part_items), ("commit_items", commit_items)):
            if type(count) is not int or count < 1:
                raise JobError(f"{name} is {count!r}", fix="use a whole number, 1 or more")
        if not isinstance(commit_s, int | float) or not commit_s >= 0:
            raise JobError(f"commit_s is {commit_s!r}", fix="use a number of seconds")
        if unknown := sorted(stream.keys() - STREAMED):
            known = [*signature(Job).parameters][4:-1] + sorted(STREAMED)
            raise make_keyword_error(unknown, "Job", known)
        if order not in ("item", SHARD):
            raise JobError(f"order is {order!r}", fix='use "item" or "shard"')
        if replicas and cluster is None:
            raise JobError("replicas= says how many hosts", fix="give cluster=, which has them")
        if isinstance(stream.get("evict"), Path):
            raise JobError("states in files are not part of a commit", fix="leave evict= out")
        self.folder = to_path(folder)
        self.source, self.sink, self.seed = to_source(source), to_sink(sink), seed
        self.commit_s, self.commit_items = commit_s, commit_items
        self.part_items, self.max_failed, self.stream = part_items, max_failed, stream
        self.carry = (carry,) if isinstance(carry, str) else tuple(carry)
        self.command: tuple[str, ...] = ()
        self._work, self._accepts_changes = work, accept_changes
        self.order, self.cluster, self.replicas = order, cluster, replicas
        self._shards = ""
        if order == SHARD:
            self.source, self.shards, self._shards = split_source(self.source, part_items)
        # Pipelines may take items of any type; all else takes the columns of its inputs.
        pipeline: Any = work
        self.is_whole = hasattr(work, "feeds") and pipeline.graph.inputs == (WHOLE,)

    @cached_property
    def plan(self) -> Plan:
        """The plan that runs the items, made when first asked for."""
        return to_plan(self._work)

    @cached_property
    def blocks(self) -> RowBlocks:
        """The way in which items become those of a stream."""
        if self.cluster is not None and self.order != SHARD:
            return RowBlocks(self.plan, self.stream, SingleRow)
        return choose_blocks(self.plan, self.stream, min(self.part_items, self.commit_items))

    @property
    def at_least_once(self) -> bool:
        """True if the sink is a function or sends files by HTTP, or the graph has effects.

        Their work between the last commit and a kill may take effect twice.
        """
        nodes = walk_nodes(self.plan.fetchable)
        return self.sink.at_least_once or any(
            node.operator.effects and node.operator.function for _, _, node in nodes
        )

    def run(self, *, progress: Callable[[int], object] | None = None) -> JobStatus:
        """Run the job: start it, or go on from its last commit; return the status at the end.

        In the main thread, SIGTERM and Ctrl-C end the run once the items in flight are done and
        committed, and take effect then; a second one takes effect at once.

        Parameters
        ----------
        progress : callable, optional
            Called with the number of items done so far, after each.

        Raises
        ------
        JobError
            If another process runs the job, its files cannot be read or written, or the job has
            changed since its last commit.
        Exception
            The error of the source, once the items before it are committed; any error of planning
            and opening.
        """
        check_progress(progress, JobError)
        with self._open(ShardedRun if self.order == SHARD else JobRun) as run:
            run.run(progress)
        return self.status()

    def repair(self, *, progress: Callable[[int], object] | None = None) -> JobStatus:
        """Run the failed items again, alone; their rows go to a part of their own.

        Parameters
        ----------
        progress : callable, optional
            As for `run`.

        Raises
        ------
        JobError
            If the job has not ended, or its plan has variables: items would need the values of
            their time.
        """
        check_progress(progress, JobError)
        with self._open(JobRun) as run:
            if not run.status.is_done:
                raise JobError("the job has not ended", fix="run() it to its end first")
            if has_assignments(self.plan.fed):
                raise JobError(
                    "the plan has variables, whose values at a failed item are gone",
                    fix="run it in another folder, with max_failed=0 to stop before such items",
                )
            with explain_damage(self.folder):
                texts = b"".join((self.folder / name).read_bytes() for name in run.status.errors)
                lines = {msgspec.json.decode(one)[POSITION]: one for one in texts.splitlines(True)}
                if len(lines) != run.status.failed:
                    raise ValueError("some errors are missing")
            run.repair(lines, progress)
        return self.status()

    def status(self) -> JobStatus:
        """Return the state of the last commit; also while another process runs the job.

        Raises
        ------
        JobError
            If the manifest is damaged.
        """
        return show_status(self.folder)

    @contextmanager
    def _open(self, kind: type[JobRun]) -> Iterator[JobRun]:
        with Interrupts() as interrupts, lock_folder(self.folder):
            found, graph = read_status(self.folder), self.plan.fetchable
            _check_order(graph)
            key = self.stream.get("key")
            digests = {
                "model": _hash_model(graph),
                "code": _hash_code(graph),
                "source": self.source.digest,
                FORMAT: type(self.sink).__name__,
                "sink": self.sink.digest,
                "part_items": str(self.part_items),
                "seed": str(self.seed),
                "carry": ", ".join(self.carry),
                SHARDS: self._shards,
                "key": hash_function(key) if callable(key) else str(key),
            }
            if found is None:
                delete_leftovers(self.folder, found)
            else:
                _check_unchanged(found.digests, digests, accepts=self._accepts_changes)
            changes: dict[str, Any] = {"digests": digests, "total": self.source.total}
            changes["command"] = self.command
            if not is_local(self.folder):
                changes["run"] = os.urandom(8).hex()
            before = found or JobStatus()
            with self._open_session(kind) as session:
                with explain_damage(self.folder):
                    run = kind(self, session, before, interrupts)
                if found is None or msgspec.structs.replace(before, **changes) != before:
                    run.publish(**changes)
                # At a URL, a process that is still alive finds another manifest from now on.
                delete_leftovers(self.folder, run.status)
                run.parts.match_schema()
                yield run

    def _open_session(self, kind: type[JobRun]) -> AbstractContextManager[Any]:
        is_sharded = self.order == SHARD
        if (is_sharded or self.cluster) and has_assignments(self.plan.fed):
            where = "shard" if is_sharded else "host"
            raise JobError(
                f"the plan has variables, and each {where} would have its own",
                fix="leave order= and cluster= out: one process runs the items in order",
            )
        if self.cluster is None or (is_sharded and kind is JobRun):  # a repair
            return BlockingSession(self.blocks.plan, seed=self.seed)
        # Hosts plan a graph for devices of their own.
        model = self._work if isinstance(self._work, Graph) else self.plan
        if not is_sharded:
            pool = self.cluster.blocking_replicas(model, **self.replicas)
            return cast(AbstractContextManager[Any], pool)
        if self.sink.at_least_once and not self.sink.digest:
            raise JobError("the sink is a function of this process", fix="write files from shards")
        return open_hosts(self, model)

    def __getstate__(self) -> dict[str, Any]:
        """Return all but the plan and the cluster, for hosts that have them."""
        state = {**vars(self), "_work": None, "plan": None, "cluster": None, "replicas": {}}
        state.pop("blocks", None)
        return state


def _hash_model(graph: Graph) -> str:
    texts = [str(graph.inputs), str(graph.outputs)]
    for name, value in sorted(graph.constants.items()):
        data = repr(value.tolist()).encode() if value.dtype.hasobject else value.tobytes()
        texts += [name, str(graph.tensors[name]), sha256(data).hexdigest()]
    for node in graph.nodes:
        op = re.sub(r"#\d+$", "", node.op)  # of a pipeline that was made twice in a process
        texts += [op, str(node.inputs), str(node.outputs), to_text(node.attributes)]
        texts += map(_hash_model, list_graphs(node))
    return hash_texts(texts)


def _hash_code(graph: Graph) -> str:
    functions = (node.operator.function for _, _, node in walk_nodes(graph))
    targets = (target for one in functions if one for target in getattr(one, CALLS, (one,)))
    return hash_texts(map(hash_function, targets))


def _check_unchanged(before: Mapping[str, str], now: Mapping[str, str], *, accepts: bool) -> None:
    changed = [name for name, digest in now.items() if before.get(name, "") != digest]
    if FORMAT in changed:
        raise JobError(
            f"the job wrote {before.get(FORMAT)} so far, and the sink is {now[FORMAT]}",
            fix="use the same format, or choose another folder",
        )
    if SHARDS in changed:
        raise JobError(
            "the job's shards changed since its last commit",
            fix="give the same items, part_items= and order= as before, or choose another folder",
        )
    if changed and not accepts:
        raise JobError(
            f"the job's {' and '.join(changed)} changed since its last commit",
            fix="accept_changes=True goes on with the rest of the items as they are now; to run "
            "all items, choose another folder",
        )


def _check_order(graph: Graph) -> None:
    for path, _, node in walk_nodes(graph):
        operator = node.operator
        is_kept = operator.ordered or (operator.ordered is None and find_kept(operator))
        if operator.function is not None and is_kept:
            raise JobError(
                f"function {path!r} depends on the items before ({explain_order(operator)}), and a "
                "commit saves variables alone",
                fix="keep its state in a variable of the graph, or declare ordered=False; to have "
                "it called for one item at a time, pin it to one device: device='cpu:0'",
            )
