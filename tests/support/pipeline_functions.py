"""Callables for pipelines, where a worker can import them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np


def double(value: Any) -> Any:
    return value * 2


def count_and_reverse(values: Any) -> tuple[int, Any]:
    return len(values), values[::-1]


def list_all(values: Any) -> list[Any]:
    return list(values)


def yield_twice(values: Any) -> Iterator[Any]:
    for value in values:
        yield value
        yield value


async def wait_for(values: Any) -> Any:
    return values


def tell_process(values: Any) -> tuple[int, Any]:
    return os.getpid(), values


class AddItem:
    """A callable object with a setting."""

    def __init__(self, item: Any) -> None:
        self.item = item

    def __call__(self, values: Any) -> Any:
        return [*values, self.item]

    def add(self, values: Any) -> Any:
        return self(values)


def to_row(number: Any) -> Any:
    return np.full(3, number, np.float32)


def to_whole_row(number: Any) -> Any:
    return np.full((1, 3), number, np.float32)


def round_sum(scores: Any) -> float:
    return round(float(np.sum(scores)), 3)


def refuse_negative(value: Any) -> Any:
    if np.min(value) < 0:
        raise ValueError("negative")
    return value


def halve_all(pairs: list[Any]) -> list[Any]:
    return [(value / 2, process) for value, process in pairs]


def tell_process_of_all(values: list[Any]) -> list[Any]:
    return [[value, os.getpid()] for value in values]
