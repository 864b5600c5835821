"""Names of subgraphs for reports and traces: those of their functions, or of the model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

FEW = 2
"""A subgraph of up to that many nodes is called by all of them."""


def name_subgraphs(
    parts: Iterable[Sequence[str]], devices: Sequence[str], graph: str, count: int
) -> list[str]:
    """Return a unique name for each subgraph.

    A subgraph of few nodes has their names, one of all nodes that of the graph, and one with a
    common prefix of nodes that prefix. Others are called by their place and device, ``"1:ort:0"``.
    `parts` has the nodes of each subgraph; `graph` is the name of the graph of `count` nodes.
    """
    names: list[str] = []
    taken: dict[str, int] = {}
    for index, (nodes, device) in enumerate(zip(parts, devices, strict=True)):
        found = graph if FEW < len(nodes) == count else _find_common_name(nodes)
        name = found or name_by_place(index, device)
        taken[name] = times = taken.get(name, 0) + 1
        names.append(name if times == 1 else f"{name} ({times})")
    return names


def name_by_place(index: int, device: str) -> str:
    return f"{index}:{device}"


def _find_common_name(nodes: Sequence[str]) -> str:
    if len(nodes) <= FEW:
        return " + ".join(nodes)
    first, last = min(nodes), max(nodes)
    pairs = enumerate(zip(first, last, strict=False))
    prefix = first[: next((at for at, (a, b) in pairs if a != b), len(first))]
    return prefix.rpartition("/")[0].rstrip("/") or prefix.rpartition(".")[0]
