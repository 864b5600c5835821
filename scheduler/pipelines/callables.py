"""Callables of any kind as the functions of operators."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import GeneratorType
from typing import Any, TypeAlias

import numpy as np

from ...graph.core.operator import is_operator
from ...graph.core.printing import format_count
from ...graph.functions.by_value import Sent
from ...graph.functions.function_state import find_code
from ...graph.functions.python import operator
from ...graph.operators.item_order import CALLS
from ...graph.values.errors import ErrorPlace, GraphError
from ...graph.values.tensor import Array, TensorSpec, name_type
from ..runtime.items.padding import Padding
from ..runtime.variables.keyed_states import KeyFailure
from .shared_values import copy_shared, own_result, own_rows
from .step_options import has_state
from .steps import PipelineStep

Function: TypeAlias = Callable[..., Any]

Calls: TypeAlias = Sequence[tuple[str, Function]]
"""Callables with the names of their steps; each gets the results of the one before."""

Making: TypeAlias = tuple[Callable[..., Function], tuple[Any, ...], Sequence[Function]]
"""How a function is made: by which function, from which parts, and the user's callables in them."""


def wrap_callable(target: Function, step: str, is_last: bool, keeps: bool = False) -> Function:
    """Return a function that calls `target` of any kind; a generator's values become one list.

    The next steps get the only element of a tuple of one, unless the step `is_last`. A target that
    `keeps` state may change its results in the next call: others get copies. Errors get a note that
    names the `step`.
    """
    call = find_code(target)
    yields, gathers = inspect.isgeneratorfunction(call), inspect.isasyncgenfunction(call)
    if gathers or inspect.iscoroutinefunction(call):

        async def wait(*values: Any) -> Any:
            try:
                found = target(*values)
                found = [copy_shared(one) async for one in found] if gathers else await found
            except Exception as error:
                error.add_note(describe_call(step, values))
                raise
            return found if is_last else _unpack(found)

        return wait

    def run(*values: Any) -> Any:
        try:
            found = own_result(target, *values) if keeps else target(*values)
            if yields:
                found = own_rows(found, values)
        except Exception as error:
            error.add_note(describe_call(step, values))
            raise
        return _unpack(found) if type(found) is tuple and not is_last else found

    return run


def wrap_class(make: Function, step: str, is_last: bool) -> Function:
    """Return a function of a state and values that calls the object that `make` made for `step`.

    The state keeps the object. `is_last` is that of `wrap_callable`.
    """

    def run(state: Any, *values: Any) -> Any:
        if isinstance(state, KeyFailure):
            raise state.error
        if step not in state:
            state[step] = wrap_callable(make(), step, is_last, keeps=True)
        return state[step](*values)

    return run


def pack_row(*values: Any) -> tuple[Any, ...]:
    return values


def pack_arguments(*values: Any) -> list[Any]:
    """Return `values`, the arguments of one item, as the only row of it."""
    return [values]


def wrap_batch(target: Function, step: str) -> Function:
    """Return a function of packed arguments that calls `target` of `step` once, with lists."""
    call = wrap_callable(target, step, True)

    async def wait(rows: Sequence[Any]) -> list[Any]:
        return list_results(await call(*_list_columns(rows)), len(rows), step)

    def run(rows: Sequence[Any]) -> list[Any]:
        return list_results(call(*_list_columns(rows)), len(rows), step)

    return wait if inspect.iscoroutinefunction(call) else run


def _list_columns(rows: Sequence[Any]) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)]


def list_results(found: Any, count: int, step: str) -> list[Any]:
    """Return the results of `step` for each of `count` items of a batch in a list.

    Raises GraphError if `found` is not a list, an array or a generator with an entry for each.
    """
    others = str, bytes, tuple, set, frozenset, Mapping
    is_table = hasattr(found, "columns")  # which yields their names
    is_listed = hasattr(found, "__iter__") and not isinstance(found, others) and not is_table
    listed = list(found) if is_listed else []
    if is_listed and len(listed) == count:
        return listed
    got = f"{len(listed)} results" if is_listed else f"a value of type {name_type(found)}"
    raise GraphError(
        f"it returns {got} for a batch of {format_count(count, 'item')}",
        at=f"step {step!r}",
        fix="with batch= it gets a list for each argument, and returns a list with an entry for "
        "each item; several results are a tuple there: list(zip(boxes, scores))",
    )


