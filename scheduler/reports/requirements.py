"""Requirements of a saved plan: versions, devices and operators, then and now.

Whether a device has a kernel for each node, and how much scratch memory that needs, is not written
down: the devices are asked again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace

import numpy as np

from ...devices.device import Capabilities, Configured, Device
from ...devices.options import as_text
from ...devices.registry import find, split_options
from ...graph.errors import ParseError, PlaitError
from ...graph.ir import Graph
from ...graph.nested import all_nodes
from ...graph.operator import Operator, find_operator, is_operator

AGAIN = "plan the model again"

_OF_THE_MACHINE = frozenset({"memory_bytes"})
"""What may differ; whether the plan fits is checked."""


@dataclass(frozen=True, slots=True)
class Requirements:
    """What a plan was made for.

    Attributes
    ----------
    numpy : str
        The version.
    devices : Mapping of str to Capabilities
        In order of preference.
    operators : Mapping of str to str
        For each operator in the graph what tells its definition from others.
    options : Mapping of str to Mapping of str to str
        Those that devices were made with and files may carry, as text, by device.
    withheld : Mapping of str to tuple of str
        The names of the other options, by device: whoever loads the plan gives them again.
    """

    numpy: str
    devices: Mapping[str, Capabilities]
    operators: Mapping[str, str]
    options: Mapping[str, Mapping[str, str]]
    withheld: Mapping[str, tuple[str, ...]]


def requirements(graph: Graph, devices: Mapping[str, Device]) -> Requirements:
    """Return what a plan of that graph for those devices depends on here and now."""
    found = _offers(devices)
    ops = sorted({node.op for _, _, node in all_nodes(graph)})
    split = {name: split_options(name, made) for name, made in options_of(devices).items()}
    options = {name: carried for name, (carried, _) in split.items() if carried}
    withheld = {name: others for name, (_, others) in split.items() if others}
    definitions = {op: definition(find_operator(op)) for op in ops}
    return Requirements(np.__version__, found, definitions, options, withheld)


def options_of(devices: Mapping[str, Device]) -> dict[str, dict[str, str]]:
    """Return the options that devices were made with, as text, by device."""
    return {
        name: as_text(device.options)
        for name, device in devices.items()
        if isinstance(device, Configured) and isinstance(device.options, Mapping) and device.options
    }


def definition(operator: Operator) -> str:
    """Return a digest of all that a plan takes from an operator's definition."""
    attributes = sorted((name, str(one.kind)) for name, one in operator.attributes.items())
    parts = (operator.inputs, operator.outputs, attributes, operator.views, operator.inplace)
    rules = (operator.function, operator.parts, operator.joins)
    more = (operator.bounded, operator.effects, [rule is not None for rule in rules])
    return hashlib.sha256(repr((parts, more)).encode()).hexdigest()[:16]


def devices_for(
    wanted: Requirements, given: Mapping[str, Device], at: str
) -> tuple[dict[str, Device], frozenset[str]]:
    """Return the devices of a plan by name, and which of them are objects.

    Those are given, or have options, which they are made with again.

    Raises
    ------
    ParseError
        If an object is given that the plan has no use for, or one is missing whose options files
        may not carry.
    DeviceUnavailableError
        If this machine lacks one of them.
    """
    names = tuple(wanted.devices)
    strange = [name for name in given if name not in names]
    if strange:
        raise ParseError(
            f"the plan is for {', '.join(names)}, not for {', '.join(strange)}",
            at=at,
            fix="give only devices that it names",
        )
    found: dict[str, Device] = {}
    for name in names:
        try:
            found[name] = given[name] if name in given else _made_again(wanted, name, at)
            _ = found[name].capabilities  # raises now, not in the middle, if it is missing
        except PlaitError as error:
            error.add_note(
                f"the plan in {at} needs it; load_plan(..., devices=[...]) takes objects"
            )
            raise
    configured = (name for name, options in wanted.options.items() if options)
    return found, frozenset((*given, *configured))


def _made_again(wanted: Requirements, name: str, at: str) -> Device:
    """Make a device as the file says, unless it says what only the caller may."""
    options = wanted.options.get(name, {})
    withheld = wanted.withheld.get(name, ()) or split_options(name, options)[1]
    if withheld:
        raise _withheld_error(name, withheld, at)
    return find(name, options)


def _withheld_error(name: str, options: Iterable[str], at: str) -> ParseError:
    listed = ", ".join(f"{option}=..." for option in options)
    return ParseError(
        f"device {name!r} of the plan had options that files may not choose: {', '.join(options)}",
        at=at,
        fix=f"load_plan(path, devices=[plait.device({name!r}, {listed})]), or --device-option",
    )


def check_devices(wanted: Requirements, devices: Mapping[str, Device], at: str) -> None:
    """Raise ParseError unless numpy and the devices are like those that were planned for."""
    if _release(wanted.numpy) != _release(np.__version__):
        raise _differs_error("numpy", [f"version {np.__version__}, was {wanted.numpy}"], at)
    present = _offers({name: devices[name] for name in wanted.devices})
    for name, planned in wanted.devices.items():
        differences = list(_differences(planned, present[name]))
        if differences:
            raise _differs_error(f"device {name!r}", differences, at)


def check_operators(wanted: Requirements, graph: Graph, at: str) -> None:
    """Raise ParseError unless the graph's operators are defined as they were."""
    for op in sorted({node.op for _, _, node in all_nodes(graph)}):
        known = definition(find_operator(op)) if is_operator(op) else None
        if wanted.operators.get(op) != known:
            raise _differs_error(f"operator {op!r}", ["another definition"], at)


def _offers(devices: Mapping[str, Device]) -> dict[str, Capabilities]:
    """Return what devices are like for each other: others that there may be do not matter."""
    offers = {name: device.capabilities for name, device in devices.items()}
    memories = frozenset(one.memory for one in offers.values())
    return {
        name: replace(one, copies_from=one.copies_from & memories) for name, one in offers.items()
    }


def _differences(planned: Capabilities, present: Capabilities) -> Iterator[str]:
    for one in fields(Capabilities):
        before, now = getattr(planned, one.name), getattr(present, one.name)
        if one.name == "software":
            before, now = _release(before), _release(now)
        if before != now and one.name not in _OF_THE_MACHINE:
            yield f"{one.name} {_shown(now)}, was {_shown(before)}"


def _differs_error(what: str, differences: Iterable[str], at: str) -> ParseError:
    return ParseError(
        f"{what} is not what the plan was made for: {'; '.join(differences)}", at=at, fix=AGAIN
    )


def _release(version: str) -> str:
    """Return a version without its patch number, which changes neither kernels nor scratch."""
    return ".".join(version.split(".")[:2])


def _shown(value: object) -> str:
    return ", ".join(sorted(value)) if isinstance(value, frozenset) else repr(value)
