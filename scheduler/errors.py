"""The errors that planning and running can cause.

PlaitError
├── PlanError               it cannot be placed
│   ├── UnsupportedOpError  no device, or not the pinned one, supports a node
│   └── DoesNotFitError     a device has too little memory for the plan
├── SourceError             a source of items cannot be read or joined
├── JobError                a job cannot start, go on, or write its files
└── SessionError            a session was used wrongly, or not in time
    ├── FeedError           the arrays fed do not fit the graph's inputs
    ├── FetchError          a fetched tensor is not in the graph
    ├── DeadlineError       an item was not done in time
    └── QueueFullError      the queue of a batch server is full
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from difflib import get_close_matches

from ..graph.values.errors import GraphError, InternalError, PlaitError, describe_error


class PlanError(PlaitError):
    """The graph cannot be planned for these devices.

    Examples
    --------
    >>> import plait as pl
    >>> b = pl.GraphBuilder("relu")
    >>> b.output("y", b.op("Relu", b.input("x", "float32", (2,)), name="relu"))
    >>> pl.plan(b.build(), pin={"rely": "cpu"})
    Traceback (most recent call last):
    ...
    plait.scheduler.errors.PlanError: the pin 'rely' matches no node of 'relu'
      fix: did you mean 'relu'?
    """


class UnsupportedOpError(PlanError):
    """Some nodes run on none of the devices they may be given to.

    Examples
    --------
    >>> import plait as pl
    >>> b = pl.GraphBuilder("relu")
    >>> b.output("y", b.op("Relu", b.input("x", "float32", (2,)), name="relu"))
    >>> npu = pl.modelled_device("npu", pl.DeviceModel(supports=frozenset({"MatMul"})))
    >>> try:
    ...     pl.plan(b.build(), [npu])
    ... except pl.UnsupportedOpError as error:
    ...     print(error.what.splitlines()[0])
    1 of 1 nodes run on none of the devices they may use:
    """


class DoesNotFitError(PlanError):
    """The plan needs more memory than a device has.

    Examples
    --------
    >>> import plait as pl
    >>> b = pl.GraphBuilder("large")
    >>> b.output("y", b.op("Relu", b.input("x", "float32", (1000, 1000)), name="relu"))
    >>> try:
    ...     pl.plan(b.build(), memory_limits={"cpu": 1000})
    ... except pl.DoesNotFitError as error:
    ...     print(error.what)
    the plan needs at least 4,000,000 bytes of memory 'host'; memory_limits['cpu'] has 1,000
    """


class SourceError(PlaitError):
    """A source of items cannot be read, or not be joined.

    Examples
    --------
    >>> import plait as pl
    >>> list(pl.sources.read_image_files("photos"))
    Traceback (most recent call last):
    ...
    plait.scheduler.errors.SourceError: photos is not a folder
      fix: pass the folder that has the images
    """


class JobError(PlaitError):
    """A job cannot start, go on or write its files.

    Examples
    --------
    >>> import plait as pl
    >>> pl.Job("model.onnx", [], "xls", "results")
    Traceback (most recent call last):
    ...
    plait.scheduler.errors.JobError: the sink is 'xls'
      fix: use arrow, jsonl, npz, parquet, a template such as 'out/{position}.json', or a function
    """


class SessionError(PlaitError):
    """A session was used wrongly: it is closed, or not opened yet.

    Examples
    --------
    >>> import numpy as np
    >>> import plait as pl
    >>> b = pl.GraphBuilder("relu")
    >>> b.output("y", b.op("Relu", b.input("x", "float32", (2,))))
    >>> session = pl.BlockingSession(pl.plan(b.build()))
    >>> session.close()
    >>> session.run({"x": np.ones(2, "float32")})
    Traceback (most recent call last):
    ...
    plait.scheduler.errors.SessionError: the session is closed
      fix: open another one
    """


class FeedError(SessionError):
    """The fed arrays do not fit the graph's inputs.

    Examples
    --------
    >>> import numpy as np
    >>> import plait as pl
    >>> b = pl.GraphBuilder("relu")
    >>> b.output("y", b.op("Relu", b.input("x", "float32", (2,))))
    >>> pl.run(b.build(), {"x": np.ones(3, "float32")})
    Traceback (most recent call last):
    ...
    plait.scheduler.errors.FeedError: input 'x' must be float32[2], got shape [3]
      fix: reshape or pad it
    """


class FetchError(SessionError):
    """A tensor to fetch is not in the graph.

    Examples
    --------
    >>> import numpy as np
    >>> import plait as pl
    >>> b = pl.GraphBuilder("relu")
    >>> b.output("y", b.op("Relu", b.input("x", "float32", (2,))))
    >>> pl.run(b.build(), {"x": np.ones(2, "float32")}, fetches="z")
    Traceback (most recent call last):
    ...
    plait.scheduler.errors.FetchError: graph 'relu' has no tensor 'z'
      fix: fetch one that it has, such as 'y'
    """


class DeadlineError(SessionError):
    """An item was not done within its deadline.

    Examples
    --------
    >>> import numpy as np
    >>> import plait as pl
    >>> import trio
    >>> @pl.operator(pl.TensorSpec("float32", ()))
    ... async def answer(x):
    ...     await trio.sleep_forever()
    >>> b = pl.GraphBuilder("patient")
    >>> b.output("y", b.call(answer, b.input("x", "float32", ())))
    >>> with pl.BlockingSession(pl.plan(b.build())) as session:
    ...     try:
    ...         session.run({"x": np.float32(1)}, deadline_s=0.01)
    ...     except pl.DeadlineError as error:
    ...         print(error.what)
    the item was not done within 0.01 s
    """


class QueueFullError(SessionError):
    """The queue of a batch server is full.

    Examples
    --------
    >>> import plait as pl
    >>> try:
    ...     raise pl.QueueFullError("256 items wait for a batch")
    ... except pl.SessionError as error:
    ...     print(error)
    256 items wait for a batch
    """


def raise_error(error: BaseException) -> None:
    raise error


def forked_session_error() -> SessionError:
    """Return the error for a forked child that uses a session of its parent."""
    return SessionError(
        "the session belongs to the process that this one was forked from",
        fix="open sessions after the fork, or use the start method 'spawn'",
    )


def session_closed_error() -> SessionError:
    return SessionError(
        "the session was closed before the item was done",
        fix="leave the session when all its runs and streams have ended",
    )


def make_broken_session_error(cause: BaseException) -> InternalError:
    """Return the error for all users of a session that an exception of plait's own has broken."""
    error = InternalError(
        f"the session broke: {describe_error(cause)}",
        fix="open another one, and please report the traceback that was logged",
    )
    error.__cause__ = cause
    return error


