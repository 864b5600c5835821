"""Steps of programs that call Python functions: their arguments and results."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import isasyncgenfunction, iscoroutinefunction
from itertools import accumulate
from typing import Any, Protocol, TypeAlias

import numpy as np

from ..graph.core.ir import Node
from ..graph.core.nested import call_graph
from ..graph.core.operator import Operator
from ..graph.functions.generators import (
    RowTarget,
    RowWriter,
    gather_rows_async,
    is_generator,
)
from ..graph.functions.operator_lifecycle import OperatorLifecycle
from ..graph.functions.python import AsArray, check_results, check_within
from ..graph.operators.bounded_call import get_called_node, infer_lengths
from ..graph.operators.each import EACH
from ..graph.operators.reduce_rows import RowReducer, list_row_specs
from ..graph.values.dtypes import OBJECT, has_objects, hold_object, hold_objects
from ..graph.values.errors import GraphError
from ..graph.values.tensor import Array, TensorSpec, read_only, shorten_array, spec_of
from .donation import check_unshared
from .event import CancelledWorkError, Event
from .function_habits import (
    Argument,
    CopiedInputs,
    HeldValue,
    LentInputs,
    TrustedInputs,
    find_habits,
    read_values,
    run_in_turn,
)
from .memory import View

Step: TypeAlias = Callable[[], Any]

UNSTOPPED = Event()
"""The event of programs that cannot be cancelled."""


class Running(Protocol):
    """The parts of an event that a program uses."""

    node_ns: tuple[int, ...] | None

    @property
    def cancelled(self) -> bool: ...


class AwaitedStep:
    """A call of an async function: `fetch` awaits it, and the step stores the results.

    Parameters
    ----------
    storing : callable
        Returns a step that stores the results of a call.
    target : RowTarget, optional
        Receives the rows of an async generator function.
    """

    def __init__(
        self,
        call: Callable[[], Awaitable[Any]],
        storing: Callable[[Callable[[], Any]], Step],
        target: RowTarget | None = None,
    ) -> None:
        self.target = target
        self._call = call
        # In a list: if the storing step referred to this one, arrays would be in a cycle.
        results = self._results = list[Any]()
        self._store = storing(results.pop)

    async def fetch(self) -> None:
        self._results[:] = [await self._call()]

    def __call__(self) -> None:
        self._store()


@dataclass(slots=True, eq=False)
class GeneratorStep:
    """A call of a generator function; its rows are written to the results or folded.

    Parameters
    ----------
    call : callable
        Returns the generator, for bound arrays.
    store : callable
        Called with the written results.
    """

    _call: Callable[[], Generator[Any, None, Any]]
    target: RowTarget
    _store: Callable[[tuple[Array | None, ...]], None]
    event: Running = UNSTOPPED
    """The event of the enclosing program; cancelling it ends the generator."""

    def __call__(self) -> None:
        self._store(self._gather())

    def _gather(self) -> tuple[Array | None, ...]:
        generator, target, event = self._call(), self.target, self.event
        target.restart()
        try:
            for value in generator:
                target.put(value)
                if event.cancelled:
                    raise CancelledWorkError("the work was cancelled in a generator function")
        finally:
            generator.close()
        return target.written()


def find_array(
    name: str, views: Mapping[str, View], constants: Mapping[str, Array]
) -> Array | None:
    if not name:
        return None
    return constants[name] if name in constants else views[name].array


def find_function(node: Node, living: Mapping[str, OperatorLifecycle] | None) -> Callable[..., Any]:
    if node.operator.owns:
        assert living is not None, f"{node} is on a device that keeps no lives"
        return living[node.name].run
    function = node.operator.function
    assert function is not None
    return function


def bind_function(
    node: Node,
    function: Callable[..., Any],
    views: Mapping[str, View],
    constants: Mapping[str, Array],
    specs: list[TensorSpec | None],
    as_array: AsArray = np.asarray,
) -> Step:
    """Return a step of `node` that calls `function` on read-only `views` and `constants`.

    It checks results by `specs`, and makes them arrays like those of `views` by `as_array`.
    """
    label = str(node)
    outputs = [views[name] if name else None for name in node.outputs]

    def check(results: Any) -> Sequence[Array]:
        return check_results(label, results, specs, as_array)

    return _bind_checked(node, function, views, constants, outputs, check)


def bind_bounded(node: Node, views: Mapping[str, View], constants: Mapping[str, Array]) -> Step:
    """Return a step of `node` that calls its function, with results of bounded lengths.

    Inputs and outputs are in `views` and `constants`.
    """
    inner = get_called_node(node)
    label, function = str(inner), inner.operator.function
    assert function is not None
    dims = infer_lengths(node, _list_specs(node, views, constants))
    *outputs, shapes = (views[name] for name in node.outputs)
    largest = [view.array for view in outputs]

    def check(results: Any) -> Sequence[Array]:
        arrays, shapes.array[...] = check_within(label, results, largest, dims)
        return arrays

    firsts = _list_first_dims(dims, largest)
    return _bind_checked(inner, function, views, constants, outputs, check, firsts)


def _bind_checked(
    node: Node,
    function: Callable[..., Any],
    views: Mapping[str, View],
    constants: Mapping[str, Array],
    outputs: Sequence[View | None],
    check: Callable[[Any], Sequence[Array]],
    firsts: Sequence[str] = (),
) -> Step:
    label, attributes, habits = str(node), node.arguments, find_habits(function)
    hold = _find_holder(label, [None if view is None else view.spec for view in outputs])
    inputs = _lend_inputs(
        label, node.operator, node.inputs, views, constants, function, copies=hold is not None
    )
    targets = [(index, view) for index, view in enumerate(outputs) if view is not None]
    is_coroutine, is_generating = iscoroutinefunction(function), is_generator(function)
    are_objects = hold is not None and all(_is_object(view) for _, view in targets)
    if are_objects and not (is_coroutine or is_generating):
        called = partial(function, **attributes) if attributes else function
        return _bind_objects(called, inputs, outputs, check)

    def call() -> Any:
        return function(*inputs.take(), **attributes)

    if is_generating:
        largest = [None if view is None else view.array for view in outputs]

        # Each row was checked on arrival; all of them may be fewer than declared.
        def store(written: tuple[Array | None, ...]) -> None:
            arrays = check(written)
            for index, view in targets:
                _hold(view, arrays[index])
            inputs.check()

        return _bind_rows(function, call, RowWriter(label, largest, firsts), store)

    def storing(call: Callable[[], Any]) -> Step:
        def run() -> None:
            results = call()
            if hold is not None:
                results = hold(results)
            are_free = check_unshared(results)
            is_known = habits.returns_kept or all(are_free)
            shared = () if is_known else inputs.find_shared(results)
            arrays = check(results)
            for index, view in targets:
                _put(view, arrays[index], is_free=are_free[index])
            if shared:
                del results, arrays
                habits.note_results(label, shared)

        return partial(run_in_turn, habits, inputs, run)

    return AwaitedStep(call, storing) if is_coroutine else storing(call)


def _is_object(view: View) -> bool:
    return view.spec.rank == 0 and has_objects(view.spec.dtype)


def _bind_objects(
    function: Callable[..., Any],
    inputs: LentInputs,
    outputs: Sequence[View | None],
    check: Callable[[Any], Sequence[Array]],
) -> Step:
    """Return a step that calls `function` on `inputs`, and puts its objects in `outputs`.

    `check` raises if they are wrong.
    """

    def run() -> None:
        results = function(*inputs.take())
        if len(outputs) == 1:
            results = (results,)
        elif not isinstance(results, tuple) or len(results) != len(outputs):
            check(results)
        for view, value in zip(outputs, results, strict=True):
            if view is not None:
                view.array[()] = value

    return run


def _bind_rows(
    function: Callable[..., Any],
    call: Callable[[], Any],
    target: RowTarget,
    store: Callable[[tuple[Array | None, ...]], None],
) -> Step:
    if not isasyncgenfunction(function):
        return GeneratorStep(call, target, store)
    return AwaitedStep(
        lambda: gather_rows_async(call(), target), lambda one: lambda: store(one()), target
    )


def bind_reduced(node: Node, views: Mapping[str, View], constants: Mapping[str, Array]) -> Step:
    """Return a step of `node` that folds each row of its generator function.

    Inputs and outputs are in `views` and `constants`.
    """
    inner = call_graph(node.attributes["body"], _list_specs(node, views, constants))
    # Inside, inputs have the names of when the two became one; here others may be called so by now.
    outside = {"": "", **dict(zip(inner.inputs, node.inputs, strict=True))}
    generator, reduction = inner.nodes
    function, attributes = generator.operator.function, generator.arguments
    assert function is not None
    count = len(node.outputs)
    outputs = [views[name] for name in node.outputs]
    names = [outside[name] for name in generator.inputs]
    inputs = _lend_inputs(str(node), generator.operator, names, views, constants, function)
    initial = _list_arguments(
        [outside[name] for name in reduction.inputs[:count]], views, constants
    )

    def call() -> Any:
        return function(*inputs.take(), **attributes)

    def store(values: tuple[Array | None, ...]) -> None:
        for view, value in zip(outputs, values, strict=True):
            assert value is not None
            _put(view, value, is_free=False)  # the function that folds may keep its results
        inputs.check()

    (fold,) = reduction.attributes["body"].nodes
    target = RowReducer(
        fold,
        states=[view.spec for view in outputs],
        rows=list_row_specs([inner.tensors.get(name) for name in generator.outputs]),
        picks=[generator.outputs.index(name) for name in reduction.inputs[count:]],
        initial=lambda: [one for one in read_values(initial) if one is not None],
    )
    return _bind_rows(function, call, target, store)


def _list_specs(
    node: Node, views: Mapping[str, View], constants: Mapping[str, Array]
) -> list[TensorSpec]:
    return [views[name].spec if name in views else spec_of(constants[name]) for name in node.inputs]


def _list_first_dims(dims: Sequence[str], largest: Sequence[Array]) -> list[str]:
    """Return each result's first dimension of `dims`, given `largest` arrays; "" for a number."""
    places = accumulate((array.ndim for array in largest[:-1]), initial=0)
    return [dims[n] if array.ndim else "" for n, array in zip(places, largest, strict=True)]


