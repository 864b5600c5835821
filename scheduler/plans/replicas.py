"""Ranges of devices: their replicas, and the checks that planning for one is right for all."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from ...devices.automatic import AUTO, EXACT, FROZEN, find_automatic_devices
from ...devices.device import Capabilities, Device, is_device
from ...devices.host import count_cores, may_run_anywhere
from ...devices.kinds import get_kind, get_model
from ...devices.memory import HOST, SHARED
from ...devices.model import DeviceModel
from ...devices.registry import find
from ...graph.core.ir import ASSIGN, Graph
from ...graph.core.nested import walk_nodes
from ...graph.core.operator import Operator
from ...graph.operators.bounded_call import CALLS
from ...graph.operators.each import EACH
from ...graph.operators.item_order import find_kept, is_ordered
from ..errors import PlanError
from .request import Pins, find_pin

Groups: TypeAlias = tuple[tuple[str, ...], ...]
"""Names of replicas; the devices of one group are identical."""

MOST = 256
"""Replicas in one range; more are taken for a typing error."""

_RANGE = re.compile(r"([^:]+(?::[A-Za-z]\w*)*):(\d+)\.\.(\d+)", re.ASCII)


def expand_range(name: str) -> tuple[str, ...]:
    """Return the device names in range `name`: three for ``worker:0..2``, one for a single device.

    Raises PlanError if the range is malformed.
    """
    if ".." not in name or "..." in name:  # such names fail as devices
        return (name,)
    found = _RANGE.fullmatch(name)
    first, last = (int(found[2]), int(found[3])) if found else (0, -1)
    if found is None or not first <= last < first + MOST:
        raise PlanError(
            f"{name!r} is not a range of devices",
            fix=f"write KIND:FIRST..LAST, up to {MOST} of them, such as 'worker:0..3'",
        )
    return tuple(f"{found[1]}:{number}" for number in range(first, last + 1))


def group_ranges(
    devices: str | Device | Iterable[str | Device],
) -> tuple[list[str | Device], Groups]:
    """Return the list of devices, each range replaced by its first one, and the groups.

    Raises PlanError if a device is in two ranges, or devices of a range differ.
    """
    listed: list[str | Device] = []
    # Planning sees only the first of each range; the dispatcher assigns items.
    groups: list[tuple[str, ...]] = []
    for device in expand_auto(devices):
        names = expand_range(device) if isinstance(device, str) else ()
        listed.append(names[0] if names else device)
        if len(names) > 1:
            groups.append(names)
    if groups:
        _check_once(listed, groups)
    for names in groups:
        check_alike(names)
        _check_reached(names, listed, groups)
    return listed, tuple(groups)


def to_list(devices: str | Device | Iterable[str | Device]) -> list[str | Device]:
    if isinstance(devices, str) or not isinstance(devices, Iterable):
        return [devices]
    return list(devices)


def expand_auto(devices: str | Device | Iterable[str | Device]) -> Iterator[str | Device]:
    """Yield the devices, with names in place of words such as ``"auto"``."""
    listed = to_list(devices)
    for device in listed:
        if isinstance(device, str) and device in (AUTO, EXACT, FROZEN):
            meant = ("cpu",) if device == EXACT else find_automatic_devices()
            yield from (one for one in meant if one not in listed)
        else:
            yield device


def replace_ranges(pins: Pins, groups: Groups) -> dict[str, str]:
    """Return `pins` with the first device of each of `groups` in place of its range.

    Raises PlanError if a pin names a single device of a group, or another range.
    """
    taken = {name: name_range(names) for names in groups for name in names}
    ranges = ", ".join(map(name_range, groups))
    found = {}
    for pattern, device in pins.items():
        names = expand_range(device) if isinstance(device, str) else (device,)
        if device in taken:
            raise PlanError(
                f"node {pattern!r} is pinned to {device!r}, one of the replicas {taken[device]!r}",
                fix=f"pin to {taken[device]!r}: items take turns there",
            )
        if len(names) > 1 and names not in groups:
            raise PlanError(
                f"node {pattern!r} is pinned to {device!r}, which is not one of the plan's ranges",
                fix=f"pin to one of {ranges}" if groups else f"add {device!r} to devices",
            )
        found[pattern] = names[0]
    return found


def check_in_turn(graph: Graph) -> None:
    """Raise PlanError if the graph assigns variables, since items are then committed as a whole."""
    for node in graph.nodes:
        if node.op == ASSIGN:
            raise PlanError(
                f"{node} changes a variable, so that items run one at a time: each needs what the "
                "one before left there",
                fix='leave commit="item" out, or max_in_flight and ranges of devices',
            )


def pin_ordered(
    graph: Graph, devices: Mapping[str, Device], pins: Pins, groups: Groups
) -> dict[str, str]:
    """Pin functions of `graph` that keep state to one process, and return all `pins`.

    Replicas of `groups` in this process share the objects of a function; those in others have
    copies. Raises PlanError if none of `devices` suits a function.
    """
    split = {names[0]: names for names in groups if not may_run_anywhere(devices[names[0]])}
    found = dict(pins)
    if not split:
        return found
    whole = [n for n, one in devices.items() if n not in split and one.capabilities.runs_python]
    for path, _, node in walk_nodes(graph):
        pattern = find_pin(replace(node, name=path), pins)
        kept = find_kept(node.operator)
        if not is_ordered(node.operator) or (pattern and pins[pattern] not in split):
            continue
        if pattern and not (kept or node.operator.ordered or node.operator.owns):
            continue  # its effects may be anywhere, and their order is kept
        if pattern or not whole:
            names = name_range(split[pins[pattern] if pattern else next(iter(split))])
            where = f"keeps state in {kept!r}" if kept else "is called for one item after the other"
            raise PlanError(
                f"{node} {where}, and each process of {names!r} would have a state of its own",
                fix="pin it to one device of this process: devices=[..., 'cpu'], "
                f"pin={{{path!r}: 'cpu'}}",
            )
        found[path] = whole[0]
    return found


def check_alike(names: Sequence[str]) -> None:
    """Raise PlanError unless a plan for the first device of group `names` suits all of them."""
    first, *others = found = [*map(find, names)]
    within = frozenset(device.capabilities.memory for device in found)
    model = _find_model(first, within)
    for other in others:
        same = _describe_nature(other.capabilities, within) == _describe_nature(
            first.capabilities, within
        )
        if not same or _find_model(other, within) != model:
            raise PlanError(
                f"{other.name!r} is not like {first.name!r}, which is planned for in its place",
                fix="give ranges of devices that are alike",
            )


def share_limits(
    limits: Mapping[str, int], devices: Mapping[str, Device], groups: Groups
) -> dict[str, int]:
    """Divide each of the memory `limits` of `devices` among the variants that use that memory."""
    count = count_variants(groups)
    users: dict[str, int] = {}
    for names in groups:
        memory = devices[names[0]].capabilities.memory
        if find(names[1]).capabilities.memory != memory:
            # Each replica has a memory of its own: only variants that meet on it share that.
            users[memory] = users[names[0]] = -(-count // len(names))
    owned = {name: device.capabilities.memory for name, device in devices.items()}
    return {
        name: n // users.get(owned.get(name, name), count) if _is_number(n) else n
        for name, n in limits.items()
    }


def list_ranges(name: str, max_in_flight: int) -> Iterator[str]:
    count = 2
    while count <= min(count_cores(), max_in_flight):
        yield f"{get_kind(name)}:0..{count - 1}"
        count *= 2


def count_variants(groups: Groups) -> int:
    return max(map(len, groups), default=1)


def name_range(names: Sequence[str]) -> str:
    return f"{names[0]}..{names[-1].rpartition(':')[2]}" if len(names) > 1 else names[0]


def name_devices(devices: Iterable[str], groups: Groups) -> dict[str, str]:
    ranges = {names[0]: name_range(names) for names in groups}
    return {name: ranges.get(name, name) for name in devices}


def list_devices(devices: Iterable[str], groups: Groups) -> tuple[str, ...]:
    group_of = {names[0]: names for names in groups}
    return tuple(name for first in devices for name in group_of.get(first, (first,)))


def find_functions(graph: Graph) -> dict[str, Operator]:
    found = {}
    for _, _, node in walk_nodes(graph):
        if node.operator.function is not None and node.op not in CALLS and node.op != EACH:
            found[node.op] = node.operator
    return found


def _check_once(listed: Iterable[str | Device], groups: Iterable[Sequence[str]]) -> None:
    names = [one if isinstance(one, str) else getattr(one, "name", "") for one in listed]
    names += [name for group in groups for name in group[1:]]
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if twice:
        raise PlanError(
            f"the devices name {', '.join(map(repr, twice))} twice, ranges included",
            fix="let no ranges overlap",
        )


def _check_reached(
    names: Sequence[str], listed: Iterable[str | Device], groups: Iterable[Sequence[str]]
) -> None:
    within = {find(name).capabilities.memory for name in names}
    known = [find(one) if isinstance(one, str) else one for one in listed]
    for device in (*known, *(find(name) for group in groups for name in group[1:])):
        if not is_device(device):
            continue  # planning reports it
        reached = within & device.capabilities.copies_from
        if device.name not in names and reached not in (set(), within):
            raise PlanError(
                f"{device.name!r} copies from {', '.join(sorted(reached))} only, of replicas "
                f"{name_range(names)!r}",
                fix="give ranges of devices that are alike",
            )


def _describe_nature(offers: Capabilities, within: frozenset[str]) -> Capabilities:
    """Return `offers` of a device without names that differ between devices of its group.

    Devices of one group never work on the same item, so copies between memories `within` it do not
    count.
    """
    accesses = {"" if memory == offers.memory else memory for memory in offers.accesses}
    # Names of private memories differ within a group.
    private = offers.memory not in (HOST, SHARED)
    return replace(
        offers,
        memory="" if private else offers.memory,
        accesses=frozenset(accesses),
        copies_from=offers.copies_from - within,
    )


def _find_model(device: Device, within: frozenset[str]) -> DeviceModel:
    model = get_model(device, device.name)
    return replace(model, peers=model.peers - within)


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
