"""Programs of the formal device: definitions bound to views, and poison around them.

Each node gets copies of its inputs. Its outputs hold poison until it has computed all of them, and
tensors become poison after their last reader in the subgraph: reading unwritten or expired values
returns NaNs and conspicuous numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from ...graph.core.aliasing import Run, find_runs
from ...graph.core.ir import Graph, Node
from ...graph.core.operator import name_bounded_form
from ...graph.functions.generators import RowWriter, is_generator
from ...graph.functions.operator_lifecycle import OperatorLifecycle
from ...graph.functions.python import check_results
from ...graph.values.dtypes import kind_of
from ...graph.values.tensor import Array, TensorSpec, copy_read_only, shorten_array
from ..errors import DeviceError
from ..function_steps import Step, find_function
from ..memory import View
from ..program import BoundProgram, is_in_place, is_placed
from .registry import Definition, find_definition
from .results import check_fits, to_dtype

Compute: TypeAlias = Callable[[Sequence[Array | None]], Sequence[Array]]
"""Returns a node's results, given its inputs."""

NANS, PATTERN = 0xFF, 0xA5
"""The bytes of poison: NaNs where a dtype has them."""


def bind_definitions(
    device: str,
    graph: Graph,
    views: Mapping[str, View],
    living: Mapping[str, OperatorLifecycle] | None = None,
    *,
    measure: bool,
) -> BoundProgram:
    steps: list[tuple[Node, Step]] = []
    for node, expired in zip(graph.nodes, find_expiring(graph, views), strict=True):
        parts: list[Step] = [partial(poison, views[name].array) for name in expired]
        if not is_in_place(graph, node, views):
            # Poison expired tensors after the node, so that illegal reads show.
            parts.insert(0, _make_step(graph, node, views, living))
        if parts:
            steps.append((node, partial(_run_in_order, parts)))
    return BoundProgram(device, graph, steps, measure)


def _run_in_order(parts: list[Step]) -> None:
    for part in parts:
        part()


def poison(array: Array) -> None:
    """Overwrite the contiguous `array` with conspicuous values."""
    array.reshape(-1).view(np.uint8).fill(NANS if kind_of(array.dtype) in "fec" else PATTERN)


def _make_step(
    graph: Graph,
    node: Node,
    views: Mapping[str, View],
    living: Mapping[str, OperatorLifecycle] | None,
) -> Step:
    constants = graph.constants
    inputs = [
        None if not name else constants[name] if name in constants else views[name].array
        for name in node.inputs
    ]
    specs = [graph.tensors.get(name) for name in node.outputs]
    runs = [run for run in find_runs(graph, node) if is_placed(run, views)]
    outputs = [_Output(name, views[name].array, runs) if name else None for name in node.outputs]
    return partial(_run, bind_definition(node, specs, living), inputs, outputs)


