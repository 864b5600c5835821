"""Pipelines run on examples, step by step, to learn the types between the steps."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from ...devices.automatic import AUTO
from ...devices.program import suggest_copy
from ...graph.core.ir import Graph
from ...graph.core.printing import format_count
from ...graph.values.dtypes import TEXT, name_of
from ...graph.values.errors import GraphError, PlaitError, describe_error, get_text
from ...graph.values.tensor import Array, TensorSpec, name_type, read_only
from ..bridges.blocking import block_on, kept_plans
from ..bridges.blocking_session import BlockingSession
from ..runtime.async_calls import FOREIGN
from .callables import describe_call, iterate_rows, list_results, split_result
from .references import Scope, StepResults, Value
from .row_models import has_row_axis, make_row_error
from .shared_values import copy_shared
from .step_options import ITEM, fits, has_state, is_class
from .steps import Each, PipelineStep

FIX_ARRAY = "give it an array of numbers, from a step before it or in the example"


@dataclass(frozen=True, slots=True)
class Feed:
    """A tensor that a model gets from a value."""

    name: str
    """The model's input."""
    value: Value


@dataclass(frozen=True, slots=True)
class RowsOf:
    """The rows of the examples as they go through the steps of an `Each`."""

    counts: tuple[int, ...]
    """The number of rows of each example."""
    stages: tuple[tuple[tuple[Any, ...], ...], ...]
    """The results of each step, for all rows of all examples: one tuple a row. The first has the
    rows themselves."""
    are_whole: tuple[bool, ...]
    """For each step, whether a model got a row with an axis of length 1 in front."""


class _Models:
    """Runs models on examples, in sessions that stay open: rows may be many.

    A model has one for the shapes of its first run and, if other shapes follow, one for all.
    """

    def __init__(self) -> None:
        self._first: dict[int, Mapping[str, tuple[int, ...]]] = {}
        self._sessions: dict[tuple[int, bool], BlockingSession] = {}

    def run(
        self, model: Graph, feeds: Mapping[str, Any], step: str, *, lacks_axis: bool = False
    ) -> tuple[Any, ...]:
        try:
            arrays = {name: np.asarray(value) for name, value in feeds.items()}
            arrays = {n: one[None] if lacks_axis else one for n, one in arrays.items()}
            shapes = {name: one.shape for name, one in arrays.items()}
            is_first = self._first.setdefault(id(model), shapes) == shapes
            if (id(model), is_first) not in self._sessions:
                # For a few runs, to search for the best devices takes longer than it gains.
                options = {"shapes": shapes} if is_first else {}
                made = kept_plans.find(model, AUTO, strategy="preference", **options)
                self._sessions[id(model), is_first] = BlockingSession(made)
            found = self._sessions[id(model), is_first].run(arrays)
        except Exception as error:  # of any library that has arrays
            what, fix = _explain_misfit(model, feeds, error, 1 if lacks_axis else 0)
            at = ", ".join(filter(None, (f"step {step!r}", getattr(error, "at", None))))
            raise GraphError(
                f"the model does not take the example: {what}", at=at, fix=fix
            ) from error
        return tuple(read_only(found[name]) for name in model.outputs)  # as it will be for items

    def close(self) -> None:
        for session in self._sessions.values():
            session.close()


