"""Arrays and containers that their maker may change later, found by counts of references."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from copy import copy
from sys import getrefcount
from typing import Any

import numpy as np

from ...devices.donation import has_own_memory

MOST_PARTS = 64
"""Longer containers are copied without the arrays in them."""

CONTAINERS = (dict, list, tuple)


def _measure_counts() -> tuple[int, int]:
    value = [[0]]
    return getrefcount(value), next(getrefcount(one) for one in value)


ALONE, _IN_CONTAINER = _measure_counts()
"""The counts of a value to which one variable refers, and of one in a container and a variable.

Ask before a call takes the value as an argument: that is one more.
"""

if not getattr(sys, "_is_gil_enabled", lambda: True)():  # counts are not exact then
    ALONE = _IN_CONTAINER = -1


def copy_shared(
    value: Any, given: Collection[int] = (), *, is_alone: bool = False, depth: int = 3
) -> Any:
    """Return `value` with copies of those arrays, dicts, lists and tuples that others refer to.

    These are `value` itself unless it `is_alone`, and its parts, `depth` containers deep. Objects
    with an id in `given` stay, and so do views of them.
    """
    if isinstance(value, np.ndarray):
        is_given = id(value) in given or id(value.base) in given
        return value if is_given or (is_alone and has_own_memory(value)) else value.copy()
    if type(value) not in CONTAINERS or id(value) in given or not depth:
        return value
    if len(value) > MOST_PARTS:
        return value if is_alone else copy(value)
    made, is_changed = [], not is_alone
    for one in value.values() if type(value) is dict else value:
        is_own = is_alone and getrefcount(one) <= _IN_CONTAINER
        made.append(copy_shared(one, given, is_alone=is_own, depth=depth - 1))
        is_changed |= made[-1] is not one
    if not is_changed:
        return value
    return dict(zip(value, made, strict=True)) if type(value) is dict else type(value)(made)


def list_ids(values: Sequence[Any]) -> set[int]:
    """Return the ids of `values`, and of the parts of those that are short containers."""
    held = [list(one.values()) if type(one) is dict else one for one in values]
    listed = [one for one in held if type(one) in CONTAINERS and len(one) <= MOST_PARTS]
    return {id(one) for part in (values, *listed) for one in part} - {id(None)}


def own_result(target: Callable[..., Any], /, *values: Any) -> Any:
    """Return the result of `target`, which keeps state, for `values`: it may change it later."""
    found = target(*values)
    is_alone = getrefcount(found) <= ALONE
    return copy_shared(found, list_ids(values), is_alone=is_alone)


def own_rows(rows: Iterable[Any], values: Sequence[Any]) -> list[Any]:
    """Return `rows` of a generator that got `values`: it may fill an array again for the next."""
    given, made = list_ids(values), []
    for row in rows:
        is_alone = getrefcount(row) <= ALONE
        made.append(copy_shared(row, given, is_alone=is_alone))
    return made
