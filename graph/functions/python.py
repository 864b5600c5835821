"""Python functions as operators: `@operator` turns a function over arrays into one.

A graph names such an operator, never its code: loading a graph needs the function registered, or
offered by an installed package; nothing else is imported because a file names it. Operators that
own resources are classes: see `plait.operators.OperatorLifecycle`.
"""

from __future__ import annotations

import inspect
import sys
import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np

from ..core.attribute import LENGTHS, RESERVED, Attribute, Kind
from ..core.operator import Call, InferRule, Operator, elements, register_operator
from ..core.traits import NO_TRAITS, Trait
from ..values.dims import broadcast, to_computable
from ..values.dtypes import TEXT, has_objects, to_text
from ..values.errors import Argument, Fix, GraphError, OperatorError, ShapeError
from ..values.tensor import Array, Dim, TensorSpec, is_same_dtype, list_symbols, name_type
from .generators import check_has_rows, is_generator
from .operator_lifecycle import OperatorLifecycle, check_class, get_run
from .python_options import check_arrays, check_order, choose_concurrency

if TYPE_CHECKING:
    from .by_value import Sent

Function = TypeVar("Function", bound=Callable[..., Any])
AsArray: TypeAlias = Callable[[Any], Array]
"""Converts a function's result to an array."""

_by_function: dict[Callable[..., Any], Operator] = {}


