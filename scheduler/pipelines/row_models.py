"""Models that run for rows: all at once along a first axis, or one row after the other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ...graph.building.builder import GraphBuilder
from ...graph.building.row_nodes import add_known_lengths
from ...graph.core.ir import Graph
from ...graph.decompositions.each import make_row_graph
from ...graph.operators.each import check_rows
from ...graph.values.errors import GraphError, ShapeError
from ...graph.values.tensor import Dim, TensorSpec, spec_of

ROWS = "rows"


def has_row_axis(model: Graph, values: Sequence[Any], step: str) -> bool | None:
    """Return True if `values` have the model's first axis of length 1, False if they lack only it.

    None if the model gets a row as it is, and its results have no axis to drop. Raises GraphError
    if the model takes the row in none of these ways.
    """
    specs = [model.tensors[name] for name in (*model.inputs, *model.outputs)]
    arrays = [np.asarray(value) for value in values]
    firsts = (("",) if spec.shape is None else spec.shape[:1] for spec in specs)
    are_open = all(first and (first[0] == 1 or isinstance(first[0], str)) for first in firsts)
    more = {
        array.ndim - spec.rank
        for array, spec in zip(arrays, specs, strict=False)
        if spec.rank is not None
    }
    if more <= {0}:
        is_one = are_open and all(array.shape[:1] == (1,) for array in arrays)
        return True if is_one else None
    if are_open and more == {-1}:
        return False
    raise make_row_error(model, arrays, step)


def make_row_error(model: Graph, values: Sequence[Any], step: str) -> GraphError:
    takes = ", ".join(f"{name} {model.tensors[name]}" for name in model.inputs)
    gets = ", ".join(str(spec_of(np.asarray(value))) for value in values)
    return GraphError(
        f"the model takes {takes}, and a row is {gets}",
        at=f"step {step!r}",
        fix="have the step before make rows of that shape; a first axis of length 1 may be left "
        "out, if the outputs have it, too",
    )


def make_batched_graph(model: Graph, specs: Sequence[TensorSpec]) -> Graph:
    """Return `model` for any number of rows of `specs`, even if it was exported for one.

    Raises GraphError or ShapeError if it computes one row at a time: a length of 1 is part of it,
    or it mixes rows.
    """
    if not _has_row_axes(model, specs):
        raise GraphError("it has no axis for several rows", fix="run it row by row")
    b = GraphBuilder(model.name)
    fed = {
        name: b.input(name, spec.dtype, (ROWS, *(spec.shape or ())[1:]))
        for name, spec in zip(model.inputs, specs, strict=True)
    }
    for name, tensor in b.include(model, fed, "model/").items():
        b.output(name, tensor)
    made = add_known_lengths(b.build(), specs)
    for name in made.outputs:
        if (made.tensors[name].shape or (None,))[0] != ROWS:
            raise ShapeError(
                f"output {name!r} is {made.tensors[name]}, and rows are along the first axis",
                fix="let it have a row for each row of the inputs",
            )
    check_rows(made, f"model {model.name!r}")
    return made


def find_axes(specs: Iterable[TensorSpec], length: str | None) -> tuple[int | None, ...]:
    shapes = [spec.shape or () for spec in specs]
    return tuple(shape.index(length) if length and length in shape else None for shape in shapes)


def find_padded_length(model: Graph, specs: Sequence[TensorSpec], pad: str, step: str) -> Dim:
    """Return the pipeline's length in `specs` that the length `pad` of `model` stands for.

    Raises GraphError, about `step`, if the model lacks that, or it is the same in all examples.
    """
    pairs = [
        (dim, given)
        for name, spec in zip(model.inputs, specs, strict=True)
        for dim, given in zip(model.tensors[name].shape or (), spec.shape or (), strict=True)
        if isinstance(dim, str)
    ]
    found = next((given for dim, given in pairs if dim == pad), None)
    if isinstance(found, str):
        return found
    known = ", ".join(sorted({dim for dim, given in pairs if isinstance(given, str)}))
    raise GraphError(
        f"pad is {pad!r}, and no length of that name differs between the examples",
        at=f"step {step!r}",
        fix=f"name one of {known}" if known else "give examples=[short, long]",
    )


def make_single_row_graph(model: Graph, specs: Sequence[TensorSpec]) -> Graph:
    """Return `model` for one row without the first axis of `specs`, which has length 1.

    A model that takes rows as they are is returned itself.
    """
    return make_row_graph(model, specs) if _has_row_axes(model, specs) else model


def _has_row_axes(model: Graph, specs: Sequence[TensorSpec]) -> bool:
    pairs = zip(model.inputs, specs, strict=True)
    return all(model.tensors[name].rank in (None, spec.rank) for name, spec in pairs)
