"""Fits other shapes into a plan with symbols, made for the largest or for some shapes.

The same nodes run on the same devices in the same steps, and every tensor keeps its start. That is
sound if no tensor takes more bytes than planned, and if tensors that share bytes by meaning do so
in the same way: all others stay apart with fewer bytes. Tensors in a region of their own, for lack
of bounds, may also grow: they are laid out anew there.

Fixed nodes are equal at all lengths: only the others are examined, and only their steps differ.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from itertools import count, takewhile
from typing import NamedTuple, TypeAlias

from ...devices.device import scratch_name, scratch_specs, supports_lengths
from ...graph.core.aliasing import Run, find_runs
from ...graph.core.ir import Graph, Node
from ...graph.operators.bounded_call import calls_function
from ...graph.values.recent import ByIdentity, RecentItems
from ..plans.partition import Partition, Subgraph
from ..plans.placement import Step, Transfer
from ..plans.plan import Plan, PlanStage, Shapes
from ..plans.regions import Location, MemoryPlan
from ..shapes.bounds import are_alike
from ..shapes.fixed import are_same_nodes, find_fixed_nodes, remove_nodes
from ..shapes.formulas import Found, ShapeFormulas
from ..shapes.specialise import bind_inputs, list_loops, specialise
from ..shapes.whole import list_switches, with_whole_nodes
from .memory.prepared import find_growing, resize_growing


class _Sharing(NamedTuple):
    """The bytes that a node's tensors share in the plan."""

    place: int
    """The node's index among those that are not fixed."""
    runs: frozenset[tuple[object, ...]]
    """Runs of bytes that are in place before the node runs, without their lengths."""
    overwritten: tuple[tuple[str, str], ...]
    """Pairs of an input and an output that overlap otherwise."""


KEPT_FITS = 64
"""Limit of lengths for which the nodes of a stage are kept."""

_Parts: TypeAlias = RecentItems[tuple[tuple[str, tuple[int, ...]], ...], Graph]

_inferred: ByIdentity[Graph, tuple[Graph, _Parts]] = ByIdentity()
"""By the graph of a plan, which its variants share: its template, and inferred parts by shapes."""


