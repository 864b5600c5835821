"""LightNet's models, parsed but not yet validated: operators with named tensors and parameters.

JSON may have comments, ``//`` and ``/* */``. A compiled file also has the offsets of a memory plan;
they are ignored, since plait makes its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

from ...graph.core.parameters import Parameters
from ...graph.formats.sources import decode_json
from ...graph.values.errors import OperatorError, ParseError
from .macros import is_open_comment
from .text_form import is_text_form, read_text

LONGEST_NAME = 511
"""Bytes of a name."""

EXPORT = "write the file again: it is damaged, or its writer is wrong"

_KEYS = {"name": str, "optype": str, "tensors_in": list, "tensors_out": list, "params": list}
# An unclosed string or comment extends to the end of the text, so its end is searched only once.
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|//[^\n]*|/\*.*?(?:\*/|\Z)', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Entry:
    name: str
    optype: str
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    """Tensors by the names of arguments, in order."""
    parameters: Parameters

    def __str__(self) -> str:
        return f"op {self.name!r} ({self.optype})"


def read_entries(data: bytes, at: str) -> tuple[Entry, ...]:
    """Return the operators in `data`, the content of the file `at`.

    Raises ParseError if it is neither JSON nor the text form, or a key is missing or of the wrong
    type.
    """
    ops = _read_ops(data, at)
    entries = tuple(_read_entry(one, f"ops[{i}], {at}") for i, one in enumerate(ops))
    seen: set[str] = set()
    for entry in entries:
        if entry.name in seen:
            fail(f"two operators are named {entry.name!r}", at)
        seen.add(entry.name)
    return entries


def fail(what: str, at: str) -> NoReturn:
    raise ParseError(what, at=at, fix=EXPORT)


def _read_ops(data: bytes, at: str) -> list[Any]:
    with suppress(UnicodeDecodeError):  # the reader of JSON reports the place
        text = data.decode()
        if is_text_form(_TOKEN.sub(" ", text)):
            return read_text(text, at)
    root = decode_json(lambda: _TOKEN.sub(_replace_comment, data.decode()), at, ParseError, EXPORT)
    if not isinstance(root, dict) or not isinstance(root.get("ops"), list):
        raise ParseError(
            "this JSON is not a model: it has no list of operators under the key 'ops'",
            at=at,
            fix="pass a model of LightNet's, or say of which format it is",
        )
    ops: list[Any] = root["ops"]
    return ops


def _replace_comment(token: re.Match[str]) -> str:
    """Return `token`, or for a comment its line ends, so that line numbers stay."""
    text = token[0]
    if is_open_comment(text):
        raise ValueError("a comment has no end")
    return text if text.startswith('"') else " " + "\n" * text.count("\n")


def _read_entry(value: Any, at: str) -> Entry:
    if not isinstance(value, dict):
        fail("an operator is not an object", at)
    for key, kind in _KEYS.items():
        if not isinstance(value.get(key), kind):
            fail(f"{key!r} is missing, or no {'string' if kind is str else 'array'}", at)
    at = f"op {value['name']!r}, {at}"
    inputs, outputs = (_read_dict(value[key], "name", at) for key in ("tensors_in", "tensors_out"))
    for name in (value["name"], *inputs.values(), *outputs.values()):
        _check_name(name, at)
    try:
        parameters = Parameters.of(_read_dict(value["params"], "value", at))
    except OperatorError as error:
        raise ParseError(error.what, at=at, fix=EXPORT) from error
    return Entry(value["name"], value["optype"], inputs, outputs, parameters)


def _read_dict(listed: list[Any], key: str, at: str) -> dict[str, Any]:
    """Return the objects in `listed` as a dict from ``arg_name`` to `key`, for the place `at`."""
    found: dict[str, Any] = {}
    for one in listed:
        if not isinstance(one, dict) or not isinstance(one.get("arg_name"), str) or key not in one:
            fail(f"an argument is not an object of 'arg_name' and {key!r}", at)
        if one["arg_name"] in found:
            fail(f"the argument {one['arg_name']!r} is given twice", at)
        found[one["arg_name"]] = one[key]
    return found


def _check_name(name: Any, at: str) -> None:
    if not isinstance(name, str) or not name:
        fail(f"{name!r} is not a name", at)
    try:
        nbytes = len(name.encode())
    except UnicodeEncodeError:
        fail(f"{name!r} holds half a surrogate pair", at)
    if nbytes > LONGEST_NAME:
        fail(f"a name has {nbytes} bytes, more than {LONGEST_NAME}", at)