def operator(
    outputs: TensorSpec | Sequence[TensorSpec] | Callable[..., Any] | None = None,
    *,
    inputs: Sequence[TensorSpec] | None = None,
    n_outputs: int | None = None,
    name: str | None = None,
    effects: bool = False,
    traits: Trait = NO_TRAITS,
    concurrency: int | None = None,
    by_value: bool | Sent = False,
    arrays: str = "host",
    ordered: bool | None = None,
) -> Callable[[Function], Function]:
    """Turn a function over numpy arrays, or a class with a method `run`, into an operator.

    The function's positional parameters are the inputs, its keyword-only parameters the attributes.
    Attributes are int, float, bool, str, or sequences of one of these, which the function gets as
    tuples; their annotations give the types, or else their defaults. An attribute that may be None
    is optional. The function returns an array, or a tuple of arrays if it has several outputs. It
    must not write to its inputs, and may run in another process.

    An ``async def`` function is awaited on the session's event loop instead: while it waits it
    blocks no thread and no device, and it is cancelled with its item.

    A generator function, asynchronous or not, yields its results row by row. They are declared with
    a first axis of a length that is bounded when planning; each yielded value is a row, or a tuple
    with one row of each result. The generator is closed when the bound is exceeded or its item is
    cancelled.

    A class may have `prepare(call, check)`, which checks a node and returns its outputs' specs or
    None, `open(inputs)` and `close()`: each node has an instance as long as a plan is open.

    Parameters
    ----------
    outputs : TensorSpec, sequence of TensorSpec, callable or None
        The results. `inputs` binds symbolic dimensions. A callable gets the input specs and the
        attributes and returns specs; it can compute with symbolic lengths by ``+ - * // %``. None:
        one output like the inputs broadcast together.
    inputs : sequence of TensorSpec, optional
        The inputs; checked when the graph is built.
    n_outputs : int, optional
        The number of outputs; needed only if `outputs` is a callable and there is not exactly one.
    name : str, optional
        The operator's name, ``module.function`` by default. A saved graph holds this name.
    effects : bool, default False
        True if the function must run even if nothing reads its outputs, and for one item after the
        other, in order. Other functions may run on any thread, and for several items at once if
        devices have replicas. Async functions with effects are called for one item at a time,
        unless `concurrency` is given.
    traits : Trait, optional
        Facts that passes rely on, of `plait.operators.traits`: with ``ELEMENTWISE``, a Transpose
        may be moved from before the function to after it.
    concurrency : int, optional
        The largest number of simultaneous calls of an async function in a session, over all items
        and nodes; calls of older items begin first. By default, every item in flight may call it.
    by_value : bool, default False
        Send the function itself, and everything that it refers to, to workers and hosts, which
        otherwise import its module: for functions of a notebook or an interactive session. It needs
        the extra ``[notebook]``. The state that it refers to is that of when it was first sent.
    arrays : {"host", "cuda"}
        The memory of the arrays that the function takes and returns. With ``"cuda"`` it gets CuPy's
        arrays, may return those of any library on the GPU, such as PyTorch's, and runs on the
        device ``worker:cuda:N`` only.
    ordered : bool, optional
        Whether the function is called for one item after the other, in the order of the items, even
        if devices have replicas: for functions that keep something from one item to the next. All
        other work of the items overlaps. By default, functions with effects are ordered, and those
        that visibly keep state: in a global, or in a variable of an enclosing function.

    Raises
    ------
    GraphError
        If the name is taken by another function.
    OperatorError
        If a parameter cannot be an input or attribute, or `concurrency` or `arrays` is invalid.

    Examples
    --------
    >>> import plait as pl
    >>> @pl.operator(pl.TensorSpec("float32", ("n",)), inputs=[pl.TensorSpec("uint8", ("n",))])
    ... def scale(pixels: np.ndarray, *, by: float = 255.0) -> np.ndarray:
    ...     return (pixels / by).astype("float32")
    >>> @pl.operator(lambda x: pl.TensorSpec(x.dtype, (x.shape[0] // 2, *x.shape[1:])))
    ... def halve(x: np.ndarray) -> np.ndarray:
    ...     return x[: len(x) // 2]
    >>> builder = pl.GraphBuilder("half")
    >>> builder.output("y", builder.call(halve, builder.input("x", "float32", ("n", 3))))
    >>> print(builder.build().tensors["y"])
    float32[n//2, 3]
    """
    module = sys._getframe(1).f_globals.get("__name__", "")  # the function may be of another one

    def decorate(function: Function) -> Function:
        made = _make(function, name, outputs, inputs, n_outputs, effects, traits)
        limit = choose_concurrency(made, concurrency)
        check_arrays(made, arrays)
        value: Callable[[], bytes] | None = None
        if not isinstance(by_value, bool):
            value = by_value
        elif by_value:
            from .by_value import pickle_lazily

            options: dict[str, Any] = {"traits": traits, "concurrency": concurrency}
            options |= {"effects": effects, "arrays": arrays, "ordered": ordered}
            specs = {"outputs": outputs, "inputs": inputs, "n_outputs": n_outputs}
            value = pickle_lazily(function, {"name": made.name, **specs, **options})
        made = replace(made, module=module, concurrency=limit, by_value=value, arrays=arrays)
        made = replace(made, ordered=check_order(made, ordered, concurrency))
        register_operator(made)
        _by_function[function] = made
        return function

    return decorate


def get_operator(function: Callable[..., Any]) -> Operator:
    """Return the operator of the decorated `function`; raises OperatorError for any other."""
    try:
        return _by_function[function]
    except (KeyError, TypeError):
        label = getattr(function, "__qualname__", repr(function))
        raise OperatorError(
            f"{label} is not an operator", fix="decorate it with @plait.operator(outputs)"
        ) from None


def _check_function(function: Any) -> None:
    is_class = isinstance(function, type)
    if is_class:
        check_class(function)
        function = get_run(function)
    if not inspect.isfunction(function):
        raise OperatorError(
            f"{function!r} is not a function", fix="decorate a function made with def"
        )
    if is_class and is_generator(function):
        raise OperatorError(
            f"{function.__qualname__} is a generator",
            fix="return arrays from it, or decorate a generator function instead of a class",
        )
    if is_class and inspect.iscoroutinefunction(function):
        raise OperatorError(
            f"{function.__qualname__} is asynchronous",
            fix="make it ordinary, or decorate an async function instead of a class",
        )


