"""The request for a plan: what it is to be like, checked, with all that was left out filled in.

Pins are part of it: nodes, by name or pattern, that the user gives to a device. So are the devices
on which callers hand over inputs and take outputs, which is the host unless they say so.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Literal, TypeAlias

from ...devices.device import Device
from ...devices.exchange import exchanges
from ...devices.memory import HOST_MEMORIES
from ...graph.ir import Graph, Node
from ...graph.names import did_you_mean
from ...graph.nested import all_nodes, graphs_in
from ...graph.operators.control import CONTROL_FLOW, waits
from ...graph.operators.randomness import RANDOM_KEY
from ..costs import Costs
from ..errors import PlanError

On: TypeAlias = str | Mapping[str, str] | None
"""A device for all inputs, or outputs, or one for each of those that are named."""


@dataclass(frozen=True, slots=True)
class IoDevices:
    """Which inputs are handed over on devices, and which outputs are taken there.

    Attributes
    ----------
    inputs, outputs : Mapping of str to str
        Tensors to devices; those that are not named are on the host.
    """

    inputs: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)

    @property
    def devices(self) -> frozenset[str]:
        """The devices at either end."""
        return frozenset((*self.inputs.values(), *self.outputs.values()))


ON_HOST = IoDevices()


def checked_ends(
    graph: Graph,
    inputs_on: On,
    outputs_on: On,
    devices: Mapping[str, Device],
    in_turn: Collection[str] = (),
) -> IoDevices:
    """Return the ends that were asked for; on devices that items take turns on there are none.

    Raises
    ------
    PlanError
        If they name what the graph or the plan does not have, or devices that share no arrays.
    """
    found = IoDevices(
        _mapped("inputs_on", inputs_on, [name for name in graph.inputs if name != RANDOM_KEY]),
        _mapped("outputs_on", outputs_on, graph.outputs),
    )
    for name in found.devices:
        _check(name, devices, in_turn)
    return IoDevices(_private(found.inputs, devices), _private(found.outputs, devices))


def unknown_plan_error(graph: Graph) -> PlanError:
    """Return the error for inputs or outputs on devices where items go through several plans."""
    return PlanError(
        "shapes depend on values, so that items go through several plans by way of the host",
        at=f"graph {graph.name!r}",
        fix="leave inputs_on and outputs_on out",
    )


def _mapped(argument: str, on: On, names: Sequence[str]) -> Mapping[str, str]:
    if on is None:
        return {}
    if isinstance(on, str):
        return dict.fromkeys(names, on)
    if not isinstance(on, Mapping):
        raise PlanError(f"{argument} is {on!r}", fix="name a device, or map names to devices")
    for name in on:
        if name not in names:
            raise PlanError(f"{argument} names {name!r}", fix=f"there are: {', '.join(names)}")
    return dict(on)


def _check(name: str, devices: Mapping[str, Device], in_turn: Collection[str]) -> None:
    device = devices.get(name)
    if device is None:
        raise PlanError(
            f"inputs_on or outputs_on names device {name!r}, which the plan does not have",
            fix=f"its devices are: {', '.join(devices)}",
        )
    if name in in_turn:
        raise PlanError(
            f"items take turns on {name!r} and others, so that arrays would be on one of them only",
            fix="hand arrays over on the host, or plan for each device by itself",
        )
    if not exchanges(device) and device.capabilities.memory not in HOST_MEMORIES:
        raise PlanError(
            f"device {name!r} shares no arrays with other libraries",
            fix="hand arrays over on the host: leave it out of inputs_on and outputs_on",
        )


def _private(on: Mapping[str, str], devices: Mapping[str, Device]) -> Mapping[str, str]:
    """Return those that are not on the host anyway."""
    return {
        tensor: name
        for tensor, name in on.items()
        if devices[name].capabilities.memory not in HOST_MEMORIES
    }


Strategy: TypeAlias = Literal["auto", "preference", "tengine"]
Objective: TypeAlias = Literal["latency", "throughput"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """What a plan is to be like.

    Attributes
    ----------
    devices : Mapping of str to Device
        In order of preference. They are asked what they support; those in `given` are also run on.
    given : frozenset of str
        The names of devices that the user gave as objects.
    pins : Mapping of str to str
    max_in_flight : int
        For how many items at once memory is planned; with replicas for so many on each variant.
    strategy, objective : str
    costs : Costs
        What nodes and copies are taken to cost.
    max_subgraphs : int or None
    memory_limits : Mapping of str to int
    ends : IoDevices
        Where callers hand over inputs and take outputs.
    precision : Mapping of str to str
        The devices that may compute in float16.
    halved : Mapping of str to str
        Where the nodes run that do already, and those that convert.
    fuses_chains : bool
        Whether devices get elementwise chains as one node.
    writes_out : bool
        Whether devices get nodes that they lack in simpler ones.
    apart : frozenset of str
        Nodes that are in no subgraph with others, unless that is many more of these.
    overlaps : bool
        Whether several items are in flight, on replicas or not.
    """

    devices: Mapping[str, Device] = field(repr=False, compare=False)
    given: frozenset[str] = field(repr=False, compare=False, default=frozenset())
    pins: Pins = field(default_factory=dict)
    max_in_flight: int = 1
    strategy: Strategy = "auto"
    objective: Objective = "latency"
    costs: Costs = field(repr=False, default_factory=Costs)
    max_subgraphs: int | None = None
    memory_limits: Mapping[str, int] = field(default_factory=dict)
    ends: IoDevices = ON_HOST
    precision: Mapping[str, str] = field(default_factory=dict)
    halved: Mapping[str, str] = field(default_factory=dict)
    overlaps: bool = False
    # What follows from the passes of a plan, and how far it is made: plans differ by these.
    fuses_chains: bool = field(repr=False, compare=False, default=False)
    writes_out: bool = field(repr=False, compare=False, default=False)
    apart: frozenset[str] = field(repr=False, compare=False, default=frozenset())
    names: tuple[str, ...] = field(init=False)
    """Those of the devices."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", tuple(self.devices))

    @property
    def kept(self) -> Pins:
        """What stays where it is: on devices by pins, and what is in float16 there already."""
        return {**self.halved, **self.pins}


