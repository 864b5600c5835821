"""Operators as methods of tensors, found by their names and signatures."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from inspect import Parameter, Signature
from keyword import iskeyword
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..core.attribute import REQUIRED, Kind
from ..core.operator import Operator, find_operator, list_known_operators
from ..values.errors import OperatorError
from ..values.registry import count_registrations

if TYPE_CHECKING:
    from .named_tensor import Tensor

_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z](?!$))|(?<=[A-Z])(?=[A-Z][a-z])")
"""Where a word of an operator's name begins: IsNaN has two, DFT one."""

_REDUCES = "Reduce"


class Method(NamedTuple):
    """A method of tensors: an operator with the tensor as its first input."""

    op: str
    reduces: bool = False
    """True where it is called as numpy's reductions are: by `axis` and `keepdims`."""

    def describe(self) -> str:
        if self.reduces:
            return f"{self.op} along an axis, several, or all, which are dropped by default."
        operator = find_operator(self.op)
        outputs = operator.outputs.split()[: operator.usual_outputs]
        first = strip_mark(operator.inputs.split()[0])
        return (
            f"{self.op} with this tensor as {first}; returns {', '.join(map(strip_mark, outputs))}."
        )

    def signature(self) -> Signature:
        """Return how it is called: inputs by place or name, then attributes by name."""
        return _make_signature(self, count_registrations())


def list_methods() -> Mapping[str, Method]:
    """Return the methods that registered operators are, but those of a domain, by name."""
    return _list_methods(count_registrations())


@lru_cache(maxsize=1)
def _list_methods(count: int) -> Mapping[str, Method]:
    found: dict[str, Method] = {}
    for op in list_known_operators():
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
    """Return whether `operator` has a required first input and a known number of outputs."""
    first, counted = operator.inputs.split()[:1], "+" not in operator.outputs
    has_graphs = any(one.kind is Kind.GRAPH for one in operator.attributes.values())
    return bool(first) and first[0][-1] not in "?*" and counted and not has_graphs


def run_method(x: Tensor, op: str, *operands: Any, name: str | None = None, **given: Any) -> Any:
    """Add a node `op` of `x`; inputs may be given by name, and `axis` where axes are an input."""
    operator = find_operator(op)
    formals = [strip_mark(one) for one in _list_other_inputs(operator)]
    if "axes" in formals and "axis" in given:
        given["axes"] = _to_vector(given.pop("axis"))
    inputs = list(operands)
    for place, formal in enumerate(formals):
        if formal in given and formal not in operator.attributes:
            if place < len(operands):
                raise OperatorError(f"{op} is given its input {formal} twice", fix="pass it once")
            inputs += [None] * (place + 1 - len(inputs))
            inputs[place] = given.pop(formal)
    return x.builder.op(op, x, *inputs, name=name, **given)


def reduce(x: Tensor, op: str, axis: Any = None, keepdims: bool = False, **given: Any) -> Any:
    """Reduce `x` by `op` over `axis`: one, several, or all; ``()`` applies it to each element."""
    axes = [] if axis is None else [_to_vector(axis)]
    given["noop_with_empty_axes"] = axis == ()
    return x.builder.op(op, x, *axes, keepdims=keepdims, **given)


@lru_cache(maxsize=512)
def _make_signature(method: Method, count: int) -> Signature:
    if method.reduces:
        takes = [_make_parameter("axis", None), _make_parameter("keepdims", False)]
        return Signature([*takes, _make_parameter("name", None, Parameter.KEYWORD_ONLY)])
    operator = find_operator(method.op)
    others = _list_other_inputs(operator)
    given = {name: attribute.default for name, attribute in operator.attributes.items()}
    if "axes" in map(strip_mark, others):
        given["axis"] = None
    named = sorted({**given, "name": None}.items(), key=lambda one: one[1] is not REQUIRED)
    options = [_make_parameter(name, default, Parameter.KEYWORD_ONLY) for name, default in named]
    return Signature([*_make_parameters(others), *options])


def _make_parameters(others: Sequence[str]) -> Iterator[Parameter]:
    """Yield `others` as parameters, optional if all later ones are; `axis` replaces `axes`."""
    for place, formal in enumerate(others):
        if formal[-1] in "*+":
            yield Parameter(strip_mark(formal), Parameter.VAR_POSITIONAL)
        else:
            left_out = all(one[-1] in "?*" or one == "axes" for one in others[place:])
            yield _make_parameter(strip_mark(formal), None if left_out else REQUIRED)


def _make_parameter(
    name: str, default: Any, kind: Any = Parameter.POSITIONAL_OR_KEYWORD
) -> Parameter:
    return Parameter(name, kind, default=Parameter.empty if default is REQUIRED else default)


def strip_mark(formal: str) -> str:
    return formal.rstrip("?*+")


def _list_other_inputs(operator: Operator) -> list[str]:
    formals = operator.inputs.split()
    return formals if formals[0][-1] == "+" else formals[1:]


def _to_vector(axis: Any) -> Any:
    return axis if isinstance(axis, str) else np.atleast_1d(np.asarray(axis, np.int64))
