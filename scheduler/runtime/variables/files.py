"""Values of variables in files: `.plait` files of a graph with constants only."""

from __future__ import annotations

import os
from ast import literal_eval
from collections.abc import Hashable, Mapping
from typing import TypeAlias

from ....graph.core.ir import Graph
from ....graph.values.errors import GraphError, ParseError, describe_error
from ....graph.values.tensor import Array, spec_of

States: TypeAlias = Mapping[Hashable, Mapping[str, Array]]
"""The values of variables by key; None is that of the session itself."""

NAME, KEYED = "variables", "variables by key"


def save_values(states: States, path: str | os.PathLike[str], *, is_durable: bool = True) -> None:
    """Write `states`, by key and name, to file `path`, atomically; on disk if `is_durable`.

    Raises GraphError if the file cannot be written, or a key cannot be made from its text.
    """
    from ....graph.formats.native import save

    for key in states:
        if not _has_text(key):
            raise GraphError(
                f"the key {key!r} cannot be written to a file",
                at=os.fspath(path),
                fix="use text, bytes, numbers, or tuples of them as keys",
            )
    has_keys = states.keys() != {None}
    values = {
        repr((key, name)) if has_keys else name: array
        for key, state in states.items()
        for name, array in state.items()
    }
    specs = {name: spec_of(value) for name, value in values.items()}
    graph = Graph(KEYED if has_keys else NAME, (), tuple(values), (), specs, values)
    save(graph, path, is_durable=is_durable)


def load_values(path: str | os.PathLike[str]) -> dict[Hashable, dict[str, Array]]:
    """Return the arrays, by key and name, that `save_values` wrote to `path`.

    Raises ParseError if the file is missing, damaged or foreign.
    """
    from ....graph.formats.native import load_native

    graph = load_native(path)
    found: dict[Hashable, dict[str, Array]] = {None: {}}
    try:
        if graph.nodes or graph.inputs or graph.constants.keys() != set(graph.outputs):
            raise ValueError(f"the graph {graph.name!r} computes something")
        for text, array in graph.constants.items():
            key, name = literal_eval(text) if graph.name == KEYED else (None, text)
            found.setdefault(key, {})[name] = array
    except (SyntaxError, TypeError, ValueError, MemoryError, RecursionError) as error:
        raise ParseError(
            f"{describe_error(error)}: these are not values of variables",
            at=os.fspath(path),
            fix="pass what session.save_variables wrote",
        ) from error
    return found


def _has_text(key: Hashable) -> bool:
    try:
        found: object = literal_eval(repr(key))
    except (SyntaxError, TypeError, ValueError, MemoryError, RecursionError):
        return False
    return type(found) is type(key) and found == key