def _make(
    function: Callable[..., Any],
    name: str | None,
    outputs: Any,
    inputs: Sequence[TensorSpec] | None,
    n_outputs: int | None,
    effects: bool,
    traits: Trait,
) -> Operator:
    _check_function(function)
    label = name if name is not None else f"{function.__module__}.{function.__qualname__}"
    formals: list[str] = []
    attributes: dict[str, Attribute] = {}
    for parameter in _list_parameters(function):
        if parameter.kind is parameter.KEYWORD_ONLY:
            attributes[parameter.name] = _attribute(label, function, parameter)
        elif parameter.kind is parameter.VAR_POSITIONAL:
            formals.append(f"{parameter.name}*")
        elif parameter.kind is parameter.VAR_KEYWORD:
            raise OperatorError(
                f"operator {label!r} takes **{parameter.name}",
                fix="list its attributes as keyword-only parameters",
            )
        else:
            optional = "?" if parameter.default is not parameter.empty else ""
            formals.append(parameter.name + optional)
    count = n_outputs or (len(outputs) if isinstance(outputs, Sequence) else 1)
    if count == 0:
        raise OperatorError(
            f"operator {label!r} declares no output",
            fix="return something, if only a flag: a node is known by what it writes",
        )
    if isinstance(outputs, Sequence) and not all(isinstance(one, TensorSpec) for one in outputs):
        raise OperatorError(
            f"the outputs of operator {label!r} are {outputs!r}",
            fix='declare specs: outputs=TensorSpec("float32", ("n", 3))',
        )
    if inspect.iscoroutinefunction(outputs) or is_generator(outputs):
        raise OperatorError(
            f"the outputs of operator {label!r} are given by an async or generator function",
            fix="use an ordinary function: it is called while a graph is built",
        )
    if not isinstance(function, type) and _may_decide_lengths(outputs, inputs):
        attributes[LENGTHS] = Attribute(Kind.STRINGS, ())
    names = " ".join(f"y{i}" for i in range(count)) if count > 1 else "y"
    rule = _make_rule(label, outputs, inputs)
    if is_generator(function):
        rule = _with_rows(label, rule)
    return Operator(
        label,
        " ".join(formals),
        names,
        attributes,
        _make_class_rule(label, function, rule) if isinstance(function, type) else rule,
        elements,
        effects=effects,
        function=function,
        traits=traits,
        declared=tuple(inputs or ()),
    )


def _list_parameters(function: Any) -> list[inspect.Parameter]:
    """Return the parameters of `function`, or those of a class's `run` but for its first one."""
    if isinstance(function, type):
        return list(inspect.signature(get_run(function)).parameters.values())[1:]
    return list(inspect.signature(function).parameters.values())


_KINDS: dict[type, Kind] = {bool: Kind.BOOL, int: Kind.INT, float: Kind.FLOAT, str: Kind.STRING}
_SEQUENCES = {
    Kind.BOOL: Kind.BOOLS,
    Kind.INT: Kind.INTS,
    Kind.FLOAT: Kind.FLOATS,
    Kind.STRING: Kind.STRINGS,
}


def _attribute(label: str, function: Any, parameter: inspect.Parameter) -> Attribute:
    """Return the attribute for keyword-only `parameter`, by its annotation or else its default."""
    if parameter.name in RESERVED:
        raise OperatorError(
            f"operator {label!r} cannot have an attribute {parameter.name!r}",
            fix="rename the parameter: GraphBuilder.call uses this word itself",
        )
    default = parameter.default
    kind, may_be_none = _read_annotation(_evaluate(parameter.annotation, function))
    if kind is None:
        kind = _get_kind_of_value(default)
    if kind is None:
        raise OperatorError(
            f"parameter {parameter.name!r} of operator {label!r} cannot be an attribute",
            fix="annotate it, or give a default: an int, float, bool, str, or a tuple of those",
        )
    if default is parameter.empty:
        return Attribute(kind, None) if may_be_none else Attribute(kind)
    if default is None:
        return Attribute(kind, None)
    at = f"the default of parameter {parameter.name!r}"
    return Attribute(kind, Attribute(kind).complete(label, parameter.name, default, at))


