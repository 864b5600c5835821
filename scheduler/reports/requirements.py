"""Requirements of a saved plan: versions, devices and operators, then and now.

Kernels and their scratch memory are not stored: the devices are asked again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace

import numpy as np

from ...devices.device import Capabilities, Configured, Device
from ...devices.options import to_texts
from ...devices.registry import find, split_options
from ...graph.core.ir import Graph
from ...graph.core.nested import walk_nodes
from ...graph.core.operator import Operator, find_operator, is_operator
from ...graph.functions.function_digest import hash_with_constants
from ...graph.operators.item_order import CALLS
from ...graph.values.errors import ParseError, PlaitError

AGAIN = "plan the model again"

_OF_THE_MACHINE = frozenset({"memory_bytes"})
"""Capabilities that may differ. `restore.verify_plan` checks that the plan fits."""


@dataclass(frozen=True, slots=True)
class Requirements:
    """Versions, devices and operators that a plan was made for."""

    numpy: str
    """Version."""
    devices: Mapping[str, Capabilities]
    """In order of preference."""
    operators: Mapping[str, str]
    """Digest of the definition of each operator in the graph."""
    calls: Mapping[str, str]
    """Digest of the user's functions in each operator of a pipeline, whose name may follow from the
    order in which pipelines were built."""
    options: Mapping[str, Mapping[str, str]]
    """Options of each device that files may carry, as text."""
    withheld: Mapping[str, tuple[str, ...]]
    """Names of the other options of each device; the caller of `load_plan` has to give them."""


def collect_requirements(graph: Graph, devices: Mapping[str, Device]) -> Requirements:
    found = _get_capabilities(devices)
    ops = sorted({node.op for _, _, node in walk_nodes(graph)})
    split = {name: split_options(name, made) for name, made in get_options(devices).items()}
    options = {name: carried for name, (carried, _) in split.items() if carried}
    withheld = {name: others for name, (_, others) in split.items() if others}
    definitions = {op: hash_definition(find_operator(op)) for op in ops}
    calls = {op: digest for op in ops if (digest := _hash_calls(find_operator(op)))}
    return Requirements(np.__version__, found, definitions, calls, options, withheld)


def get_options(devices: Mapping[str, Device]) -> dict[str, dict[str, str]]:
    return {
        name: to_texts(device.options)
        for name, device in devices.items()
        if isinstance(device, Configured) and isinstance(device.options, Mapping) and device.options
    }


def hash_definition(operator: Operator) -> str:
    """Hash the parts of the definition of `operator` that plans depend on."""
    attributes = sorted((name, str(one.kind)) for name, one in operator.attributes.items())
    parts = (operator.inputs, operator.outputs, attributes, operator.views, operator.inplace)
    rules = (operator.function, operator.parts, operator.joins)
    more = (operator.bounded, operator.effects, [rule is not None for rule in rules])
    return hashlib.sha256(repr((parts, more)).encode()).hexdigest()[:16]


def _hash_calls(operator: Operator) -> str:
    """Return a digest of the user's functions of a pipeline's `operator`, or "".

    There are none where another process has recreated the operator, for this very plan.
    """
    called = getattr(operator.function, CALLS, ())
    return " ".join(hash_with_constants(one)[:16] for one in called)


def find_devices(
    wanted: Requirements, given: Mapping[str, Device], at: str
) -> tuple[dict[str, Device], frozenset[str]]:
    """Return the `wanted` devices by name, and the names of those `given` or made with options.

    Raises ParseError with the place `at` if a given device is not in the plan, or if a device is
    not given although files may not carry its options; DeviceUnavailableError if this machine lacks
    one of them.
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
            found[name] = given[name] if name in given else _make_device(wanted, name, at)
            _ = found[name].capabilities  # raises now, not in the middle, if it is missing
        except PlaitError as error:
            error.add_note(
                f"the plan in {at} needs it; load_plan(..., devices=[...]) takes objects"
            )
            raise
    configured = (name for name, options in wanted.options.items() if options)
    return found, frozenset((*given, *configured))


def _make_device(wanted: Requirements, name: str, at: str) -> Device:
    """Make the device `name` with options `wanted`, if files may have them; errors name `at`."""
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
    if _drop_patch_number(wanted.numpy) != _drop_patch_number(np.__version__):
        raise _differs_error("numpy", [f"version {np.__version__}, was {wanted.numpy}"], at)
    present = _get_capabilities({name: devices[name] for name in wanted.devices})
    for name, planned in wanted.devices.items():
        differences = list(_list_differences(planned, present[name]))
        if differences:
            raise _differs_error(f"device {name!r}", differences, at)


def check_operators(wanted: Requirements, graph: Graph, at: str) -> None:
    for op in sorted({node.op for _, _, node in walk_nodes(graph)}):
        operator = find_operator(op) if is_operator(op) else None
        known, calls = operator and hash_definition(operator), operator and _hash_calls(operator)
        if wanted.operators.get(op) != known or (calls and wanted.calls.get(op) != calls):
            raise _differs_error(f"operator {op!r}", ["another definition"], at)


def _get_capabilities(devices: Mapping[str, Device]) -> dict[str, Capabilities]:
    offers = {name: device.capabilities for name, device in devices.items()}
    memories = frozenset(one.memory for one in offers.values())
    return {
        name: replace(one, copies_from=one.copies_from & memories) for name, one in offers.items()
    }


def _list_differences(planned: Capabilities, present: Capabilities) -> Iterator[str]:
    for one in fields(Capabilities):
        before, now = getattr(planned, one.name), getattr(present, one.name)
        if one.name == "software":
            before, now = _drop_patch_number(before), _drop_patch_number(now)
        if before != now and one.name not in _OF_THE_MACHINE:
            yield f"{one.name} {_format_value(now)}, was {_format_value(before)}"


def _differs_error(what: str, differences: Iterable[str], at: str) -> ParseError:
    return ParseError(
        f"{what} is not what the plan was made for: {'; '.join(differences)}", at=at, fix=AGAIN
    )


def _drop_patch_number(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _format_value(value: object) -> str:
    return ", ".join(sorted(value)) if isinstance(value, frozenset) else repr(value)
