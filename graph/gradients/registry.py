"""The registry of gradient rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias, TypeVar

from ..core.operator import find_operator, list_operators
from ..core.traits import FLAT
from ..values.registry import Registry
from .adjoint import Adjoint
from .formula import Term

Rule: TypeAlias = Callable[[Adjoint], Iterable[tuple[int, Term]]]
"""Yields the index of an input and its gradient, for the inputs that the adjoint wants."""

_Rule = TypeVar("_Rule", bound=Rule)

_rules: Registry[str, Rule] = Registry("two gradients of {!r}")


def gradient(op: str) -> Callable[[_Rule], _Rule]:
    """Return a decorator that registers the gradient rule of the operator `op`.

    Raises
    ------
    GraphError
        If there is one already.
    """

    def decorate(rule: _Rule) -> _Rule:
        _rules.register(op, rule)
        return rule

    return decorate


def find_rule(op: str) -> Rule | None:
    return _rules.find(op)


def differentiable() -> tuple[str, ...]:
    """Return the names of all operators that have a gradient, be it zero, sorted."""
    flat = (op for op in list_operators() if FLAT in find_operator(op).traits)
    return tuple(sorted({*_rules, *flat}))