class BoundedShapes:
    """Fits shapes into a plan with symbols, or into one stage of a plan.

    Without a stage, the whole plan has the symbols of its template. `only_calls` is true if lengths
    only reach called functions, as shapes or as values.
    """

    def __init__(self, plan: Plan, stage: PlanStage | None = None) -> None:
        template = plan.template if stage is None else stage.template
        assert template is not None, "it has symbols"
        assert plan.memory is not None
        self._plan, self._template, self._memory = plan, template, plan.memory
        self._graph = plan.graph if stage is None else stage.graph
        self._part, self._own = self._parts()
        known = _inferred.get(self._graph)
        if known is None or known[0] is not template:
            known = _inferred[self._graph] = template, RecentItems(KEPT_FITS)
        self._parts_at = known[1]
        inside = {node.name for node in self._own.nodes}
        self._varying = {
            one.index
            for one in plan.subgraphs
            if not inside.isdisjoint(node.name for node in one.graph.nodes)
        }
        scratch = self._scratch()
        self._nbytes = {**self._sizes(self._own), **scratch}
        self._growing = {name for name, _ in find_growing(plan.memory)}
        self._sharing = tuple(self._shared())
        fed = {name: self._template.tensors[name] for name in self._template.inputs}
        shapes = {name: self._own.tensors[name].static_shape for name in fed}
        are_checked = all(self._is_checked(one) for one in self._part.nodes if one.name in inside)
        self._formulas = ShapeFormulas(self._part, self._own, fed, shapes, are_checked=are_checked)
        # Shorter tensors take less, but kernels may need other buffers, and tensors share bytes
        # otherwise.
        shares_alike = all(self._shares_at_all_lengths(sharing) for sharing in self._sharing)
        self._fit_if_agreed = not scratch and shares_alike
        # Of the template: reading a shape is a node there, and a constant at some lengths.
        self.only_calls = self._fit_if_agreed and all(map(calls_function, self._part.nodes))

    @property
    def has_formulas(self) -> bool:
        """Whether lengths alone change, and `find` knows those from 2 to the longest."""
        formulas = self._formulas
        return self._fit_if_agreed and formulas.have_agreed and not formulas.have_constants

    def fit(self, shapes: Shapes) -> Plan | None:
        """Return the plan for `shapes`, None if it does not fit; raise ShapeError if they clash."""
        bind_inputs(self._template, shapes)
        # Formulas confirmed by inference at some lengths replace it: items wait here at each new
        # length.
        part = self._formulas.at(shapes) or self._inferred(shapes)
        if part is None:
            return None
        sizes = self._sizes(part)
        # Tensors absent from the plan count as larger: a kernel may want scratch at some lengths
        # only.
        larger = {name for name, nbytes in sizes.items() if nbytes > self._nbytes.get(name, -1)}
        # Tensors apart at the largest lengths are apart at all others; those that share bytes must
        # share again, or one would overwrite the other.
        shares = all(_has_same_sharing(part, sharing) for sharing in self._sharing)
        if not (larger <= self._growing and shares):
            return None
        return self._fitted(part, sizes, grows=bool(larger))

    def find(self, shapes: Shapes, names: Collection[str]) -> Found | None:
        """Return the specs of tensors `names` for `shapes` that fit, and constants that follow.

        Returns None if only `fit` can decide.
        """
        varying, specs = self._own.tensors, self._graph.tensors
        asked = [name for name in names if name in varying]
        found = self._formulas.find(shapes, asked) if self._fit_if_agreed else None
        return None if found is None else ({n: found[0].get(n, specs[n]) for n in names}, found[1])

    def _inferred(self, shapes: Shapes) -> Graph | None:
        """Infer the varying part for inputs of `shapes`; return None if its nodes differ."""
        key = tuple((name, tuple(shape)) for name, shape in shapes.items())
        part = self._parts_at.get(key)
        if part is None:
            part = self._specialised(self._part, shapes)
            if not (part.is_static and are_alike(part, self._own)):
                return None
            if not all(self._is_supported(part, node) for node in part.nodes):
                return None
            self._parts_at[key] = part
        # Only inferred shapes that fit teach formulas.
        self._formulas.compare(shapes, part)
        return part

    def _parts(self) -> tuple[Graph, Graph]:
        graph, template = self._graph, self._template
        fixed = find_fixed_nodes(template)
        part = remove_nodes(template, fixed)
        shapes = {name: graph.tensors[name].static_shape for name in graph.inputs}
        own = self._specialised(part, shapes)
        left = [node for node in graph.nodes if node.name not in fixed]
        # If passes changed the neighbours of fixed nodes, all nodes may vary.
        if own.is_static and are_same_nodes(own.nodes, left):
            return part, own
        return template, graph

    def _specialised(self, part: Graph, shapes: Shapes) -> Graph:
        specs = bind_inputs(self._template, shapes)
        fed = {name: shapes[name] for name in part.inputs if name in shapes}
        plan, loops = self._plan, list_loops(self._graph)
        made = specialise(part, fed, folds=plan.folds, kept_loops=loops)
        switches = [name for name in list_switches(part) if name in self._template.inputs]
        made = with_whole_nodes(made, plan.prototypes, plan.pins, switches, folds=plan.folds)
        return replace(made, tensors={**specs, **made.tensors})

    def _is_supported(self, graph: Graph, node: Node) -> bool:
        device = self._plan.assignment[node.name]
        return supports_lengths(graph, node, self._plan.prototypes[device])

    def _is_checked(self, node: Node) -> bool:
        """Return whether lengths that do not fit `node` fail when it runs; all others it supports.

        Runtimes check the shapes inside their programs, and functions return arrays.
        """
        device = self._plan.prototypes[self._plan.assignment[node.name]]
        is_atomic = device.capabilities.atomic_programs
        return calls_function(node) or (is_atomic and self._is_supported(self._part, node))

    def _sizes(self, graph: Graph) -> Mapping[str, int]:
        sizes = {name: s.nbytes for name, s in graph.tensors.items() if name not in graph.constants}
        for node in graph.nodes:
            device = self._plan.prototypes[self._plan.assignment[node.name]]
            # Inside an atomic program, tensors have neither places nor scratch.
            if not device.capabilities.atomic_programs:
                specs = scratch_specs(device, graph, node)
                sizes.update((name, spec.nbytes) for name, spec in specs.items())
        return sizes

    def _scratch(self) -> Mapping[str, int]:
        sizes, found = self._memory.scratch, dict[str, int]()
        for node in self._own.nodes:
            names = takewhile(sizes.__contains__, map(partial(scratch_name, node), count()))
            found.update((name, sizes[name]) for name in names)
        return found

    def _shared(self) -> Iterator[_Sharing]:
        graph = self._own
        for place, node in enumerate(graph.nodes):
            runs = [run for run in find_runs(graph, node) if self._lies(node, run)]
            # A run in place is shared by intention; other overlaps are overwritten.
            known = {(run.source, run.target) for run in runs}
            others = tuple(pair for pair in self._overlapping(node) if pair not in known)
            if runs or others:
                yield _Sharing(place, frozenset(run[:4] for run in runs), others)

    def _shares_at_all_lengths(self, sharing: _Sharing) -> bool:
        specs, own = self._template.tensors, self._own.tensors
        starts_first = not any(start or begin for _, start, _, begin in sharing.runs)
        return starts_first and all(
            specs.get(a, own[a]) == specs.get(b, own[b]) for a, b in sharing.overwritten
        )

    def _lies(self, node: Node, run: Run) -> bool:
        source, target = self._location(node, run.source), self._location(node, run.target)
        if source is None or target is None or not _share_region(source, target):
            return False
        return source.offset + run.start == target.offset + run.begin

    def _overlapping(self, node: Node) -> Iterator[tuple[str, str]]:
        for given in filter(None, dict.fromkeys(node.inputs)):
            for made in filter(None, node.outputs):
                a, b = self._location(node, given), self._location(node, made)
                if a is None or b is None or not _share_region(a, b):
                    continue
                ends = a.offset + self._nbytes[given], b.offset + self._nbytes[made]
                if a.offset < ends[1] and b.offset < ends[0]:
                    yield given, made

    def _location(self, node: Node, tensor: str) -> Location | None:
        """Return where a node finds a tensor; None for constants, and inside atomic programs."""
        plan = self._plan
        assert plan.placement is not None
        memory = plan.placement.local.get((tensor, plan.assignment[node.name]))
        return None if memory is None else self._memory.locations.get((tensor, memory))

    def _fitted(self, part: Graph, sizes: Mapping[str, int], *, grows: bool) -> Plan:
        plan = self._plan
        assert plan.placement is not None
        nodes = {node.name: node for node in part.nodes}
        graph = self._whole(part, nodes)
        memory = resize_growing(self._memory, sizes, plan.prototypes) if grows else self._memory
        subgraphs = tuple(
            _resize(one, graph, nodes) if one.index in self._varying else one
            for one in plan.subgraphs
        )
        # A grown arena is laid out anew, including tensors of equal length.
        moved: Set[str] = self._growing if grows else frozenset()
        steps = tuple(_with_sizes(step, plan.graph, graph, subgraphs, moved) for step in plan.steps)
        return replace(
            plan,
            graph=graph,
            partition=Partition(plan.assignment, plan.reasons, subgraphs),
            placement=replace(plan.placement, steps=steps),
            memory=self._without_scratch(memory, sizes),
            bounds={},
            template=None,
            stages=(),
        )

    def _whole(self, part: Graph, nodes: Mapping[str, Node]) -> Graph:
        graph = self._plan.graph
        return replace(
            graph,
            nodes=_with_nodes(graph, nodes),
            tensors={**graph.tensors, **part.tensors},
            constants={**graph.constants, **part.constants},
        )

    def _without_scratch(self, memory: MemoryPlan, sizes: Mapping[str, int]) -> MemoryPlan:
        gone = self._nbytes.keys() - sizes.keys()
        if not gone:
            return memory
        locations = {at: one for at, one in memory.locations.items() if at[0] not in gone}
        return replace(memory, locations=locations, scratch={})


