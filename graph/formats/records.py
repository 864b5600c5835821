"""Write and read dataclasses and named tuples as scalars, by their annotations.

A field is a scalar, another record, or a tuple, frozenset or Mapping of such; ``X | None`` starts
with its presence. Names and types are not written: readers compare `describe_layout`.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from ..values.errors import GraphError, PlaitError
from .scalars import ScalarReader, ScalarWriter

T = TypeVar("T")

SCALARS: Mapping[type, Callable[[Any], Any]] = {int: int, float: float, bool: bool, str: str}
"""Conversions of scalars before writing, as numbers may be numpy's."""


def put_record(writer: ScalarWriter, value: Any, kind: Any = None) -> None:
    """Write `value` with `writer` as a `kind`, by default its type; GraphError for other parts."""
    kind = type(value) if kind is None else kind
    shape, parts = _classify(kind)
    if shape == "scalar":
        writer.put(SCALARS[parts[0]](value))
    elif shape == "option":
        writer.put(value is not None)
        if value is not None:
            put_record(writer, value, parts[0])
    elif shape == "record":
        for name, part in parts:
            put_record(writer, getattr(value, name), part)
    else:
        if shape != "row":
            writer.put(len(value))
        for index, element in enumerate(_list_elements(value, shape)):
            put_record(writer, element, parts[index % len(parts)])


def read_record(reader: ScalarReader, kind: type[T]) -> T:
    value: T = _read(reader, kind)
    return value


def describe_layout(kind: Any) -> str:
    """Return the names and types of all parts of records of `kind`, in order."""
    return " ".join(_walk_layout(kind, set()))


def _read(reader: ScalarReader, kind: Any) -> Any:
    shape, parts = _classify(kind)
    if shape == "scalar":
        scalar = reader.typed(parts[0])
        if parts[1:] and scalar not in parts[1:]:
            raise ValueError(f"{scalar!r} is none of {', '.join(map(repr, parts[1:]))}")
        return scalar
    if shape == "option":
        return _read(reader, parts[0]) if reader.typed(bool) else None
    if shape == "record":
        values = {name: _read(reader, part) for name, part in parts}
        try:
            return kind(**values)
        except PlaitError as error:
            raise ValueError(error.what) from error
    if shape == "row":
        return tuple(_read(reader, part) for part in parts)
    if shape == "list":
        return reader.listed(lambda: _read(reader, parts[0]))
    if shape == "set":
        return frozenset(reader.listed(lambda: _read(reader, parts[0])))
    pairs = reader.listed(lambda: (_read(reader, parts[0]), _read(reader, parts[1])))
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        raise ValueError("a name is listed twice")
    return mapping


@cache
def _classify(kind: Any) -> tuple[str, tuple[Any, ...]]:
    origin, parts = get_origin(kind), get_args(kind)
    if kind in SCALARS:
        return "scalar", (kind,)
    if origin is Literal:
        return "scalar", (type(parts[0]), *parts)
    if origin in (Union, types.UnionType) and len(parts) == 2 and type(None) in parts:
        return "option", tuple(part for part in parts if part is not type(None))
    if origin is tuple and parts:
        return ("list", parts[:1]) if parts[1:] == (...,) else ("row", parts)
    if origin is frozenset:
        return "set", parts
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return "mapping", parts
    if isinstance(kind, type) and is_dataclass(kind):
        hints = get_type_hints(kind)
        return "record", tuple((one.name, hints[one.name]) for one in fields(kind) if one.init)
    if isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return "record", tuple(get_type_hints(kind).items())
    raise GraphError(f"a value of type {kind} cannot be saved", fix="save records of scalars")


def _list_elements(value: Any, shape: str) -> list[Any]:
    if shape == "mapping":
        return [part for pair in value.items() for part in pair]
    return sorted(value) if shape == "set" else list(value)


def _walk_layout(kind: Any, seen: set[Any]) -> Iterator[str]:
    shape, parts = _classify(kind)
    if shape == "scalar":
        yield parts[0].__name__
        return
    yield f"{shape}("
    if shape == "record" and kind in seen:
        yield kind.__name__
    else:
        seen.add(kind)
        for part in parts:
            name, inner = part if shape == "record" else ("", part)
            yield from (name, *_walk_layout(inner, seen))
    yield ")"
