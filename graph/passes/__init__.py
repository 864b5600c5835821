"""Passes: plain functions from a graph to a graph that computes the same in fewer steps.

They never change a graph that they are given, know no device, and keep the names of inputs and
outputs. Where nodes become one, it has the name of the last. Whoever plans says which nodes may
become one: those that are pinned to different devices may not.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..ir import Graph
from .bypass import bypass_identities
from .dead import remove_dead
from .duplicates import merge_common, share_constants
from .fold_product import fold_product
from .fold_scale import fold_scale
from .fuse_activation import fuse_activation
from .fuse_normalization import fuse_normalization
from .fuse_softmax import fuse_softmax
from .merging import MayMerge, always
from .pairs import cancel_pairs
from .pipeline import Applied, Pass, name_of, run_passes
from .selecting import select
from .strength import reduce_strength
from .transposes import sink_transposes

__all__ = [
    "PASSES",
    "Applied",
    "MayMerge",
    "Pass",
    "bypass_identities",
    "cancel_pairs",
    "fold_product",
    "fold_scale",
    "fuse_activation",
    "fuse_normalization",
    "fuse_softmax",
    "merge_common",
    "name_of",
    "reduce_strength",
    "remove_dead",
    "run_passes",
    "selected",
    "share_constants",
    "simplify",
    "sink_transposes",
]

PASSES: tuple[Pass, ...] = (
    remove_dead,
    bypass_identities,
    share_constants,
    merge_common,
    cancel_pairs,
    sink_transposes,
    reduce_strength,
    fuse_activation,
    fuse_normalization,
    fuse_softmax,
    fold_scale,
    fold_product,
)
"""In order: what is in the way of a pattern goes first, and an activation that is one node again
leaves its scales and shifts to be folded."""


def simplify(graph: Graph, passes: Sequence[Pass] = PASSES, may_merge: MayMerge = always) -> Graph:
    """Return the graph after some passes; floats differ by rounding, nothing else does."""
    return run_passes(graph, passes, may_merge)[0]


def selected(passes: Sequence[Pass | str]) -> tuple[Pass, ...]:
    """Return the passes that functions and names stand for: ``["-fold_scale"]`` is all but one.

    Raises
    ------
    GraphError
        If there is no pass of a name.
    """
    return select(passes, PASSES)
