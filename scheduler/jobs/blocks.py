"""Blocks of rows: items of a job that run together, as one item of its stream.

A stream takes longer to hand an item over than most functions take for a row. So functions are
called for all rows of a block in one step, and graphs compute them stacked. Each row has a result
or an error of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import count
from typing import Any, NamedTuple

from ...devices.host import may_run_anywhere
from ...devices.program import kernel_error
from ...graph.core.ir import Graph, Node
from ...graph.core.state import has_assignments
from ...graph.functions.generators import is_generator
from ...graph.functions.python import operator
from ...graph.operators.item_order import CALLS, is_ordered
from ...graph.operators.randomness import RANDOM_KEY
from ...graph.values.tensor import TensorSpec
from ..dispatch.hand_over import get_hand_over_ns
from ..planner.replanning import replan_graph
from ..plans.plan import Plan
from ..runtime.opened.feeds import check_feeds
from ..runtime.streaming.batching import ItemStack, find_batching
from ..runtime.streaming.options import StreamArguments, stream_options

HAND_OVERS = 256
"""The time of a block, in hand-overs: it costs a few."""

OBJECT = TensorSpec("object", ())
APART = ("deadline_s", "key", "max_delay_s", "pad")
"""Options of streams that are about single items."""


class RowBlocks(NamedTuple):
    """How rows become items of a stream of a plan, with its options.

    `begin` returns an empty block, which gets from `least` to `most` rows.
    """

    plan: Plan
    options: StreamArguments
    begin: Callable[[], SingleRow | ListedRows | StackedRows]
    least: int = 1
    most: int = 1

    def limit(self, before: int, row_s: float, longest_s: float) -> int:
        block_s = min(HAND_OVERS * get_hand_over_ns() / 1e9, longest_s)
        return max(self.least, min(self.most, 2 * before, int(block_s / max(row_s, 1e-9))))


def choose_blocks(plan: Plan, stream: StreamArguments, most: int) -> RowBlocks:
    """Choose blocks of rows for a `stream` of `plan`, with at most `most` rows each.

    If items cannot share a run, blocks have one row.
    """
    is_apart = any(stream.get(option) is not None for option in APART) or plan.ends.devices
    if is_apart or has_assignments(plan.fed) or RANDOM_KEY in plan.fed.inputs:
        return RowBlocks(plan, stream, SingleRow)
    options = stream_options(plan, stream)
    if (size := options.batch) is not None:
        batching = find_batching(plan.fed, size, plan.bounds, unneeded=plan.unneeded)
        shared: StreamArguments = {**stream, "batch": None, "max_in_flight": options.slots}
        return RowBlocks(plan, shared, partial(StackedRows, batching), size, size)
    if (graph := lift_functions(plan)) is None:
        return RowBlocks(plan, stream, SingleRow)
    made = replan_graph(plan, graph)
    made = replace(made, has_automatic_replicas=plan.has_automatic_replicas)
    in_flight = min(options.max_in_flight, plan.in_flight)
    most = max(1, (stream.get("max_in_flight") or most) // in_flight)
    shared = {**stream, "max_in_flight": in_flight}
    return RowBlocks(made, shared, partial(ListedRows, graph), most=most)


class SingleRow:
    """An item of the stream by itself. All blocks have the feeds of each row in `rows`."""

    def __init__(self) -> None:
        self.rows = list[Mapping[str, Any]]()

    def add(self, feeds: Mapping[str, Any]) -> bool:
        """Add row `feeds`; return False if it does not fit. Raises FeedError if it fits nowhere."""
        self.rows.append(feeds)
        return True

    def join(self) -> Mapping[str, Any]:
        """Return the feeds of the item."""
        return self.rows[0]

    def divide(self, outputs: Mapping[str, Any]) -> Sequence[Mapping[str, Any] | Exception]:
        """Return the result or the error of each row from the `outputs` of the block."""
        return [outputs]


class ListedRows:
    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._columns: dict[str, list[Any]] = {name: [] for name in graph.inputs}

    @property
    def rows(self) -> Sequence[Mapping[str, Any]]:
        return _to_rows(self._columns, self._columns.values())

    def add(self, feeds: Mapping[str, Any]) -> bool:
        if not feeds.keys() >= self._columns.keys():
            check_feeds(self._graph, frozenset(), feeds)
        for name, column in self._columns.items():
            column.append(feeds[name])
        return True

    def join(self) -> Mapping[str, Any]:
        return self._columns

    def divide(self, outputs: Mapping[str, Any]) -> Sequence[Mapping[str, Any] | Exception]:
        columns = [outputs[name] for name in self._graph.outputs]
        rows = _to_rows(self._graph.outputs, columns)
        if not any(Failure in map(type, column) for column in columns):
            return rows
        return [
            next((one.error for one in row.values() if type(one) is Failure), None) or row
            for row in rows
        ]


class StackedRows(ItemStack):
    """Rows along the first axis of each input."""

    @property
    def rows(self) -> Sequence[Mapping[str, Any]]:
        return self.feeds

    def add(self, feeds: Mapping[str, Any]) -> bool:
        arrays, rows = self._batching.check_rows(feeds)
        if not self.fits(arrays, rows):
            return False
        # The source may use its arrays again.
        self.push({name: array.copy() for name, array in arrays.items()}, rows)
        return True

    def join(self) -> Mapping[str, Any]:
        return self.stacked()


def _to_rows(names: Iterable[str], columns: Iterable[Sequence[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


class Failure(NamedTuple):
    """The error of a row, in place of its values."""

    error: Exception


def lift_functions(plan: Plan) -> Graph | None:
    """Return the graph of `plan` with functions that take lists of rows, or None.

    All functions must be plain ones over objects, on devices of this process.
    """
    graph = plan.fetchable
    has_objects = all(spec == OBJECT for spec in graph.tensors.values())
    if not (has_objects and plan.is_static and all(_may_lift(plan, one) for one in graph.nodes)):
        return None
    return graph.with_nodes(
        [_lift(n.name, n.op, n.inputs, n.outputs, plan.assignment[n.name]) for n in graph.nodes]
    )


def _may_lift(plan: Plan, node: Node) -> bool:
    called, function = node.operator, node.operator.function
    if function is None or is_generator(function) or called.is_async or called.owns:
        return False
    is_plain = not (called.effects or is_ordered(called) or node.attributes)
    device = plan.prototypes[plan.assignment[node.name]]
    return is_plain and len(node.outputs) == 1 and all(node.inputs) and may_run_anywhere(device)


@cache  # operators stay registered
def _lift(name: str, op: str, inputs: tuple[str, ...], outputs: tuple[str, ...], on: str) -> Node:
    node = Node(name, op, inputs, outputs)
    function, called = make_row_caller(node, on), node.operator
    setattr(function, CALLS, getattr(called.function, CALLS, (called.function,)))
    label = f"{op} of each row #{next(_numbers)}"
    operator([OBJECT], inputs=[OBJECT] * len(inputs), name=label, ordered=called.ordered)(function)
    return replace(node, op=label)


_numbers = count(1)


def make_row_caller(node: Node, device: str) -> Callable[..., list[Any]]:
    """Return a function that calls `node` for each row; Failures of rows name the `device`."""
    call: Any = node.operator.function

    def call_rows(*columns: Any) -> list[Any]:
        made = list[Any]()
        may_fail = any(Failure in map(type, column) for column in columns)
        for values in zip(*columns, strict=True):
            if may_fail and (failed := next((v for v in values if type(v) is Failure), None)):
                made.append(failed)
                continue
            try:
                made.append(call(*values))
            except Exception as error:
                failure = kernel_error(error, node, device)
                failure.__cause__ = error
                made.append(Failure(failure))
        return made

    return call_rows
