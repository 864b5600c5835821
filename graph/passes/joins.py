"""Remove Concats and Splits that undo or repeat each other."""

from __future__ import annotations

from collections import Counter

from ..core.ir import Node
from ..values.dims import normalize_axis
from .pipeline import make_pass
from .rewriting import Rewriter


@make_pass("Concat")
def merge_joins(rewriter: Rewriter) -> None:
    """Merge joins and splits: Concat(Concat(a, b), c) -> Concat(a, b, c); Concat of Split -> x.

    Also Split of Concat -> a, b, along one axis, and with all parts of the Split. A Concat with
    other readers stays.
    """
    for split in rewriter.find("Split"):
        _bypass_split(rewriter, rewriter.node(split.name))
    # The last first: each chain is flattened once, and its inner Concats are skipped.
    taken: set[str] = set()
    for concat in reversed(rewriter.find("Concat")):
        if concat.outputs[0] not in taken:
            taken |= _flatten(rewriter, rewriter.node(concat.name))
    rewriter.drop_dead()


def _get_axis(rewriter: Rewriter, node: Node) -> int | None:
    rank = rewriter.tensors[node.inputs[0]].rank
    return None if rank is None else normalize_axis(node.attributes["axis"], rank)


def _flatten(rewriter: Rewriter, node: Node) -> set[str]:
    """Read inputs of Concats and whole Splits in `node` instead; return the tensors replaced."""
    axis = _get_axis(rewriter, node)
    taken: set[str] = set()
    if axis is None:
        return taken
    parts: list[str] = []
    rest = list(node.inputs[::-1])  # reversed, as only popping the last is cheap
    uses = Counter(rest)
    while rest:
        found = _find_parts(rewriter, node, rest, axis)
        if found is None:
            parts.append(rest.pop())
            continue
        read, count = found
        repeated = uses[rest[-1]] > 1
        if repeated and (uses[rest[-1]] - 1) * (len(read) - 1) > 1:
            parts.append(rest.pop())  # in a chain, each one would double the inputs
            continue
        taken.add(rest[-1])
        del rest[-count:]
        if repeated:
            parts += read  # not flattened further, as each is repeated too
        else:
            rest += read[::-1]
            uses.update(read)
    if tuple(parts) != node.inputs:
        made = rewriter.make("Concat", parts, node.outputs, name=node.name, axis=axis)
        rewriter.replace([node], [made])
    return taken


def _find_parts(
    rewriter: Rewriter, node: Node, rest: list[str], axis: int
) -> tuple[tuple[str, ...], int] | None:
    """Return inputs of `node` that can replace the last of `rest`, and how many of these.

    They lie along `axis` in nodes of `rewriter`.
    """
    writer = rewriter.producer(rest[-1])
    if writer is None or writer.op not in ("Concat", "Split"):
        return None
    if _get_axis(rewriter, writer) != axis or not rewriter.may_merge([writer, node], node):
        return None
    if writer.op == "Concat":
        return (writer.inputs, 1) if rewriter.is_private(rest[-1]) else None
    count = len(writer.outputs)
    return (writer.inputs[:1], count) if tuple(rest[: -count - 1 : -1]) == writer.outputs else None


def _bypass_split(rewriter: Rewriter, node: Node) -> None:
    before = rewriter.producer(node.inputs[0])
    if before is None or before.op != "Concat" or len(before.inputs) != len(node.outputs):
        return
    axis = _get_axis(rewriter, node)
    if axis is None or axis != _get_axis(rewriter, before):
        return
    to = {a: b for a, b in zip(node.outputs, before.inputs, strict=True) if a}
    same = all(rewriter.tensors[a] == rewriter.tensors[b] for a, b in to.items())
    if same and rewriter.may_merge([before, node], node):
        rewriter.bypass(node, to)