class ExampleRun:
    """The results of all steps for some examples, and the arguments of callables and models.

    Close it after the last step.
    """

    def __init__(self, examples: Sequence[Any], *, are_parts_named: bool) -> None:
        examples = list(map(_copy, examples))  # steps may change what they get
        self.scope = Scope()
        self._models = _Models()
        self.close = self._models.close
        self.arguments: dict[str, list[Value]] = {}
        self.feeds: dict[str, list[Feed]] = {}
        self.rows: dict[str, RowsOf] = {}
        self._batched: set[str] = set()  # steps that return an entry for each of several items
        first = examples[0]
        names = tuple(first) if are_parts_named and isinstance(first, Mapping) else ()
        for one in examples:
            if names and (not isinstance(one, Mapping) or tuple(one) != names):
                raise GraphError(
                    "the examples are mappings with different keys", fix="give all the same keys"
                )
        parts = tuple(tuple(one.values()) if names else (one,) for one in examples)
        self.scope.add(ITEM, StepResults(parts, names))

    def run(self, one: PipelineStep | Each) -> None:
        """Run the step `one` on all examples; raise GraphError if it fails or does not fit."""
        if isinstance(one, Each):
            copied = replace(one, steps=tuple(map(_copy_state, one.steps)))
            results = self._run_each(copied)
        elif one.model is not None:
            results = self._run_model(one, one.model)
        else:
            results = self._run_function(_copy_state(one))
        self.scope.add(one.name, results)

    def _run_function(self, one: PipelineStep) -> StepResults:
        values = self.arguments[one.name] = self.scope.find(_check_listed(one), one.name)
        given = zip(*map(self.scope.examples_of, values), strict=True)
        found = [_call_step(one, arguments) for arguments in given]
        if one.batch is not None:
            self._batched.add(one.name)
        return _to_results(found, one.name)

    def _run_model(self, one: PipelineStep, model: Graph) -> StepResults:
        feeds = self.feeds[one.name] = self._match_inputs(one, model)
        columns = [self.scope.examples_of(feed.value) for feed in feeds]
        names = [feed.name for feed in feeds]
        try:
            found = [
                self._models.run(model, dict(zip(names, arrays, strict=True)), one.name)
                for arrays in zip(*columns, strict=True)
            ]
        except GraphError as error:
            batched = [feed.value.step for feed in feeds if feed.value.step in self._batched]
            if batched and error.fix is not None and error.fix.endswith("[None]"):
                error.fix += f"; for all values that step {batched[0]!r} returns: values[:, None]"
            raise
        return StepResults(tuple(found), tuple(model.outputs))

    def _match_inputs(self, one: PipelineStep, model: Graph) -> list[Feed]:
        if isinstance(one.inputs, Mapping):
            named = self.scope.find_named(one.inputs, one.name)
        else:
            values = self.scope.find(one.inputs, one.name)
            results = self.scope.results[values[0].step]
            is_mapping = values[0].step == ITEM and set(model.inputs) <= set(results.names)
            if one.inputs is None and is_mapping:
                values = [Value(ITEM, results.names.index(name)) for name in model.inputs]
            if len(values) != len(model.inputs):
                raise GraphError(
                    f"the model has {format_count(len(model.inputs), 'input')}, "
                    f"{', '.join(model.inputs)}; it gets {format_count(len(values), 'value')}",
                    at=f"step {one.name!r}",
                    fix=self._suggest_inputs(model),
                )
            named = dict(zip(model.inputs, values, strict=True))
        if set(named) != set(model.inputs):
            raise GraphError(
                f"the model has the inputs {', '.join(model.inputs)}; given are {', '.join(named)}",
                at=f"step {one.name!r}",
                fix="name each of them once",
            )
        return [Feed(name, named[name]) for name in model.inputs]

    def _suggest_inputs(self, model: Graph) -> str:
        """Return how to give `model` a value for each input: those that fit, if all have one."""
        results = self.scope.results
        free = [Value(step, n) for step in reversed(results) for n in range(results[step].count)]
        named: dict[str, str] = {}
        for name in model.inputs:
            spec = model.tensors[name]
            for value in free:
                if all(_is_taken(spec, one) for one in self.scope.examples_of(value)):
                    named[name] = self.scope.refer_to(value)
                    free.remove(value)
                    break
        if len(named) == len(model.inputs):
            return f"say which value each gets, by its step: step(..., inputs={named})"
        if self.scope.last == ITEM:
            return f"give a mapping with {', '.join(model.inputs)} as the example"
        fix = f"return a tuple from step {self.scope.last!r}, one array for each input"
        if any(isinstance(one, Mapping) for one in results[self.scope.last].examples[0]):
            return f"{fix}: a dict is one value"
        missing = [name for name in model.inputs if name not in named]
        constants = ", ".join(f"{name!r}: np.array(...)" for name in missing)
        return f"{fix}, or give constants: step(..., inputs={{{constants}}})" if named else fix

    def _run_each(self, one: Each) -> StepResults:
        values = self.arguments[one.name] = self.scope.find(_check_listed(one), one.name)
        counts: list[int] = []
        stages: list[list[tuple[Any, ...]]] = [[] for _ in range(len(one.steps) + 1)]
        are_whole = [False] * len(one.steps)
        wholes: list[tuple[Any, ...]] = []
        for rows, *shared in zip(*map(self.scope.examples_of, values), strict=True):
            last: list[Any] = []
            for row in iterate_rows(rows, f"step {one.name!r}"):
                found: Any = row
                current: tuple[Any, ...] = (row,)
                stages[0].append(current)
                for place, inner in enumerate(one.steps):
                    more = tuple(shared) if place == 0 else ()
                    found, are_whole[place] = self._run_row(inner, (*current, *more))
                    current = split_result(found)
                    stages[place + 1].append(current)
                last.append(found)
            counts.append(len(last))
            wholes.append(join_rows(one, last, is_whole=are_whole[-1]))
        if not any(counts):
            raise GraphError(
                "no example has a row", at=f"step {one.name!r}", fix="give an example with some"
            )
        width = max(map(len, wholes))
        examples = tuple(whole if len(whole) == width else (whole[0],) * width for whole in wholes)
        self.rows[one.name] = RowsOf(tuple(counts), tuple(map(tuple, stages)), tuple(are_whole))
        return StepResults(examples)

    def _run_row(self, inner: PipelineStep, values: tuple[Any, ...]) -> tuple[Any, bool]:
        model = inner.model
        if model is None:
            return _call_step(inner, values), False
        if len(values) != len(model.inputs):
            raise GraphError(
                f"the model has {format_count(len(model.inputs), 'input')}; a row has "
                + format_count(len(values), "value"),
                at=f"step {inner.name!r}",
                fix="have the callable before it return one array for each input, as a tuple",
            )
        has_axis = has_row_axis(model, values, inner.name)
        fed = dict(zip(model.inputs, values, strict=True))
        outputs = self._models.run(model, fed, inner.name, lacks_axis=has_axis is False)
        # Declared may be any length: recurrent networks have their steps along the first axis.
        have_axis = all(np.shape(output)[:1] == (1,) for output in outputs)
        if has_axis is False:
            if not have_axis:
                raise make_row_error(model, values, inner.name)
            outputs = tuple(output[0] for output in outputs)
        return outputs, bool(has_axis) and have_axis