Pins = Mapping[str, str]
"""Node name, or pattern as in `fnmatch`, to device name."""

SHOWN = 10
"""Folders or nodes that an error lists."""

_WILDCARD = re.compile(r"[*?[]")
_MADE = re.compile(r"\[\d+\](?=/)|(\[[a-z0-9_.]+\](\.\d+)?)+$")
"""The step of a loop, and which part of an operator a node is: ``"loop[0]/gelu[mul].2"``."""


def check_pins(graph: Graph, devices: Mapping[str, str], pins: Pins) -> None:
    """Raise PlanError if a pin names a device or node that there is not, or control flow.

    `devices` are the plan's, each with what users call it: a range where it is the first of one.
    """
    nodes = {path: node for path, _, node in all_nodes(graph)}
    names = [*nodes]
    for pattern, device in pins.items():
        if device not in devices:
            told = f"pin to one of {', '.join(devices.values())}, or add {device!r} to devices"
            raise PlanError(
                f"node {pattern!r} is pinned to {device!r}, which is not one of the plan's devices",
                fix=did_you_mean(device, devices.values(), told),
            )
        if pattern not in names and not any(fnmatchcase(name, pattern) for name in names):
            known = dict.fromkeys((*_folders(names), *names))
            fix = did_you_mean(pattern, known, _some(names))
            raise PlanError(f"the pin {pattern!r} matches no node of {graph.name!r}", fix=fix)
        if pattern in nodes and nodes[pattern].op in CONTROL_FLOW:
            raise PlanError(
                f"{nodes[pattern]} is pinned, but control flow runs on no device",
                fix=f"pin the nodes in it: {f'{pattern}/*'!r}",
            )


def pin_of(node: Node, pins: Pins) -> str | None:
    """Return the pin that applies: the exact name, else the first pattern that matches.

    To control flow that runs as one node those of the nodes in it apply as well.
    """
    return next(pins_of(node, pins), None) if pins else None


def pins_of(node: Node, pins: Pins) -> Iterator[str]:
    """Yield the pins of a node, and of the nodes inside if it runs as one."""
    own = _own_pin(node, pins)
    if own is not None:
        yield own
    if node.op in CONTROL_FLOW and not waits(node):
        for graph in graphs_in(node):
            for inner in graph.nodes:
                yield from pins_of(replace(inner, name=f"{node.name}/{inner.name}"), pins)


def _own_pin(node: Node, pins: Pins) -> str | None:
    names = node.name, path_of(node.name)
    exact = (name for name in names if name in pins)
    # Most pins are names: each node would be compared with all of the others'.
    patterns = (p for p in pins if _WILDCARD.search(p))
    matching = (p for p in patterns if any(fnmatchcase(name, p) for name in names))
    return next(exact, None) or next(matching, None)


def path_of(name: str) -> str:
    """Return what a node was called before loops were unrolled, and it was written out."""
    return _MADE.sub("", name)


def _folders(names: Sequence[str]) -> list[str]:
    """Return the patterns of folders, ``net/*``, and the names in none.

    A folder that has all of them is no help: those in it are returned.
    """
    start = ""
    while True:
        found = dict.fromkeys(_folder(name, start) for name in names)
        only = next(iter(found), "")
        if len(found) != 1 or only in names:
            return [*found]
        start = only[:-1]


def _folder(name: str, start: str) -> str:
    """Return the pattern of the folder that a name is in, or the name; seen from inside of one."""
    slash = name.find("/", max(len(start), 1))
    return name if slash < 0 else f"{name[:slash]}/*"


def _some(names: Sequence[str]) -> str:
    listed = _folders(names)
    more = ", ..." if len(listed) > SHOWN else ""
    return f"its nodes are: {', '.join(listed[:SHOWN])}{more}"
