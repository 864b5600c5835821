"""One plan of several stages, if all their lengths have bounds.

Stages planned separately have memory of their own: tensors are copied from one to the next, and
items pass through the event loop. Joined, they are the steps of one plan for the largest lengths,
in one memory, and the threads that run an item bind its lengths: `StageBindings`. This needs
devices of this process. The stages' partitions stay.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from ...devices.host import may_run_anywhere
from ...devices.sim.clock import find_virtual_clock
from ...graph.core.ir import Graph
from ...graph.values.errors import PlaitError
from ..errors import DoesNotFitError
from ..plans.partition import Decision, Option, Partition, Subgraph, name_subgraphs
from ..plans.placement import Placement
from ..plans.plan import ComputedLengths, Plan, PlanStage
from ..shapes.bounds import find_plan_constraints
from ..shapes.constraints import DynamicShapeConstraints
from ..shapes.sync_points import PaddedOutputs
from .memory.memory_plan import plan_memory
from .placement import place
from .staged_plans import BoundedStage, StagedGraph, make_entry


def join_plan(plan: Plan, max_in_flight: int) -> Plan | None:
    """Return a static plan of all stages of `plan`, or None if they do not join.

    Computed lengths have bounds, and up to `max_in_flight` items are in flight. Raises ShapeError
    and PlanError as `plan_ahead`.
    """
    return join_stages(make_entry(plan, max_in_flight)) if plan.computed else None


def join_if_possible(plan: Plan) -> Plan:
    """Return a joined plan of all lengths for reports, or the plan itself.

    The latter also if planning fails: sessions raise the error.
    """
    if plan.is_static or not plan.computed:
        return plan
    joined = None
    with suppress(PlaitError):
        joined = join_plan(plan, plan.max_in_flight)
    if joined is None:
        return plan
    decision, whole = joined.decision, plan.decision
    if decision is not None and whole is not None and whole.chosen != "preference":
        decision = replace(whole, ask=decision.ask)  # numbers of replicas were weighed
    return replace(
        joined,
        graph=replace(joined.graph, outputs=plan.graph.outputs),  # without computed lengths
        decision=decision,
        bounds=plan.computed,
        template=plan.graph,
        source=plan.source,
        applied=plan.applied,
        dead=plan.dead,
    )


def plan_ahead(entry: StagedGraph | None) -> None:
    """Plan the stages from `entry` on that no value decides; blocks, so call it on a thread.

    Raises ShapeError or PlanError if that is impossible: no item could ever start.
    """
    while entry is not None and (stage := entry.lasting or entry.make_ahead()) is not None:
        entry.keep({}, stage)
        entry = stage.rest


def join_stages(entry: StagedGraph) -> Plan | None:
    """Return one static plan of all stages from `entry` on; None if they cannot be joined.

    Plans them ahead; blocks, so call it on a thread. Raises ShapeError and PlanError as
    `plan_ahead`.
    """
    plan_ahead(entry)
    stages, following = list[BoundedStage](), entry
    while True:
        stage = following.lasting
        if not isinstance(stage, BoundedStage) or not _may_be_joined(stage):
            return None
        stages.append(stage)
        if stage.rest is None:
            break
        following = stage.rest
    plans = [stage.plan for stage in stages if stage.plan is not None]
    lengths = tuple(padded.shapes for stage in stages for padded in stage.padded)
    graph = _join_graphs(entry.graph, [plan.graph for plan in plans], lengths)
    return None if graph is None else _plan_joined(graph, stages, plans)


def _may_be_joined(stage: BoundedStage) -> bool:
    plan = stage.plan
    if plan is None or not plan.is_static or plan.prologue is not None or plan.ends.devices:
        return False
    devices = plan.prototypes.values()
    if not all(may_run_anywhere(one) and find_virtual_clock(one) is None for one in devices):
        return False
    # Variables are committed, and instances opened, plan by plan.
    if plan.graph.variables:
        return False
    if any(one.owns or (one.has_effects and not one.functions_in_order) for one in plan.steps):
        return False
    # Results are read from planned memory, which excludes constants; some are constants at one
    # item's lengths only.
    constants = stage.constants.keys() | plan.graph.constants.keys()
    return constants.isdisjoint(plan.graph.outputs)


def _join_graphs(whole: Graph, graphs: Sequence[Graph], lengths: tuple[str, ...]) -> Graph | None:
    """Join graphs for the largest lengths as `whole`; return None if names conflict.

    The tensors of computed `lengths` are among its outputs, so that nothing overwrites them before
    an item ends.
    """
    nodes = tuple(node for graph in graphs for node in graph.nodes)
    written = [name for node in nodes for name in node.outputs if name]
    # Stages are rewritten separately: two may have created the same name.
    if len({node.name for node in nodes}) < len(nodes) or len(set(written)) < len(written):
        return None
    # Stages lack the inputs that no node reads, such as a key of an item that a pipeline ignores.
    unread = {name: whole.tensors[name] for name in whole.inputs if whole.tensors[name].is_static}
    joined = Graph(
        whole.name,
        whole.inputs,
        (*whole.outputs, *lengths),
        nodes,
        unread | {name: spec for graph in graphs for name, spec in graph.tensors.items()},
        {name: value for graph in graphs for name, value in graph.constants.items()},
        {name: bits for graph in graphs for name, bits in graph.precisions.items()},
    )
    specs = joined.tensors
    alike = all(specs[n] == spec for graph in graphs for n, spec in graph.tensors.items())
    return joined if alike and specs.keys() >= {*whole.inputs, *whole.outputs} else None


def _plan_joined(
    graph: Graph, stages: Sequence[BoundedStage], plans: Sequence[Plan]
) -> Plan | None:
    first = plans[0]
    assignment, reasons = dict[str, str](), dict[str, str]()
    for plan in plans:
        assignment.update(plan.assignment)
        reasons.update(plan.reasons)
    partition = Partition(assignment, reasons, tuple(_index_subgraphs(plans)))
    described = [_describe(stage, plan) for stage, plan in zip(stages, plans, strict=True)]
    constraints = [find_plan_constraints(plan) for plan in plans]
    if not all(one.has_same_nodes for one in constraints):
        return None  # only separate stages can be planned anew for some lengths
    devices, request = first.prototypes, first.request
    placement = place(graph, partition, devices, first.ends)
    placement = placement.with_waits(list(_list_waits(placement, described)))
    try:
        memory = plan_memory(
            graph,
            placement,
            devices,
            request.max_in_flight,
            limits=request.memory_limits,
            costs=first.costs,
            constraints=_merge(constraints),
        )
    # Joined, all stages have their places at once; separate stages may fit.
    except DoesNotFitError:
        return None
    if memory.added_edges:
        placement = placement.with_waits(memory.added_edges)
    return replace(
        first,
        graph=graph,
        partition=partition,
        placement=placement,
        memory=memory,
        decision=_join_decisions(plans),
        bounds={},
        template=None,
        stages=tuple(described),
    )


def _join_decisions(plans: Sequence[Plan]) -> Decision | None:
    first = plans[0].decision
    if first is None or len(plans) == 1:
        return first
    decisions = [plan.decision for plan in plans if plan.decision is not None]

    def ask() -> Mapping[str, tuple[Option, ...]]:
        return {name: offers for one in decisions for name, offers in one.options.items()}

    why = f"{len(plans)} stages, each decided by itself for its largest lengths"
    return replace(first, chosen=first.strategy, why=why, candidates=(), ask=ask)


def _index_subgraphs(plans: Sequence[Plan]) -> Iterator[Subgraph]:
    subgraphs = [one for plan in plans for one in plan.subgraphs]
    nodes = [[node.name for node in one.graph.nodes] for one in subgraphs]
    used = [one.device for one in subgraphs]
    names = name_subgraphs(nodes, used, plans[0].graph.name, sum(map(len, nodes)))
    for index, (one, name) in enumerate(zip(subgraphs, names, strict=True)):
        yield replace(one, index=index, graph=replace(one.graph, name=name))


def _describe(stage: BoundedStage, plan: Plan) -> PlanStage:
    computes = tuple(_describe_lengths(plan.graph, padded) for padded in stage.padded)
    return PlanStage(plan.graph, plan.template, computes, stage.limits, plan.bounds)


def _describe_lengths(graph: Graph, padded: PaddedOutputs) -> ComputedLengths:
    ranks = tuple(graph.tensors[name].rank or 0 for name in padded.tensors)
    node = graph.producers[padded.shapes].name
    return ComputedLengths(node, padded.tensors, padded.shapes, ranks)


def _list_waits(placement: Placement, stages: Sequence[PlanStage]) -> Iterator[tuple[int, int]]:
    step_of = placement.step_of
    earlier = set[int]()
    for stage in stages:
        if stage.template is not None:
            for later in {step_of[node.name].index for node in stage.graph.nodes}:
                yield from ((one, later) for one in earlier)
        earlier |= {step_of[one.node].index for one in stage.computes}


def _merge(every: Sequence[DynamicShapeConstraints]) -> DynamicShapeConstraints:
    apart = frozenset[str]().union(*(one.apart for one in every))
    return DynamicShapeConstraints(apart, [other for one in every for other in one.others])
