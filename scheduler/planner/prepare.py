"""Graphs in the form in which they are planned: simpler, and with lengths for their symbols."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...graph.errors import ShapeError
from ...graph.ir import Graph
from ...graph.passes import Applied, Pass, reduce_yielded, run_passes
from ...graph.state import set_aside
from ..plans.request import PlanRequest
from ..plans.shapes import Bounds, Shapes
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
from .lowering import without_chains
from .partition.choose import merging


@dataclass(frozen=True)
class Lengths:
    """The lengths that a graph is planned for: its own. What is symbolic stays so, without memory.

    Attributes
    ----------
    folds : bool
        True where nodes whose results are known ahead become constants.
    bounds : Mapping of str to (int, int)
        The smallest and the largest length of each symbol, where there are such.
    """

    folds: bool
    bounds: Bounds = field(default_factory=dict)

    def template(self, graph: Graph) -> Graph | None:
        """Return the graph with its symbols, where it is planned for several lengths of them."""
        return None

    def pick(self, graph: Graph, request: PlanRequest) -> Graph:
        """Return the graph with the lengths that memory is laid out for."""
        return graph

    def constraints(
        self, template: Graph, graph: Graph, request: PlanRequest
    ) -> DynamicShapeConstraints:
        """Return what that memory must allow for."""
        return NONE

    def may_split(self, graph: Graph) -> bool:
        """Say whether what runs once is known, before lengths are picked."""
        return has_static_shapes(graph)


@dataclass(frozen=True)
class BoundedLengths(Lengths):
    """All lengths within bounds: memory is for the largest, and smaller ones run in it as well."""

    def template(self, graph: Graph) -> Graph:
        """Return the graph with its symbols."""
        return graph

    def pick(self, graph: Graph, request: PlanRequest) -> Graph:
        """Return the graph with the largest lengths; raise UndecidedError if values decide some."""
        lengths = pick_largest(self.bounds)
        try:
            found = _template(graph, request, self).picked(lengths)
        except ShapeError as error:
            named = ", ".join(f"{symbol} = {length}" for symbol, length in lengths.items())
            error.add_note(f"all is planned for the largest lengths within bounds: {named}")
            raise
        return _decided(found)

    def constraints(
        self, template: Graph, graph: Graph, request: PlanRequest
    ) -> DynamicShapeConstraints:
        """Return what the memory of the largest lengths must allow for."""
        return find_constraints(_template(template, request, self), self.bounds, graph)

    def may_split(self, graph: Graph) -> bool:
        """Say whether constants are folded: else what runs once may be what decides shapes."""
        return self.folds


@dataclass(frozen=True)
class GrowingLengths(BoundedLengths):
    """Those of some shapes, and any others beside them.

    What lengths matter to lies apart from all else, and can be laid out anew.
    """

    shapes: Shapes = field(default_factory=dict)

    def pick(self, graph: Graph, request: PlanRequest) -> Graph:
        """Return the graph for these shapes; raise UndecidedError if values decide others."""
        return _decided(_template(graph, request, self).of(self.shapes))

    def constraints(
        self, template: Graph, graph: Graph, request: PlanRequest
    ) -> DynamicShapeConstraints:
        """Return what the memory must allow for where some of it grows."""
        return find_growing_constraints(template)


def prepare(
    graph: Graph, request: PlanRequest, passes: tuple[Pass, ...], lengths: Lengths
) -> tuple[Graph, tuple[Applied, ...]]:
    """Return a graph that passes made simpler, without variables, and what they did.

    Chains of an earlier plan are single nodes again: what costs and partitions are about.
    """
    graph, applied = run_passes(without_chains(graph), passes, merging(request))
    if lengths.template(graph) is None:  # else when its lengths are picked
        graph = with_whole_nodes(graph, request.devices, request.pins, folds=lengths.folds)
    late = request.overlaps and request.commit == "step"
    return set_aside(graph, overlaps=late), applied


def reduce_rows(
    graph: Graph, request: PlanRequest, passes: tuple[Pass, ...], bounds: Bounds
) -> tuple[Graph, tuple[Applied, ...], Bounds]:
    """Return a graph that keeps no rows which are only folded, what was done, and the bounds left.

    Their number is the length of nothing then: this comes before anybody asks for its bound.
    """
    chosen = [one for one in passes if one is reduce_yielded]
    after, applied = run_passes(graph, chosen, merging(request))
    gone = (
        find_computed_symbols(graph).keys() - find_computed_symbols(after).keys()
        if applied
        else set()
    )
    return after, applied, {name: one for name, one in bounds.items() if name not in gone}


def _template(graph: Graph, request: PlanRequest, lengths: Lengths) -> Template:
    return Template(graph, request.devices, request.pins, lengths.folds)


def _decided(graph: Graph) -> Graph:
    """Return a graph; raise UndecidedError if values decide shapes of it."""
    if not has_static_shapes(graph):
        raise undecided_error(graph)
    return graph
