"""Batches: items stacked along the first axis of each input, results split there again.

Every item brings as many rows as it likes, the same number in each input. Where the graph leaves
the length of that axis open, a batch that is not full is padded to the next power of two: there is
a plan for every length, and they should be few. Where the length has bounds, one plan runs them
all, and only batches shorter than the least are padded; where it is a number, all is padded to
that. Padding repeats the last row, which is as valid as any; its results are dropped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np

from ....graph.core.ir import Graph
from ....graph.operators.randomness import RANDOM_KEY
from ....graph.operators.row_axes import Rows, find_mixing_node
from ....graph.values.errors import InternalError, PlaitError, ShapeError
from ....graph.values.tensor import Array, Dim, TensorSpec
from ...errors import FeedError, SessionError
from ...plans.plan import NO_BOUNDS, Bounds
from ...profile.timestamps import Timestamps
from ...shapes.bounds import check_within
from ...shapes.specialise import bind_inputs
from ..items.item import ItemRun
from ..items.padding import PaddedFeeds, Padding, make_padding
from ..opened.feeds import check_feeds, mark_checked
from ..opened.results import Results, copy_results, view_results

MORE_ROOM = "leave the first axis of the inputs open, and plan with wider bounds if with any"


@dataclass(frozen=True, slots=True)
class Batching:
    """How items of a graph become batches."""

    graph: Graph
    size: int
    """Items in a full batch."""
    least: int
    most: int | None
    """The bounds of the length of the first axis; the same where the graph fixes it."""
    unneeded: frozenset[str]
    """Keys of items other than the graph's inputs."""
    copy: bool
    """Copy the results of each item, rather than leave them in memory of the session."""
    padding: Padding | None
    """Lets items of several lengths share a batch."""

    def padded(self, rows: int) -> int:
        if self.most is not None:
            return max(rows, self.least)
        # The next power of two: few plans serve all numbers of items, and less than half of a batch
        # is padding.
        return max(rows, min(self.size, 1 << (rows - 1).bit_length())) if rows else 0

    def check_shapes(self, shapes: Mapping[str, Sequence[int]], *bounds: Bounds) -> None:
        """Raise FeedError unless an item of `shapes` fits into a batch within all bounds."""
        tensors = dict(self.graph.tensors)
        for name in filter(_is_stacked, self.graph.inputs):
            spec = tensors[name]
            if spec.shape and isinstance(spec.shape[0], int):
                tensors[name] = TensorSpec(spec.dtype, ("item_rows", *spec.shape[1:]))
        bind_inputs(replace(self.graph, tensors=tensors), shapes)
        padded = {
            name: (self.padded(shape[0]), *shape[1:]) if _is_stacked(name) else shape
            for name, shape in shapes.items()
        }
        for one in bounds:
            check_within(self.graph, one, padded)

    def check(self, inputs: Mapping[str, Any]) -> tuple[dict[str, Array], int]:
        """Return the `inputs` of an item as arrays, padded, and their number of rows.

        Raises FeedError if it fits into no batch of this graph.
        """
        arrays, rows = self.check_rows(inputs)
        return self.pad(arrays), rows

    def check_rows(self, inputs: Mapping[str, Any]) -> tuple[dict[str, Array], int]:
        """Return the `inputs` of an item as arrays without padding, and their number of rows.

        Raises FeedError if they are not those of the graph, or there are too many rows.
        """
        arrays = check_feeds(self.graph, self.unneeded, inputs)
        rows = _get_length(arrays)
        if self.most is not None and rows > self.most:
            raise FeedError(
                f"an item of {rows} rows does not fit into a batch of {self.most}",
                fix=f"feed fewer rows, or {MORE_ROOM}",
            )
        return arrays, rows

    def pad(self, arrays: dict[str, Array]) -> dict[str, Array]:
        """Pad the `arrays` of an item, to share a batch with items of other lengths.

        Raises FeedError if the item's own inputs have different lengths.
        """
        return arrays if self.padding is None else self.padding.fill(arrays)


