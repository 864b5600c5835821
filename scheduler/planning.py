"""The plan: everything decided before the first run, in one frozen value.

A graph with symbolic dimensions is partitioned as it is; memories, transfers and offsets follow
when the shapes are known, by `Plan.for_shapes`, which a session does for what it is fed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..devices.device import Device
from ..devices.registry import find
from ..graph.check import check
from ..graph.ir import Graph
from ..graph.passes import PASSES, Pass, simplify
from .boundaries import is_decided
from .errors import PlanError
from .memory.memory_plan import MemoryPlan, plan_memory
from .partition.partition import Partition, Pins, Subgraph, check_pins, may_merge, partition
from .placement import Placement, place
from .specialise import Shapes, specialise
from .steps import Step


@dataclass(frozen=True)
class Plan:
    """Who runs what, in which memory, after what.

    Attributes
    ----------
    graph : Graph
        The graph that runs; for given shapes, with what could be computed ahead folded.
    devices : tuple of str
        In order of preference.
    pins : Mapping of str to str
    max_in_flight : int
        For how many items at once memory is planned.
    partition : Partition
    placement : Placement or None
        None while dimensions are symbolic.
    memory : MemoryPlan or None
        None while dimensions are symbolic.
    """

    graph: Graph
    devices: tuple[str, ...]
    pins: Pins
    max_in_flight: int
    partition: Partition
    placement: Placement | None
    memory: MemoryPlan | None
    passes: tuple[Pass, ...] = field(repr=False)
    """What made the graph simpler."""
    prototypes: Mapping[str, Device] = field(repr=False, compare=False)
    """The devices that were asked what they support; those the user gave are also run on."""
    given: frozenset[str] = field(repr=False, compare=False, default=frozenset())
    """The names of devices that the user gave as objects."""

    @property
    def is_static(self) -> bool:
        """True when all shapes are known, and thereby all memory."""
        return self.memory is not None

    @property
    def assignment(self) -> Mapping[str, str]:
        """The device of every node, by name."""
        return self.partition.assignment

    @property
    def reasons(self) -> Mapping[str, str]:
        """Why every node is where it is, by name."""
        return self.partition.reasons

    @property
    def subgraphs(self) -> tuple[Subgraph, ...]:
        """The subgraphs, in a topological order."""
        return self.partition.subgraphs

    @property
    def steps(self) -> tuple[Step, ...]:
        """The runs and transfers; empty while dimensions are symbolic."""
        return self.placement.steps if self.placement is not None else ()

    def for_shapes(self, shapes: Shapes, max_in_flight: int | None = None) -> Plan:
        """Return the plan for inputs of these shapes.

        Shapes that depend on values are still unknown in it: see `boundaries`.

        Raises
        ------
        FeedError
            If a shape does not fit its input.
        ShapeError
            If shapes do not fit together inside the graph.
        """
        return self.over(specialise(self.graph, shapes), max_in_flight)

    def over(self, graph: Graph, max_in_flight: int | None = None) -> Plan:
        """Return the plan of another graph for the same devices and pins."""
        slots = self.max_in_flight if max_in_flight is None else max_in_flight
        return _decide(graph, self.prototypes, self.pins, slots, self.given, self.passes)

    def report(self, *, nodes: bool = False) -> str:
        """Return the plan for people: subgraphs, transfers, memory and reasons.

        With `nodes`, every node is listed with its device and the reason for it.
        """
        from .explain.report import report

        return report(self, nodes=nodes)

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain values, for JSON."""
        from .explain.report import to_dict

        return to_dict(self)

    def __str__(self) -> str:
        return self.report()


