"""The steps of a pipeline as users write them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from itertools import pairwise
from pathlib import Path
from typing import Any, Never, TypeAlias

import numpy as np

from ...graph.core.ir import Graph
from ...graph.formats.graphs import load
from ...graph.values.errors import GraphError
from ...graph.values.tensor import Array, name_type
from ..errors import make_keyword_error
from .step_options import (
    ITEM,
    bind_constants,
    check_batch,
    check_inputs,
    check_kinds,
    check_padding,
    check_step,
    is_class,
)

Target: TypeAlias = Callable[..., Any] | Graph | str | os.PathLike[str]
"""A callable, a graph, or the path of a model."""

Reference: TypeAlias = str | int
"""A value: a result of the step before by its number, ``"step"``, ``"step.1"`` or ``"item"``."""

Constant: TypeAlias = complex | Array | np.generic

Inputs: TypeAlias = Reference | Sequence[Reference] | Mapping[str, Reference | Constant] | None


@dataclass(frozen=True, slots=True)
class PipelineStep:
    """A callable or a model in a pipeline, and how it runs. Made by `step`.

    The attributes are the arguments of `step`; models are graphs, without their constant inputs.

    Examples
    --------
    >>> import plait as pl
    >>> pl.step(sorted, workers=2).workers
    2
    """

    target: Callable[..., Any] | Graph
    name: str
    inputs: Inputs = None
    device: str | None = None
    workers: int = 0
    batch: int | None = None
    max_delay_s: float = 0.0
    concurrency: int | None = None
    ordered: bool | None = None
    pad: str | None = None

    @property
    def model(self) -> Graph | None:
        """The graph of a model; None for a callable."""
        return self.target if isinstance(self.target, Graph) else None

    @property
    def function(self) -> Callable[..., Any]:
        """The callable of a step that is not a model."""
        assert not isinstance(self.target, Graph)
        return self.target


@dataclass(frozen=True, slots=True)
class Each:
    """Steps that run for every row of a value. Made by `each`; the attributes are its arguments.

    Examples
    --------
    >>> import plait as pl
    >>> [step.name for step in pl.each(str.strip, len).steps]
    ['strip', 'len']
    """

    steps: tuple[PipelineStep, ...]
    name: str
    inputs: Inputs = None
    most: int | None = None
    batch: int | None = None
    max_delay_s: float = 0.0
    pad: str | None = None


def step(
    target: Target,
    *,
    name: str | None = None,
    inputs: Inputs = None,
    device: str | None = None,
    workers: int = 0,
    batch: int | None = None,
    max_delay_s: float = 0.0,
    concurrency: int | None = None,
    ordered: bool | None = None,
    pad: str | None = None,
    cache: str | os.PathLike[str] | None = None,
    max_bytes: int | None = None,
    **unknown: Never,
) -> PipelineStep:
    """Describe a step of a pipeline, where its target alone does not say enough.

    Parameters
    ----------
    target : callable, Graph or path
        A function, an object with ``__call__``, an async or generator function, a graph, or the
        file of a model. A class of such objects: each key of a stream has an instance of its own,
        or each stream without `key`. A `functools.partial` gives its arguments.
    name : str, optional
        How others refer to it, and how reports call it; made from the target by default, with a
        number if that name is taken, as ``"item"`` is.
    inputs : int, str, or sequence or Mapping of these, optional
        The values that it gets. An int is a result of the step before, from 0; ``"name"`` are all
        results of a step, ``"name.1"`` or ``"name.scores"`` is one, ``"item"`` the fed value. For a
        model a mapping names its inputs; arrays, numpy scalars and floats in it are constants. By
        default, all results of the step before, for those inputs that have no constant.
    device : str, optional
        The device that it is pinned to: ``"ort"``, ``"cuda:0"``, ``"cpu:1"``.
    workers : int, default 0
        The number of processes that run a callable. Its arguments and results are pickled. Scripts
        do their work under ``if __name__ == "__main__"``: the processes import them.
    batch : int, optional
        Have a model compute up to this many items at once, or call a callable with a list of up to
        this many values for each argument; it returns a list, or an array, with an entry for each.
        If a batch fails, each of its items is tried once more alone.
    max_delay_s : float, default 0.0
        How long an item waits for others of its batch, in seconds.
    concurrency : int, optional
        The largest number of simultaneous calls of an async callable.
    ordered : bool, optional
        Call it for one item after the other, in order. By default so if its source shows that it
        keeps something from one item to the next.
    pad : str, optional
        A length in the shapes of a model's inputs, such as ``"tokens"``, that differs between
        items: they share batches, filled up with zeros, and results are cut back. Give `batch` and
        two examples of different lengths, too.
    cache : path, optional
        Keep the results of a callable in this SQLite file, or in ``results.sqlite`` of this folder,
        by the content of its arguments and its code; see `docs/pipelines.md`.
    max_bytes : int, optional
        The largest size of that file, by default 1 GiB: results that were not used for longest go.

    Raises
    ------
    GraphError
        If options do not fit the target.
    ParseError
        If the file is not a model.

    Examples
    --------
    >>> import plait as pl
    >>> pl.step(len, name="count").name
    'count'
    """
    if unknown:
        raise make_keyword_error(unknown, "step", [*signature(step).parameters][1:-1])
    graph = _to_graph(target)
    found = graph if graph is not None else target
    if not callable(found) and graph is None:
        kind, fix = name_type(target), "use a callable, a graph or a model's path"
        if kind in ("list", "tuple"):
            fix = "give steps one by one, without brackets: pl.pipeline(f, g)"
        if kind.endswith(".Each"):
            fix = "put it beside the others, in pl.pipeline(...): rows have no rows of their own"
        raise GraphError(f"a step is {kind}", fix=fix)
    made_name = _name_target(target, graph) if name is None else name
    at = f"step {made_name!r}"
    check_kinds(at, name=name, device=device, workers=workers, batch=batch, pad=pad, cache=cache)
    if graph is not None and isinstance(inputs, Mapping):
        found, inputs = bind_constants(graph, inputs, at)
    check_inputs(inputs, at)
    if cache is not None:
        if batch is not None:
            raise GraphError("it has cache= and batch=", at=at, fix="leave one of them out")
        most = 1 << 30 if max_bytes is None else max_bytes
        found = _cache_step(found, cache, most, ordered=ordered)
    elif max_bytes is not None:
        raise GraphError("it has max_bytes= without cache=", at=at, fix="give cache=, too")
    options = workers, batch, max_delay_s, concurrency, ordered, pad
    made = PipelineStep(found, made_name, inputs, device, *options)  # type: ignore[arg-type]
    check_step(made)
    return made


def each(
    *steps: Target | PipelineStep,
    name: str | None = None,
    inputs: Inputs = None,
    most: int | None = None,
    batch: int | None = None,
    max_delay_s: float = 0.0,
    pad: str | None = None,
    **unknown: Never,
) -> Each:
    """Describe steps of a pipeline that run for every row of a value.

    The value is a list, or an array along its first axis. The result is a list if a callable comes
    last, else an array with a row for each row. A tuple that a callable returns is several results,
    which are the arguments of the next step; after the last step it is one value of the list.

    A model may be for one row, without an axis for rows, or be exported for one row, with a first
    axis of 1. One that cannot compute several rows at once runs row by row.

    Parameters
    ----------
    *steps : callable, Graph, path or PipelineStep
        Each gets the results of the one before, for one row.
    name : str, optional
    inputs : int, str, or sequence of these, optional
        The rows, then values that the first callable gets along with each row, as for `step`. By
        default, the result of the step before.
    most : int, optional
        The largest number of rows of an item; proposed from the examples by default.
    batch : int, optional
        Have models compute up to this many rows at once, of all items in flight. A callable gets
        lists of rows if its own `step` has ``batch=``.
    max_delay_s : float, default 0.0
        How long a row waits for others of its batch, in seconds.
    pad : str, optional
        With `batch`: the length in the models' inputs that differs between rows. Rows are filled up
        with zeros, and their results are cut back, into a list even if a model comes last. A mask
        has to hide the zeros.

    Raises
    ------
    GraphError
        If the steps are missing, or options do not fit.

    Examples
    --------
    >>> import plait as pl
    >>> pl.each(str.upper, name="shout").name
    'shout'
    """
    if unknown:
        raise make_keyword_error(unknown, "each", [*signature(each).parameters][1:-1])
    listed = tuple(one if isinstance(one, PipelineStep) else step(one) for one in steps)
    if not listed:
        raise GraphError("each() has no step", fix="give it a callable or a model: each(crop)")
    for one in listed:
        if is_class(one.target):
            raise GraphError(
                f"step {one.name!r} inside each() is a class, which has an instance for each key",
                fix="give an instance, or have a step of its own get the list of rows",
            )
        if one.inputs is not None or (one.batch is not None and one.model is not None):
            raise GraphError(
                f"step {one.name!r} inside each() has its own inputs, or is a model with batch=",
                fix="give them to each(): each(crop, model, inputs=['boxes', 'image'], batch=8)",
            )
    made_name = f"each_{listed[0].name}" if name is None else name
    check_kinds(f"step {made_name!r}", name=name, most=most, batch=batch, pad=pad)
    check_inputs(inputs, f"step {made_name!r}")
    made = Each(listed, made_name, inputs, most, batch, max_delay_s, pad)
    check_batch(made)
    if pad is not None:
        check_padding(made)
        if listed[-1].model is not None:  # arrays of several lengths are a list
            made = replace(made, steps=(*listed, step(pass_on, name="results")))
    return made


def to_step(given: Target | PipelineStep | Each) -> PipelineStep | Each:
    return given if isinstance(given, PipelineStep | Each) else step(given)


def name_apart(steps: Sequence[PipelineStep | Each]) -> list[PipelineStep | Each]:
    """Give each of `steps` a name of its own: the second ``scale`` is called ``scale_2``.

    Raises GraphError if a name is taken by the pipeline's input or cannot be part of a reference,
    or if no step gets the results of a callable.
    """
    taken: set[str] = {ITEM}
    made: list[PipelineStep | Each] = []
    for one in steps:
        name, number = one.name, 2
        while name in taken:
            name, number = f"{one.name}_{number}", number + 1
        if "." in name or not name:
            raise GraphError(f"a step is called {name!r}", fix="use a name without dots")
        taken.add(name)
        named = replace(one, name=name)
        if isinstance(named, Each):
            inside = [inner for inner in name_apart(named.steps) if isinstance(inner, PipelineStep)]
            named = replace(named, steps=tuple(inside))
        made.append(named)
    _check_read(made)
    return made


def _check_read(steps: Sequence[PipelineStep | Each]) -> None:
    """Raise GraphError if no step gets the results of a callable: items would not call it."""
    read = {one.name for one in steps[-1:]}
    for before, one in pairwise(steps):
        for reference in [0] if one.inputs is None else _list_references(one.inputs):
            read.add(before.name if isinstance(reference, int) else reference.partition(".")[0])
    if not read <= {ITEM, *(one.name for one in steps)}:
        return  # the step that names an unknown one is refused
    for one in steps:
        inside = one.steps if isinstance(one, Each) else (one,)
        is_kept = any(inner.ordered or is_class(inner.target) for inner in inside)
        if one.name not in read and not is_kept and any(inner.model is None for inner in inside):
            raise GraphError(
                "no step gets its results, so items leave it out",
                at=f"step {one.name!r}",
                fix="name it in inputs= of a later step, or have it called for its effects: "
                f"pl.step({inside[-1].name}, ordered=True)",
            )


def needs_parts(steps: Sequence[PipelineStep | Each]) -> bool:
    """Return whether one of `steps` takes parts of a fed mapping: a first model, or by a reference.

    Otherwise a mapping is a value like any other.
    """
    first = steps[0]
    if isinstance(first, PipelineStep) and first.model is not None and first.inputs is None:
        return True
    return any(
        isinstance(reference, str) and reference.startswith(f"{ITEM}.")
        for one in steps
        for reference in _list_references(one.inputs)
    )


def _list_references(inputs: Inputs) -> Sequence[Reference]:
    if inputs is None or isinstance(inputs, str | int):
        return () if inputs is None else (inputs,)
    return tuple(inputs.values()) if isinstance(inputs, Mapping) else tuple(inputs)


def _to_graph(target: Any) -> Graph | None:
    if isinstance(target, str | os.PathLike):
        return load(target)
    return target if isinstance(target, Graph) else None


def _name_target(target: Any, graph: Graph | None) -> str:
    if isinstance(target, str | os.PathLike):
        return Path(target).stem.replace(".", "_") or "model"
    if graph is not None:
        return graph.name.replace(".", "_") or "graph"
    while hasattr(target, "func"):  # a partial
        target = target.func
    name = getattr(target, "__name__", None) or type(target).__name__
    return "function" if name == "<lambda>" else name.strip("_") or "function"


def _cache_step(
    target: Any, path: str | os.PathLike[str], max_bytes: int, *, ordered: bool | None
) -> Callable[..., Any]:
    from .result_cache import cache_results  # here: only such steps need SQLite

    if isinstance(target, Graph) or ordered or is_class(target):
        what = "a model" if isinstance(target, Graph) else "a class or a step with ordered=True"
        raise GraphError(f"{what} has no cache=", fix="leave cache= out, or cache a function")
    return cache_results(target, path, max_bytes)


def pass_on(*values: Any) -> Any:
    return values if len(values) > 1 else values[0]
