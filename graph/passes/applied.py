"""Results of passes, for reports and files."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..core.ir import Graph, Node
from ..values.errors import join_lines


@dataclass(frozen=True, slots=True)
class Applied:
    """The changes of a pass to a graph.

    Attributes
    ----------
    name : str
        Of the pass.
    before, after : int
        Number of nodes.
    rewritten : tuple of str
        Nodes of another operator or with other inputs, as ``"name: Mul -> HardSwish"``.
    added, removed : tuple of str
        Nodes.
    inside : str
        Path of the node that holds the graph; empty for the whole graph.
    """

    name: str
    before: int
    after: int
    rewritten: tuple[str, ...]
    added: tuple[str, ...]
    removed: tuple[str, ...]
    seconds: float
    inside: str = ""

    def __str__(self) -> str:
        counts = {
            "rewritten": len(self.rewritten),
            "added": len(self.added),
            "removed": len(self.removed),
        }
        listed = ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)
        where = f" in {self.inside}" if self.inside else ""
        nodes = f"{self.before:,} -> {self.after:,} nodes"
        return join_lines([f"{self.name}{where}: {nodes} ({listed or 'constants'})"])

    def within(self, node: str) -> Applied:
        """Return these changes with names as paths inside of `node`."""
        rewritten, added, removed = (
            tuple(f"{node}/{name}" for name in names)
            for names in (self.rewritten, self.added, self.removed)
        )
        inside = f"{node}/{self.inside}" if self.inside else node
        return replace(self, rewritten=rewritten, added=added, removed=removed, inside=inside)


def compare_graphs(name: str, before: Graph, after: Graph, seconds: float) -> Applied:
    old, new = ({node.name: node for node in graph.nodes} for graph in (before, after))
    changed = ((old[n], node) for n, node in new.items() if n in old and old[n] is not node)
    rewritten = tuple(_describe_change(a, b) for a, b in changed if a != b)
    added = tuple(n for n in new if n not in old)
    removed = tuple(n for n in old if n not in new)
    counts = len(before.nodes), len(after.nodes)
    return Applied(name, *counts, rewritten, added, removed, seconds)


def _describe_change(a: Node, b: Node) -> str:
    return f"{a.name}: {a.op} -> {b.op}" if a.op != b.op else f"{a.name}: {a.op}"