def plan(
    graph: Graph,
    devices: str | Device | Iterable[str | Device] = ("cpu",),
    *,
    pin: Pins | None = None,
    shapes: Shapes | None = None,
    max_in_flight: int = 1,
    passes: Sequence[Pass] = PASSES,
) -> Plan:
    """Decide who runs what, in which memory.

    Parameters
    ----------
    graph : Graph
    devices : str, Device, or iterable of them, default ("cpu",)
        In order of preference: each node goes to the first that supports it.
    pin : Mapping of str to str, optional
        Node name, or pattern such as ``"encoder.*"``, to device name. A name wins over patterns,
        and of patterns the first that matches.
    shapes : Mapping of str to sequence of int, optional
        Shapes of the inputs. Left out, dimensions that are symbolic stay so, and sessions plan for
        each combination of shapes that they are fed.
    max_in_flight : int, default 1
        For how many items at once memory is planned.
    passes : sequence of callable, default `plait.graph.passes.PASSES`
        What makes the graph simpler first: activations written out in arithmetic become one node,
        scales and shifts go into the convolutions beside them. Floats differ by rounding; ``()``
        leaves every node as it is.

    Raises
    ------
    PlanError
        If a pin names an unknown node or device, or `max_in_flight` is below 1.
    UnsupportedOpError
        If nodes find no device; the message lists all of them.
    DoesNotFitError
        If a device has too little memory.
    DeviceUnavailableError
        If this machine lacks one of the devices.
    FeedError, ShapeError
        If the shapes do not fit.
    """
    _check_arguments(graph, pin, shapes, max_in_flight, passes)
    prototypes, given = _prototypes(devices)
    pins = dict(pin or {})
    check_pins(check(graph), prototypes, pins)
    specialised = specialise(graph, shapes)
    return _decide(specialised, prototypes, pins, max_in_flight, given, tuple(passes))


def _check_arguments(
    graph: object, pin: object, shapes: object, max_in_flight: object, passes: object
) -> None:
    if not isinstance(graph, Graph):
        raise PlanError(
            f"a {type(graph).__name__} is no graph",
            fix="plan what load(path) or GraphBuilder.build() returned",
        )
    if not isinstance(max_in_flight, int) or max_in_flight < 1:
        raise PlanError(f"max_in_flight is {max_in_flight!r}", fix="use a whole number, 1 or more")
    if not isinstance(pin, Mapping | None):
        raise PlanError(f"pin is {pin!r}", fix="map node names or patterns to device names")
    if not isinstance(shapes, Mapping | None) or not all(
        isinstance(shape, Sequence) and all(isinstance(n, int | np.integer) for n in shape)
        for shape in (shapes or {}).values()
    ):
        raise PlanError(f"shapes is {shapes!r}", fix="map input names to sequences of lengths")
    if not isinstance(passes, Sequence) or not all(callable(one) for one in passes):
        raise PlanError(f"passes is {passes!r}", fix="pass functions, such as those of PASSES")


def _prototypes(
    devices: str | Device | Iterable[str | Device],
) -> tuple[dict[str, Device], frozenset[str]]:
    listed: list[str | Device]
    if isinstance(devices, Iterable) and not isinstance(devices, str):
        listed = list(devices)
    else:
        listed = [devices]
    found = [find(device) if isinstance(device, str) else device for device in listed]
    for device in found:
        if not hasattr(device, "capabilities"):
            raise PlanError(
                f"{device!r} is no device", fix="name one, such as 'cpu', or pass a Device"
            )
        _ = device.capabilities  # raises now, not in the middle, if this machine lacks the device
    names = [device.name for device in found]
    if not names or len(set(names)) != len(names):
        raise PlanError(
            f"the devices are {', '.join(names) or 'none'}",
            fix="name at least one device, and each once",
        )
    given = frozenset(device.name for device in listed if not isinstance(device, str))
    return dict(zip(names, found, strict=True)), given


def _decide(
    graph: Graph,
    prototypes: Mapping[str, Device],
    pins: Pins,
    max_in_flight: int,
    given: frozenset[str],
    passes: tuple[Pass, ...],
) -> Plan:
    graph = simplify(graph, passes, may_merge(prototypes, pins))
    cut = partition(graph, prototypes, pins)
    placement = memory = None
    if is_decided(graph):
        placement = place(graph, cut, prototypes)
        memory = plan_memory(graph, placement, prototypes, max_in_flight)
    names = tuple(prototypes)
    return Plan(
        graph, names, pins, max_in_flight, cut, placement, memory, passes, prototypes, given
    )
