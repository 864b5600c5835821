"""Elementwise chains as one node: asked for here, done when devices are known."""

from __future__ import annotations

from ..ir import Graph
from .merging import MayMerge
from .pipeline import gated


@gated()  # by no operator: there is nothing to do yet
def fuse_chains(graph: Graph, may_merge: MayMerge) -> Graph:
    """f(g(x)) -> Fused(x) on the devices that want it; nothing yet, for they are not known here."""
    return graph
