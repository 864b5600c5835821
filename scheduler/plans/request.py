"""The request for a plan: what it is to be like, checked, with all that was left out filled in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from ...devices.device import Device
from ..costs import Costs
from .io_devices import ON_HOST, IoDevices
from .pins import Pins

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
