"""The request for a plan: checked arguments, with defaults filled in.

Pins are part of it: nodes, by name or pattern, that the user assigns to a device. So are the
devices on which callers pass inputs and take outputs; the default is the host.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Literal, NamedTuple, TypeAlias

from ...devices.automatic import RUNTIMES
from ...devices.device import Device
from ...devices.exchange import Exchange
from ...devices.kinds import get_kind
from ...devices.memory import HOST_MEMORIES
from ...graph.core.ir import Graph, Node
from ...graph.core.nested import list_graphs, walk_nodes
from ...graph.core.printing import list_some
from ...graph.operators.control import CONTROL_FLOW, waits
from ...graph.operators.randomness import RANDOM_KEY
from ...graph.passes.expand import expand_unsupported
from ...graph.passes.fold_constants import fold_constants
from ...graph.passes.pipeline import Pass, fuse_chains
from ...graph.values.errors import suggest_names
from ..costs import Costs
from ..costs.choices import DeviceChoices
from ..errors import PlanError

On: TypeAlias = str | Mapping[str, str] | None
"""A device for all inputs or outputs, or a device for each named one."""


class PassOptions(NamedTuple):
    """Choices of the planner that follow from the passes of a plan."""

    folds: bool = False
    """Nodes whose results are known ahead become constants."""
    fuses_chains: bool = False
    """Devices get elementwise chains as one node."""
    writes_out: bool = False
    """Nodes that a device lacks are decomposed."""

    @classmethod
    def from_passes(cls, passes: Collection[Pass]) -> PassOptions:
        return cls(fold_constants in passes, fuse_chains in passes, expand_unsupported in passes)


@dataclass(frozen=True, slots=True)
class IoDevices:
    """The devices on which callers pass inputs and take outputs."""

    inputs: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)
    """Tensor names to devices; other tensors are on the host."""

    @property
    def devices(self) -> frozenset[str]:
        return frozenset((*self.inputs.values(), *self.outputs.values()))


ON_HOST = IoDevices()


def check_ends(
    graph: Graph,
    inputs_on: On,
    outputs_on: On,
    devices: Mapping[str, Device],
    in_turn: Collection[str] = (),
) -> IoDevices:
    """Return the devices of inputs and outputs of `graph`, except those on the host.

    `inputs_on` and `outputs_on` name one of `devices` for all, or for each. Raises PlanError if a
    name is unknown, or its device has replicas (`in_turn`) or shares no arrays.
    """
    found = IoDevices(
        _map_ends("inputs_on", inputs_on, [name for name in graph.inputs if name != RANDOM_KEY]),
        _map_ends("outputs_on", outputs_on, graph.outputs),
    )
    for name in found.devices:
        _check(name, devices, in_turn)
    return IoDevices(
        _select_private(found.inputs, devices), _select_private(found.outputs, devices)
    )


def unknown_plan_error(graph: Graph) -> PlanError:
    return PlanError(
        "shapes depend on values, so that items go through several plans by way of the host",
        at=f"graph {graph.name!r}",
        fix="leave inputs_on and outputs_on out",
    )


def _map_ends(argument: str, on: On, names: Sequence[str]) -> Mapping[str, str]:
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
    if not isinstance(device, Exchange) and device.capabilities.memory not in HOST_MEMORIES:
        raise PlanError(
            f"device {name!r} shares no arrays with other libraries",
            fix="hand arrays over on the host: leave it out of inputs_on and outputs_on",
        )


def _select_private(on: Mapping[str, str], devices: Mapping[str, Device]) -> Mapping[str, str]:
    return {
        tensor: name
        for tensor, name in on.items()
        if devices[name].capabilities.memory not in HOST_MEMORIES
    }


Strategy: TypeAlias = Literal["auto", "preference", "tengine"]
Commitment: TypeAlias = Literal["step", "item"]
Objective: TypeAlias = Literal["latency", "throughput"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """The arguments of planning.

    Attributes
    ----------
    devices : Mapping of str to Device
        In order of preference. Planning asks them for support; those in `given` also run.
    given : frozenset of str
        The names of devices that the user gave as objects.
    max_in_flight : int
        The number of items for which memory is planned; with replicas, on each variant.
    costs : Costs
        Times of nodes and copies.
    ends : IoDevices
        The devices on which callers pass inputs and take outputs.
    precision : Mapping of str to str
        The devices that may compute in float16.
    halved : Mapping of str to str
        The devices of nodes that compute in float16 already, and of their conversions.
    options : PassOptions
        Those of the plan's passes.
    apart : frozenset of str
        Nodes that get subgraphs of their own, unless that makes many more subgraphs.
    overlaps : bool
        True if several items are in flight, on replicas or not.
    commit : {"step", "item"}
        When the next item gets an assigned variable: after the step, or after the item.
    choices : DeviceChoices or None
        Measured devices of subgraphs; None if the user named the devices.
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
    commit: Commitment = "step"
    # These follow from a plan's passes and from the phase of planning: plans differ by them.
    options: PassOptions = field(repr=False, compare=False, default=PassOptions())
    apart: frozenset[str] = field(repr=False, compare=False, default=frozenset())
    choices: DeviceChoices | None = field(repr=False, compare=False, default=None)
    names: tuple[str, ...] = field(init=False)
    """The names of the devices."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", tuple(self.devices))

    @property
    def offered(self) -> PlanRequest:
        """The request without devices that are only for measured subgraphs."""
        pinned = {get_kind(name) for name in self.pins.values()}
        others = {*self.choices.software} - pinned - {RUNTIMES[0]} if self.choices else ()
        devices = {name: d for name, d in self.devices.items() if get_kind(name) not in others}
        return replace(self, devices=devices) if others else self

    @property
    def kept(self) -> Pins:
        """The nodes that keep their devices: pinned ones, and those in float16 already."""
        return {**self.halved, **self.pins}


Pins = Mapping[str, str]
"""Node name, or pattern as in `fnmatch`, to device name."""

SHOWN = 10
"""Folders or nodes that an error lists."""

_WILDCARD = re.compile(r"[*?[]")
_MADE = re.compile(r"\[\d+\](?=/)|(\[[a-z0-9_.]+\](\.\d+)?)+$")
"""Suffixes for the step of a loop and a part of an operator: ``"loop[0]/gelu[mul].2"``."""


def check_pins(graph: Graph, devices: Mapping[str, str], pins: Pins) -> None:
    """Raise PlanError if `pins` name a device or node of `graph` that is unknown, or control flow.

    `devices` maps the plan's devices to names for users: ranges for groups.
    """
    nodes = {path: node for path, _, node in walk_nodes(graph)}
    names = [*nodes]
    for pattern, device in pins.items():
        if device not in devices:
            told = f"pin to one of {', '.join(devices.values())}, or add {device!r} to devices"
            raise PlanError(
                f"node {pattern!r} is pinned to {device!r}, which is not one of the plan's devices",
                fix=suggest_names(device, devices.values(), told),
            )
        if pattern not in names and not any(fnmatchcase(name, pattern) for name in names):
            folders = _list_folders(names)
            listed = f"its nodes are: {list_some(folders, SHOWN)}"
            fix = suggest_names(pattern, dict.fromkeys((*folders, *names)), listed)
            raise PlanError(f"the pin {pattern!r} matches no node of {graph.name!r}", fix=fix)
        if pattern in nodes and nodes[pattern].op in CONTROL_FLOW:
            raise PlanError(
                f"{nodes[pattern]} is pinned, but control flow runs on no device",
                fix=f"pin the nodes in it: {f'{pattern}/*'!r}",
            )


def find_pin(node: Node, pins: Pins) -> str | None:
    """Return the pattern that pins a node: its exact name, else the first that matches.

    Control flow that runs as one node also obeys the pins of its inner nodes.
    """
    return next(list_pins(node, pins), None) if pins else None


def list_pins(node: Node, pins: Pins) -> Iterator[str]:
    own = _find_own_pin(node, pins)
    if own is not None:
        yield own
    if node.op in CONTROL_FLOW and not waits(node):
        for graph in list_graphs(node):
            for inner in graph.nodes:
                yield from list_pins(replace(inner, name=f"{node.name}/{inner.name}"), pins)


def _find_own_pin(node: Node, pins: Pins) -> str | None:
    names = node.name, _MADE.sub("", node.name)
    exact = (name for name in names if name in pins)
    # Most pins are names: matching each of them as a pattern would be quadratic.
    patterns = (p for p in pins if _WILDCARD.search(p))
    matching = (p for p in patterns if any(fnmatchcase(name, p) for name in names))
    return next(exact, None) or next(matching, None)


def _list_folders(names: Sequence[str]) -> list[str]:
    """Return folders as patterns such as ``net/*``, and the names outside folders.

    If one folder has all names, its inner folders are returned.
    """
    start = ""
    while True:
        found = dict.fromkeys(_find_folder(name, start) for name in names)
        only = next(iter(found), "")
        if len(found) != 1 or only in names:
            return [*found]
        start = only[:-1]


def _find_folder(name: str, start: str) -> str:
    slash = name.find("/", max(len(start), 1))
    return name if slash < 0 else f"{name[:slash]}/*"
