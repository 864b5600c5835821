"""Smaller shapes in a plan that was made for the largest ones.

The same nodes run on the same devices, in the same steps, and every tensor starts where it does at
its largest. That is sound if no tensor takes more bytes than there, and if those that share bytes
by meaning do so in the same way: all else is apart at fewer bytes if it is apart at more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from ..devices.device import scratch_specs
from ..graph.aliasing import Run, runs_of
from ..graph.ir import Graph, Node
from .bounds import alike
from .memory.regions import Location
from .partition.partition import Partition, Subgraph, support
from .planning import Plan
from .specialise import Shapes, specialise
from .steps import Step, Transfer


class _Sharing(NamedTuple):
    """How a node's tensors share bytes in the plan.

    Attributes
    ----------
    place : int
        The node's, in the graph.
    runs : set of tuple
        The runs of bytes that lie where they belong before the node runs, but for their lengths.
    overwritten : tuple of (str, str)
        The inputs that have bytes in common with other outputs, and those.
    """

    place: int
    runs: frozenset[tuple[object, ...]]
    overwritten: tuple[tuple[str, str], ...]


class Fitting:
    """Fits shapes into a plan with bounds.

    Parameters
    ----------
    plan : Plan
    """

    def __init__(self, plan: Plan) -> None:
        assert plan.template is not None, "it has bounds"
        self._plan, self._template = plan, plan.template
        assert plan.memory is not None
        self._nbytes = {**self._sizes(plan.graph), **plan.memory.scratch}
        self._sharing = tuple(self._shared())

    def fit(self, shapes: Shapes) -> Plan | None:
        """Return the plan for inputs of these shapes, within bounds; None if it does not fit.

        Raises
        ------
        ShapeError
            If shapes do not fit together inside the graph.
        """
        graph = specialise(self._template, shapes, folds=self._plan.folds)
        if not (graph.is_static and alike(graph, self._plan.graph)):
            return None
        sizes = self._sizes(graph)
        return self._fitted(graph, sizes) if self._fits(graph, sizes) else None

    def _fits(self, graph: Graph, sizes: Mapping[str, int]) -> bool:
        return (
            all(nbytes <= self._nbytes.get(name, -1) for name, nbytes in sizes.items())
            and all(_still_shares(graph, sharing) for sharing in self._sharing)
            and all(self._is_supported(graph, node) for node in graph.nodes)
        )

    def _is_supported(self, graph: Graph, node: Node) -> bool:
        device = self._plan.assignment[node.name]
        return support(graph, node, self._plan.prototypes[device]).ok

    def _sizes(self, graph: Graph) -> Mapping[str, int]:
        """Return the bytes of each tensor, and of each scratch buffer."""
        sizes = {name: s.nbytes for name, s in graph.tensors.items() if name not in graph.constants}
        for node in graph.nodes:
            device = self._plan.prototypes[self._plan.assignment[node.name]]
            if not device.capabilities.atomic_programs:
                specs = scratch_specs(device, graph, node)
                sizes.update((name, spec.nbytes) for name, spec in specs.items())
        return sizes

    def _shared(self) -> Iterator[_Sharing]:
        """Yield the nodes whose tensors share bytes in the plan."""
        graph = self._plan.graph
        for place, node in enumerate(graph.nodes):
            runs = [run for run in runs_of(graph, node) if self._lies(node, run)]
            known = {(run.source, run.target) for run in runs}
            others = tuple(pair for pair in self._overlapping(node) if pair not in known)
            if runs or others:
                yield _Sharing(place, frozenset(run[:4] for run in runs), others)

    def _lies(self, node: Node, run: Run) -> bool:
        """True when the bytes that a node takes over lie where they belong."""
        source, target = self._location(node, run.source), self._location(node, run.target)
        if source is None or target is None or not _in_one_region(source, target):
            return False
        return source.offset + run.start == target.offset + run.begin

    def _overlapping(self, node: Node) -> Iterator[tuple[str, str]]:
        """Yield the inputs of a node that have bytes in common with outputs of it, and those."""
        for given in filter(None, dict.fromkeys(node.inputs)):
            for made in filter(None, node.outputs):
                a, b = self._location(node, given), self._location(node, made)
                if a is None or b is None or not _in_one_region(a, b):
                    continue
                ends = a.offset + self._nbytes[given], b.offset + self._nbytes[made]
                if a.offset < ends[1] and b.offset < ends[0]:
                    yield given, made

    def _location(self, node: Node, tensor: str) -> Location | None:
        """Return where a node finds a tensor; None for constants, and inside atomic programs."""
        plan = self._plan
        assert plan.placement is not None
        assert plan.memory is not None
        memory = plan.placement.local.get((tensor, plan.assignment[node.name]))
        return None if memory is None else plan.memory.locations.get((tensor, memory))

    def _fitted(self, graph: Graph, sizes: Mapping[str, int]) -> Plan:
        plan = self._plan
        assert plan.placement is not None
        assert plan.memory is not None
        memory = plan.memory
        if len(sizes) < len(self._nbytes):  # kernels may need less scratch memory
            locations = {at: one for at, one in memory.locations.items() if at[0] in sizes}
            memory = replace(memory, locations=locations, scratch={})
        nodes = {node.name: node for node in graph.nodes}
        subgraphs = tuple(_resized(one, graph, nodes) for one in plan.subgraphs)
        steps = tuple(_with_sizes(step, graph, subgraphs) for step in plan.steps)
        return replace(
            plan,
            graph=graph,
            partition=Partition(plan.assignment, plan.reasons, subgraphs),
            placement=replace(plan.placement, steps=steps),
            memory=memory,
            bounds={},
            template=None,
        )


def _still_shares(graph: Graph, sharing: _Sharing) -> bool:
    """True when tensors that have bytes in common are meant to, at other shapes too."""
    runs = {run[:4] for run in runs_of(graph, graph.nodes[sharing.place])}
    specs = graph.tensors
    return runs >= sharing.runs and all(specs[a] == specs[b] for a, b in sharing.overwritten)


def _in_one_region(a: Location, b: Location) -> bool:
    return a.memory == b.memory and a.region == b.region


def _resized(subgraph: Subgraph, graph: Graph, nodes: Mapping[str, Node]) -> Subgraph:
    inside = [nodes[node.name] for node in subgraph.graph.nodes]
    return replace(subgraph, graph=graph.extract(inside, subgraph.name))


def _with_sizes(step: Step, graph: Graph, subgraphs: Sequence[Subgraph]) -> Step:
    if isinstance(step.work, Transfer):
        nbytes = graph.tensors[step.work.tensor].nbytes
        return replace(step, work=replace(step.work, nbytes=nbytes))
    return replace(step, work=subgraphs[step.work.index])
