"""Values of variables in files: `.plait` files of a graph with constants only."""

from __future__ import annotations

import os
from collections.abc import Mapping

from ....graph.errors import ParseError
from ....graph.ir import Graph
from ....graph.tensor import Array, spec_of

NAME = "variables"


def save_values(values: Mapping[str, Array], path: str | os.PathLike[str]) -> None:
    """Write arrays by name to a file, atomically.

    Raises
    ------
    GraphError
        If the file cannot be written.
    """
    from ....graph.formats.native import save

    specs = {name: spec_of(value) for name, value in values.items()}
    save(Graph(NAME, (), tuple(values), (), specs, dict(values)), path)


def load_values(path: str | os.PathLike[str]) -> dict[str, Array]:
    """Load the arrays of a file that `save_values` wrote.

    Raises
    ------
    ParseError
        If the file is missing, damaged or foreign.
    """
    from ....graph.formats.native import load_native

    graph = load_native(path)
    if graph.nodes or graph.inputs or graph.constants.keys() != set(graph.outputs):
        raise ParseError(
            f"the graph {graph.name!r} computes something: these are not values of variables",
            at=os.fspath(path),
            fix="pass what session.save_variables wrote",
        )
    return dict(graph.constants)