def _copy_state(one: PipelineStep) -> PipelineStep:
    """Return `one` with a copy of an object that keeps state, so that items start with the old one.

    A class has an instance for each example.
    """
    if is_class(one.target):
        return replace(one, target=lambda *values: _make_instance(one)(*values))
    if has_state(one):
        return replace(one, target=_copy(one.function))
    return one


def _make_instance(one: PipelineStep) -> Any:
    try:
        return one.function()
    except Exception as error:
        raise GraphError(
            f"its class is called without arguments, and fails: {describe_error(error)}",
            at=f"step {one.name!r}",
            fix=f"give the arguments in a partial: pl.step(functools.partial({one.name}, ...))",
        ) from error


def _copy(value: Any) -> Any:
    with suppress(Exception):  # copying calls code of the user's
        return deepcopy(value)
    return value


def _call_step(one: PipelineStep, arguments: Sequence[Any]) -> Any:
    """Return the result for `arguments` of an item, which are a batch if `one` takes some."""
    if one.batch is None:
        return call_on_example(one.function, arguments, one.name)
    found = call_on_example(one.function, [[value] for value in arguments], one.name)
    return list_results(found, 1, one.name)[0]


def call_on_example(function: Callable[..., Any], arguments: Sequence[Any], step: str) -> Any:
    try:
        found = function(*arguments)
        if inspect.isawaitable(found) or inspect.isasyncgen(found):
            return _await_example(found, partial(function, *arguments))
        return list(map(copy_shared, found)) if inspect.isgenerator(found) else found
    except PlaitError:
        raise
    except Exception as error:
        raise GraphError(
            f"it fails on an example: {describe_error(error)}",
            at=describe_call(step, arguments),
            fix=suggest_copy(error)
            or "see what it gets: the results of the step before, or what inputs= names, such as "
            "inputs=['item.image', 'item.name'] for parts of a mapping",
        ) from error