def _evaluate(annotation: Any, function: Any) -> Any:
    """Evaluate an `annotation` of `function` that may be a string, as after `from __future__`."""
    if not isinstance(annotation, str):
        return annotation
    # Decorators may wrap a function into one of another module: names are those of the inner.
    owner = get_run(function) if isinstance(function, type) else function
    try:
        # Text of the function's own source, which Python has run already: no file's, no feed's.
        return eval(annotation, inspect.unwrap(owner).__globals__)
    except Exception:  # names that are only imported for type checkers are missing
        return inspect.Parameter.empty


def _read_annotation(annotation: Any) -> tuple[Kind | None, bool]:
    """Return the kind of attribute that `annotation` means, if any, and whether it may be None."""
    parts = typing.get_args(annotation)
    origin = typing.get_origin(annotation)
    if origin in (types.UnionType, typing.Union):
        # `int | None` may be absent. Two types are ambiguous.
        others = [part for part in parts if part is not type(None)]
        kind = _read_annotation(others[0])[0] if len(others) == 1 else None
        return kind, len(others) < len(parts)
    if origin in (tuple, list, Sequence):
        kinds = {_get_kind_of_type(part) for part in parts if part is not Ellipsis}
        kind = kinds.pop() if len(kinds) == 1 else None
        return (None if kind is None else _SEQUENCES[kind]), False
    return _get_kind_of_type(annotation), False


def _get_kind_of_type(annotation: Any) -> Kind | None:
    return _KINDS.get(annotation) if isinstance(annotation, type) else None


def _get_kind_of_value(value: Any) -> Kind | None:
    if isinstance(value, tuple) and value and type(value[0]) in _KINDS:
        return _SEQUENCES[_KINDS[type(value[0])]]
    return _KINDS.get(type(value))


def _make_rule(label: str, outputs: Any, inputs: Sequence[TensorSpec] | None) -> InferRule:
    def told(call: Call) -> Sequence[TensorSpec]:
        attributes = {name: value for name, value in call.attributes.items() if name != LENGTHS}
        made = outputs(*call.inputs, **attributes)
        return (made,) if isinstance(made, TensorSpec) else tuple(made)

    def infer(call: Call) -> Sequence[TensorSpec]:
        # Inputs first: lengths of the outputs may be symbols of the inputs.
        symbols = _bind(label, inputs, call) if inputs is not None else {}
        if outputs is None:
            return _infer_like_inputs(label, call)
        own = call.attributes.get(LENGTHS, ())  # pairs of declared name and name
        names = {**dict(zip(own[::2], own[1::2], strict=True)), **symbols}
        if callable(outputs):
            return tuple(_substitute(spec, names) for spec in _answer(told, call) or ())
        declared = (outputs,) if isinstance(outputs, TensorSpec) else outputs
        return tuple(_substitute(spec, names) for spec in declared)

    return infer


def _may_decide_lengths(outputs: Any, inputs: Sequence[TensorSpec] | None) -> bool:
    if outputs is None or callable(outputs):
        return outputs is not None
    declared = (outputs,) if isinstance(outputs, TensorSpec) else outputs
    return not list_symbols(declared).keys() <= list_symbols(inputs or ()).keys()


def _with_rows(label: str, declared: InferRule) -> InferRule:
    def infer(call: Call) -> Sequence[TensorSpec]:
        specs = declared(call)
        check_has_rows(label, specs)
        return specs

    return infer


def _make_class_rule(label: str, kind: type, declared: InferRule) -> InferRule:
    def infer(call: Call) -> Sequence[TensorSpec]:
        specs = _answer(OperatorLifecycle(kind, label).prepare, call)
        return declared(call) if specs is None else specs

    return infer


def _answer(
    rule: Callable[[Call], Sequence[TensorSpec] | None], call: Call
) -> Sequence[TensorSpec] | None:
    """Return the result of a user's `rule` for `call`; it can compute with symbolic lengths."""
    # Lengths that are numbers need no wrapping, and most are: rules are asked for each node.
    if all(spec is None or spec.is_static for spec in call.inputs):
        return rule(call)
    specs = rule(replace(call, inputs=tuple(spec and to_computable(spec) for spec in call.inputs)))
    return specs and tuple(TensorSpec(spec.dtype, spec.shape) for spec in specs)