def find_batching(
    graph: Graph,
    size: int,
    bounds: Bounds = NO_BOUNDS,
    *,
    unneeded: frozenset[str] = frozenset(),
    copy: bool = True,
    pad: str | None = None,
) -> Batching:
    """Return how to make batches of up to `size` items of `graph`, with rows within `bounds`.

    Items may have `unneeded` inputs, and get a `copy` of their results; `pad` is the symbol of an
    axis to pad. Raises SessionError if the graph takes or yields no batches.
    """
    found: dict[Dim | None, str] = {}
    for name in filter(_is_stacked, graph.inputs):
        found.setdefault(_get_first_dim(graph, name, "an input of this graph"), name)
    if len(found) > 1:
        (one, first), (other, second), *_ = found.items()
        raise SessionError(
            f"inputs {first!r} and {second!r} cannot be batched together: their first axes are "
            f"{one or 'unknown'} and {other or 'unknown'}",
            at=f"graph {graph.name!r}",
            fix="name the first axis of every input alike, such as 'batch'",
        )
    length = next(iter(found), None)
    rows = length if isinstance(length, int) else None
    least, most = bounds.get(length, (0, None)) if isinstance(length, str) else (rows or 0, rows)
    if most is not None and size > most:
        raise SessionError(
            f"{size} items do not fit into a batch of {most}",
            at=f"graph {graph.name!r}",
            fix=f"have {most} at most, or {MORE_ROOM}",
        )
    for name in graph.outputs:
        there = _get_first_dim(graph, name, "an output of this graph")
        # Known before anything runs; symbols are looked at when results are there.
        if isinstance(there, int) and there != rows:
            raise _indivisible_error(name, graph.tensors[name].shape or ())
    places = {name: 0 if _is_stacked(name) else Rows.NONE for name in graph.inputs}
    mixing = find_mixing_node(graph, places) if size > 1 else None
    if mixing is not None:
        raise SessionError(
            f"what {mixing.op} makes of an item depends on the others in its batch",
            at=f"graph {graph.name!r}: node {mixing.name!r}",
            fix="let it compute along other axes than the first, or run items without a batch",
        )
    padding = None if pad is None else make_padding(graph, pad, bounds)
    return Batching(graph, size, least, most, unneeded, copy, padding)


class Pace:
    row_ns = 0
    """How long a row of the last batch took."""

    def note(self, batch: Timestamps, rows: int) -> None:
        self.row_ns = (batch.landed_ns - batch.admitted_ns) // max(1, rows)


class ItemStack:
    """The inputs of items, one behind the other, and their results, divided again."""

    def __init__(self, batching: Batching) -> None:
        self._batching = batching
        self.feeds: list[Mapping[str, Array]] = []
        self._lengths: list[int] = []
        self._rows = 0

    @property
    def is_full(self) -> bool:
        return len(self.feeds) == self._batching.size or self._rows == self._batching.most

    def fits(self, arrays: Mapping[str, Array], length: int) -> bool:
        if not self.feeds:
            return True
        limit = self._batching.most
        if limit is not None and self._rows + length > limit:
            return False
        return all(arrays[n].shape[1:] == a.shape[1:] for n, a in self.feeds[0].items())

    def push(self, arrays: Mapping[str, Array], length: int) -> None:
        self.feeds.append(arrays)
        self._lengths.append(length)
        self._rows += length

    def arrays(self) -> Iterator[Array]:
        return (array for feeds in self.feeds for array in feeds.values())

    def stacked(self) -> dict[str, Array]:
        rows, padded = self._rows, self._batching.padded(self._rows)
        stacked = {
            name: join_rows([feeds[name] for feeds in self.feeds], 0, padded - rows)
            if _is_stacked(name)
            else self.feeds[0][name]
            for name in self._batching.graph.inputs
        }
        return mark_checked(self._batching.graph, stacked)

    def divide(self, results: Results) -> list[Results]:
        rows = self._batching.padded(self._rows)
        for name, array in results.items():
            if array.ndim == 0 or len(array) != rows:
                raise _indivisible_error(name, array.shape)
        # One copy for each item: a view of the batch would keep all of it alive for one.
        take, found = copy_results if self._batching.copy else view_results, results.items()
        ends = accumulate(self._lengths)
        return [
            take({name: self._cut(name, array[end - length : end], fed) for name, array in found})
            for length, end, fed in zip(self._lengths, ends, self.feeds, strict=True)
        ]

    def _cut(self, name: str, array: Array, fed: Mapping[str, Array]) -> Array:
        padding = self._batching.padding
        if padding is None or not isinstance(fed, PaddedFeeds):
            return array
        return padding.cut(name, array, fed.length)


