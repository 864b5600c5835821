"""The graph of a pipeline, built from its steps and their results for the examples."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any

import numpy as np

from ...graph.building.builder import GraphBuilder
from ...graph.core.ir import Graph
from ...graph.values.dtypes import kind_of, to_text
from ...graph.values.errors import GraphError, ShapeError
from ...graph.values.tensor import Dim, TensorSpec, name_type, spec_of
from ..bridges.listed_rows import OBJECT, ROW
from ..runtime.items.padding import Padding, find_lengths
from .callables import (
    Axes,
    Making,
    check_synchronous,
    list_calls,
    make_operator,
    make_row_generator,
    make_row_mapper,
    make_row_stacker,
    pack_arguments,
    pack_row,
    wrap_batch,
    wrap_callable,
    wrap_class,
)
from .examples import ExampleRun, RowsOf
from .references import Value
from .row_models import (
    ROWS,
    find_axes,
    find_padded_length,
    make_batched_graph,
    make_single_row_graph,
)
from .step_options import ITEM, has_state, is_class
from .steps import Each, PipelineStep, pass_on

first_of = itemgetter(0)
STATE = "stream.state"
"""The input of a graph with classes: a mapping, by step, with the instances of the item's key."""
RESULT = "result"
"""The output of a graph; with several, ``result.0`` and so on."""
LEAST_ROWS, ROWS_MARGIN, LENGTH_MARGIN = 32, 8, 4
"""Proposed bounds are this many times the examples' lengths, rounded up to a power of two. Memory
of rows that no item has is never touched, and takes none."""


@dataclass(slots=True)
class Built:
    """A pipeline's graph, and the arguments of its plan."""

    graph: Graph
    bounds: dict[str, int] = field(default_factory=dict)
    pins: dict[str, str] = field(default_factory=dict)
    workers: int = 0
    """The number of worker processes that steps want."""
    specs: dict[Value, TensorSpec] = field(default_factory=dict)


def build(name: str, steps: Sequence[PipelineStep | Each], run: ExampleRun) -> Built:
    """Build the graph of the pipeline `name`, once its `steps` have run on examples in `run`.

    Raises GraphError or ShapeError if the results of one step do not fit the next one.
    """
    return _Building(name, steps, run).build()


