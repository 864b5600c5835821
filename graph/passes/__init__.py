"""Passes: plain functions from a graph to a graph that computes the same in fewer steps.

They never change a graph that they are given, know no device, and keep the names of inputs and
outputs. Where nodes become one, it has the name of the last. Whoever plans says which nodes may
become one: those that are pinned to different devices may not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from ..ir import Graph
from .fold_scale import fold_scale
from .fuse_activation import fuse_activation
from .merging import MayMerge, always

__all__ = ["PASSES", "MayMerge", "Pass", "fold_scale", "fuse_activation", "simplify"]

Pass: TypeAlias = Callable[[Graph, MayMerge], Graph]

PASSES: tuple[Pass, ...] = (fuse_activation, fold_scale)
"""In order: an activation that is one node again leaves its scales and shifts to be folded."""


def simplify(graph: Graph, passes: Sequence[Pass] = PASSES, may_merge: MayMerge = always) -> Graph:
    """Return the graph after some passes; floats differ by rounding, nothing else does."""
    for one in passes:
        graph = one(graph, may_merge)
    return graph
