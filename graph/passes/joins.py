"""Concats and Splits that need not be: parts are joined once, and cut only to be apart."""

from __future__ import annotations

from collections import Counter

from ..dims import normalize_axis
from ..ir import Graph, Node
from .merging import MayMerge, always
from .pipeline import gated
from .rewriting import Rewriter


@gated("Concat")
def merge_joins(graph: Graph, may_merge: MayMerge = always) -> Graph:
    """Concat(Concat(a, b), c) -> Concat(a, b, c); Concat of Split -> x; Split of Concat -> a, b.

    Along the same axis, and all the parts that Split cuts. A Concat that others read too stays.
    """
    rewriter = Rewriter(graph, may_merge)
    for split in rewriter.find("Split"):
        _take_apart(rewriter, rewriter.node(split.name))
    # The last first: a chain is then read through once, and what that took over is left out.
    taken: set[str] = set()
    for concat in reversed(rewriter.find("Concat")):
        if concat.outputs[0] not in taken:
            taken |= _join(rewriter, rewriter.node(concat.name))
    rewriter.drop_dead()
    return rewriter.result()


def _axis(rewriter: Rewriter, node: Node) -> int | None:
    rank = rewriter.tensors[node.inputs[0]].rank
    return None if rank is None else normalize_axis(node.attributes["axis"], rank)


def _join(rewriter: Rewriter, node: Node) -> set[str]:
    """Read the parts of parts, and what was cut in place of all of its parts.

    Returns the tensors whose parts are read in their place.
    """
    axis = _axis(rewriter, node)
    taken: set[str] = set()
    if axis is None:
        return taken
    parts: list[str] = []
    rest = list(node.inputs[::-1])  # the next part last, so that taking it off costs nothing
    uses = Counter(rest)
    while rest:
        found = _source(rewriter, node, rest, axis)
        if found is None:
            parts.append(rest.pop())
            continue
        read, count = found
        repeated = uses[rest[-1]] > 1
        if repeated and (uses[rest[-1]] - 1) * (len(read) - 1) > 1:
            parts.append(rest.pop())  # more would be read than both read: chained, it doubles
            continue
        taken.add(rest[-1])
        del rest[-count:]
        if repeated:
            parts += read  # not looked into: what is in there is read as often
        else:
            rest += read[::-1]
            uses.update(read)
    if tuple(parts) != node.inputs:
        made = rewriter.make("Concat", parts, node.outputs, name=node.name, axis=axis)
        rewriter.replace([node], [made])
    return taken


def _source(
    rewriter: Rewriter, node: Node, rest: list[str], axis: int
) -> tuple[tuple[str, ...], int] | None:
    """Return what to read in place of the next inputs, which stand last, and of how many."""
    writer = rewriter.producer(rest[-1])
    if writer is None or writer.op not in ("Concat", "Split"):
        return None
    if _axis(rewriter, writer) != axis or not rewriter.may_merge([writer, node], node):
        return None
    if writer.op == "Concat":
        return (writer.inputs, 1) if rewriter.is_private(rest[-1]) else None
    count = len(writer.outputs)
    return (writer.inputs[:1], count) if tuple(rest[: -count - 1 : -1]) == writer.outputs else None


def _take_apart(rewriter: Rewriter, node: Node) -> None:
    """Let who reads a part read what became it."""
    before = rewriter.producer(node.inputs[0])
    if before is None or before.op != "Concat" or len(before.inputs) != len(node.outputs):
        return
    axis = _axis(rewriter, node)
    if axis is None or axis != _axis(rewriter, before):
        return
    to = dict(zip(node.outputs, before.inputs, strict=True))
    alike = all(rewriter.tensors[a] == rewriter.tensors[b] for a, b in to.items() if a)
    if alike and rewriter.may_merge([before, node], node):
        rewriter.bypass(node, {a: b for a, b in to.items() if a})