class _Building:
    def __init__(self, name: str, steps: Sequence[PipelineStep | Each], run: ExampleRun) -> None:
        self._name, self._steps, self._run = name, steps, run
        self._b = GraphBuilder(name)
        self._tensors: dict[Value, str] = {}
        self._symbols: dict[tuple[str, tuple[int, ...]], str] = {}
        self._fed_to_models = {feed.value for feeds in run.feeds.values() for feed in feeds}
        self._bounds: dict[str, int] = {}
        self._pins: dict[str, str] = {}
        self._specs: dict[Value, TensorSpec] = {}
        self._workers = 0

    def build(self) -> Built:
        self._add_inputs()
        for one in self._steps:
            if isinstance(one, Each):
                self._add_each(one)
            elif one.model is not None:
                self._add_model(one, one.model)
            else:
                self._add_function(one)
        self._add_outputs()
        graph = self._b.build()
        return Built(graph, self._bounds, self._pins, self._workers, self._specs)

    def _add_inputs(self) -> None:
        results = self._run.scope.results[ITEM]
        for index, name in enumerate(results.names or (ITEM,)):
            value = Value(ITEM, index)
            spec = self._find_spec(value)
            self._tensors[value] = self._b.input(name, spec.dtype, spec.shape or ())
            self._specs[value] = spec
        if any(is_class(getattr(one, "target", None)) for one in self._steps):
            self._b.input(STATE, "object", ())

    def _add_outputs(self) -> None:
        last = self._steps[-1].name
        values = [Value(last, index) for index in range(self._run.scope.results[last].count)]
        for index, value in enumerate(values):
            self._b.output(
                RESULT if len(values) == 1 else f"{RESULT}.{index}", self._tensors[value]
            )

    def _find_spec(self, value: Value) -> TensorSpec:
        if value not in self._fed_to_models:
            return OBJECT
        arrays = [_to_array(one, value) for one in self._run.scope.examples_of(value)]
        first = arrays[0]
        for array in arrays[1:]:
            if array.dtype != first.dtype or array.ndim != first.ndim:
                raise ShapeError(
                    f"it gives {spec_of(first)} for one example and {spec_of(array)} for another",
                    at=f"step {value.step!r}",
                    fix="return arrays of one dtype and rank from it, for every item",
                )
        lengths = zip(*(array.shape for array in arrays), strict=True)
        return TensorSpec(first.dtype, [self._find_dim(value.step, one) for one in lengths])

    def _find_dim(self, step: str, lengths: tuple[int, ...]) -> Dim:
        if len(set(lengths)) == 1:
            return lengths[0]
        known = len(self._symbols)
        symbol = self._symbols.setdefault((step, lengths), _name_length(step, "length", known))
        self._bounds[symbol] = _round_up(LENGTH_MARGIN * max(lengths))
        return symbol

    def _add_function(self, one: PipelineStep) -> None:
        results = self._run.scope.results[one.name]
        made = [Value(one.name, index) for index in range(results.count)]
        specs = [self._find_spec(value) for value in made]
        self._specs.update(zip(made, specs, strict=True))
        tensors = [self._tensors[value] for value in self._run.arguments[one.name]]
        parts = one.function, one.name, one is self._steps[-1]
        make: Making = (wrap_callable, (*parts, has_state(one)), [one.function])
        if one.batch is not None:
            pack = PipelineStep(pack_arguments, f"{one.name}/arguments", ordered=False)
            packing: Making = (wrap_callable, (pack_arguments, pack.name, False), [pack_arguments])
            rows = self._add_call(pack, packing, pack.name, tensors, [ROW])
            tensors = self._call_in_batches(one, one.name, rows)
            make = wrap_callable, (first_of, *parts[1:]), [first_of]
            one = PipelineStep(first_of, f"{one.name}/result", ordered=False)
        if is_class(one.target):
            one, make = replace(one, ordered=True), (wrap_class, parts, [one.function])
            tensors = [STATE, *tensors]
        found = self._add_call(one, make, one.name, tensors, specs)
        self._tensors.update(zip(made, found, strict=True))

    def _call_in_batches(self, one: PipelineStep, path: str, rows: Sequence[str]) -> list[str]:
        """Add calls of the callable `one` for batches of `rows` of packed arguments."""
        body, spec = GraphBuilder(one.name), TensorSpec("object", (ROWS,))
        make: Making = (wrap_batch, (one.function, one.name), [one.function])
        operator = make_operator(*make, one, f"{self._name}.{path}", [spec], [spec])
        called = body.call(operator, body.input("rows", "object", (ROWS,)), name=one.name)
        body.output("results", called)
        self._pin(one, f"{path}/*")
        made = body.build()
        return [self._b.each(rows, made, name=path, batch=one.batch, max_delay_s=one.max_delay_s)]

    def _add_model(self, one: PipelineStep, model: Graph) -> None:
        feeds = {feed.name: self._tensors[feed.value] for feed in self._run.feeds[one.name]}
        at = f"step {one.name!r}"
        if one.batch is not None:
            tensors = [feeds[name] for name in model.inputs]
            specs = [self._b.spec(tensor) for tensor in tensors]
            if any(not spec.shape or spec.shape[0] != 1 for spec in specs):
                listed = ", ".join(map(str, specs))
                raise GraphError(
                    f"batches are along the first axis, and it gets {listed}",
                    at=at,
                    fix="give it arrays with a first axis of length 1, or leave batch= out",
                )
            found = tuple(self._run_on_rows(one, one.name, model, tensors))
        else:
            included = self._b.include(model, feeds, f"{one.name}/")
            found = tuple(included[name] for name in model.outputs)
        self._note_results(one.name, found)
        if one.device is not None:
            self._pins[f"{one.name}/*"] = one.device

    def _add_each(self, one: Each) -> None:
        rows, values = self._run.rows[one.name], self._run.arguments[one.name]
        shared = [self._tensors[value] for value in values[1:]]
        current = [self._tensors[values[0]]]
        are_rows = are_whole = False  # until a model has been run on all rows
        lengths: list[str] = []  # of padded rows
        cuts: Padding | None = None
        pending: list[PipelineStep] = []
        for place, inner in enumerate(one.steps):
            if inner.model is None and inner.batch is None:
                check_synchronous(inner.function, inner.name)
                pending.append(inner)
                continue
            self._bounds[_name_symbol(one)] = one.most or _round_up(
                max(LEAST_ROWS, ROWS_MARGIN * max(rows.counts))
            )
            if inner.model is None:
                pending.append(PipelineStep(pack_row, f"{inner.name}_arguments", ordered=False))
                row = TensorSpec("object", (_name_symbol(one),))
                parts = len(current) + len(lengths), are_whole, cuts
                tensors = [*current, *lengths, *shared]
                packed = self._map_rows(one, pending, parts, tensors, row)
                current = self._call_in_batches(inner, f"{one.name}/{inner.name}", packed)
                pending = [PipelineStep(pass_on, f"{inner.name}_results", ordered=False)]
                shared, lengths, are_rows, are_whole, cuts = [], [], True, False, None
                continue
            if pending or not are_rows:
                symbol = _name_length(one.name, inner.name, one.pad)
                axes = find_axes(map(inner.model.tensors.__getitem__, inner.model.inputs), one.pad)
                specs, longest = _find_row_specs(one, rows, place, axes, symbol)
                functions = [each.function for each in pending]
                given = [*current, *lengths]
                making = list_calls(pending), len(given), are_whole, rows.are_whole[place], cuts
                make: Making = (make_row_generator, making, functions)
                if longest:
                    self._bounds[symbol] = _round_up(LENGTH_MARGIN * longest)
                    specs.append(TensorSpec("int64", (_name_symbol(one),)))
                    make = make_row_stacker, (one.pad, axes, specs, making), functions
                current = self._call_for_rows(one, make, pending, [*given, *shared], specs)
                lengths = [current.pop()] if longest else []
                pending, shared, are_rows = [], [], True
            path = f"{one.name}/{inner.name}"
            current = self._run_on_rows(one, path, inner.model, current)
            if inner.device is not None:
                self._pins[f"{path}/*"] = inner.device
            are_whole = rows.are_whole[place]
            if lengths:
                shapes = {str(n): self._b.spec(one).shape or () for n, one in enumerate(current)}
                cuts = Padding(symbol, {}, find_lengths(shapes, symbol), None)
        if pending:
            rest = len(current) + len(lengths), are_whole, cuts
            spec = self._find_spec(Value(one.name, 0))
            current = self._map_rows(one, pending, rest, [*current, *lengths, *shared], spec)
        self._note_results(one.name, current)

    def _map_rows(
        self,
        one: Each,
        called: Sequence[PipelineStep],
        parts: tuple[int, bool, Padding | None],
        tensors: Sequence[str],
        spec: TensorSpec,
    ) -> list[str]:
        """Add a call for each row of `called`, as by `make_row_mapper` with `parts`."""
        make = make_row_mapper, (list_calls(called), *parts), [each.function for each in called]
        return self._call_for_rows(one, make, called, tensors, [spec])

    def _run_on_rows(
        self, one: Each | PipelineStep, path: str, model: Graph, current: Sequence[str]
    ) -> list[str]:
        specs = [self._b.spec(tensor) for tensor in current]
        batches: dict[str, Any] = {}
        try:
            body = make_batched_graph(model, specs)
            if one.batch is not None:
                batches = {"batch": one.batch, "max_delay_s": one.max_delay_s}
        except (GraphError, ShapeError) as error:
            if (one.batch or 1) > 1 or one.pad is not None:
                raise GraphError(
                    f"the model computes one row at a time: {error.what}",
                    at=f"step {path!r}",
                    fix="leave batch= out (and pad=), and it runs row after row; if an output has "
                    "its rows along another axis, include the model in a graph that transposes it; "
                    "for rows of several shapes, call a BlockingSession of it in a function",
                ) from error
            body = make_single_row_graph(model, specs)
        # A model that follows another one may get rows of one length.
        dims = {dim for name in model.inputs for dim in model.tensors[name].shape or ()}
        if one.pad is not None and (isinstance(one, PipelineStep) or one.pad in dims):
            batches["pad"] = find_padded_length(model, specs, one.pad, path)
        outputs = self._b.each(current, body, name=path, **batches)
        return list(outputs) if isinstance(outputs, tuple) else [outputs]

    def _call_for_rows(
        self,
        one: Each,
        make: Making,
        called: Sequence[PipelineStep],
        tensors: Sequence[str],
        specs: Sequence[TensorSpec],
    ) -> list[str]:
        names = "+".join(step.name for step in called) or "rows"
        options = called[0] if called else one.steps[0]
        orders = {step.ordered for step in called}
        is_ordered = True if True in orders else None if None in orders else False
        options = replace(options, name=f"{one.name}/{names}", ordered=is_ordered)
        return self._add_call(options, make, options.name, tensors, specs)

    def _add_call(
        self,
        one: PipelineStep,
        make: Making,
        path: str,
        tensors: Sequence[str],
        specs: Sequence[TensorSpec],
    ) -> list[str]:
        inputs = [self._b.spec(tensor) for tensor in tensors]
        operator = make_operator(*make, one, f"{self._name}.{path}", specs, inputs)
        found = self._b.call(operator, *tensors, name=path)
        if one.model is None:
            self._pin(one, path)
        return list(found) if isinstance(found, tuple) else [found]

    def _pin(self, one: PipelineStep, nodes: str) -> None:
        if one.workers:
            first, self._workers = self._workers, self._workers + one.workers
            last = self._workers - 1
            self._pins[nodes] = f"worker:{first}..{last}" if last > first else f"worker:{first}"
        elif one.device is not None:
            self._pins[nodes] = one.device

    def _note_results(self, step: str, tensors: Sequence[str]) -> None:
        for index, tensor in enumerate(tensors):
            self._tensors[Value(step, index)] = tensor
            self._specs[Value(step, index)] = self._b.spec(tensor)


