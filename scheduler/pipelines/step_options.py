"""Options of a pipeline's steps, checked where they are given, and models with constants."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from inspect import iscoroutinefunction, isfunction
from typing import TYPE_CHECKING, Any

import numpy as np

from ...graph.building.builder import GraphBuilder
from ...graph.core.ir import Graph
from ...graph.functions.function_state import find_state
from ...graph.values.dtypes import kind_of
from ...graph.values.errors import GraphError, suggest_names
from ...graph.values.tensor import Array, Dim, TensorSpec

if TYPE_CHECKING:
    from .steps import Each, PipelineStep

ITEM = "item"
"""The name of a pipeline's input in references."""

REFERENCES = "'item', the name of a step, or the number of a result of the step before, from 0"


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _is_count(value: Any) -> bool:
    return isinstance(value, int | np.integer) and type(value) is not bool and bool(value >= 0)


KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "name": (lambda value: _is_text(value) and value != ITEM, "a text other than 'item'"),
    "device": (_is_text, "the name of one, such as 'ort' or 'cuda:0'"),
    "workers": (_is_count, "a whole number of processes"),
    "most": (lambda value: _is_count(value) and value > 0, "a whole number of rows from 1"),
    "batch": (lambda value: _is_count(value) and value > 0, "a whole number from 1"),
    "pad": (_is_text, "the name of a length, such as 'tokens'"),
    "cache": (lambda value: _is_text(value) or isinstance(value, os.PathLike), "a file's path"),
}
"""By option: whether a value is allowed, and the allowed values. The graph checks the others."""


def check_kinds(at: str, **options: Any) -> None:
    """Raise GraphError for the first of `options` that is given and not as `KINDS` has it."""
    for name, value in options.items():
        is_allowed, wanted = KINDS[name]
        if value is not None and not is_allowed(value):
            raise GraphError(f"{name} is {value!r}", at=at, fix=f"give {wanted}, or leave it out")


def check_step(made: PipelineStep) -> None:
    """Raise GraphError if options of `made` do not fit its target or one another."""
    is_model = made.model is not None
    wrong = {
        "workers": is_model and made.workers,
        "concurrency": is_model and made.concurrency is not None,
        "ordered": is_model and made.ordered,
        "pad": not is_model and made.pad,
    }
    for option, is_given in wrong.items():
        if is_given:
            kind = "callables" if is_model else "models"
            raise GraphError(
                f"step {made.name!r} has {option}=, which is for {kind}", fix=f"leave {option}= out"
            )
    owner: Any = getattr(made.target, "func", made.target)
    is_apart = made.workers or made.ordered is False
    if is_class(owner) and (is_apart or iscoroutinefunction(owner.__call__)):
        raise GraphError(
            f"step {made.name!r} is a class: an instance for each key is called in this process, "
            "in order, without await",
            fix="leave workers= and ordered=False out, or give an instance",
        )
    check_batch(made)
    if not is_model and made.batch is not None:
        check_batch_function(made)
    if made.workers and made.device is not None:
        raise GraphError(
            f"step {made.name!r} has workers= and device=", fix="give one of them: workers=4"
        )


def check_batch_function(made: PipelineStep) -> None:
    """Raise GraphError if the callable of `made` cannot be called for several items at once."""
    kept = "" if made.ordered is False else find_state(made.function)
    if made.ordered or is_class(made.target) or kept:
        why = f"keeps state in {kept!r}" if kept else "is called in order"
        more = ", or give ordered=False if that does no harm" if kept else ""
        raise GraphError(
            f"step {made.name!r} {why}, and batches of several items may run at once",
            fix=f"leave batch= out{more}",
        )


def check_batch(made: PipelineStep | Each) -> None:
    """Raise GraphError if `made` has options of batches, and no batches."""
    for option in ("pad", "max_delay_s"):
        if getattr(made, option) and made.batch is None:
            raise GraphError(
                f"step {made.name!r} has {option}= without batch=", fix="give batch=8, too"
            )


def check_padding(made: Each) -> None:
    """Raise GraphError if no model of `made` has its `pad` after the first axis."""
    models = [one.model for one in made.steps if one.model is not None]
    specs = [one.tensors[name] for one in models for name in one.inputs]
    lengths = {dim for spec in specs for dim in (spec.shape or ())[1:] if isinstance(dim, str)}
    if made.pad not in lengths:
        raise GraphError(
            f"pad is {made.pad!r}, and no model in it has a length of that name",
            at=f"step {made.name!r}",
            fix=f"name one of {', '.join(sorted(lengths))}" if lengths else "leave pad= out",
        )


