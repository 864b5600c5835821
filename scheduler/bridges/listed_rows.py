"""Rows of objects that run together: functions get lists of them, in one step for all.

A session takes longer to hand an item over than most functions take for a row. Each row has a
result or an error of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import count
from typing import Any, NamedTuple

from ...devices.host import may_run_anywhere
from ...devices.program import kernel_error
from ...graph.core.ir import Graph, Node
from ...graph.functions.generators import is_generator
from ...graph.functions.python import check_results, operator
from ...graph.operators.each import EACH
from ...graph.operators.item_order import CALLS, is_ordered
from ...graph.values.tensor import TensorSpec
from ..planner.replanning import replan_graph
from ..plans.plan import Plan
from ..runtime.opened.feeds import check_feeds

HAND_OVERS = 256
"""The time of a block of rows, in hand-overs: it costs a few."""

OBJECT, ROW = TensorSpec("object", ()), TensorSpec("object", (1,))


class ListedRows:
    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._columns: dict[str, list[Any]] = {name: [] for name in graph.inputs}

    @property
    def rows(self) -> Sequence[Mapping[str, Any]]:
        return _to_rows(self._columns, self._columns.values())

    def add(self, feeds: Mapping[str, Any]) -> bool:
        if not isinstance(feeds, Mapping) or not feeds.keys() >= self._columns.keys():
            check_feeds(self._graph, frozenset(), feeds)
        for name, column in self._columns.items():
            column.append(feeds[name])
        return True

    def fail(self, error: Exception) -> None:
        """Add a row that fails by `error`."""
        for column in self._columns.values():
            column.append(Failure(error))

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


def _to_rows(names: Iterable[str], columns: Iterable[Sequence[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


class Failure(NamedTuple):
    """The error of a row, in place of its values."""

    error: Exception


def plan_listed_rows(plan: Plan) -> Plan | None:
    """Return a plan of the functions of `plan` for lists of rows, or None.

    All functions must be plain ones over objects, on devices of this process. Those of a batch get
    the rows of several items.
    """
    if (graph := _lift_functions(plan)) is None:
        return None
    return replace(replan_graph(plan, graph), has_automatic_replicas=plan.has_automatic_replicas)


def _lift_functions(plan: Plan) -> Graph | None:
    graph = plan.fetchable
    has_objects = all(spec in (OBJECT, ROW) for spec in graph.tensors.values())
    if not (has_objects and plan.is_static):
        return None
    found = list[Node]()
    for node in graph.nodes:
        called, within, size = _find_call(plan, node)
        if not _may_lift(within, called):
            return None
        on = within.assignment[called.name]
        found.append(_lift(called.name, called.op, node.inputs, node.outputs, on, size))
    return replace(graph, nodes=tuple(found), tensors=dict.fromkeys(graph.tensors, OBJECT))


def _find_call(plan: Plan, node: Node) -> tuple[Node, Plan, int]:
    """Return the call of a function in `node` of `plan`, its plan, and the size of its batches."""
    if node.op != EACH or len(node.attributes["body"].nodes) > 1:
        return node, plan, 0
    (called,) = node.attributes["body"].nodes
    return called, plan.bodies[node.attributes["queue"]], node.attributes["batch"]


def _may_lift(plan: Plan, node: Node) -> bool:
    called, function = node.operator, node.operator.function
    if function is None or is_generator(function) or called.is_async or called.owns:
        return False
    is_plain = not (called.effects or is_ordered(called) or node.attributes)
    device = plan.prototypes[plan.assignment[node.name]]
    return is_plain and all(node.inputs) and may_run_anywhere(device)


@cache  # operators stay registered
def _lift(
    name: str, op: str, inputs: tuple[str, ...], outputs: tuple[str, ...], on: str, size: int
) -> Node:
    node = Node(name, op, inputs, outputs)
    function, called = make_row_caller(node, on), node.operator
    if size:
        function = make_batch_caller(node, on, size)
    setattr(function, CALLS, getattr(called.function, CALLS, (called.function,)))
    label = f"{op} of each row #{next(_numbers)}"
    specs = [OBJECT] * len(outputs), [OBJECT] * len(inputs)
    operator(specs[0], inputs=specs[1], name=label, ordered=called.ordered)(function)
    return replace(node, op=label)


_numbers = count(1)


def make_row_caller(node: Node, device: str) -> Callable[..., Any]:
    """Return a function that calls `node` for each row; Failures of rows name the `device`.

    It returns a list, or a tuple of some if `node` has several results.
    """
    call: Any = node.operator.function
    count = len(node.outputs)

    def call_rows(*columns: Any) -> Any:
        made = list[Any]()
        may_fail = any(Failure in map(type, column) for column in columns)
        for values in zip(*columns, strict=True):
            if may_fail and (failed := next((v for v in values if type(v) is Failure), None)):
                made.append(failed)
                continue
            try:
                found = call(*values)
                if count > 1 and not (isinstance(found, tuple) and len(found) == count):
                    check_results(str(node), found, [None] * count)
                made.append(found)
            except Exception as error:
                made.append(_fail(error, node, device))
        if count == 1:
            return made
        places = range(count)
        return tuple([row if type(row) is Failure else row[n] for row in made] for n in places)

    return call_rows


def make_batch_caller(node: Node, device: str, size: int) -> Callable[..., list[Any]]:
    """Return a function that calls `node` for up to `size` rows at once, as `make_row_caller`.

    Rows that fail together are tried again alone. Each is in a list, and so is its result.
    """
    call: Any = node.operator.function

    def call_batch(rows: Sequence[list[Any]]) -> list[Any]:
        try:
            return [[one] for one in call([row for (row,) in rows])]
        except Exception as error:
            if len(rows) == 1:
                return [_fail(error, node, device)]
        return [found for row in rows for found in call_batch([row])]

    def call_rows(column: Sequence[Any]) -> list[Any]:
        made = list(column)
        places = [place for place, row in enumerate(column) if type(row) is not Failure]
        for start in range(0, len(places), size):
            part = places[start : start + size]
            for place, found in zip(part, call_batch([made[p] for p in part]), strict=True):
                made[place] = found
        return made

    return call_rows


def _fail(error: Exception, node: Node, device: str) -> Failure:
    failure = kernel_error(error, node, device)
    failure.__cause__ = error
    return Failure(failure)
