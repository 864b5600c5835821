"""Moves subgraphs to the devices that were measured to be faster on real items."""

from __future__ import annotations

from dataclasses import replace

from ...devices.kinds import get_kind
from ...devices.refusals import find_refusal
from ...graph.operators.control import iterate_placed_nodes
from ..costs.choices import DeviceChoices
from ..plans.partition import Partition
from ..plans.request import PlanRequest, find_pin
from .lowering import Lowered
from .placement import place


def move_to_measured(lowered: Lowered, request: PlanRequest, choices: DeviceChoices) -> Lowered:
    """Move subgraphs of `lowered` to faster devices in `choices`, unless `request` pins them."""
    choice, devices = lowered.choice, {get_kind(n): d for n, d in request.devices.items()}
    assignment, reasons = dict(choice.partition.assignment), dict(choice.partition.reasons)
    subgraphs = list(choice.partition.subgraphs)
    for number, one in enumerate(subgraphs):
        graph, kind = one.graph, get_kind(one.device)
        answer = kind in choices.software and choices.answers.get(choices.key(graph))
        if not answer or answer == kind or (device := devices.get(answer)) is None:
            continue
        pinned = (find_pin(node, request.kept) for node in graph.nodes)
        if any(pinned) or any(find_refusal(device, graph, node) for node in graph.nodes):
            continue
        for path, _, _ in iterate_placed_nodes(graph):
            assignment[path] = device.name
            reasons[path] = f"real items took longer on {one.device!r}"
        subgraphs[number] = one.on(device.name)
    if assignment == choice.partition.assignment:
        return lowered
    partition = Partition(assignment, reasons, tuple(subgraphs))
    placement = place(lowered.graph, partition, request.devices, request.ends)
    why = f"{choice.decision.why}; then some moved to a device measured to be faster"
    decision = replace(choice.decision, why=why)
    # Without `judged`: its figures are of the devices before.
    chosen = replace(
        choice, partition=partition, placement=placement, decision=decision, judged=None
    )
    return lowered._replace(choice=chosen)