def _hold(view: View, array: Array | None) -> None:
    """Make readers of `view` use `array`, to which a result was written, unless it is None."""
    if view.donation is not None and array is not None:
        view.donation.array, view.donation.is_given = array, False


def _put(view: View, array: Array, *, is_free: bool) -> None:
    """Donate `array`, a result, to `view` if it `is_free`; else copy it there."""
    # Free: nothing else writes to it, so that readers can use it in place.
    donation = view.donation
    fits = array.dtype == view.array.dtype
    if is_free and fits and donation and (array.flags.c_contiguous or not donation.is_read):
        donation.array, donation.is_given = array, True
        return
    # Bounded results may be shorter than the memory planned for them.
    target = shorten_array(view.array, array.shape)
    target[...] = array
    if donation is not None:
        donation.array, donation.is_given = target, False


def _list_arguments(
    names: Sequence[str], views: Mapping[str, View], constants: Mapping[str, Array]
) -> list[Argument]:
    found: list[Argument] = []
    for name in names:
        view = views.get(name)
        if view is not None and has_objects(view.spec.dtype):
            found.append(HeldValue(view))
            continue
        donation = None if view is None else view.donation
        array = find_array(name, views, constants)
        found.append(donation or (None if array is None else read_only(array)))
    # So that the defaults of the function's own signature hold.
    while found and found[-1] is None:
        found.pop()
    return found


