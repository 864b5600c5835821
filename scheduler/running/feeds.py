"""What is fed: names and dtypes, checked for every item before anything is touched.

Shapes are checked once per combination of shapes, by `bind_inputs`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...graph.ir import Graph
from ...graph.tensor import Array
from ..errors import FeedError


def check_feeds(graph: Graph, inputs: Mapping[str, Any]) -> dict[str, Array]:
    """Return the inputs as arrays, in the graph's order.

    Raises
    ------
    FeedError
        If an input is missing or unknown, or has the wrong dtype.
    """
    if not isinstance(inputs, Mapping):
        raise FeedError(
            f"an item is a {type(inputs).__name__}", fix="feed a mapping of input name to array"
        )
    if len(inputs) != len(graph.inputs):
        raise _wrong_names(graph, inputs)
    arrays = {}
    for name in graph.inputs:
        if name not in inputs:
            raise _wrong_names(graph, inputs)
        value, wanted = inputs[name], graph.tensors[name].dtype
        array = value if type(value) is np.ndarray else _as_array(name, value)
        if array.dtype != wanted and array.dtype.newbyteorder("=") != wanted:
            raise _wrong_dtype(graph, name, array)
        arrays[name] = array
    return arrays


def own_feeds(graph: Graph, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Return copies, which callers cannot change while the item is under way."""
    return {n: np.array(a, graph.tensors[n].dtype, order="C") for n, a in arrays.items()}


def _as_array(name: str, value: Any) -> Array:
    try:
        return np.asarray(value)
    except (ValueError, TypeError) as error:
        raise FeedError(
            f"what is fed to input {name!r} is no array: {error}", fix="feed a numpy array"
        ) from error


def _wrong_dtype(graph: Graph, name: str, array: Array) -> FeedError:
    wanted = graph.tensors[name]
    return FeedError(
        f"input {name!r} must be {wanted}, got dtype {array.dtype.name!r}",
        at=f"graph {graph.name!r}",
        fix=f"convert it: np.asarray(value, {wanted.dtype.name!r})",
    )


def _wrong_names(graph: Graph, inputs: Mapping[str, Any]) -> FeedError:
    missing = [name for name in graph.inputs if name not in inputs]
    if missing:
        return FeedError(
            f"no value for input {', '.join(f'{n!r}: {graph.tensors[n]}' for n in missing)}",
            at=f"graph {graph.name!r}",
            fix="feed every input",
        )
    extra = [name for name in inputs if name not in graph.inputs]
    return FeedError(
        f"graph {graph.name!r} has no input {', '.join(map(repr, extra))}",
        fix=f"its inputs are: {', '.join(graph.inputs)}",
    )