def describe_call(step: str, values: Sequence[Any]) -> ErrorPlace:
    return ErrorPlace(f"step {step!r} called with {', '.join(map(name_type, values)) or 'nothing'}")


def _unpack(found: Any) -> Any:
    return found[0] if type(found) is tuple and len(found) == 1 else found


Axes: TypeAlias = Sequence[int | None]
"""The padded axis of each tensor of rows, None without; empty where no row is padded."""


def list_calls(steps: Sequence[PipelineStep]) -> Calls:
    owned = (partial(own_result, one.function) if has_state(one) else one.function for one in steps)
    return [(one.name, call) for one, call in zip(steps, owned, strict=True)]


def make_row_generator(
    functions: Calls, n_parts: int, are_whole: bool, drops_axis: bool, cuts: Padding | None = None
) -> Function:
    """Return a generator function that calls `functions` for each row, and yields their results.

    The first `n_parts` arguments have the rows; the others go to the first function. If they
    `are_whole`, functions get rows with an axis of length 1 in front; with `drops_axis` the last
    function returns arrays with such an axis, which rows do not have. `cuts` is the padding to cut
    from the rows; a tensor of their lengths is the last argument.
    """

    def generate(*values: Any) -> Iterator[Any]:
        found_rows = _map_rows(functions, values, n_parts, are_whole, cuts)
        if not drops_axis:
            yield from map(_unpack, found_rows)
            return
        for number, found in enumerate(found_rows):
            made = split_result(found)
            if any(np.shape(one)[:1] != (1,) for one in made):
                raise GraphError(
                    f"row {number} is {', '.join(map(name_type, made))}",
                    fix="return an array for each input of the model, with a first axis of 1, as "
                    "for the example",
                )
            yield _unpack(tuple(one[0] for one in made))

    return generate


def make_row_stacker(
    pad: str, axes: Axes, specs: Sequence[TensorSpec], parts: tuple[Any, ...]
) -> Function:
    """Return a function that calls functions for each row, and stacks their results.

    Results are filled up along `axes`, which have the length `pad`, to the longest. `specs` are
    those of all stacked results, then that of the lengths before filling. `parts` are the arguments
    of `make_row_generator`.
    """
    generate = make_row_generator(*parts)
    inputs = {str(place): axis for place, axis in enumerate(axes) if axis is not None}
    padding = Padding(pad, inputs, {}, None)

    def stack(*values: Any) -> tuple[Array, ...]:
        made = map(split_result, generate(*values))
        rows = [{str(n): np.asarray(one)[None] for n, one in enumerate(row)} for row in made]
        if not rows:
            shapes = [[n if isinstance(n, int) else 1 for n in spec.shape or ()] for spec in specs]
            pairs = zip(shapes, specs, strict=True)
            return tuple(np.zeros((0, *shape[1:]), spec.dtype) for shape, spec in pairs)
        longest = max(row[name].shape[axis] for row in rows for name, axis in inputs.items())
        filled = [padding.fill(row, longest) for row in rows]
        columns = [np.concatenate([row[name] for row in filled]) for name in filled[0]]
        return (*columns, np.array([row.length for row in filled]))

    return stack


def make_row_mapper(
    functions: Calls, n_parts: int, are_whole: bool, cuts: Padding | None = None
) -> Function:
    """Return a function that calls `functions` for each row, and returns a list of their results.

    `n_parts`, `are_whole` and `cuts` are those of `make_row_generator`.
    """

    def map_rows(*values: Any) -> list[Any]:
        return list(_map_rows(functions, values, n_parts, are_whole, cuts))

    return map_rows


