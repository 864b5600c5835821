"""Graphs in the form for planning: simplified, and with lengths for their symbols."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ...graph.core.ir import Graph
from ...graph.core.state import set_aside
from ...graph.passes.pipeline import Applied, Pass, run_passes
from ...graph.values.errors import ShapeError
from ..plans.plan import Bounds, Shapes
from ..plans.request import PlanRequest
from ..shapes.bounds import (
    Template,
    find_computed_symbols,
    find_constraints,
    pick_largest,
    undecided_error,
)
from ..shapes.constraints import NONE, DynamicShapeConstraints
from ..shapes.fixed import find_growing_constraints
from ..shapes.sync_points import has_static_shapes
from ..shapes.whole import with_whole_nodes
from .lowering import expand_chains
from .partition.choose import make_merging_rule


@dataclass(frozen=True)
class Lengths:
    """The lengths to plan a graph for: its own. Symbolic dimensions stay, without memory."""

    folds: bool
    """Whether nodes with known results become constants."""
    bounds: Bounds = field(default_factory=dict)
    """The smallest and the largest length of each symbol, if bounded."""

    def template(self, graph: Graph) -> Graph | None:
        """Return the graph with its symbols if it is planned for several lengths, or None."""
        return None

    def pick(self, graph: Graph, request: PlanRequest) -> Graph:
        return graph

    def constraints(
        self, template: Graph, graph: Graph, request: PlanRequest
    ) -> DynamicShapeConstraints:
        return NONE

    def may_split(self, graph: Graph) -> bool:
        """Return whether the prologue of `graph` is known before lengths are picked."""
        return has_static_shapes(graph)


@dataclass(frozen=True)
class BoundedLengths(Lengths):
    """All lengths within bounds: memory is for the largest, and smaller ones run in it too."""

    def template(self, graph: Graph) -> Graph:
        return graph

    def pick(self, graph: Graph, request: PlanRequest) -> Graph:
        """Return `graph` at the largest lengths; raise UndecidedError if values decide."""
        lengths = pick_largest(self.bounds)
        try:
            found = _make_template(graph, request, self).picked(lengths)
        except ShapeError as error:
            named = ", ".join(f"{symbol} = {length}" for symbol, length in lengths.items())
            error.add_note(f"all is planned for the largest lengths within bounds: {named}")
            raise
        return _check_decided(found)

    def constraints(
        self, template: Graph, graph: Graph, request: PlanRequest
    ) -> DynamicShapeConstraints:
        return find_constraints(_make_template(template, request, self), self.bounds, graph)

    def may_split(self, graph: Graph) -> bool:
        """Return whether constants are folded: otherwise the prologue may decide shapes."""
        return self.folds


@dataclass(frozen=True)
class GrowingLengths(BoundedLengths):
    """The lengths of some shapes, and any others next to them.

    Tensors that depend on lengths lie apart from all others, and can be laid out anew.
    """

    shapes: Shapes = field(default_factory=dict)

    def pick(self, graph: Graph, request: PlanRequest) -> Graph:
        """Return `graph` at these shapes, for `request`; raise UndecidedError if values decide."""
        return _check_decided(_make_template(graph, request, self).of(self.shapes))

    def constraints(
        self, template: Graph, graph: Graph, request: PlanRequest
    ) -> DynamicShapeConstraints:
        return find_growing_constraints(template)


def prepare(
    graph: Graph, request: PlanRequest, passes: tuple[Pass, ...], lengths: Lengths
) -> tuple[Graph, tuple[Applied, ...]]:
    """Return `graph` simplified by `passes`, with its variables set aside, and the applied passes.

    `request` and `lengths` decide which nodes stay whole. Chains of an earlier plan are expanded,
    because costs and partitions treat single nodes.
    """
    graph, applied = run_passes(expand_chains(graph), passes, make_merging_rule(request))
    if lengths.template(graph) is None:  # otherwise when its lengths are picked
        graph = with_whole_nodes(graph, request.devices, request.pins, folds=lengths.folds)
    late = request.overlaps and request.commit == "step"
    return set_aside(graph, overlaps=late), applied


def simplify(
    graph: Graph, request: PlanRequest, passes: Sequence[Pass], bounds: Bounds
) -> tuple[Graph, tuple[Applied, ...], Bounds]:
    """Run `passes` on `graph`; return it, the changes, and `bounds` without symbols that are gone.

    `request` decides which nodes merge.
    """
    after, applied = run_passes(expand_chains(graph), passes, make_merging_rule(request.offered))
    gone = (
        find_computed_symbols(graph).keys() - find_computed_symbols(after).keys()
        if applied
        else set()
    )
    return after, applied, {name: one for name, one in bounds.items() if name not in gone}


def _make_template(graph: Graph, request: PlanRequest, lengths: Lengths) -> Template:
    return Template(graph, request.devices, request.pins, lengths.folds)


def _check_decided(graph: Graph) -> Graph:
    if not has_static_shapes(graph):
        raise undecided_error(graph)
    return graph