def _bind(label: str, inputs: Sequence[TensorSpec], call: Call) -> dict[str, Dim]:
    """Match specs in `call` with the declared `inputs` of `label`; return each symbol's value."""
    symbols: dict[str, Dim] = {}
    for index, (wanted, got) in enumerate(zip(inputs, call.inputs, strict=False)):
        if got is not None and not _matches(wanted, got, symbols):
            raise ShapeError(
                f"input {index} of {label} must be {wanted}, got {got}",
                fix="insert a Cast or Reshape, or correct the operator's declaration",
            )
    return symbols


def _matches(wanted: TensorSpec, got: TensorSpec, symbols: dict[str, Dim]) -> bool:
    if not is_same_dtype(got, wanted):
        return False
    if got.shape is None or wanted.shape is None:
        return True
    if len(got.shape) != len(wanted.shape):
        return False
    # A symbol stands for the first length that it meets, and must for all that follow.
    for want, have in zip(wanted.shape, got.shape, strict=True):
        bound = symbols.setdefault(want, have) if isinstance(want, str) else want
        if isinstance(bound, int) and isinstance(have, int) and bound != have:
            return False
    return True


def _substitute(spec: TensorSpec, symbols: dict[str, Dim]) -> TensorSpec:
    if spec.shape is None:
        return spec
    dims = (symbols.get(dim, dim) if isinstance(dim, str) else dim for dim in spec.shape)
    return TensorSpec(spec.dtype, tuple(dims))


def _infer_like_inputs(label: str, call: Call) -> Sequence[TensorSpec]:
    present = [spec for spec in call.inputs if spec is not None]
    if not present:
        raise ShapeError(f"{label} has no inputs to infer its output from", fix="declare outputs")
    # As numpy would compute it: most functions that declare nothing are made of its operators.
    dtype = np.result_type(*(spec.dtype for spec in present))
    if any(spec.shape is None for spec in present):
        return (TensorSpec(dtype, None),)
    return (TensorSpec(dtype, broadcast([spec.shape or () for spec in present])),)


def _to_arrays(
    at: str,
    results: Sequence[Any],
    dtypes: Sequence[np.dtype[Any] | None],
    as_array: AsArray = np.asarray,
) -> tuple[Array, ...]:
    """Convert `results` by `as_array`, and those that `dtypes` declare text to the dtype `TEXT`."""
    arrays = list(map(as_array, results))
    for index, dtype in enumerate(dtypes):
        if arrays[index].dtype.kind == "T":  # of StringDType, which has no byte order
            arrays[index] = to_text(arrays[index])
        if dtype == TEXT and not has_objects(dtype):  # not so where it is None
            array = to_text(arrays[index])
            if array is None:
                raise GraphError(
                    f"output {index} of the function is not only text, as was declared",
                    at=at,
                    fix="return an array of str: np.array(words)",
                )
            arrays[index] = array
    return tuple(arrays)


FIX_SYMBOL = (
    "return as many, or declare another symbol; lengths that are equal in all examples= of a "
    "pipeline are one symbol: add an example in which they differ"
)


