"""The switch for fused elementwise chains, which are built when devices are known."""

from __future__ import annotations

from ..core.ir import Graph
from .merging import MayMerge
from .pipeline import gate


@gate()
def fuse_chains(graph: Graph, may_merge: MayMerge) -> Graph:
    """Return `graph` unchanged: f(g(x)) is fused later, on the devices that want it."""
    return graph