def _resize(subgraph: Subgraph, graph: Graph, nodes: Mapping[str, Node]) -> Subgraph:
    inner = subgraph.graph
    made = replace(
        inner,
        nodes=_with_nodes(inner, nodes),
        tensors={name: graph.tensors[name] for name in inner.tensors},
        constants={name: graph.constants[name] for name in inner.constants},
    )
    return replace(subgraph, graph=made)


def _with_nodes(graph: Graph, nodes: Mapping[str, Node]) -> tuple[Node, ...]:
    return tuple([nodes.get(node.name, node) for node in graph.nodes])


def _has_same_sharing(graph: Graph, sharing: _Sharing) -> bool:
    runs = {run[:4] for run in find_runs(graph, graph.nodes[sharing.place])}
    specs = graph.tensors
    return runs >= sharing.runs and all(specs[a] == specs[b] for a, b in sharing.overwritten)


def _share_region(a: Location, b: Location) -> bool:
    return a.memory == b.memory and a.region == b.region


def _with_sizes(
    step: Step, before: Graph, graph: Graph, subgraphs: Sequence[Subgraph], moved: Set[str]
) -> Step:
    """Return `step` with its new one of `subgraphs`, or with the bytes that it copies now.

    A transfer is returned itself if it copies no tensor in `moved`, nor one with another spec in
    `graph` than in `before`.
    """
    if isinstance(step.work, Transfer):
        name = step.work.tensor
        spec = graph.tensors[name]
        if spec == before.tensors[name] and name not in moved:
            return step
        return replace(step, work=replace(step.work, nbytes=spec.nbytes))
    work = subgraphs[step.work.index]
    return step if work is step.work else replace(step, work=work)