def _lend_inputs(
    label: str,
    operator: Operator,
    names: Sequence[str],
    views: Mapping[str, View],
    constants: Mapping[str, Array],
    function: Callable[..., Any],
    *,
    copies: bool = False,
) -> LentInputs:
    arguments = _list_arguments(names, views, constants)
    lasting = [index for index, name in enumerate(names) if name in constants]
    habits = find_habits(function)
    if operator.name == EACH:
        return TrustedInputs(label, operator.name_input, arguments, (), habits)
    copies = copies or all(isinstance(one, HeldValue | None) for one in arguments)
    kind = CopiedInputs if copies else LentInputs
    return kind(label, operator.name_input, arguments, lasting, habits)


def _find_holder(at: str, specs: Sequence[TensorSpec | None]) -> Callable[[Any], Any] | None:
    """Return a function that wraps results in arrays where `specs` are of objects, and returns all.

    None without objects. A tuple is one result where one is declared; errors name the node `at`.
    """
    ranks = [spec.rank if spec is not None and has_objects(spec.dtype) else None for spec in specs]
    if not any(rank is not None for rank in ranks):
        return None

    def hold(results: Any) -> Any:
        if len(ranks) == 1:
            return _to_array(at, 0, results, ranks[0])
        if not isinstance(results, tuple) or len(results) != len(ranks):
            return results  # which the check of results describes
        pairs = enumerate(zip(results, ranks, strict=True))
        return tuple(_to_array(at, index, one, rank) for index, (one, rank) in pairs)

    return hold


def _to_array(at: str, index: int, value: Any, rank: int | None) -> Any:
    """Return `value`, result number `index`, as an array of objects if `rank` is not None.

    Errors name the node `at`.
    """
    if rank is None:
        return value
    if rank == 0:
        return hold_object(value)
    if isinstance(value, np.ndarray) and value.ndim == rank and value.dtype.hasobject:
        return value.view(OBJECT)
    try:
        return hold_objects(list(value))
    except TypeError as error:
        raise GraphError(
            f"output {index} of the function is a {type(value).__name__}, declared were rows of "
            "objects",
            at=at,
            fix="return a list, or declare one object: TensorSpec('object', ())",
        ) from error
