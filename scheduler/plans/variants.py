"""The variants of a plan: the same plan on other replicas."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from ...devices.registry import find
from ..costs import Costs
from .partition import Partition
from .placement import Commit, Placement, Step, Transfer
from .plan import Plan
from .regions import MemoryPlan

Rename: TypeAlias = Callable[[str], str]


def make_variant(plan: Plan, index: int) -> Plan:
    if not plan.replicas:
        return plan
    others = {names[0]: names[index % len(names)] for names in plan.replicas}
    prototypes = {
        others.get(name, name): find(others[name]) if others.get(name, name) != name else device
        for name, device in plan.prototypes.items()
    }
    memories = {
        plan.prototypes[first].capabilities.memory: prototypes[other].capabilities.memory
        for first, other in others.items()
    }

    def device(name: str) -> str:
        return others.get(name, name)

    def memory(name: str) -> str:
        return memories.get(name, name)

    partition = _rename_partition(plan.partition, device)
    limits = plan.request.memory_limits
    request = replace(
        plan.request,
        devices=prototypes,
        pins={pattern: device(name) for pattern, name in plan.pins.items()},
        costs=_rename_costs(plan.costs, device, memory),
        memory_limits={memory(device(name)): n for name, n in limits.items()},
        precision={device(name): kind for name, kind in plan.request.precision.items()},
        halved={node: device(name) for node, name in plan.request.halved.items()},
    )
    return replace(
        plan,
        request=request,
        partition=partition,
        placement=plan.placement and _rename_placement(plan.placement, partition, device, memory),
        memory=plan.memory and _rename_memory(plan.memory, memory),
        replicas=(),
        beside=plan.replicas,
        prologue=plan.prologue
        and make_variant(replace(plan.prologue, replicas=plan.replicas), index),
    )


def _rename_partition(partition: Partition, device: Rename) -> Partition:
    assignment = {node: device(name) for node, name in partition.assignment.items()}
    subgraphs = tuple(one.on(device(one.device)) for one in partition.subgraphs)
    return Partition(assignment, partition.reasons, subgraphs)


def _rename_placement(
    placement: Placement, partition: Partition, device: Rename, memory: Rename
) -> Placement:
    def step(one: Step) -> Step:
        work = one.work
        if isinstance(work, Transfer):
            moved = replace(work, source=memory(work.source), target=memory(work.target))
            return replace(one, device=device(one.device), work=moved)
        return replace(one, device=device(one.device), work=partition.subgraphs[work.index])

    return Placement(
        tuple(map(step, placement.steps)),
        {tensor: memory(name) for tensor, name in placement.home.items()},
        {(tensor, device(at)): memory(name) for (tensor, at), name in placement.local.items()},
        frozenset((tensor, memory(name)) for tensor, name in placement.prepared),
        tuple(
            Commit((one[0], memory(one[1])), (other[0], memory(other[1])), device(name))
            for one, other, name in placement.commits
        ),
    )


def _rename_memory(plan: MemoryPlan, memory: Rename) -> MemoryPlan:
    return replace(
        plan,
        locations={
            (tensor, memory(name)): replace(location, memory=memory(location.memory))
            for (tensor, name), location in plan.locations.items()
        },
        pools={
            memory(name): replace(
                pool,
                memory=memory(name),
                regions={
                    key: replace(region, memory=memory(name))
                    for key, region in pool.regions.items()
                },
            )
            for name, pool in plan.pools.items()
        },
    )


def _rename_costs(costs: Costs, device: Rename, memory: Rename) -> Costs:
    def pair(names: tuple[str, str], new: Rename) -> tuple[str, str]:
        return new(names[0]), new(names[1])

    return replace(
        costs,
        models={device(name): model for name, model in costs.models.items()},
        memories={device(name): memory(own) for name, own in costs.memories.items()},
        links={pair(ends, memory): link for ends, link in costs.links.items()},
        nodes={device(name): table for name, table in costs.nodes.items()},
        programs={device(name): table for name, table in costs.programs.items()},
        hops={pair(ends, device): seconds for ends, seconds in costs.hops.items()},
    )
