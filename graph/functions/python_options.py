"""Options of Python operators, checked when a function is decorated."""

from __future__ import annotations

from ..core.operator import Operator
from ..values.errors import OperatorError
from .generators import is_generator

HOST, CUDA = "host", "cuda"
ARRAYS = (HOST, CUDA)
"""Where the arrays of functions may lie."""


def choose_concurrency(made: Operator, given: int | None) -> int | None:
    """Return `given`, a limit of calls at once; by default 1 if `made` is async and has effects."""
    if given is None:
        return 1 if made.is_async and made.effects else None
    if not made.is_async:
        raise OperatorError(
            f"operator {made.name!r} has concurrency={given!r}, and its function is not async",
            fix="make it 'async def', or leave concurrency out: devices run one step at a time",
        )
    if not isinstance(given, int) or isinstance(given, bool) or given < 1:
        raise OperatorError(
            f"the concurrency of operator {made.name!r} is {given!r}",
            fix="give a whole number of calls from 1, or leave it out",
        )
    return given


def check_order(made: Operator, given: bool | None, concurrency: int | None) -> bool | None:
    if not isinstance(given, bool | None):
        raise OperatorError(
            f"ordered is {given!r} for operator {made.name!r}", fix="use True, False or None"
        )
    if given and concurrency is not None and concurrency > 1:
        raise OperatorError(
            f"operator {made.name!r} is ordered, and has concurrency={concurrency}",
            fix="leave one of them out: ordered calls are made for one item after the other",
        )
    return given


def check_arrays(made: Operator, arrays: str) -> None:
    """Raise OperatorError unless the operator `made` may get arrays of the kind `arrays`."""
    if arrays not in ARRAYS:
        raise OperatorError(
            f"the arrays of operator {made.name!r} are {arrays!r}",
            fix=f"use one of {', '.join(map(repr, ARRAYS))}",
        )
    if arrays != HOST and (made.is_async or is_generator(made.function)):
        kind = "async" if made.is_async else "a generator"
        raise OperatorError(
            f"operator {made.name!r} takes arrays of {arrays!r}, and its function is {kind}",
            fix="make it an ordinary function, which returns whole arrays",
        )
