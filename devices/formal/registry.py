"""The registry of definitions.

A definition computes an operator's outputs in the most obvious way: from the formula, element
by element, in Python's exact integers and double floats. It is called as
``function(*inputs, **attributes)`` with read-only numpy arrays (None for an absent optional
input) and all of the operator's attributes. One with a parameter ``outputs`` also gets the specs
of the node's outputs. It returns an array or nested lists, or a tuple of these, one per output.
Its source is ONNX's operator of that name, if no other is given.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from ...graph.values.installed import DEFINITIONS
from ...graph.values.registry import Registry

DefiningFunction: TypeAlias = Callable[..., Any]
_Function = TypeVar("_Function", bound=DefiningFunction)


@dataclass(frozen=True, slots=True)
class Definition:
    op: str
    function: DefiningFunction
    wants_outputs: bool
    """Whether the function gets the output specs, as ``outputs=``."""


_definitions: Registry[str, Definition] = Registry(
    "two definitions of {!r}", group=DEFINITIONS, function_of=lambda entry: entry.function
)


def definition(op: str) -> Callable[[_Function], _Function]:
    """Return the decorator that registers the definition of `op`.

    It is called as ``function(*inputs, **attributes)``. Raises GraphError if there is one already.
    """

    def decorate(function: _Function) -> _Function:
        wants_outputs = "outputs" in inspect.signature(function).parameters
        _definitions.register(op, Definition(op, function, wants_outputs))
        return function

    return decorate


def find_definition(op: str) -> Definition | None:
    return _definitions.find(op)


def list_definitions() -> tuple[str, ...]:
    return tuple(sorted(_definitions.all()))
