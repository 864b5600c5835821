"""Values of variables in files: `.plait` files of a graph with constants only."""

from __future__ import annotations

import os
from ast import literal_eval
from collections.abc import Hashable, Mapping

import numpy as np

from ....graph.errors import GraphError, ParseError, named_text
from ....graph.ir import Graph
from ....graph.tensor import Array, spec_of

NAME = "variables"

KEYED = "variables by key"

KEYS = "keys"


def save_values(values: Mapping[str, Array], path: str | os.PathLike[str]) -> None:
    """Write arrays by name to a file, atomically.

    Raises
    ------
    GraphError
        If the file cannot be written.
    """
    _save(NAME, values, path)


def save_states(
    values: Mapping[str, Array],
    by_key: Mapping[Hashable, Mapping[str, Array]],
    path: str | os.PathLike[str],
) -> None:
    """Write the values of a session, and those of each key, to a file, atomically.

    Raises
    ------
    GraphError
        If the file cannot be written, or a key has no text that gives it back.
    """
    if not by_key:
        save_values(values, path)
        return
    for key in by_key:
        if not _has_text(key):
            raise GraphError(
                f"the key {key!r} cannot be written to a file",
                at=os.fspath(path),
                fix="use text, bytes, numbers, or tuples of them as keys",
            )
    text = np.frombuffer(repr([*by_key]).encode(), np.uint8)
    states = enumerate((values, *by_key.values()))
    arrays = {f"{index} {name}": one for index, state in states for name, one in state.items()}
    _save(KEYED, {KEYS: text, **arrays}, path)


def load_values(path: str | os.PathLike[str]) -> dict[str, Array]:
    """Load the arrays of a file that `save_values` wrote.

    Raises
    ------
    ParseError
        If the file is missing, damaged or foreign.
    """
    return load_states(path)[0]


def load_states(
    path: str | os.PathLike[str],
) -> tuple[dict[str, Array], dict[Hashable, dict[str, Array]]]:
    """Load the values of a session, and those of each key, from a file that `save_states` wrote.

    Raises
    ------
    ParseError
        If the file is missing, damaged or foreign.
    """
    name, arrays = _load(path)
    if name != KEYED:
        return arrays, {}
    try:
        keys: list[Hashable] = literal_eval(arrays.pop(KEYS).tobytes().decode())
        states: list[dict[str, Array]] = [{} for _ in range(len(keys) + 1)]
        for full, array in arrays.items():
            index, _, variable = full.partition(" ")
            states[int(index)][variable] = array
        return states[0], dict(zip(keys, states[1:], strict=True))
    except (LookupError, SyntaxError, TypeError, ValueError, MemoryError, RecursionError) as error:
        raise ParseError(
            f"its keys cannot be read: {named_text(error)}",
            at=os.fspath(path),
            fix="pass what session.save_variables wrote",
        ) from error


def _has_text(key: Hashable) -> bool:
    try:
        found: object = literal_eval(repr(key))
    except (SyntaxError, TypeError, ValueError, MemoryError, RecursionError):
        return False
    return type(found) is type(key) and found == key


def _save(name: str, values: Mapping[str, Array], path: str | os.PathLike[str]) -> None:
    from ....graph.formats.native import save

    specs = {one: spec_of(value) for one, value in values.items()}
    save(Graph(name, (), tuple(values), (), specs, dict(values)), path)


def _load(path: str | os.PathLike[str]) -> tuple[str, dict[str, Array]]:
    from ....graph.formats.native import load_native

    graph = load_native(path)
    if graph.nodes or graph.inputs or graph.constants.keys() != set(graph.outputs):
        raise ParseError(
            f"the graph {graph.name!r} computes something: these are not values of variables",
            at=os.fspath(path),
            fix="pass what session.save_variables wrote",
        )
    return graph.name, dict(graph.constants)
