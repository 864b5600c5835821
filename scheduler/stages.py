"""The stages of a graph whose shapes depend on values: one plan for each, kept as they come up."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import trio

from ..graph.captured_constants import with_constants_inside
from ..graph.ir import Graph, Node
from ..graph.operators.control import waits
from ..graph.state import reading
from ..graph.tensor import Array, TensorSpec, frozen_copy, spec_of
from .boundaries import Padded, cut, deciding, frontier, is_decided
from .planning import Plan
from .specialise import specialise
from .whole import SWITCH_SIZE, switches_of, with_whole_nodes

KEPT_STAGES = 256
"""Stages kept, behind all boundaries together; the least recently used are forgotten first."""

MOST_SETTINGS = 8
"""Switches with more settings than this are no switches: they are values like others."""

Variables: TypeAlias = Mapping[str, Node]
"""Names of inputs, and the variables that hold what is fed there."""

Facts: TypeAlias = tuple[tuple[tuple[int, ...], bytes], ...]
"""What decides a stage: the shape of each input, and the bytes of those whose values do."""


class Stage:
    """What of a graph can be planned once its inputs are known.

    Attributes
    ----------
    plan : Plan or None
        None where there is nothing to run before the boundary.
    padded : tuple of Padded
    loops : sequence of (Node, Entry)
        The loops that are reached then, with the stages of their bodies.
    rest : Entry or None
        What comes after.
    constants : Mapping of str to Array
        Outputs that are constants by now, and constants that loops read.
    whole : Plan or None
        The plan, where nothing is left to do when it has run.
    """

    __slots__ = ("constants", "loops", "padded", "plan", "rest", "whole")

    def __init__(self, plan: Plan, graph: Graph, kept: Kept, variables: Variables) -> None:
        parts = cut(graph)
        self.plan = plan.over(reading(parts.head, variables)) if parts.head.nodes else None
        self.padded: tuple[Padded, ...] = parts.padded
        self.loops: Sequence[tuple[Node, Entry]] = ()
        self.rest: Entry | None = None
        read = set(graph.outputs)
        if parts.rest is not None:
            reached = [node for node in frontier(parts.rest) if waits(node) and node.op != "If"]
            closed = [_closed(node, graph.constants) for node in reached]
            self.loops = [
                (node, Entry(plan, node.attributes["body"], kept, _captured(node, variables)))
                for node in closed
            ]
            read.update(name for node in closed for name in node.inputs)
            left = [node for node in parts.rest.nodes if node not in reached]
            if left:
                rest = parts.rest.extract(left, graph.name)
                self.rest = Entry(plan, rest, kept, variables)
        self.constants: Mapping[str, Array] = {
            name: value for name, value in graph.constants.items() if name in read
        }
        done = self.plan is not None and self.plan.graph.outputs == graph.outputs
        self.whole = self.plan if done and not self.padded and parts.rest is None else None


class Entry:
    """A graph, and its stages by what is known of its inputs.

    Parameters
    ----------
    plan : Plan
        Has the devices, pins and number of slots.
    graph : Graph
    kept : OrderedDict
        The stages of this entry and of all that belong to the same graph; used on the trio thread
        only.
    variables : Mapping of str to Node, optional
        The inputs that are what a session's variables hold: plans read them where they lie.

    Attributes
    ----------
    planning : trio.Lock
        Held by whoever calls `make`.
    """

    def __init__(
        self, plan: Plan, graph: Graph, kept: Kept, variables: Variables | None = None
    ) -> None:
        self.graph = graph
        self._variables = variables or {}
        self.planning = trio.Lock()
        self._plan = plan
        self._kept = kept
        self._deciding: set[str] = set()
        self._switches = switches_of(graph)
        self._settings: set[tuple[bytes, ...]] = set()
        self._set: set[str] = set()

    def find(self, known: Mapping[str, Array]) -> Stage | None:
        """Return the stage for these inputs, if it was made before."""
        key = self, self._facts(known)
        stage = self._kept.get(key)
        if stage is not None:
            self._kept.move_to_end(key)
        return stage

    def keep(self, known: Mapping[str, Array], stage: Stage) -> None:
        """Keep a stage that was made for these inputs."""
        self._kept[self, self._facts(known)] = stage
        while len(self._kept) > KEPT_STAGES:
            self._kept.popitem(last=False)

    def make(self, known: Mapping[str, Array]) -> Stage:
        """Plan the stage for these inputs; blocks, so call it on a thread.

        Raises
        ------
        ShapeError
            If shapes do not fit together.
        PlanError
            If an operator does not tell its shapes, or no device supports it.
        """
        for node in frontier(self.graph):
            if not _is_static(self.graph, node):
                self._deciding.update(deciding(self.graph, node, known))
        graph = self._specialised(known, self._deciding)
        if not is_decided(graph) and self._switches:
            graph = self._switched(known, graph)
        return Stage(self._plan, graph, self._kept, self._variables)

    def _switched(self, known: Mapping[str, Array], graph: Graph) -> Graph:
        """Return the graph with switches set, if then all is known, else as it is."""
        switches = [name for name in self._switches if np.size(known[name]) <= SWITCH_SIZE]
        self._settings.add(tuple(known[name].tobytes() for name in switches))
        if len(self._settings) > MOST_SETTINGS:
            self._switches, self._set = [], set()
            return graph
        tried = self._specialised(known, self._deciding.union(switches))
        if not is_decided(tried):
            return graph
        self._set = set(switches)
        return tried

    def _specialised(self, known: Mapping[str, Array], names: set[str]) -> Graph:
        values = {name: frozen_copy(known[name]) for name in self.graph.inputs if name in names}
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


Kept: TypeAlias = OrderedDict[tuple[Entry, Facts], Stage]


def _is_static(graph: Graph, node: Node) -> bool:
    return not waits(node) and all(spec.is_static for spec in graph.output_specs(node))


def _closed(node: Node, constants: Mapping[str, Array]) -> Node:
    """Return a loop with a body for whatever it is handed, whose nodes are named after it too.

    Constants that it captures become the body's own: weights are not fed in each iteration.
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


def _captured(node: Node, variables: Variables) -> Variables:
    """Return the variables that a closed loop's body captures, by the body's names."""
    count = node.attributes["captured"]
    inner, outer = node.attributes["body"].inputs, node.inputs
    pairs = zip(inner[len(inner) - count :], outer[len(outer) - count :], strict=True)
    return {name: variables[read] for name, read in pairs if read in variables}
