"""Passes: plain functions from a graph to a graph that computes the same in fewer steps.

They never change a given graph, know no device, and keep the names of inputs and outputs. A merged
node has the name of the last one. The planner decides which nodes may merge: those that are pinned
to different devices may not. Rules and their helpers first take the `rewriter` of the graph.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..core.ir import Graph
from .bounds import merge_bounds
from .bypass import bypass_identities
from .expand import expand_unsupported
from .fold_constants import decode_constants, fold_constants
from .fold_product import fold_product
from .fold_scale import fold_scale
from .fuse_activation import fuse_activation
from .fuse_attention import fuse_attention
from .fuse_normalization import fuse_normalization, fuse_softmax
from .fuse_quantization import fuse_quantization
from .hoist_activations import hoist_activations
from .integer_islands import integer_islands
from .integer_moves import move_integers
from .joins import merge_joins
from .pairs import cancel_pairs
from .pipeline import Pass, fuse_chains, run_passes, select
from .quantized import absorb_clip, hoist_quantize
from .reduce_yielded import reduce_yielded
from .rewriting import MayMerge, allow_any
from .strength import reduce_strength
from .transposes import sink_transposes
from .unneeded import merge_common, remove_dead, share_constants

PASSES: tuple[Pass, ...] = (
    fold_constants,
    remove_dead,
    reduce_yielded,
    expand_unsupported,
    bypass_identities,
    share_constants,
    merge_common,
    cancel_pairs,
    move_integers,
    merge_joins,
    fuse_quantization,
    merge_bounds,
    reduce_strength,
    fuse_activation,
    fuse_normalization,
    fuse_softmax,
    fuse_attention,
    sink_transposes,
    hoist_activations,
    fold_scale,
    fold_product,
    fuse_chains,
)
"""The default order: nodes that hide a pattern are removed first, and activations are fused before
the scales and shifts around them are folded."""

OPTIONAL_PASSES: tuple[Pass, ...] = (decode_constants, absorb_clip, hoist_quantize, integer_islands)
"""Passes that run only on request."""


def simplify(
    graph: Graph, passes: Sequence[Pass] = PASSES, may_merge: MayMerge = allow_any
) -> Graph:
    """Run `passes` on `graph`. Floats may differ by rounding; all other results are equal.

    `may_merge` can refuse changes.

    Examples
    --------
    >>> import plait as pl
    >>> from plait.passes import simplify
    >>> b = pl.GraphBuilder("copy")
    >>> x = b.input("x", "float32", (2,))
    >>> b.output("y", b.op("Relu", b.op("Identity", x)))
    >>> [node.op for node in simplify(b.build()).nodes]
    ['Relu']
    """
    return run_passes(graph, passes, may_merge)[0]


def select_passes(passes: Sequence[Pass | str]) -> tuple[Pass, ...]:
    """Resolve functions and names to passes.

    ``["-fold_scale"]`` leaves out one of all passes, ``["+decode_constants"]`` adds an optional
    one.

    Raises
    ------
    GraphError
        If a name is unknown.

    Examples
    --------
    >>> from plait.passes import PASSES, select_passes
    >>> len(PASSES) - len(select_passes(["-fold_scale", "-fuse_chains"]))
    2
    """
    return select(passes, PASSES, OPTIONAL_PASSES)
