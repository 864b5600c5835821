"""The topological order of the nodes in a file, or an error if they have a cycle."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ...core.ir import Node
from ...core.ordering import sort_nodes
from ...values.errors import ParseError


def order_topologically(nodes: Sequence[Node], given: Collection[str], at: str) -> list[Node]:
    """Return `nodes` with producers first, and otherwise in their order; errors name the file `at`.

    `given` are the tensors that no node writes: inputs and constants. Raises ParseError if a tensor
    is written twice, is read but never written, or depends on itself.
    """
    producer = _find_producers(nodes, given, at)
    _check_written(nodes, given, producer, at)
    order, cycle = sort_nodes(nodes)
    if cycle:
        raise ParseError(
            f"nodes wait for each other in a cycle: {format_names([node.name for node in cycle])}",
            at=at,
            fix="export the model again: a graph has no loops",
        )
    return order


def format_names(names: Sequence[str], most: int = 8) -> str:
    shown = ", ".join(map(repr, names[:most]))
    return shown if len(names) <= most else f"{shown} ... {len(names)} in all"


def _find_producers(nodes: Sequence[Node], given: Collection[str], at: str) -> dict[str, int]:
    producer: dict[str, int] = {}
    for index, node in enumerate(nodes):
        for name in filter(None, node.outputs):
            if name in producer or name in given:
                first = nodes[producer[name]] if name in producer else "an input or constant"
                raise ParseError(
                    f"tensor {name!r} is defined twice: by {first} and by {node}",
                    at=at,
                    fix="export the model again with unique names",
                )
            producer[name] = index
    return producer


def _check_written(
    nodes: Sequence[Node], given: Collection[str], producer: dict[str, int], at: str
) -> None:
    for node in nodes:
        missing = [name for name in node.inputs if name and name not in producer]
        missing = [name for name in missing if name not in given]
        if missing:
            raise ParseError(
                f"nothing writes the tensors {format_names(missing)}",
                at=f"{node}, {at}",
                fix="export the model again: it is incomplete",
            )