def _explain_misfit(
    model: Graph, feeds: Mapping[str, Any], error: Exception, first: int
) -> tuple[str, str | None]:
    """Return which of `feeds` does not fit `model` and how to convert it; or the text of `error`.

    Feeds lack the axes of the model's inputs before axis number `first`.
    """
    for name, value in feeds.items():
        spec, got = model.tensors[name], name_type(value)
        wanted = TensorSpec(spec.dtype, spec.shape and spec.shape[first:])
        try:
            array = np.asarray(value)
        except Exception:
            return f"input {name!r} must be {wanted}, got {got}: {get_text(error)}", FIX_ARRAY
        if array.dtype == wanted.dtype and fits(array.shape, wanted.shape):
            continue
        what = f"input {name!r} must be {wanted}, got {got}"
        if array.dtype.kind in "OSTU":
            kind = "text" if wanted.dtype == TEXT else "numbers"
            return what, FIX_ARRAY.replace("numbers", kind)
        if not isinstance(value, np.ndarray):
            what += f", as an array {name_type(array)}"
        return what, _suggest_conversion(array, wanted)
    return getattr(error, "what", get_text(error)), getattr(error, "fix", None)


def _suggest_conversion(array: Array, wanted: TensorSpec) -> str:
    n, text = array.ndim, "value"
    if array.dtype != wanted.dtype:
        text = f"np.asarray(value, {name_of(wanted.dtype)!r})"
    swaps = ((2, 0, 1), (1, 2, 0)) if n >= 3 else ()  # of the last three axes
    layouts = [(*range(n - 3), *(n - 3 + axis for axis in one)) for one in swaps]
    for axes in (None, *layouts):
        found, moved = array.transpose(axes or range(n)), f".transpose{axes}" if axes else ""
        for one, rows in ((found, ""), (found[None], "[None]")):
            if fits(one.shape, wanted.shape):
                return f"convert it: {text}{moved}{rows}"
    return f"resize or reshape it to {list(wanted.shape or ())}, dtype {wanted.dtype.name}"


def join_rows(one: Each, rows: Sequence[Any], *, is_whole: bool) -> tuple[Any, ...]:
    """Return the results of all `rows` of an item: a list, or arrays if a model ends step `one`.

    Arrays of rows are joined along their first axis if `is_whole`, else stacked.
    """
    if one.steps[-1].model is None:
        return (list(rows),)
    if not rows:
        return (np.zeros(0, np.float32),)
    join = np.concatenate if is_whole else np.stack
    try:
        return tuple(join(list(map(np.asarray, parts))) for parts in zip(*rows, strict=True))
    except ValueError as error:
        raise GraphError(
            "the model's results for the rows differ in shape",
            at=f"step {one.name!r}",
            fix="name the length of its input that differs, each(..., batch=8, pad='width'), or "
            "call a BlockingSession of the model in a function, for one row",
        ) from error


def _check_listed(one: PipelineStep | Each) -> Any:
    if isinstance(one.inputs, Mapping):
        raise GraphError(
            "inputs= is a mapping, which is for models",
            at=f"step {one.name!r}",
            fix="list the values in the order of the arguments: inputs=['boxes', 'item']",
        )
    return one.inputs


def _to_results(found: Sequence[Any], step: str) -> StepResults:
    is_tuple = type(found[0]) is tuple and len(found[0]) > 0
    for one in found:
        if is_tuple != (type(one) is tuple and len(one) > 0) or (
            is_tuple and len(one) != len(found[0])
        ):
            raise GraphError(
                "it returns tuples of different lengths for the examples",
                at=f"step {step!r}",
                fix="return as many values each time, or a list",
            )
    return StepResults(tuple(one if is_tuple else (one,) for one in found), is_tuple=is_tuple)


def _await_example(found: Any, call: Callable[[], Any]) -> Any:
    """Await `found` under trio; if it needs asyncio, await the result of `call` there."""
    try:
        return block_on(partial(_await, found), "plait.pipeline()", "make pipelines elsewhere")
    except (RuntimeError, TypeError) as error:
        if not get_text(error).startswith(FOREIGN):
            raise
    import asyncio  # here: most pipelines do without

    if asyncio._get_running_loop() is None:
        return asyncio.run(_await(call()))
    with ThreadPoolExecutor(1) as beside:
        return beside.submit(asyncio.run, _await(call())).result()


async def _await(found: Any) -> Any:
    return [one async for one in found] if inspect.isasyncgen(found) else await found


def _is_taken(spec: TensorSpec, value: Any) -> bool:
    try:
        array = np.asarray(value)
    except Exception:  # of any library that has arrays
        return False
    return array.dtype == spec.dtype and fits(array.shape, spec.shape)
