"""The ends of a plan: on which devices callers hand over inputs and take outputs.

In memories of the host, unless they say so.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from ...devices.device import Device
from ...devices.exchange import exchanges
from ...devices.memory import HOST_MEMORIES
from ...graph.ir import Graph
from ...graph.operators.randomness import RANDOM_KEY
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
