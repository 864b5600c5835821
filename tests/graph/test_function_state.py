"""State of Python functions, found without running them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import pytest
from plait.graph.functions.function_state import find_state
from plait.graph.values.tensor import Array

COUNT = 0
SEEN: deque[Array] = deque(maxlen=3)
TOTALS = {"items": 0}
NUMBERS = count()
BUFFER = np.zeros(4, "float32")
LABELS = ["cat", "dog"]
MEAN = np.ones(4, "float32")
MEAN.flags.writeable = False


class Settings:
    level = 0


settings = Settings()


def count_up(x: Array) -> Array:
    global COUNT
    COUNT += 1
    return x


def append_to_global(x: Array) -> Array:
    SEEN.append(x)
    return x


def add_to_element(x: Array) -> Array:
    TOTALS["items"] += 1
    return x


def store_attribute(x: Array) -> Array:
    settings.level = 1
    return x


def return_buffer(x: Array) -> Array:
    np.add(x, 1, out=BUFFER)
    return BUFFER


def return_part_under_another_name(x: Array) -> Array:
    part = BUFFER[: len(x)]
    np.add(x, 1, out=part)
    return part


def call_one_that_counts(x: Array) -> Array:
    return count_up(x)


def call_nested(x: Array) -> Array:
    def inner() -> None:
        global COUNT
        COUNT = 0

    inner()
    return x


def make_counter() -> Callable[[Array], Array]:
    count = 0

    def counter(x: Array) -> Array:
        nonlocal count
        count += 1
        return x + count

    return counter


def append_to_default(x: Array, seen: list[Array] = []) -> Array:  # noqa: B006
    seen.append(x)
    return x


def count_in_option(x: Array, *, counts: dict[str, int] = {}) -> Array:  # noqa: B006
    counts["items"] = counts.get("items", 0) + 1
    return x


def take_next(x: Array) -> Array:
    return x + next(NUMBERS)


def append_to(seen: list[Array], x: Array) -> Array:
    seen.append(x)
    return x


class Tracker:
    def track(self, x: Array) -> Array:
        self.last = x
        return x


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (count_up, "COUNT"),
        (append_to_global, "SEEN"),
        (add_to_element, "TOTALS"),
        (store_attribute, "settings"),
        (return_buffer, "BUFFER"),
        (return_part_under_another_name, "BUFFER"),
        (call_one_that_counts, "COUNT"),
        (call_nested, "COUNT"),
        (make_counter(), "count"),
        (Tracker().track, "self"),
        (append_to_default, "seen"),
        (count_in_option, "counts"),
        (take_next, "NUMBERS"),
        (partial(append_to, []), "seen"),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_it_is_found(function: Callable[..., Any], name: str) -> None:
    assert find_state(function) == name


def read_only_globals(x: Array) -> Array:
    scaled = (x - MEAN) / max(TOTALS["items"], len(LABELS))
    np.add(scaled, 1, out=scaled)
    return scaled


def change_locals(x: Array) -> Array:
    found: dict[str, list[Array]] = {}
    found.setdefault("x", []).append(x)
    copied = BUFFER.copy()
    copied[0] = 1
    own = np.empty_like(x)
    own[...] = x
    return own + copied


def read_defaults(x: Array, shift: Array = MEAN, names: list[str] = LABELS) -> Array:
    return x + shift + len(names) + next(iter(x))


def count_in_nested(x: Array) -> Array:
    count = 0

    def inner() -> None:
        nonlocal count
        count += 1

    inner()
    return x + count


@pytest.mark.parametrize(
    "function",
    [
        *(read_only_globals, change_locals, count_in_nested, np.sort, len, lambda x: x + 1),
        *(append_to, read_defaults, partial(np.add, 1)),
    ],
)
def test_functions_without_any_have_none(function: Callable[..., Any]) -> None:
    assert find_state(function) == ""
