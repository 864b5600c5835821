"""The strategies: by cost, by order of preference, by Tengine's rule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

from ...devices.device import Device
from ...graph.ir import Graph
from ..costs import Costs
from ..errors import PlanError
from ..placement import Placement, place
from .choose import choose
from .decision import Decision
from .offers import ask, options
from .partition import Partition, partition
from .pins import Pins
from .tengine import by_runs

Strategy: TypeAlias = Literal["auto", "preference", "tengine"]
Objective: TypeAlias = Literal["latency", "throughput"]


@dataclass(frozen=True, slots=True)
class Request:
    """What a plan is to be like.

    Attributes
    ----------
    devices : Mapping of str to Device
        In order of preference.
    pins : Mapping of str to str
    max_in_flight : int
    strategy, objective : str
    costs : Costs
    max_subgraphs : int or None
    memory_limits : Mapping of str to int
    """

    devices: Mapping[str, Device]
    pins: Pins
    max_in_flight: int
    strategy: Strategy
    objective: Objective
    costs: Costs
    max_subgraphs: int | None
    memory_limits: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Choice:
    """A partition to plan with, and how it was come by.

    Attributes
    ----------
    partition : Partition
    placement : Placement or None
        None while dimensions are symbolic.
    decision : Decision
    """

    partition: Partition
    placement: Placement | None
    decision: Decision


def choices(graph: Graph, request: Request, *, is_static: bool) -> Iterator[Choice]:
    """Yield partitions, the best first; others follow lest the first need too much memory.

    Raises
    ------
    UnsupportedOpError
        If nodes find no device; the message lists all of them.
    PlanError
        If there is no partition of so few subgraphs.
    """
    if request.strategy == "auto" and is_static:
        for chosen in choose(
            graph,
            request.devices,
            request.pins,
            request.costs,
            objective=request.objective,
            max_in_flight=request.max_in_flight,
            max_subgraphs=request.max_subgraphs,
            memory_limits=request.memory_limits,
        ):
            yield Choice(chosen.partition, chosen.placement, chosen.decision)
        return
    yield _by_rule(graph, request, is_static)


def _by_rule(graph: Graph, request: Request, is_static: bool) -> Choice:
    """Return the only partition that a rule knows."""
    devices = request.devices
    if request.strategy == "tengine" and is_static:
        found = by_runs(ask(graph, devices, request.pins))
        why = f"runs of nodes that {next(iter(devices))} supports, if they are long enough"
    else:
        found = partition(graph, devices, request.pins)
        why = "each node goes to the first device that supports it"
        if request.strategy != "preference":
            why += ", until shapes are known"
    _check_count(found, request.max_subgraphs, request.strategy)
    decision = Decision(
        request.strategy,
        request.objective,
        "preference" if request.strategy == "auto" else request.strategy,
        why,
        ask=partial(options, graph, devices, request.costs),
    )
    return Choice(found, place(graph, found, devices) if is_static else None, decision)


def _check_count(found: Partition, most: int | None, strategy: str) -> None:
    if most is not None and len(found.subgraphs) > most and strategy != "auto":
        raise PlanError(
            f"by {strategy} there are {len(found.subgraphs)} subgraphs, max_subgraphs is {most}",
            fix="allow more subgraphs, change the pins, or use strategy='auto'",
        )