def _name_symbol(one: Each) -> str:
    return _name_length(one.name, "rows")


def _name_length(*parts: object) -> str:
    return re.sub(r"\W", "_", "_".join(map(str, parts)))


def _find_row_specs(
    one: Each, rows: RowsOf, place: int, axes: Axes, symbol: str
) -> tuple[list[TensorSpec], int]:
    """Return specs of `rows` before the model at `place`, and their greatest length along `axes`.

    The length is called `symbol`, and is 0 without such axes. Raises ShapeError if rows differ in
    dtype or shape otherwise.
    """
    made, longest = list[TensorSpec](), 0
    for index, parts in enumerate(zip(*rows.stages[place], strict=True)):
        arrays = [_to_array(part, Value(one.name, index)) for part in parts]
        for array in arrays:
            own = array.shape[1:] if rows.are_whole[place] else array.shape
            shape: list[Dim] = [_name_symbol(one), *own]
            if (axis := axes[index]) is not None:
                longest, shape[axis] = max(longest, own[axis - 1]), symbol
            spec = TensorSpec(array.dtype, shape)
            if len(made) == index:
                made.append(spec)
            elif spec != made[-1]:
                raise ShapeError(
                    f"one row gives {spec_of(arrays[0])}, another {spec_of(array)}",
                    at=f"step {one.name!r}",
                    fix="give the model rows of one dtype and shape, name a length that differs, "
                    "each(..., batch=8, pad='width'), or call a BlockingSession of the model in a "
                    "function, for one row",
                )
    return made, longest


def _to_array(value: Any, of: Value) -> Any:
    array = np.asarray(value)
    if (text := to_text(array)) is not None:
        return text
    if array.dtype.kind in "OSUV" or kind_of(array.dtype) not in "biufc":
        raise GraphError(
            f"a model takes what it gives, and that is {name_type(value)}",
            at=f"step {of.step!r}",
            fix="return an array of numbers or text from it",
        )
    return array


def _round_up(number: int) -> int:
    return 1 << (number - 1).bit_length()