class _Output:
    """The part of an output that a node writes: others may be reading the rest."""

    def __init__(self, name: str, array: Array, runs: Sequence[Run]) -> None:
        self._array = array
        size, place = self._array.itemsize, 0
        self._parts: list[slice] | None = None
        # The part that is in place before the node runs is not written: others may read it
        # meanwhile.
        for run in sorted(runs, key=lambda run: run.begin):
            if run.target == name:
                self._parts = self._parts or []
                self._parts.append(slice(place, run.begin // size))
                place = (run.begin + run.nbytes) // size
        if self._parts is not None:
            self._parts.append(slice(place, self._array.size))

    def poison(self) -> None:
        for part in self._parts or [slice(None)]:
            poison(self._array.reshape(-1)[part])

    def write(self, result: Array) -> None:
        """Write `result`: that of a bounded operator to the beginning of its buffer."""
        if self._parts is None:
            shorten_array(self._array, result.shape)[...] = result
            return
        for part in self._parts:
            self._array.reshape(-1)[part] = result.reshape(-1)[part]


def _run(compute: Compute, inputs: list[Array | None], outputs: list[_Output | None]) -> None:
    # An output may lie on an input's bytes.
    given = [None if array is None else copy_read_only(array) for array in inputs]
    for output in outputs:
        if output is not None:
            output.poison()
    for output, result in zip(outputs, compute(given), strict=True):
        if output is not None:
            output.write(result)


def get_definition(op: str) -> Definition | None:
    """Return the definition of `op`, or of the one that it runs in larger buffers, or None."""
    return find_definition(op) or find_definition(op.removeprefix(name_bounded_form("")))


def bind_definition(
    node: Node,
    specs: Sequence[TensorSpec | None],
    living: Mapping[str, OperatorLifecycle] | None = None,
) -> Compute:
    if node.operator.function is not None:
        return partial(_call_python, find_function(node, living), node, specs)
    found = get_definition(node.op)
    assert found is not None, node.op
    if found.op == node.op:
        return partial(_call_definition, found, node, specs)
    return partial(_call_bounded, found, node, specs)


def _call_python(
    function: Callable[..., Any],
    node: Node,
    specs: Sequence[TensorSpec | None],
    inputs: Sequence[Array | None],
) -> Sequence[Array]:
    given = list(inputs)
    while given and given[-1] is None:
        given.pop()
    results = function(*given, **node.arguments)
    if is_generator(function):
        largest = [
            None if spec is None else np.empty(spec.static_shape, spec.dtype) for spec in specs
        ]
        writer = RowWriter(str(node), largest)
        for value in results:
            writer.put(value)
        results = writer.written()
    return check_results(str(node), results, specs)


def _call_bounded(
    definition: Definition,
    node: Node,
    specs: Sequence[TensorSpec | None],
    inputs: Sequence[Array | None],
) -> Sequence[Array]:
    results = _call_definition(definition, node, specs[:-1], inputs, exactly=False)
    lengths = [length for result in results for length in result.shape]
    return [*results, np.array(lengths, np.int64)]


def _call_definition(
    definition: Definition,
    node: Node,
    specs: Sequence[TensorSpec | None],
    inputs: Sequence[Array | None],
    exactly: bool = True,
) -> Sequence[Array]:
    attributes = dict(node.attributes)
    if definition.wants_outputs:
        attributes["outputs"] = tuple(specs)
    returned = definition.function(*inputs, **attributes)
    # Optional outputs at the end may be returned without being requested.
    results = returned if isinstance(returned, tuple) else (returned,)
    if len(results) < len(specs):
        raise DeviceError(
            f"the definition of {definition.op!r} returned {len(results)} of {len(specs)} outputs",
            fix="return all outputs, as a tuple",
        )
    return [
        np.empty(0) if spec is None else check_fits(to_dtype(result, spec.dtype), spec, exactly)
        for result, spec in zip(results, specs, strict=False)
    ]


def find_expiring(graph: Graph, views: Mapping[str, View]) -> list[list[str]]:
    """Return for each node of `graph` the tensors without later readers.

    They exclude the subgraph's own inputs and outputs, and tensors that share bytes in `views` with
    these or with a tensor that has later readers.
    """
    # Inputs and outputs belong to others: they live before the first node and after the last.
    end = len(graph.nodes)
    first, last = dict.fromkeys(graph.inputs, -1), dict.fromkeys(graph.inputs, end)
    for index, node in enumerate(graph.nodes):
        first.update({name: index for name in node.outputs if name})
        for name in (*node.inputs, *node.outputs):
            if name:
                last[name] = max(last.get(name, index), index)
    last.update(dict.fromkeys(graph.outputs, end))
    alive = {name: (first[name], last[name]) for name in first if name in views}

    def is_shared(name: str, index: int) -> bool:
        return any(
            born <= index < died and _overlaps(views[name], views[other])
            for other, (born, died) in alive.items()
        )

    return [
        [name for name, (_, died) in alive.items() if died == index and not is_shared(name, index)]
        for index in range(end)
    ]


def _overlaps(a: View, b: View) -> bool:
    if a.arena is not b.arena:
        return False
    return a.offset < b.offset + b.spec.nbytes and b.offset < a.offset + a.spec.nbytes
