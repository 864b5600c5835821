"""Operators as methods of tensors, found by their names and signatures."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from inspect import Parameter, Signature
from keyword import iskeyword
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .attribute import REQUIRED, Kind
from .errors import OperatorError
from .operator import Operator, find_operator, operators_so_far
from .registry import registrations

if TYPE_CHECKING:
    from .named_tensor import Tensor

_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z](?!$))|(?<=[A-Z])(?=[A-Z][a-z])")
"""Where a word of an operator's name begins: IsNaN has two, DFT one."""

_REDUCES = "Reduce"


class Method(NamedTuple):
    """A method of tensors: an operator whose first input the tensor is.

    Attributes
    ----------
    op : str
    reduces : bool
        True where it is called as numpy's reductions are: by `axis` and `keepdims`.
    """

    op: str
    reduces: bool = False

    def describe(self) -> str:
        """Return a line about it."""
        if self.reduces:
            return f"{self.op} along an axis, several, or all, which are dropped by default."
        operator = find_operator(self.op)
        outputs = operator.outputs.split()[: operator.usual_outputs]
        first = bare(operator.inputs.split()[0])
        return f"{self.op} with this tensor as {first}; returns {', '.join(map(bare, outputs))}."

    def signature(self) -> Signature:
        """Return how it is called: inputs by place or name, then attributes by name."""
        return _signature(self, registrations())


def method_names() -> Mapping[str, Method]:
    """Return the methods that registered operators are, but those of a domain, by name."""
    return _method_names(registrations())


@lru_cache(maxsize=1)
def _method_names(count: int) -> Mapping[str, Method]:
    found: dict[str, Method] = {}
    for op in operators_so_far():
        operator = find_operator(op)
        if "." in op or not _is_method(operator):
            continue
        name = _WORDS.sub("_", op).lower()
        found.setdefault(f"{name}_" if iskeyword(name) else name, Method(op))
        if op.startswith(_REDUCES) and {"keepdims"} <= operator.attributes.keys():
            # Before the operators Sum, Mean, Max and Min, which take several tensors.
            found[name.removeprefix(f"{_REDUCES.lower()}_")] = Method(op, reduces=True)
    return found


def _is_method(operator: Operator) -> bool:
    """True where the first input is there, and how many outputs there are is known."""
    first, counted = operator.inputs.split()[:1], "+" not in operator.outputs
    has_graphs = any(one.kind is Kind.GRAPH for one in operator.attributes.values())
    return bool(first) and first[0][-1] not in "?*" and counted and not has_graphs


def run_method(x: Tensor, op: str, *operands: Any, name: str | None = None, **given: Any) -> Any:
    """Add a node; inputs may be given by their names, and one axis where axes are an input."""
    operator = find_operator(op)
    formals = [bare(one) for one in _others(operator)]
    if "axes" in formals and "axis" in given:
        given["axes"] = _listed(given.pop("axis"))
    inputs = list(operands)
    for place, formal in enumerate(formals):
        if formal in given and formal not in operator.attributes:
            if place < len(operands):
                raise OperatorError(f"{op} is given its input {formal} twice", fix="pass it once")
            inputs += [None] * (place + 1 - len(inputs))
            inputs[place] = given.pop(formal)
    return x.builder.op(op, x, *inputs, name=name, **given)


def reduce(x: Tensor, op: str, axis: Any = None, keepdims: bool = False, **given: Any) -> Any:
    """Add a reduction over an axis, several, or all; over none it is of each element by itself."""
    axes = [] if axis is None else [_listed(axis)]
    given["noop_with_empty_axes"] = axis == ()
    return x.builder.op(op, x, *axes, keepdims=keepdims, **given)


@lru_cache(maxsize=512)
def _signature(method: Method, count: int) -> Signature:
    if method.reduces:
        takes = [_parameter("axis", None), _parameter("keepdims", False)]
        return Signature([*takes, _parameter("name", None, Parameter.KEYWORD_ONLY)])
    operator = find_operator(method.op)
    others = _others(operator)
    given = {name: attribute.default for name, attribute in operator.attributes.items()}
    if "axes" in map(bare, others):
        given["axis"] = None
    named = sorted({**given, "name": None}.items(), key=lambda one: one[1] is not REQUIRED)
    options = [_parameter(name, default, Parameter.KEYWORD_ONLY) for name, default in named]
    return Signature([*_inputs(others), *options])


def _inputs(others: Sequence[str]) -> Iterator[Parameter]:
    """Yield inputs as parameters: one may be left out if all behind it may; `axes`, for `axis`."""
    for place, formal in enumerate(others):
        if formal[-1] in "*+":
            yield Parameter(bare(formal), Parameter.VAR_POSITIONAL)
        else:
            left_out = all(one[-1] in "?*" or one == "axes" for one in others[place:])
            yield _parameter(bare(formal), None if left_out else REQUIRED)


def _parameter(name: str, default: Any, kind: Any = Parameter.POSITIONAL_OR_KEYWORD) -> Parameter:
    return Parameter(name, kind, default=Parameter.empty if default is REQUIRED else default)


def bare(formal: str) -> str:
    """Return the name of a formal input without its mark."""
    return formal.rstrip("?*+")


def _others(operator: Operator) -> list[str]:
    formals = operator.inputs.split()
    return formals if formals[0][-1] == "+" else formals[1:]


def _listed(axis: Any) -> Any:
    """Return axes as a vector; a tensor as it is."""
    return axis if isinstance(axis, str) else np.atleast_1d(np.asarray(axis, np.int64))
