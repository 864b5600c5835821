"""Plans of the stages of a graph with value-dependent shapes, kept for reuse."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from ...devices.evaluating import can_evaluate, evaluate
from ...graph.core.infer import infer_node
from ...graph.core.ir import Graph, Node, make_call
from ...graph.core.state import read_variables, remove_state
from ...graph.core.traits import SELECTS
from ...graph.operators.bounded_call import find_largest_results
from ...graph.operators.control import waits
from ...graph.passes.captured_constants import with_constants_inside
from ...graph.values.recent import RecentItems
from ...graph.values.tensor import Array, TensorSpec, copy_read_only, spec_of
from ..plans.plan import Bounds, Plan
from ..shapes.bounds import Template, UndecidedError, count_error, find_fed_bounds
from ..shapes.specialise import specialise
from ..shapes.sync_points import (
    GraphSplit,
    PaddedOutputs,
    cut,
    find_deciding,
    find_frontier,
    has_static_shapes,
    infer_known,
)
from ..shapes.whole import SWITCH_SIZE, list_switches, with_whole_nodes
from .known_values import evaluate_known
from .replanning import replan_graph, replan_within

KEPT_STAGES = 256
"""Cached stages at all boundaries together; the least recently used are dropped first."""

MOST_SETTINGS = 8
"""Switches with more settings count as ordinary values."""

Variables: TypeAlias = Mapping[str, Node]
"""Names of inputs, and the variables that supply them."""

Facts: TypeAlias = tuple[tuple[tuple[int, ...], bytes], ...]
"""The key of a stage: the shape of each input, and the bytes of deciding values."""


class Stage:
    """The part of a graph that can be planned once its inputs are known.

    `plan` is None if nothing runs before the boundary. `limits` are the computed lengths: tensor,
    axis, symbol, least and largest. `loops` are the loops reached then, with the stages of their
    bodies, and `rest` is the graph after them. `constants` are outputs that are constants by now,
    and constants that loops read. `whole` is the plan if nothing is left after it.
    """

    def __init__(self, plan: Plan, graph: Graph, kept: Kept, variables: Variables) -> None:
        self.limits = tuple(_list_limits(graph, graph.producers, plan.computed))
        parts = cut(graph, plan.computed)
        self.plan = (
            replan_graph(plan, read_variables(parts.head, variables)) if parts.head.nodes else None
        )
        self.padded: tuple[PaddedOutputs, ...] = parts.padded
        self.loops: Sequence[tuple[Node, StagedGraph]] = ()
        self.rest: StagedGraph | None = None
        read = set(graph.outputs)
        if parts.rest is not None:
            # Loops run separately once their inputs are there; an If becomes its chosen branch when
            # the rest is planned.
            reached = [
                node for node in find_frontier(parts.rest) if waits(node) and node.op != "If"
            ]
            closed = [_close_loop(node, graph.constants) for node in reached]
            self.loops = [
                (
                    node,
                    StagedGraph(
                        plan, node.attributes["body"], kept, _find_captured(node, variables)
                    ),
                )
                for node in closed
            ]
            read.update(name for node in closed for name in node.inputs)
            # Readers of a loop's results are in a stage after the loop.
            left = [node for node in parts.rest.nodes if node not in reached]
            if left:
                rest = parts.rest.extract(left, graph.name)
                self.rest = StagedGraph(plan, rest, kept, variables)
        self.constants: Mapping[str, Array] = {
            name: value for name, value in graph.constants.items() if name in read
        }
        # Then an item runs in one plan, without the paths between stages.
        done = self.plan is not None and self.plan.graph.outputs == graph.outputs
        self.whole = self.plan if done and not self.padded and parts.rest is None else None

    def at_boundary(self, known: Mapping[str, Array]) -> Mapping[str, Array]:
        """Return the values known at the boundary besides those computed before."""
        found: dict[str, Array] = {}
        for padded in self.padded:
            found.update(padded.trimmed(known))
        return found

    def check(self, known: Mapping[str, Array]) -> None:
        """Raise ShapeError if a length computed in `known` is out of its bounds."""
        for tensor, axis, symbol, bound in self.limits:
            if tensor in known and not bound[0] <= known[tensor].shape[axis] <= bound[1]:
                raise count_error(tensor, symbol, known[tensor].shape[axis], bound)


class BoundedStage(Stage):
    """A stage with one plan for all lengths within bounds.

    It covers the whole graph, or the part before values decide more.
    """

    def __init__(self, plan: Plan, graph: Graph, parts: GraphSplit, kept: Kept) -> None:
        bounds = find_fed_bounds(parts.head, plan.computed)
        self.plan = (
            replan_within(plan, parts.head, bounds) if bounds else replan_graph(plan, parts.head)
        )
        self.padded, self.loops, self.whole = parts.padded, (), None
        self.rest = None if parts.rest is None else StagedGraph(plan, parts.rest, kept)
        # Unread results have a buffer but are not in the graph.
        written = (name for padded in parts.padded for name in padded.tensors)
        made = [name for name in written if name in graph.tensors]
        self.limits = tuple(_list_limits(graph, made, plan.computed))
        self.constants = {n: a for n, a in graph.constants.items() if n in graph.outputs}


class BoundaryStage(Stage):
    """Nodes that select by a computed length: run at the boundary with numpy, for any length.

    They move numbers, or compute a few; all nodes after them have lengths within bounds.
    """

    def __init__(self, plan: Plan, graph: Graph, kept: Kept, nodes: Sequence[Node]) -> None:
        self.plan, self.padded, self.loops, self.whole = None, (), (), None
        self._graph, self._nodes = graph, nodes
        self.limits = tuple(_list_limits(graph, graph.producers, plan.computed))
        left = [node for node in graph.nodes if node not in nodes]
        self.rest = StagedGraph(plan, graph.extract(left, graph.name), kept) if left else None
        self.constants = {n: a for n, a in graph.constants.items() if n in graph.outputs}

    def at_boundary(self, known: Mapping[str, Array]) -> Mapping[str, Array]:
        """Compute values of the nodes from those `known`; raise ShapeError if shapes disagree."""
        found: dict[str, Array] = {}
        for node in self._nodes:
            values = {n: known.get(n, self._graph.constants.get(n)) for n in node.inputs if n}
            specs = {name: spec_of(value) for name, value in values.items()}
            call = make_call(node, specs, values)
            found.update(evaluate(node, call, infer_node(node, call)) or {})
        return found


def _may_run_at_boundary(graph: Graph, node: Node, bounds: Bounds) -> bool:
    operator, specs = node.operator, graph.output_specs(node)
    if operator.function is not None or operator.bounded is not None or operator.effects:
        return False
    dims = {dim for spec in specs for dim in spec.shape or (None,) if not isinstance(dim, int)}
    moves = SELECTS in operator.traits or all(spec.dtype.kind in "biu" for spec in specs)
    return moves and bounds.keys() >= dims and can_evaluate(node.op)


def _list_limits(
    graph: Graph, names: Iterable[str], bounds: Bounds
) -> Iterator[tuple[str, int, str, tuple[int, int]]]:
    for name in names if bounds else ():
        for axis, dim in enumerate(graph.tensors[name].shape or ()):
            if isinstance(dim, str) and dim in bounds:
                yield name, axis, dim, bounds[dim]


class StagedGraph:
    """A graph, and its stages by the known properties of its inputs.

    `plan` has the devices, pins and number of slots. `kept`, the cache of all stages of the same
    graph, is used on the trio thread only. Plans read inputs in `variables` in place. `is_root`
    marks the plan's whole graph. `lasting` is the stage for all lengths within bounds, once made.
    """

    def __init__(
        self,
        plan: Plan,
        graph: Graph,
        kept: Kept,
        variables: Variables | None = None,
        *,
        is_root: bool = False,
    ) -> None:
        self.graph = graph
        self._is_root = is_root
        self._variables = variables or {}
        self._plan = plan
        self._kept = kept
        self._deciding: set[str] = set()
        self._switches = list_switches(graph)
        self._settings: set[tuple[bytes, ...]] = set()
        self._set: set[str] = set()
        self.lasting: Stage | None = None
        self._may_be_bounded = bool(plan.computed) and not self._variables

    def find(self, known: Mapping[str, Array]) -> Stage | None:
        if self.lasting is not None:
            return self.lasting
        return self._kept.get((self, self._facts(known)))

    def keep(self, known: Mapping[str, Array], stage: Stage) -> None:
        if isinstance(stage, BoundedStage | BoundaryStage):
            self.lasting = stage
            return
        self._kept[self, self._facts(known)] = stage

    def make(self, known: Mapping[str, Array]) -> Stage:
        """Return the stage planned for known inputs; blocks, so call it on a thread.

        Raises ShapeError if shapes do not fit together, and PlanError if an operator does not know
        its shapes, or no device supports it.
        """
        self._evaluate_known()
        bounded = self.make_ahead()
        # One stage for all inputs beats one for each of the values.
        if bounded is not None:
            return bounded
        for node in find_frontier(self.graph):
            if not _is_static(self.graph, node) and not self._is_bounded_call(node, known):
                # It only grows: removing names would change the meaning of cached keys.
                self._deciding.update(find_deciding(self.graph, node, known))
        graph = self._specialised(known, self._deciding)
        if not has_static_shapes(graph) and self._switches:
            graph = self._switched(known, graph)
        return Stage(self._plan, graph, self._kept, self._variables)

    def make_ahead(self) -> Stage | None:
        """Return the stage, planned for all lengths within bounds; None if values decide more.

        Blocks, so call it on a thread. Raises ShapeError and PlanError as `make`.
        """
        if not self._may_be_bounded:
            return None
        # Once: the graph and its bounds do not change.
        self._may_be_bounded = False
        self._evaluate_known()
        plan, graph = self._plan, self.graph
        bounds = find_fed_bounds(graph, plan.computed)
        if bounds is None:
            return None
        template = Template(graph, plan.prototypes, plan.pins, plan.folds)
        parts = template.cut(bounds, plan.computed)
        if parts.head.nodes:
            with suppress(UndecidedError):
                return BoundedStage(plan, graph, parts, self._kept)
        held = [node for node in find_frontier(graph) if not _is_static(graph, node)]
        if held and all(_may_run_at_boundary(graph, node, plan.computed) for node in held):
            return BoundaryStage(plan, graph, self._kept, held)
        return None

    def _evaluate_known(self) -> None:
        if self._is_root:
            self._is_root = False
            plan = evaluate_known(self._plan)
            self._plan, self.graph = plan, remove_state(plan.graph)

    def _is_bounded_call(self, node: Node, known: Mapping[str, Array]) -> bool:
        if waits(node) or node.operator.bounded is not None:
            return False
        specs = infer_known(self.graph, node, known)
        return find_largest_results(node, specs, self._plan.computed) is not None

    def _switched(self, known: Mapping[str, Array], graph: Graph) -> Graph:
        """Return the graph with small known inputs, the switches, as constants.

        The graph itself, if some shape is unknown even then.
        """
        switches = [name for name in self._switches if np.size(known[name]) <= SWITCH_SIZE]
        self._settings.add(tuple(known[name].tobytes() for name in switches))
        # Not a switch: a stage for each of its values would fill the cache.
        if len(self._settings) > MOST_SETTINGS:
            self._switches, self._set = [], set()
            return graph
        tried = self._specialised(known, self._deciding.union(switches))
        if not has_static_shapes(tried):
            return graph
        self._set = set(switches)
        return tried

    def _specialised(self, known: Mapping[str, Array], names: set[str]) -> Graph:
        # Copies: constants of a plan outlive the item that owns these buffers.
        values = {name: copy_read_only(known[name]) for name in self.graph.inputs if name in names}
        inputs = tuple(name for name in self.graph.inputs if name not in values)
        specs = {name: spec_of(value) for name, value in values.items()}
        graph = replace(
            self.graph,
            inputs=inputs,
            tensors={**self.graph.tensors, **specs},
            constants={**self.graph.constants, **values},
        )
        shapes = {name: np.shape(known[name]) for name in inputs}
        plan = self._plan
        graph = specialise(graph, shapes, folds=plan.folds)
        left = [name for name in self._switches if name in inputs]
        return with_whole_nodes(graph, plan.prototypes, plan.pins, left, folds=plan.folds)

    def _facts(self, known: Mapping[str, Array]) -> Facts:
        deciding = self._deciding | self._set
        return tuple(
            (known[name].shape, known[name].tobytes() if name in deciding else b"")
            for name in self.graph.inputs
        )


def make_entry(plan: Plan, max_in_flight: int) -> StagedGraph:
    """Return the staged graph of `plan` for `max_in_flight` items; shapes depend on values."""
    whole = replace(plan, request=replace(plan.request, max_in_flight=max_in_flight))
    graph = remove_state(plan.graph)
    return StagedGraph(whole, graph, RecentItems(KEPT_STAGES), plan.graph.variables, is_root=True)


Kept: TypeAlias = RecentItems[tuple[StagedGraph, Facts], Stage]


def _is_static(graph: Graph, node: Node) -> bool:
    return not waits(node) and all(spec.is_static for spec in graph.output_specs(node))


def _close_loop(node: Node, constants: Mapping[str, Array]) -> Node:
    """Return the loop `node` with a body for inputs of any shape, and nodes named after it.

    Captured ones of `constants` become the body's own: weights are not fed in each iteration.
    """
    node = with_constants_inside(node, constants)
    body: Graph = node.attributes["body"]
    fed = {name: TensorSpec(body.tensors[name].dtype, None) for name in body.inputs}
    named = replace(
        body,
        name=node.name,
        nodes=tuple(replace(inner, name=f"{node.name}/{inner.name}") for inner in body.nodes),
        tensors={**body.tensors, **fed},
    )
    return replace(node, attributes={**node.attributes, "body": named})


def _find_captured(node: Node, variables: Variables) -> Variables:
    count = node.attributes["captured"]
    inner, outer = node.attributes["body"].inputs, node.inputs
    pairs = zip(inner[len(inner) - count :], outer[len(outer) - count :], strict=True)
    return {name: variables[read] for name, read in pairs if read in variables}
