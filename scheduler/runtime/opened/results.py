"""Results of items: taken from slots as copies, or read where they lie."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

from ....graph.values.tensor import Array, read_only
from ..large_copies import SPLIT_BYTES, duplicate_array

Results: TypeAlias = Mapping[str, Array]
NOTHING: Results = MappingProxyType({})

Take: TypeAlias = Callable[[Results, Results], Results]
"""Takes results from a slot; the second ones, which functions gave away, are the caller's."""

Outcome: TypeAlias = tuple[Results, BaseException | None]
"""Results, or why there are none."""

NOT_RUN: Outcome = NOTHING, None
"""That of an item which has to be handed over."""


def copy_results(results: Results, given: Results = NOTHING) -> Results:
    copies: dict[str, Array] = {}  # a comprehension is a call, and small items are copied often
    for name, array in results.items():
        if name in given:
            copies[name] = given[name]
        else:
            copies[name] = array.copy("K") if array.nbytes < SPLIT_BYTES else duplicate_array(array)
    return copies


def to_values(results: Results) -> dict[str, Any]:
    """Return `results` as users get them: Python objects instead of arrays that hold them."""
    values: dict[str, Any] = dict(results)
    for name, array in results.items():
        if array.dtype.hasobject and array.dtype.metadata is not None:  # `has_objects`
            values[name] = array.tolist()
    return values


def view_results(results: Results, given: Results = NOTHING) -> Results:
    return {name: read_only(given.get(name, array)) for name, array in results.items()}