MEANINGS = {
    name: meaning
    for meaning, names in {
        "batch= of stream(), or MicroBatches for requests": "batch_size",
        "on_event= of a session": "callbacks",
        "devices= of plan(), whose plan a session opens": "device devices",
        "devices= of plan(), such as 'ort' or 'cuda:0'": "execution_providers providers",
        "the feeds as the first argument": "feed_dict input_feed",
        "device('ort', threads=...) among the devices of plan()": "intra_op_num_threads "
        "num_threads threads",
        "devices='worker:0..3' of plan(), or workers= of a pipeline's step": "jobs max_workers "
        "n_jobs num_workers workers",
        "max_in_flight= of stream()": "max_in_flight max_queue_size prefetch prefetch_factor "
        "queue_size",
        "bounds= of plan(), whose plan a session opens": "bounds",
        "fetches=": "output_names",
        "deadline_s= of run() and stream()": "timeout timeout_ms timeout_s",
    }.items()
    for name in names.split()
}
"""For keywords that users bring along, the place where plait takes the same."""


def make_keyword_error(names: Iterable[str], function: str, known: Collection[str]) -> PlaitError:
    name = next(iter(names))
    close = get_close_matches(name, known, 1)
    found = f"{close[0]}=" if close else MEANINGS.get(name, f"one of {', '.join(known)}")
    of_pipelines = dict.fromkeys(("pipeline", "step", "each"), GraphError)
    kinds = {"Job": JobError, "plan": PlanError, **of_pipelines}
    return kinds.get(function, SessionError)(f"{function}() takes no {name}=", fix=f"use {found}")


def check_progress(progress: object, kind: type[PlaitError] = SessionError) -> None:
    """Raise an error of `kind` if `progress` is given, and is no function."""
    if progress is not None and not callable(progress):
        fix = "give a function, which is called with the number of items done: progress=print"
        raise kind(f"progress is {progress!r}", fix=fix)