def check_within(
    at: str, results: Any, largest: Sequence[Array], dims: Sequence[str]
) -> tuple[tuple[Array, ...], list[int]]:
    """Return `results` of a function as arrays that fit into `largest`, and all their lengths.

    `dims` are the declared dims of all results in one row. Raises GraphError with the place `at` if
    there are too few or too many, or one has another dtype than was declared, or is larger.
    """
    given = results if isinstance(results, tuple) else (results,)
    if len(given) != len(largest):
        raise _count_error(at, results, len(largest))
    arrays = list(_to_arrays(at, given, [output.dtype for output in largest]))
    # The dims of all outputs stand in one row, as attributes hold no lists of lists.
    named, lengths, known = iter(dims), list[int](), dict[str, int]()
    for index, output in enumerate(largest):
        wanted = [next(named) for _ in range(output.ndim)]
        array = arrays[index]
        # An empty list of rows: numpy knows neither their shape nor their dtype.
        is_list = isinstance(given[index], list) and not given[index]
        if is_list and [dim.isdecimal() for dim in wanted] == [n > 0 for n in range(output.ndim)]:
            array = arrays[index] = np.empty((0, *map(int, wanted[1:])), output.dtype)
        fits = len(array.shape) == output.ndim and all(
            not dim.isdecimal() or length == int(dim)
            for dim, length in zip(wanted, array.shape, strict=True)
        )
        if not fits or array.dtype.newbyteorder("=") != output.dtype:
            raise GraphError(
                f"output {index} of the function is {array.dtype.name}{list(array.shape)}, "
                f"declared was {output.dtype.name}[{', '.join(wanted)}]",
                at=at,
                fix=_fix_result(array, output.dtype),
            )
        for dim, length, most in zip(wanted, array.shape, output.shape, strict=True):
            if length > most:
                raise GraphError(
                    f"{dim!r} is {length} in output {index} of the function, its bound is {most}",
                    at=at,
                    fix=Fix(
                        "plan with a wider bound: ",
                        Argument("bounds", {dim: length}),
                        "; a pipeline makes its own from the longest of its examples=",
                    ),
                )
            if not dim.isdecimal() and known.setdefault(dim, length) != length:
                raise GraphError(
                    f"{dim!r} is {length} in output {index} of the function, and {known[dim]} in "
                    "one before",
                    at=at,
                    fix=FIX_SYMBOL,
                )
        lengths += array.shape
    return tuple(arrays), lengths


def _fix_result(array: Array, dtype: np.dtype[Any]) -> str:
    """Return how to correct `array`, or its declaration, which a pipeline makes from examples."""
    if array.dtype.kind in "OSU":
        return "return an array of numbers for every item"
    if array.dtype.newbyteorder("=") != dtype:
        return f"convert it: np.asarray(result, {dtype.name!r}), or declare the other dtype"
    return (
        "return this shape; for lengths that vary, give a pipeline two examples, examples=[short, "
        "long], or name them in an operator's outputs="
    )


def _count_error(at: str, results: Any, wanted: int) -> GraphError:
    one = "None" if results is None else f"one {type(results).__name__}"
    got = f"{len(results)} arrays" if isinstance(results, tuple) else one
    return GraphError(
        f"the function returned {got}, {wanted} arrays were declared",
        at=at,
        fix=f"return a tuple of {wanted} for every item: as many as an operator declares, or a "
        "pipeline's example gave",
    )


def check_results(
    at: str, results: Any, wanted: Sequence[TensorSpec | None], as_array: AsArray = np.asarray
) -> tuple[Array, ...]:
    """Return `results` of a Python function as a tuple of arrays that match the specs `wanted`.

    None stands for an absent output, of which the result is ignored. `as_array` converts a result.
    Raises GraphError if there are too few or too many, or one has another dtype or shape than was
    declared.
    """
    if type(results) is np.ndarray and len(wanted) == 1 and as_array is np.asarray:
        only = wanted[0]  # as nearly all functions return it: the rest takes three times as long
        if only and results.dtype is only.dtype != TEXT and results.shape == only.shape:
            return (results,)
    given = results if isinstance(results, tuple) else (results,)
    if len(given) != len(wanted):
        raise _count_error(at, results, len(wanted))
    dtypes = [spec.dtype if spec else None for spec in wanted]
    arrays = _to_arrays(at, given, dtypes, as_array)
    for index, spec in enumerate(wanted):
        array = arrays[index]
        # Almost always so, for each item: byte orders are compared only where dtypes differ.
        if spec is None or (array.shape == spec.shape and array.dtype == spec.dtype):
            continue
        if array.shape != spec.shape or array.dtype.newbyteorder("=") != spec.dtype:
            got = f"{array.dtype.name}{list(array.shape)}"  # of an array on a device, too
            if isinstance(array, np.ndarray):
                got = name_type(None if given[index] is None else array)
            raise GraphError(
                f"output {index} of the function is {got}, declared was {spec}",
                at=at,
                fix=_fix_result(array, spec.dtype),
            )
    return arrays