def is_class(target: Any) -> bool:
    """Return whether `target` is a class of callables, or a partial of one.

    Each key has an instance of it. Calls of other classes, such as `list`, convert values.
    """
    kind = getattr(target, "func", target)
    return isinstance(kind, type) and isfunction(kind.__call__)


def has_state(made: PipelineStep) -> bool:
    """Return whether `made` is a callable that is declared to keep state, or visibly does."""
    is_open = made.model is None and made.ordered is None
    return bool(made.ordered or (is_open and find_state(made.function)))


def check_inputs(inputs: Any, at: str) -> None:
    """Raise GraphError if `inputs` are given and not references, one, in a list or by name."""
    listed = [inputs] if is_reference(inputs) else inputs
    listed = [*listed.values()] if isinstance(listed, Mapping) else listed
    if inputs is None:
        return
    if not isinstance(listed, Sequence) or isinstance(listed, bytes) or not listed:
        raise GraphError(f"inputs is {inputs!r}", at=at, fix=f"give {REFERENCES}; or a list")
    for one in listed:
        if not is_reference(one) or (isinstance(one, int) and one < 0):
            raise GraphError(
                f"inputs has {one!r}",
                at=at,
                fix=f"give {REFERENCES}; an input of a model may be a number or an array: "
                "inputs={'x': 'item', 'gain': 2.0}",
            )


def is_reference(value: Any) -> bool:
    return isinstance(value, str | int) and not isinstance(value, bool)


def bind_constants(
    model: Graph, inputs: Mapping[str, Any], at: str
) -> tuple[Graph, Mapping[str, Any] | None]:
    """Return `model` without those inputs that are numbers or arrays, and the other `inputs`.

    These are None if there are only constants: all values of the step before. Raises GraphError if
    a constant is for no input, or not of its dtype and shape.
    """
    kinds = bool, float, complex, np.ndarray, np.generic
    given = {name: value for name, value in inputs.items() if isinstance(value, kinds)}
    if not given:
        return model, inputs
    if unknown := given.keys() - set(model.inputs):
        name = min(unknown)
        fix = suggest_names(name, model.inputs, f"name one of {', '.join(model.inputs)}")
        raise GraphError(f"the model has no input {name!r}", at=at, fix=fix)
    if len(given) == len(model.inputs):
        raise GraphError(
            "all inputs of the model are constants", at=at, fix="let one of them be a value"
        )
    b = GraphBuilder(model.name)
    fed = {}
    for name in model.inputs:
        spec = model.tensors[name]
        if name in given:
            fed[name] = b.constant(_to_constant(given[name], spec, f"{at}, input {name!r}"), name)
        else:
            fed[name] = b.input(name, spec.dtype, spec.shape or ())
    for name, tensor in b.include(model, fed, "").items():
        b.output(name, tensor)
    return b.build(), {name: one for name, one in inputs.items() if name not in given} or None


def _to_constant(value: Any, spec: TensorSpec, at: str) -> Array:
    array = np.asarray(value)
    kind, wanted = kind_of(array.dtype), kind_of(spec.dtype)
    if kind in "biufce" and wanted in "biufce" and (kind != "c" or wanted == "c"):
        with np.errstate(all="ignore"):
            cast = array.astype(spec.dtype)
            # There and back, for numpy rounds to compare; and as it is: 255 as int8 comes back.
            both = (cast.astype(array.dtype), array), (cast, array)
            is_exact = all(np.array_equal(*pair, equal_nan=True) for pair in both)
            is_rounded = type(value) is float and wanted in "efc" and bool(np.isfinite(cast))
        if fits(array.shape, spec.shape) and (is_exact or is_rounded):
            return cast
    raise GraphError(
        f"a constant {array.dtype.name}{list(array.shape)} does not fit {spec} without loss",
        at=at,
        fix=f"give an array of that shape: np.array(..., {spec.dtype.name!r})",
    )


def fits(shape: Sequence[int], wanted: Sequence[Dim] | None) -> bool:
    return wanted is None or (
        len(shape) == len(wanted)
        and all(isinstance(dim, str) or dim == n for n, dim in zip(shape, wanted, strict=True))
    )
