"""Checks on replacing nodes by others, before anything is changed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ..errors import GraphError
from ..ir import Node
from ..nested import has_effects

if TYPE_CHECKING:
    from .rewriting import Rewriter


GROWTH_FACTOR, GROWTH_FREE = 64, 100_000
"""A pass may write this many nodes and inputs for each that there is, and this many besides."""


def size_of(nodes: Iterable[Node]) -> int:
    """Return how many nodes there are, and inputs of nodes."""
    return sum(1 + len(node.inputs) for node in nodes)


def check_growth(before: int, after: int, at: str) -> None:
    """Raise GraphError where a graph of one size becomes so large that no rule can mean it.

    Writing operators out in simpler ones multiplies nodes by some ten; what doubles with each node
    would fill the memory before anything else stops it.
    """
    most = GROWTH_FACTOR * before + GROWTH_FREE
    if after > most:
        raise GraphError(
            f"a pass writes {after:,} nodes and inputs in place of {before:,}; at most {most:,}",
            at=at,
            fix="leave that pass out: passes=['-its_name']",
        )


def check_replacement(rewriter: Rewriter, old: Sequence[Node], new: Sequence[Node]) -> None:
    """Raise GraphError if the graph would be broken."""
    gone, going = {node.name for node in old}, {t for node in old for t in node.outputs}
    written = [tensor for node in new for tensor in node.outputs if tensor]
    for tensor in going.difference(written, ("",)):
        readers = [*new, *(node for node in rewriter.readers(tensor) if node.name not in gone)]
        if rewriter.is_output(tensor) or any(tensor in node.inputs for node in readers):
            raise refused_error(f"nothing would write {tensor!r}, which is read", old)
    goes = any(has_effects(node) for node in old if node not in new)
    if goes and not any(map(has_effects, new)):
        raise refused_error("a node with effects would go", old)
    for node in new:
        if node.name in rewriter.names and node.name not in gone:
            raise refused_error(f"there is a node {node.name!r} already", old)
        if node not in rewriter:
            _check_specs(rewriter, node, old)
    writers = [one for tensor in written if (one := rewriter.producer(tensor)) is not None]
    if any(one.name not in gone for one in writers) or len(set(written)) < len(written):
        raise refused_error("a tensor would be written twice", old)


def refused_error(what: str, nodes: Iterable[Node]) -> GraphError:
    """Return the error of a change that would break the graph."""
    listed = ", ".join(repr(node.name) for node in nodes)
    return GraphError(what, at=f"in place of {listed}", fix="repair the pass")


def _check_specs(rewriter: Rewriter, node: Node, old: Sequence[Node]) -> None:
    unknown = [name for name in node.inputs if name and name not in rewriter.tensors]
    if unknown:
        raise refused_error(f"there is no tensor {unknown[0]!r}", old)
    for tensor, spec in zip(node.outputs, rewriter.specs(node), strict=False):
        known = rewriter.tensors.setdefault(tensor, spec)
        alike = spec.dtype == known.dtype and (
            spec == known or not (spec.is_static and known.is_static)
        )
        if tensor and not alike:
            raise refused_error(f"{tensor!r} would be {spec}, but is {known}", old)
