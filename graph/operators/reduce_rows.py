"""ReduceRows: a Python function that folds the rows of tensors into values, in order.

If a generator function yields the rows for it alone, a pass makes one node of both,
`ReducedCall`: each row is folded as soon as it is yielded, and no row is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..core.attribute import Attribute, Kind
from ..core.ir import Graph, Node
from ..core.nested import infer_results
from ..core.operator import Call, Operator, Specs, define, register_operator
from ..core.traits import OWN_DTYPES, Part
from ..functions.generators import is_generator, row_error, split_value
from ..functions.python import check_results
from ..values.dtypes import has_objects
from ..values.errors import GraphError, ShapeError
from ..values.tensor import Array, Dim, TensorSpec, read_only
from .each import find_common_rows
from .inputs import may_equal

REDUCE_ROWS = "ReduceRows"
REDUCED_CALL = "ReducedCall"


class RowReducer:
    """Folds rows into values, in order.

    Parameters
    ----------
    node : Node
        The node that calls the function, in the body of a `ReduceRows`.
    states : sequence of TensorSpec
        The specs of the values.
    rows : sequence of TensorSpec or None
        The spec of a row of each yielded part, None for any; unknown lengths are set by the first
        row.
    picks : sequence of int
        The parts that the function gets.
    initial : callable
        Returns the values before the first row.
    """

    def __init__(
        self,
        node: Node,
        states: Sequence[TensorSpec],
        rows: Sequence[TensorSpec | None],
        picks: Sequence[int],
        initial: Callable[[], Sequence[Array]],
    ) -> None:
        function = node.operator.function
        assert function is not None
        self._function = function
        self._attributes = node.arguments
        self._at = str(node)
        self._states, self._declared, self._picks = states, rows, picks
        self._rows = rows
        self._initial = initial
        self._count = 0
        self._values: Sequence[Array] = ()

    def restart(self) -> None:
        """Begin with the first row again."""
        self._count, self._rows = 0, self._declared
        self._values = list(map(read_only, self._initial()))

    def put(self, value: Any) -> None:
        """Fold `value`, one row.

        Raises GraphError if it differs from its declaration, or the function returns other values
        than it receives.
        """
        holds = [spec is not None and has_objects(spec.dtype) for spec in self._rows]
        rows = split_value(value, holds, self._count, self._at)
        self._check(rows)
        given = [read_only(rows[pick]) for pick in self._picks]
        made = self._function(*self._values, *given, **self._attributes)
        arrays = check_results(self._at, made, self._states)
        # Copy parts of the row: the next one may be yielded in the same memory.
        self._values = [
            read_only(
                array.copy() if any(np.may_share_memory(array, row) for row in given) else array
            )
            for array in arrays
        ]
        self._count += 1

    def written(self) -> tuple[Array, ...]:
        """Return the values after the last row, and keep none."""
        values, self._values = tuple(self._values), ()
        return values

    def _check(self, rows: Sequence[Array]) -> None:
        for index, (row, spec) in enumerate(zip(rows, self._rows, strict=True)):
            if spec is None:
                continue
            if row.dtype.newbyteorder("=") != spec.dtype or not _may_be(row.shape, spec.shape):
                raise row_error(row, spec, index, self._count, self._at)
        if not self._count:  # the first row sets open lengths of the declaration
            self._rows = [TensorSpec(row.dtype, row.shape) for row in rows]


def _may_be(shape: Sequence[Dim], wanted: Sequence[Dim] | None) -> bool:
    return wanted is None or (len(shape) == len(wanted) and all(map(may_equal, shape, wanted)))


def _drop_first_axis(spec: TensorSpec) -> TensorSpec:
    return TensorSpec(spec.dtype, spec.shape and spec.shape[1:])


def list_row_specs(specs: Sequence[TensorSpec | None]) -> list[TensorSpec | None]:
    return [None if one is None else _drop_first_axis(one) for one in specs]


def _reduce_rows(*inputs: Array, body: Graph) -> tuple[Array, ...]:
    (node,) = body.nodes
    count = len(body.outputs)
    initial, tensors = inputs[:count], inputs[count:]
    states = [TensorSpec(one.dtype, one.shape) for one in initial]
    rows = [TensorSpec(one.dtype, one.shape[1:]) for one in tensors]
    reducer = RowReducer(node, states, rows, range(len(rows)), lambda: initial)
    reducer.restart()
    # One row at a time, as a generator would have yielded them: the same folds, in the same order.
    for row in zip(*tensors, strict=True):
        reducer.put(row)
    # They may be the inputs themselves, if there are no rows.
    return tuple(value.copy() for value in reducer.written())


def _infer(call: Call) -> Sequence[TensorSpec]:
    """Infer the outputs of `call`: the values, which keep their initial specs."""
    body: Graph = call.attributes["body"]
    count = len(body.outputs)
    states = tuple(map(call.spec, range(count)))
    tensors = tuple(map(call.spec, range(count, len(call.inputs))))
    find_common_rows(tensors)
    made = infer_results(body, [*states, *list_row_specs(tensors)])
    for index, (state, one) in enumerate(zip(states, made, strict=True)):
        if not _fits(one, state):
            raise ShapeError(
                f"value {index} is {state} at first, and {one} after a row",
                fix="return what the function is given: same dtype, same shape",
            )
    return states


def _fits(one: TensorSpec, other: TensorSpec) -> bool:
    return one.dtype == other.dtype and (one.shape is None or _may_be(one.shape, other.shape))


def _count_operations(call: Call, outputs: Specs) -> int:
    """Count one operation per element that `call` reads; those of the function are unknown."""
    return sum(spec.size for spec in call.inputs if spec is not None)


register_operator(
    Operator(
        REDUCE_ROWS,
        "x+",
        "y+",
        {"body": Attribute(Kind.GRAPH)},
        _infer,
        _count_operations,
        function=_reduce_rows,
        module=__name__,
        float16=OWN_DTYPES,
        lacks=dict.fromkeys(Part, "it calls a Python function"),
    )
)


@define(
    REDUCED_CALL,
    inputs="x*",
    outputs="y+",
    attributes={"body": Attribute(Kind.GRAPH)},
    float16=OWN_DTYPES,
    lacks=dict.fromkeys(Part, "it is in plans alone, and stands for two others"),
)
def _infer_call(call: Call) -> Sequence[TensorSpec]:
    return infer_results(call.attributes["body"], call.inputs)


def make_reducing_body(
    name: str, operator: Operator, states: Specs, tensors: Specs, attributes: Mapping[str, Any]
) -> Graph:
    """Return the graph of a call of `operator` that folds a row of `tensors` into `states`."""
    count = len(operator.outputs.split())
    if what := _find_refusal(operator, len(states)):
        raise GraphError(
            f"operator {operator.name!r} {what}",
            at=f"node {name!r} ({REDUCE_ROWS})",
            fix="give an ordinary function that takes the values so far and a row, and returns "
            "the values with it",
        )
    inputs = tuple(f"value{i}" for i in range(count))
    inputs += tuple(f"row{i}" for i in range(len(tensors)))
    outputs = tuple(f"next{i}" for i in range(count))
    node = Node(name, operator.name, inputs, outputs, operator.complete(attributes, name))
    specs = [*states, *map(_drop_first_axis, tensors)]
    made = operator.infer(Call(tuple(specs), (None,) * len(specs), node.attributes, count))
    named = dict(zip((*inputs, *outputs), (*specs, *made), strict=True))
    return Graph(name, inputs, outputs, (node,), named, {})


def _find_refusal(operator: Operator, count: int) -> str:
    """Return why `operator` cannot fold rows into `count` values; empty if it can."""
    returned = len(operator.outputs.split())
    if operator.owns:
        return "is a class"
    if operator.is_async:
        return "is async"
    if is_generator(operator.function):
        return "yields its results"
    return "" if returned == count else f"returns {returned} values, not {count}"


def make_reduced_call(generator: Node, reduction: Node, tensors: dict[str, TensorSpec]) -> Graph:
    count = len(reduction.attributes["body"].outputs)
    # Of the reduction only the first values: its rows are those that the generator yields.
    read = tuple(dict.fromkeys((*filter(None, generator.inputs), *reduction.inputs[:count])))
    named = (*read, *filter(None, generator.outputs), *reduction.outputs)
    specs = {name: tensors[name] for name in named}
    nodes = generator, reduction
    return Graph(reduction.name, read, reduction.outputs, nodes, specs, {})
