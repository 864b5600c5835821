"""Kernels as sequences of array operations, bound to their arguments when a plan is opened."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

Step: TypeAlias = Callable[[], object]
"""A function of no arguments: one call of the array module, its operands bound."""


def run_in_order(steps: Iterable[Step]) -> Step:
    listed = tuple(steps)
    if len(listed) == 1:
        return listed[0]

    def run() -> None:
        for step in listed:
            step()

    return run
