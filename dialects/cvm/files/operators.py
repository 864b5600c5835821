"""Operators in cvm's notation: names, and attributes as text, typed by plait's declarations."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from ....graph.core.attribute import REQUIRED, Attributes, Kind
from ....graph.core.operator import Operator, find_operator, is_operator
from ....graph.values.errors import GraphError
from ..operators.rules import PREFIX
from .symbol import fail, parse_json, read_texts, reject

_NAMES = {
    "cvm_clip": "cvm.cvm_clip",
    "cvm_left_shift": "cvm.left_shift",
    "cvm_lut": "cvm.lut",
    "cvm_precision": "cvm.precision",
    "cvm_right_shift": "cvm.right_shift",
}
"""Names that plait shortens, or that would collide with another."""
_FUNCTIONS = {op: function for function, op in _NAMES.items()}

_DECLARED_LEAST = {("cvm.dense", "units"): 1, ("cvm.expand_dims", "num_newaxis"): 1}
"""Bounds that cvm checks while reading, as damage; breaking others is the model's fault."""


def find_function(function: str, at: str) -> Operator:
    """Return the operator that cvm calls `function`, perhaps followed by ``_`` and a number.

    Raises RuntimeFailureError, about the node `at`, if cvm has no such operator.
    """
    source = re.sub(r"_[0-9]*\Z", "", function)
    op = _NAMES.get(source, PREFIX + source)
    if not is_operator(op) or (op in _FUNCTIONS and source not in _NAMES):
        fail(f"cvm has no operator {source!r}", at)
    return find_operator(op)


def get_function_name(op: str, at: str) -> str:
    """Return cvm's name for `op`; raises GraphError, about the node `at`, if it has none."""
    if not op.startswith(PREFIX):
        raise GraphError(
            f"{op} is not an operator of cvm", at=at, fix="use the operators named cvm.* throughout"
        )
    return _FUNCTIONS.get(op, op.removeprefix(PREFIX))


def parse_attributes(operator: Operator, text: str, at: str) -> dict[str, Any]:
    """Parse attributes of `operator` in `text`, a JSON object of strings, for the node `at`.

    Raises RuntimeFailureError if the text is malformed, names an unknown attribute, lacks a
    required one, or holds a number below its declared bound or outside its type; LogicError if an
    operator without attributes has some.
    """
    given = read_texts(parse_json(text, at), at)
    if given and not operator.attributes:
        reject(f"{operator.name} has no attributes, but is given {', '.join(given)}", at)
    found: dict[str, Any] = {}
    for name, value in given.items():
        attribute = operator.attributes.get(name)
        if attribute is None and _is_hidden(name):
            continue
        if attribute is None:
            fail(f"{operator.name} has no attribute {name!r}", at)
        if value == "None" and attribute.default is None:
            continue
        read = _READERS.get(attribute.kind)
        try:
            found[name] = value if read is None else read(value)
        except (KeyError, ValueError):
            fail(f"the attribute {name!r} is {value[:40]!r}, not {attribute.kind.value}", at)
        if found[name] < _DECLARED_LEAST.get((operator.name, name), found[name]):
            fail(f"the attribute {name!r} is {found[name]}, too small", at)
    for name, attribute in operator.attributes.items():
        if attribute.default is REQUIRED and name not in found:
            fail(f"{operator.name} needs the attribute {name!r}", at)
    return found


def _is_hidden(name: str) -> bool:
    """Return whether the key `name` is a compiler's note, which is ignored, not an attribute."""
    return len(name) > 4 and name.startswith("__") and name.endswith("__")


def format_attributes(attributes: Attributes) -> dict[str, str]:
    return {name: _format(value) for name, value in attributes.items() if value is not None}


def _format(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(str, value))}{',' if len(value) == 1 else ''})"
    return str(value)


def _read_integer(text: str, bits: int = 32) -> int:
    if not re.fullmatch(r"\s*[+-]?[0-9]{1,19}\s*", text, re.ASCII):
        raise ValueError(text)
    value = int(text)
    if not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
        raise ValueError(text)
    return value


def _read_integers(text: str) -> tuple[int, ...]:
    """Return the integers in `text`: (1, 2), [1L, 2L] or a single number."""
    inner = re.fullmatch(r"\s*(?:\((.*)\)|\[(.*)\])\s*", text, re.DOTALL)
    if inner is None:
        return (_read_integer(text, 64),)
    listed = (inner[1] or inner[2] or "").split(",")
    if not listed[-1].strip():  # empty, or after a last comma
        listed.pop()
    # Models written by Python 2 have an L after long integers.
    return tuple(_read_integer(one.removesuffix("L"), 64) for one in listed)


_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}

_READERS: Mapping[Kind, Callable[[str], Any]] = {
    Kind.INT: _read_integer,
    Kind.BOOL: lambda text: _BOOLEANS[text.lower()],
    Kind.INTS: _read_integers,
    Kind.FLOAT: float,
    Kind.NUMBER: _read_integer,
}
