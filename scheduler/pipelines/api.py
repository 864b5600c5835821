"""A pipeline: a graph made from callables, models and an example, and a session to run it in."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import cached_property, partial
from inspect import signature
from math import inf
from operator import itemgetter
from pathlib import Path
from sys import getrefcount
from threading import Lock
from typing import Any, Never

import numpy as np

from ...devices.automatic import AUTO, FROZEN
from ...devices.host import count_cores
from ...graph.core.ir import Graph
from ...graph.core.state import has_assignments
from ...graph.formats.native import hash_graph
from ...graph.passes.randomness import with_random_key
from ...graph.values.errors import Argument, Fix, GraphError, InternalError, PlaitError
from ...graph.values.tensor import name_type
from ..bridges.blocking_session import BlockingSession
from ..bridges.listed_rows import HAND_OVERS, ListedRows, plan_listed_rows
from ..dispatch.back_pressure import WAITING
from ..dispatch.hand_over import get_hand_over_ns
from ..errors import (
    PlanError,
    SessionError,
    UnsupportedOpError,
    check_progress,
    make_keyword_error,
)
from ..planner.api import plan
from ..planner.simulate import simulate
from ..plans.plan import Plan
from ..profile import Profile
from ..runtime.opened.feeds import ItemFeeds
from ..runtime.streaming.item_keys import KeyReader
from ..runtime.streaming.options import StreamArguments, StreamOptions
from ..runtime.variables.keyed_states import KeyFailure, make_key_error
from .building import RESULT, STATE, Built, build
from .examples import ExampleRun
from .item_blocks import ItemBlocks, ItemList, list_steps
from .shared_values import ALONE, copy_shared
from .step_options import ITEM
from .steps import Each, PipelineStep, Target, name_apart, needs_parts, to_step

ASYNC_FIX = "open a pl.AsyncioSession(pipe.plan()), and run or stream pipe.feeds(item) there"


def pipeline(
    *steps: Target | PipelineStep | Each,
    example: Any = ...,
    examples: Sequence[Any] | None = None,
    name: str = "pipeline",
    **unknown: Never,
) -> Pipeline:
    """Make a pipeline of callables and models, in the order in which data flows.

    Every step gets the results of the one before, or the values that `step` names. A callable that
    returns a tuple has several results, one for each element, which are the arguments of the
    next step; a list is one result. The steps, copies of objects that keep state, run once on the
    example, which shows the types between them: arrays that a model takes become tensors,
    everything else goes by reference. The result has a graph like any other.

    Parameters
    ----------
    *steps : callable, Graph, path, PipelineStep or Each
        Callables may be functions, objects, async, or generators: their rows become a list. A path
        is that of a model.
    example : object
        One item, as `stream` will get them; needed unless `examples` is given. A mapping has parts,
        ``"item.key"``, if a step names one or a model comes first; otherwise it is a value like any
        other.
    examples : sequence of object, optional
        Two or more instead: lengths of a model's inputs that differ between them may vary, up to
        bounds that `bounds` shows.
    name : str, default "pipeline"

    Raises
    ------
    GraphError
        If no example is given, a step fails on it, a reference names no value, or steps do not fit
        together.
    ParseError
        If a model's file is damaged.

    Examples
    --------
    >>> import numpy as np
    >>> import plait as pl
    >>> b = pl.GraphBuilder("norm")
    >>> b.output("y", b.input("x", "float32", (1, 3)).softmax())
    >>> pipe = pl.pipeline(
    ...     lambda line: np.array([line.split()], "float32"),
    ...     b.build(),
    ...     lambda scores: int(scores.argmax()),
    ...     example="1 2 3",
    ... )
    >>> with pipe:
    ...     print(list(pipe.stream(["1 2 3", "9 1 1"])))
    [2, 0]
    """
    if unknown:
        raise make_keyword_error(unknown, "pipeline", [*signature(pipeline).parameters][1:-1])
    if not steps:
        raise GraphError("the pipeline has no step", fix="give it callables and models")
    if examples is None:
        examples = [] if example is ... else [example]
    elif example is not ...:
        raise GraphError("example= and examples= are given", fix="give one of them")
    if not isinstance(examples, Iterable) or isinstance(examples, str | bytes | Mapping):
        fix = "give a list: examples=[short, long]; or one item: example=item"
        raise GraphError(f"the examples are {name_type(examples)}", fix=fix)
    if not (examples := list(examples)):
        raise GraphError(
            "no example shows the types between the steps",
            fix="give one item as the stream will get them, such as example=files[0]",
        )
    named = name_apart([to_step(one) for one in steps])
    with closing(ExampleRun(examples, are_parts_named=needs_parts(named))) as run:
        for one in named:
            run.run(one)
    return Pipeline(named, build(name, named, run), examples)


class Pipeline:
    """Steps, their graph, and a session that is opened when the first item comes.

    Made by `pipeline`. Use it in a ``with`` block, or call `close`: a session has threads and
    memory.

    Attributes
    ----------
    graph : Graph
        The inputs are ``item``, or the names of a fed mapping; the output is ``result``, or
        ``result.0`` and so on.
    bounds : Mapping of str to int
        The largest lengths that the plan has room for, as proposed from the examples. Change them
        before the first item.
    pins : Mapping of str to str
        The devices that steps ask for.

    Examples
    --------
    >>> import plait as pl
    >>> pipe = pl.pipeline(str.split, len, example="two words")
    >>> print(pipe)
    pipeline 'pipeline'
      item   an object
      split  an object
      len    an object
    >>> with pipe:
    ...     pipe.map(["one", "now three words"])
    [1, 3]
    """

    def __init__(
        self, steps: Sequence[PipelineStep | Each], built: Built, examples: Sequence[Any] = ()
    ) -> None:
        self.graph: Graph = built.graph
        self.bounds = built.bounds
        self.pins = built.pins
        self._steps, self._built = tuple(steps), built
        self._session: BlockingSession | None = None
        self._closed: BlockingSession | None = None  # for its profile
        self._opening: dict[int, Lock] = {}  # by process: a thread may hold it where one forks
        self._names = tuple(name for name in built.graph.inputs if name != STATE)
        self._has_classes = self._names != built.graph.inputs
        self._state: dict[str, Any] = {}  # of `run`
        self._blocks: tuple[Plan | None, ItemBlocks | None] = None, None
        plain = [one for one in steps if isinstance(one, PipelineStep)]
        self._batches = {one.batch: one.max_delay_s for one in plain if one.batch}
        self._examples = examples if self._batches else ()

    def plan(self, devices: Iterable[str] | str = AUTO, **options: Any) -> Plan:
        """Plan the graph, for throughput, with the pipeline's pins and bounds.

        Parameters
        ----------
        devices : str or iterable of str, default "auto"
            Devices that steps ask for are added.
        **options
            As for `plait.plan`.

        Raises
        ------
        PlaitError
            Any error of planning.
        """
        chosen = _to_list(devices)
        is_replicated = chosen in ([AUTO], [FROZEN]) and self._gains_by_replicas()
        if is_replicated:
            chosen = [f"cpu:0..{count_cores() - 1}"]
        chosen += [one for one in dict.fromkeys(self.pins.values()) if one not in chosen]
        given = {
            "bounds": self.bounds or None,
            "pin": self.pins or None,
            "max_in_flight": count_cores()
            + WAITING
            + max(map(_count_held, self._steps), default=0),
            "objective": "throughput",
            **options,
        }
        try:
            made = plan(self.graph, chosen, **given)
        except UnsupportedOpError as error:
            wanted = "change device= or workers= of step"
            error.fix = error.fix and error.fix.replace("change the pin", wanted)
            raise
        return replace(made, has_automatic_replicas=True) if is_replicated else made

    def _gains_by_replicas(self) -> bool:
        """True for callables alone: each core may have an item. Models are decided on by times."""
        is_pinned = any(name.startswith("cpu") for name in self.pins.values())
        has_models = any(
            inner.model is not None
            for one in self._steps
            for inner in (one.steps if isinstance(one, Each) else (one,))
        )
        return count_cores() > 1 and not is_pinned and not has_models

    def open(self, planned: Plan | None = None) -> BlockingSession:
        """Return the session, which the first call opens on `planned` or a plan of its own.

        So does one after its end, or in a process that was forked since.

        Raises
        ------
        PlanError
            If `planned` is for another pipeline.
        SessionError
            If the session is open on another plan.
        PlaitError
            Any error of planning and opening.
        """
        with self._opening.setdefault(os.getpid(), Lock()):
            if self._session is None or self._session.is_closed:
                self._session = BlockingSession(self._check(planned) if planned else self._default)
            elif planned not in (None, self._session.plan):
                raise SessionError("the pipeline is open on another plan", fix="pipe.close() it")
            return self._session

    @cached_property
    def _default(self) -> Plan:
        return self.plan()

    def _check(self, planned: Plan) -> Plan:
        own, source = with_random_key(self.graph), planned.source
        if source != own if source is not None else planned.origin not in ("", hash_graph(own)):
            raise PlanError(
                "the plan is for another pipeline: its steps, its models or their order differ, or "
                "more pipelines of one name were built before",
                fix="plan this one again, or give each pipeline a name: pipeline(..., name='text')",
            )
        return planned

    def run(self, item: Any, *, deadline_s: float | None = None, **unknown: Never) -> Any:
        """Run `item` within `deadline_s` and return its result.

        Raises
        ------
        PlaitError
            If the item fails.
        """
        if unknown:
            raise make_keyword_error(unknown, "run", ["deadline_s"])
        session = self.open()
        try:
            return self.result(session.run(self.feeds(item), deadline_s=deadline_s))
        except PlaitError as error:
            raise _pipeline_error(error) from error.__cause__

    __call__ = run

    def stream(
        self,
        items: Iterable[Any],
        *,
        return_exceptions: bool = False,
        progress: Callable[[int], object] | None = None,
        **options: Any,
    ) -> Generator[Any, None, None]:
        """Run `items` side by side, and yield their results in order.

        Parameters
        ----------
        items : iterable
        return_exceptions : bool, default False
            Yield the error of an item that fails in place of its result; otherwise it is raised,
            and the stream ends.
        progress : callable, optional
            Called with the number of results so far, after each.
        **options
            As for `BlockingSession.stream`; a function for `key` gets the item. Each stream begins
            with new instances of classes among the steps, one for each key.

        Raises
        ------
        PlaitError
            If an item fails, unless exceptions are returned.
        """
        is_list = hasattr(items, "__iter__") or hasattr(items, "__getitem__")
        if not is_list or isinstance(items, str | bytes | Mapping):
            fix = "give a list, pipe.stream([item]), or run one item: pipe.run(item)"
            if hasattr(items, "__aiter__"):
                fix = ASYNC_FIX
            raise SessionError(f"the items are {name_type(items)}", fix=fix)
        if options.get("fetches") is not None:
            raise SessionError(
                "a pipeline gives the results of its last step",
                fix="leave fetches= out, or use the session: "
                "pipe.open().stream(map(pipe.feeds, items), fetches=...)",
            )
        check_progress(progress)
        if unknown := options.keys() - StreamArguments.__annotations__:
            known = [*StreamArguments.__annotations__, "progress", "return_exceptions"]
            raise make_keyword_error(sorted(unknown), "stream", known)
        takes_one, gives_one = self._names == (ITEM,), self.graph.outputs == (RESULT,)
        is_kept = isinstance(items, list | tuple)
        if not is_kept:  # others may use their arrays again
            items = _own_arrays(items)
        is_kept |= self.graph.object_inputs.issuperset(self.graph.inputs)  # by reference
        hold = partial(_hold_own, is_kept)
        source = (hold({ITEM: item} if takes_one else self._feed(item)) for item in items)
        key = options.get("key")
        if key is not None and takes_one:
            read = key if callable(key) else itemgetter(key)
            options["key"] = lambda feeds: read(feeds[ITEM])
        if self._has_classes:
            limits = {name: options[name] for name in ("max_keys", "evict") if name in options}
            checked = StreamOptions(1, key=key, **limits)
            if isinstance(checked.evict, Path):
                what = "instances of classes among the steps are not written to files"
                raise SessionError(what, fix="use evict='drop' or evict='error'")
            most = checked.max_keys if limits else inf
            read_key = KeyReader(key or (lambda item: 0), ())
            states = self._feed_states(items, read_key, most, drops=checked.evict == "drop")
            source = (hold(feeds) for feeds in states)
            if not has_assignments(self.graph):  # the session has no state
                options = {name: options[name] for name in {*options} - {"key", *limits}}
        with closing(self._stream(source, options)) as results:
            for number, found in enumerate(results, 1):
                if not isinstance(found, BaseException):
                    yield found[RESULT] if gives_one else self.result(found)
                elif return_exceptions:
                    yield _pipeline_error(found)
                else:
                    raise _pipeline_error(found)
                if progress is not None:
                    progress(number)

    def _stream(
        self, source: Iterator[Any], options: dict[str, Any]
    ) -> Generator[Mapping[str, Any] | BaseException, None, None]:
        most, ordered = options.get("max_in_flight"), options.get("ordered", True)
        is_count = most is None or (type(most) is int and most > 0)
        can_gather = bool(self._batches) and options.keys() <= {"max_in_flight", "ordered"}
        if can_gather and is_count and (blocks := self._open_blocks()) is not None:
            yield from blocks.run(source, most, ordered=ordered)
            return
        with self.open().stream(source, **options) as results:
            for item in results:
                yield item.outputs if item.error is None else item.error

    def _open_blocks(self) -> ItemBlocks | None:
        """Return what runs items in blocks, by the plan of the open session if there is one."""
        with self._opening.setdefault(os.getpid(), Lock()):
            session, (known_plan, known) = self._session, self._blocks
            planned = self._default if session is None or session.is_closed else session.plan
            if known is not None and not known.session.is_closed:
                if planned is known_plan:
                    return known
                known.session.close()
            begin: Any = partial(ListedRows, planned.fetchable)
            if (listed := plan_listed_rows(planned)) is None:
                begin = partial(ItemList, self.graph.outputs)
                listed = self._plan_list(planned) if planned is self._default else None
            sizes = max(self._batches or [1]), max(self._batches.values() or [0.0])
            run = lambda feeds: self.open().run(feeds)  # noqa: E731
            with suppress(PlaitError):  # models may not take lists of all lengths
                if listed is not None:
                    made = ItemBlocks(BlockingSession(listed), begin, *sizes, run)
                    self._blocks = planned, made
                    return made
            self._batches = {}
            return None

    def _plan_list(self, planned: Plan) -> Plan | None:
        """Return a plan of the steps for a list of items; None if an item of `planned` is long."""
        known = [value.step for value in self._built.specs]
        listed = list_steps(self._steps, known.count) if self._names == (ITEM,) else None
        limit_s = HAND_OVERS * get_hand_over_ns() / 1e9
        if listed is None or not planned.is_static or simulate(planned).makespan_s > limit_s:
            return None
        with suppress(PlaitError):  # rows of a list have one shape
            return pipeline(listed, example=[*self._examples], name=self.graph.name).plan()
        return None

    def map(self, items: Iterable[Any], **options: Any) -> list[Any]:
        """Run all `items` and return their results in a list; `options` are those of `stream`."""
        with closing(self.stream(items, **options)) as results:
            return list(results)

    def _feed_states(
        self, items: Iterable[Any], read: KeyReader, most: float, *, drops: bool
    ) -> Iterator[Mapping[str, Any]]:
        states = dict[Any, dict[str, Any]]()  # the least recently used first
        for item in items:
            key, _ = read(item)
            state = states.pop(key, None)
            if state is None and not isinstance(key, KeyFailure) and len(states) >= most:
                if drops:
                    del states[next(iter(states))]
                else:
                    key = KeyFailure(make_key_error(most, key))
            if not isinstance(key, KeyFailure):
                states[key] = state = {} if state is None else state
            yield self._feed(item, key if state is None else state)

    def feeds(self, item: Any, state: Any = None) -> Mapping[str, Any]:
        """Return the feeds of `item` for a session of the graph, by name.

        `state` is a dict, empty at first, for the instances of those steps that are classes: one
        for each stream or key, by default the one of `run`.
        """
        held = {STATE: self._state if state is None else state} if self._has_classes else {}
        if self._names == (ITEM,):
            return {ITEM: item, **held}
        if not isinstance(item, Mapping):
            raise GraphError(
                f"an item is of type {name_type(item)}",
                fix=f"give a mapping with {', '.join(self._names)}, as the example was",
            )
        return {name: item[name] for name in self._names if name in item} | held

    def _feed(self, item: Any, state: Any = None) -> Any:
        """Return the feeds of `item`, or itself if the session is to refuse it."""
        if self._names == (ITEM,) or isinstance(item, Mapping):
            return self.feeds(item, state)
        return {} if isinstance(item, np.ndarray) else item  # it is not that of the only input

    def result(self, outputs: Mapping[str, Any]) -> Any:
        """Return the result among `outputs` of an item: a value, or a tuple of several."""
        try:
            found = tuple(outputs[name] for name in self.graph.outputs)
        except KeyError as error:
            raise SessionError(
                f"the outputs lack {error}",
                fix="give those of a session's item: pipe.open().run(pipe.feeds(item))",
            ) from None
        return found[0] if self.graph.outputs == (RESULT,) else found

    def profile(self) -> Profile:
        """Return the times of the session, or of blocks if streams ran some; also when closed."""
        _, blocks = self._blocks
        session = self._session if blocks is None else blocks.session
        return (session or self._closed or self.open()).profile()

    def close(self) -> None:
        """Close the session, if there is one; the next item opens another."""
        (_, blocks), session = self._blocks, self._session
        self._blocks, self._session, self._state = (None, None), None, {}
        self.__dict__.pop("_default", None)  # bounds may be changed now
        for one in (session, blocks.session if blocks else None):
            if one is not None:
                self._closed = one
                one.close()

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Never:
        raise SessionError("a pipeline blocks: it has no async with", fix=ASYNC_FIX)

    __aexit__ = __exit__

    def __repr__(self) -> str:
        names = " -> ".join(one.name for one in self._steps)
        return f"<Pipeline {self.graph.name!r}: {names}>"

    def __str__(self) -> str:
        rows = [(one.name, self._types_of(one.name)) for one in self._steps]
        width = max(map(len, [ITEM, *(name for name, _ in rows)]))
        lines = [f"pipeline {self.graph.name!r}", f"  {'item':{width}}  {self._types_of(ITEM)}"]
        lines += [f"  {name:{width}}  {types}" for name, types in rows]
        lines += [f"  {symbol} is at most {most}" for symbol, most in self.bounds.items()]
        return "\n".join(lines)

    def _types_of(self, step: str) -> str:
        found = [spec for value, spec in sorted(self._built.specs.items()) if value.step == step]
        return ", ".join("an object" if str(spec) == "object[]" else str(spec) for spec in found)


def _count_held(step: PipelineStep | Each) -> int:
    """Return how many items `step` can hold beside those that keep the cores busy."""
    if isinstance(step, Each):  # of which each item brings several rows
        return 0
    return max(step.concurrency or 0, 2 * (step.batch or 0), step.workers)


def _hold_own(is_kept: bool, feeds: Any) -> Any:
    """Return `feeds` of an item; nobody writes to their arrays, nor to others if they are kept."""
    if not isinstance(feeds, Mapping):
        return feeds
    held = ItemFeeds(feeds)
    held.are_own = is_kept or all(type(one) is np.ndarray for one in feeds.values())
    return held


def _own_arrays(items: Iterable[Any]) -> Iterator[Any]:
    """Yield items whose arrays their source cannot fill again: copies, unless it keeps none."""
    for item in items:
        is_alone = getrefcount(item) <= ALONE
        yield copy_shared(item, is_alone=is_alone)


def _to_list(devices: Iterable[str] | str) -> list[str]:
    if isinstance(devices, Iterable) and not isinstance(devices, str):
        return list(devices)
    return [devices]  # one, or what `plan` refuses


def _pipeline_error(error: BaseException) -> BaseException:
    """Return `error`, with bounds in its fix as a pipeline has them.

    The frames that raised it say nothing, and keep arrays: those of a function are its cause's.
    """
    if isinstance(error, PlaitError) and isinstance(error.fix, Fix):
        error.fix = error.fix.spelled(_write_argument)
    explains = isinstance(error, PlaitError) and not isinstance(error, InternalError)
    return error.with_traceback(None) if explains else error


def _write_argument(one: Argument) -> str:
    if one.name != "bounds":
        return str(one)
    return " and ".join(f"pipe.bounds[{n!r}] = {most!r}" for n, most in one.value.items()) + (
        " after pipe.close()"
    )