def make_operator(
    make: Callable[..., Function],
    parts: tuple[Any, ...],
    targets: Sequence[Function],
    step: PipelineStep,
    label: str,
    outputs: Sequence[TensorSpec],
    inputs: Sequence[TensorSpec],
) -> Function:
    """Make an operator called `label`, or ``label#2`` if there is one of that name.

    Two pipelines of one name may live side by side, so a name is not given away. `make` makes the
    function from `parts`, here and in workers; `targets` are the user's callables among them.
    `step` has the name and options, `outputs` and `inputs` are specs.
    """
    name, number = label, 1
    while is_operator(name):
        name, number = f"{label}#{number + 1}", number + 1
    function = make(*parts)
    function.__name__ = function.__qualname__ = step.name
    arguments: dict[str, Any] = {
        "outputs": list(outputs),
        "inputs": list(inputs),
        "name": name,
        "effects": bool(step.ordered),
        "ordered": step.ordered,
        "concurrency": step.concurrency,
    }
    modules = tuple(dict.fromkeys(name for target in targets for name in _find_modules(target)))
    function.__module__ = modules[0] if modules else __name__
    setattr(function, CALLS, tuple(targets))
    sent = Sent(name, make, parts, arguments, modules, targets)
    return operator(**arguments, by_value=sent)(function)


def _find_modules(target: Any) -> Iterator[str]:
    if isinstance(target, partial):
        for part in (target.func, *target.args, *target.keywords.values()):
            yield from _find_modules(part)
    else:
        yield getattr(target, "__module__", None) or type(target).__module__


def check_synchronous(target: Function, step: str) -> None:
    """Raise GraphError if `target` of `step` is async, which `each` cannot call row by row."""
    call = find_code(target)
    if inspect.iscoroutinefunction(call) or inspect.isasyncgenfunction(call):
        raise GraphError(
            "each() calls it for every row, and it is async",
            at=f"step {step!r}",
            fix="wait for all rows in one step: an async function that takes the list",
        )


def split_result(found: Any) -> tuple[Any, ...]:
    return found if type(found) is tuple and found else (found,)


def iterate_rows(rows: Any, at: str | None = None) -> Iterator[Any]:
    """Return an iterator of `rows`, a list, an array, or anything else that has some.

    Raises GraphError with the place `at` if it has none.
    """
    try:
        return iter(rows)
    except TypeError as error:
        raise GraphError(
            f"the value is {name_type(rows)}, which has no rows",
            at=at,
            fix="have the step before return a list or an array",
        ) from error


def _map_rows(
    functions: Calls, values: Sequence[Any], n_parts: int, are_whole: bool, cuts: Padding | None
) -> Iterator[Any]:
    parts, shared = values[:n_parts], values[n_parts:]
    rows: Iterable[tuple[Any, ...]] = zip(*map(iterate_rows, parts), strict=True)
    if cuts is not None:
        rows = _cut_rows(parts, are_whole, cuts)
    elif are_whole:
        count = len(parts[0])
        rows = (tuple(one[n : n + 1] for one in parts) for n in range(count))
    for number, made in enumerate(rows):
        found: Any = made
        more: Sequence[Any] = shared
        for step, function in functions:
            try:
                found = function(*made, *more)
                if isinstance(found, GeneratorType):
                    found = own_rows(found, (*made, *more))
            except Exception as error:
                error.add_note(ErrorPlace(f"row {number}, {describe_call(step, (*made, *more))}"))
                raise
            made, more = found if type(found) is tuple and found else (found,), ()
        yield found


def _cut_rows(parts: Sequence[Any], are_whole: bool, cuts: Padding) -> Iterator[tuple[Any, ...]]:
    for row, length in enumerate(parts[-1]):
        wholes = enumerate(one[row : row + 1] for one in parts[:-1])
        made = tuple(cuts.cut(str(number), one, length) for number, one in wholes)
        yield made if are_whole else tuple(one[0] for one in made)