class Batch(ItemStack):
    """Items that go through a graph together, by an `item_run` in common.

    When it has ended, `on_done` is called before its items end, and may take them out.
    """

    def __init__(self, batching: Batching, on_done: Callable[[Batch], object]) -> None:
        super().__init__(batching)
        self._on_done = on_done
        self.item_run = ItemRun(take=self._take, holds=not batching.copy, on_done=self._end)
        self.members: list[ItemRun] = []
        self.item_run.members = self.members
        self._divided: Sequence[Results] | None = None
        self._left = 0

    def add(self, member: ItemRun, inputs: Mapping[str, Any]) -> bool:
        """Add `member` with `inputs`; return False if their shapes differ or there is no room.

        Raises FeedError if it fits into no batch of this graph.
        """
        arrays, length = self._batching.check(inputs)
        if not self.fits(arrays, length):
            return False
        self.put(member, arrays, length)
        return True

    def put(self, member: ItemRun, arrays: Mapping[str, Array], length: int) -> None:
        self.push(arrays, length)
        self.members.append(member)
        marks, first = self.item_run.marks, self.members[0].marks
        marks.asked_ns, marks.stream = first.asked_ns, first.stream
        # A batch is given when its last item is, and has been asked for since its first.
        marks.given_ns = member.marks.given_ns
        member.batch = self.item_run

    def take_out(self) -> list[ItemRun]:
        """Return the items that are still waited for; they do not end with the batch."""
        taken = [member for member in self.members if not member.done.is_set()]
        self.members.clear()
        self._divided = None
        for member in taken:
            member.batch = None
        return taken

    def _take(self, results: Results, given: Results) -> Results:
        self._divided = self.divide({**results, **given})
        return {}

    def _end(self, item_run: ItemRun) -> None:
        self._on_done(self)
        error, divided = item_run.error, self._divided
        if error is None and divided is None:  # the results lie in no slot
            try:
                divided = self.divide(item_run.results)
            except Exception as failure:  # items that are waited for have to end
                error = failure
        self.feeds = []
        # Members that were cancelled meanwhile have ended, and their rows go nowhere.
        pairs = zip(self.members, divided or [{}] * len(self.members), strict=True)
        ending = [(member, part) for member, part in pairs if not member.done.is_set()]
        self._left = len(ending)
        if not ending:
            item_run.let_go()
        for member, part in ending:
            member.marks.copy_run(item_run.marks)
            # A copy for each: a catcher adds notes, and raises it with a traceback of its own.
            own = error.again() if isinstance(error, PlaitError) else error
            self._land(member, part, own)

    def _land(self, member: ItemRun, part: Results, error: BaseException | None) -> None:
        member.land(part, error, self._leave)

    def _leave(self) -> None:
        self._left -= 1
        if not self._left:
            self.item_run.let_go()


def may_succeed_alone(error: BaseException | None) -> bool:
    """Return whether items of a batch that failed with `error` may do better alone.

    Errors of the session itself, such as that it was closed, would be raised again.
    """
    if not isinstance(error, Exception) or isinstance(error, InternalError):
        return False
    return type(error) is not SessionError


def _is_stacked(name: str) -> bool:
    """Return whether input `name` is stacked: the key of random numbers is not, but taken once."""
    return name != RANDOM_KEY


def _get_first_dim(graph: Graph, name: str, what: str) -> Dim | None:
    spec = graph.tensors[name]
    if spec.shape is None:
        return None
    if not spec.shape:
        raise SessionError(
            f"{name!r}, {what}, is {spec} and has no axis to batch along",
            at=f"graph {graph.name!r}",
            fix="give it a first axis, make it a constant, or stream without batch=; a "
            "pipeline has batches of a step: pl.step(model, batch=...)",
        )
    return spec.shape[0]


def _get_length(arrays: Mapping[str, Array]) -> int:
    length = None
    for name, array in arrays.items():
        if not _is_stacked(name):
            continue
        if not array.ndim:
            raise FeedError(
                f"what is fed to input {name!r} has no axis to batch along",
                fix="feed an array with a first axis of length 1: value[None]",
            )
        if length is not None and len(array) != length:
            rows = ", ".join(f"{n!r}: {len(a)}" for n, a in arrays.items() if _is_stacked(n))
            raise FeedError(
                f"an item has a different number of rows in each input: {rows}",
                fix="feed as many rows to each input",
            )
        length = len(array)
    return length or 0


def join_rows(pieces: Sequence[Array], axis: int, missing: int) -> Array:
    first = pieces[0]
    if missing:  # a row that is there rather than zeros, with which a graph need not compute
        shape = (*first.shape[:axis], 1, *first.shape[axis + 1 :])
        last = (one.take([-1], axis) for one in reversed(pieces) if one.shape[axis])
        pieces = [*pieces, *[next(last, np.zeros(shape, first.dtype))] * missing]
    if len(pieces) == 1:
        return first
    is_one_run = math.prod(first.shape[:axis]) == 1 and first.size and not first.dtype.hasobject
    if not is_one_run or not all(a.dtype == first.dtype and a.flags.c_contiguous for a in pieces):
        return np.concatenate(pieces, axis)
    # numpy would give the interpreter up and ask for it again for each of them.
    shape = (*first.shape[:axis], -1, *first.shape[axis + 1 :])
    return np.frombuffer(b"".join(pieces), first.dtype).reshape(shape)


def _indivisible_error(name: str, shape: Sequence[Dim]) -> ShapeError:
    return ShapeError(
        f"output {name!r} is of shape {list(shape)}: its first axis is not that of the batch",
        fix="let each output keep the first axis of the inputs, or stream without batch=",
    )
