"""Arguments of `plan`: checked, completed, and converted to the request."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import get_args

import numpy as np

from ...devices.automatic import AUTO, FROZEN
from ...devices.device import Device, is_device
from ...devices.registry import find
from ...graph.core.ir import Graph
from ...graph.passes.pipeline import Pass
from ..costs import Costs
from ..costs.choices import find_choices
from ..costs.first_use import with_first_use
from ..errors import PlanError
from ..plans.replicas import (
    Groups,
    check_in_turn,
    count_variants,
    group_ranges,
    name_devices,
    pin_ordered,
    replace_ranges,
    share_limits,
    to_list,
)
from ..plans.request import (
    Commitment,
    Objective,
    On,
    PassOptions,
    Pins,
    PlanRequest,
    Strategy,
    check_ends,
    check_pins,
)
from .memory.memory_plan import find_limits
from .mixed_precision import Precision, check_precision

MOST_IN_FLIGHT = 1 << 16
"""Limit of items in flight; each has a slot."""


def check_arguments(
    graph: object, pin: object, shapes: object, max_in_flight: object, passes: object
) -> None:
    if not isinstance(graph, Graph):
        raise PlanError(
            f"expected a graph, got {type(graph).__name__}",
            fix="plan what load(path) or GraphBuilder.build() returned; a pipeline by pipe.plan()",
        )
    check_in_flight(max_in_flight)
    if not isinstance(pin, Mapping | None):
        raise PlanError(f"pin is {pin!r}", fix="map node names or patterns to device names")
    if not isinstance(shapes, Mapping | None) or not all(
        isinstance(shape, Sequence) and all(isinstance(n, int | np.integer) for n in shape)
        for shape in (shapes or {}).values()
    ):
        raise PlanError(f"shapes is {shapes!r}", fix="map input names to sequences of lengths")
    if (
        isinstance(passes, str)
        or not isinstance(passes, Sequence)
        or not all(callable(one) or isinstance(one, str) for one in passes)
    ):
        raise PlanError(
            f"passes is {passes!r}", fix="pass functions, such as those of PASSES, or their names"
        )


def make_request(
    graph: Graph,
    devices: str | Device | Iterable[str | Device],
    passes: tuple[Pass, ...],
    *,
    pin: Pins | None,
    max_in_flight: int,
    strategy: Strategy,
    objective: Objective,
    costs: Costs | str | os.PathLike[str] | None,
    max_subgraphs: int | None,
    memory_limits: Mapping[str, int] | None,
    inputs_on: On,
    outputs_on: On,
    precision: Precision,
    commit: Commitment,
) -> tuple[PlanRequest, Groups]:
    """Return a request for `graph`, made of other arguments of `plait.plan`, and device replicas.

    Raises PlanError, DeviceUnavailableError and ParseError as `plait.plan`.
    """
    named = to_list(devices)
    word = next((one for one in named if isinstance(one, str) and one in (AUTO, FROZEN)), None)
    listed, replicas = group_ranges(named)
    prototypes, given = _find_prototypes(listed)
    pins = replace_ranges(pin or {}, replicas)
    check_pins(graph, name_devices(prototypes, replicas), pins)
    limits = _check_limits(memory_limits, prototypes)
    if commit == "item" and (max_in_flight > 1 or replicas):
        check_in_turn(graph)
    if replicas:
        pins = pin_ordered(graph, prototypes, pins, replicas)
        limits = share_limits(limits, prototypes, replicas)
    in_turn = frozenset(chain.from_iterable(replicas))
    priced = make_costs(costs, prototypes)
    if strategy == "auto" and len(prototypes) > 1:
        priced = with_first_use(priced, prototypes)
    request = PlanRequest(
        devices=prototypes,
        given=given,
        pins=pins,
        max_in_flight=-(-max_in_flight // count_variants(replicas)),
        strategy=strategy,
        objective=objective,
        costs=priced,
        max_subgraphs=max_subgraphs,
        memory_limits=limits,
        ends=check_ends(graph, inputs_on, outputs_on, prototypes, in_turn),
        precision=check_precision(precision, prototypes, replicas),
        overlaps=max_in_flight > 1 or bool(replicas),
        commit=commit,
        options=PassOptions.from_passes(passes),
    )
    _check_request(request)
    if word is not None:
        is_free = costs is None and strategy == "auto"
        choices = find_choices(prototypes, uses_answers=is_free, measures=is_free and word == AUTO)
        request = replace(request, choices=choices)
    return request, replicas


def check_in_flight(count: object) -> None:
    if not isinstance(count, int) or not 1 <= count <= MOST_IN_FLIGHT:
        raise PlanError(
            f"max_in_flight is {count!r}", fix=f"use a whole number, 1 to {MOST_IN_FLIGHT:,}"
        )


def _find_prototypes(listed: Sequence[str | Device]) -> tuple[dict[str, Device], frozenset[str]]:
    found = [find(device) if isinstance(device, str) else device for device in listed]
    for device in found:
        if not is_device(device):
            raise PlanError(
                f"{device!r} is not a device", fix="name one, such as 'cpu', or pass a Device"
            )
        _ = device.capabilities  # raises early if this machine lacks the device
    names = [device.name for device in found]
    if not names or len(set(names)) != len(names):
        raise PlanError(
            f"the devices are {', '.join(names) or 'none'}",
            fix="name at least one device, and each once",
        )
    given = frozenset(device.name for device in listed if not isinstance(device, str))
    return dict(zip(names, found, strict=True)), given


def _check_limits(given: object, prototypes: Mapping[str, Device]) -> dict[str, int]:
    if not isinstance(given, Mapping | None):
        raise PlanError(f"memory_limits is {given!r}", fix="map devices or memories to bytes")
    limits = dict(given or {})
    find_limits(limits, prototypes)  # raises early for unknown names
    return limits


def _check_request(request: PlanRequest) -> None:
    for name, value, known in (
        ("strategy", request.strategy, get_args(Strategy)),
        ("objective", request.objective, get_args(Objective)),
        ("commit", request.commit, get_args(Commitment)),
    ):
        if value not in known:
            raise PlanError(f"{name} is {value!r}", fix=f"use one of {', '.join(known)}")
    most = request.max_subgraphs
    if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 1):
        raise PlanError(f"max_subgraphs is {most!r}", fix="use a whole number, 1 or more")


def make_costs(
    given: Costs | str | os.PathLike[str] | None, prototypes: Mapping[str, Device]
) -> Costs:
    costs = Costs.of(prototypes)
    if given is None:
        return costs
    if not isinstance(given, Costs | str | os.PathLike):
        raise PlanError(f"costs is {given!r}", fix="pass Costs, or the path of a file of them")
    return costs.merged(given if isinstance(given, Costs) else Costs.load(os.fspath(given)))
