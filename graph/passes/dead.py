"""Dead code: what nobody reads or fetches, and no effect depends on."""

from __future__ import annotations

from ..ir import Graph, Node
from ..nested import has_effects
from .merging import MayMerge, always, with_nodes


def remove_dead(graph: Graph, may_merge: MayMerge = always) -> Graph:
    """Nodes without a reader -> nothing, and so on towards the inputs, in one sweep.

    Outputs of the graph and nodes with effects are the roots.
    """
    kept = _live(graph)
    return graph if len(kept) == len(graph.nodes) else with_nodes(graph, kept)


def dead_nodes(graph: Graph) -> dict[str, str]:
    """Return why each node is dead that no output and no effect needs, by name.

    Examples
    --------
    >>> import plait as pl
    >>> b = pl.GraphBuilder("half_used")
    >>> x = b.input("x", "float32", (4,))
    >>> left = b.op("Exp", b.op("Neg", x, name="neg", outputs=["a"])[0], name="exp", outputs=["b"])
    >>> b.output("y", b.op("Relu", x))
    >>> dead_nodes(b.build())
    {'neg': "'a' is only read by 'exp', which is dead", 'exp': "nothing reads 'b'"}
    """
    live = {node.name for node in _live(graph)}
    return {node.name: _reason(graph, node) for node in graph.nodes if node.name not in live}


def _live(graph: Graph) -> list[Node]:
    wanted = set(graph.outputs)
    kept = []
    for node in reversed(graph.nodes):
        if not wanted.isdisjoint(node.outputs) or has_effects(node):
            wanted.update(node.inputs)
            kept.append(node)
    return kept[::-1]


def _reason(graph: Graph, node: Node) -> str:
    written = [name for name in node.outputs if name]
    tensors = ", ".join(map(repr, written)) or "what it writes"
    readers = dict.fromkeys(reader.name for name in written for reader in graph.consumers[name])
    if not readers:
        return f"nothing reads {tensors}"
    one, few = ("is" if len(names) == 1 else "are" for names in (written, readers))
    return f"{tensors} {one} only read by {', '.join(map(repr, readers))}, which {few} dead"
