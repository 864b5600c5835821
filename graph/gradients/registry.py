"""The registry of gradient rules: a dict and a decorator."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias, TypeVar

from ..errors import GraphError
from .adjoint import Adjoint
from .formula import Term

Rule: TypeAlias = Callable[[Adjoint], Iterable[tuple[int, Term]]]
"""Yields the index of an input and its gradient, for the inputs that the adjoint wants."""

_Rule = TypeVar("_Rule", bound=Rule)

_rules: dict[str, Rule] = {}
_flat: set[str] = set()


def gradient(op: str) -> Callable[[_Rule], _Rule]:
    """Register the gradient rule of an operator.

    Raises
    ------
    GraphError
        If there is one already.
    """

    def decorate(rule: _Rule) -> _Rule:
        _check_free(op)
        _rules[op] = rule
        return rule

    return decorate


def flat(*ops: str) -> None:
    """Register operators whose outputs do not change where their inputs change a little."""
    for op in ops:
        _check_free(op)
        _flat.add(op)


def find_rule(op: str) -> Rule | None:
    """Return the gradient rule of an operator, None where there is none."""
    return _rules.get(op)


def is_flat(op: str) -> bool:
    """True when no gradient flows through an operator, since it is zero nearly everywhere."""
    return op in _flat


def differentiable() -> tuple[str, ...]:
    """Return the names of all operators that have a gradient, be it zero, sorted."""
    return tuple(sorted({*_rules, *_flat}))


def _check_free(op: str) -> None:
    if op in _rules or op in _flat:
        raise GraphError(f"two gradients of {op!r}", fix="remove one")
