"""Parts of a plan, derived again from the decisions in a file, which is not trusted.

The planner's own code derives them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ...devices.device import Device, scratch_specs
from ...graph.core.ir import Graph, Node
from ...graph.core.printing import format_bytes
from ...graph.operators.control import iterate_placed_nodes, waits
from ...graph.values.errors import InternalError, ParseError, PlaitError
from ..errors import DoesNotFitError
from ..planner.memory.buffers import find_alignment
from ..planner.memory.memory_plan import find_exceeded, find_limits
from ..planner.memory.verify import verify_memory
from ..planner.partition.partition import offer
from ..planner.placement import place
from ..planner.prologue import split_prologue, with_prologue
from ..planner.request import MOST_IN_FLIGHT
from ..plans.partition import SESSION, Partition, Subgraph
from ..plans.placement import SCRATCH, Placement, Transfer
from ..plans.plan import Bounds, Plan
from ..plans.regions import MemoryPlan, PlacedTensor, Pool
from ..plans.replicas import check_alike
from ..plans.request import IoDevices, Pins, check_ends
from ..shapes.bounds import Template, check_bounds, pick_largest
from ..shapes.sync_points import has_static_shapes
from .requirements import AGAIN


@dataclass(frozen=True, slots=True)
class SavedSubgraph:
    """A subgraph in a file. `nodes` are indices of the graph's nodes."""

    name: str
    device: str
    nodes: tuple[int, ...]


def restore_graph(
    fed: Graph, bounds: Bounds, devices: Mapping[str, Device], pins: Pins, at: str, *, folds: bool
) -> Graph:
    """Return the graph as planned: `fed`, or its largest form within `bounds`.

    `devices` and `pins` are those of the plan; `folds` says whether constants were folded. Raises
    ParseError with the place `at` if the bounds do not fit the inputs.
    """
    if not bounds:
        return fed
    try:
        template = Template(fed, devices, pins, folds)
        graph = template.picked(pick_largest(check_bounds(fed, bounds)))
    # Bounds of a damaged file may exceed all memory, or may not be numbers.
    except (PlaitError, ArithmeticError, MemoryError, ValueError) as error:
        raise damaged_error(f"there is no graph of the largest shapes: {error}", at) from error
    if not has_static_shapes(graph):
        raise damaged_error("not all shapes follow from the bounds", at)
    return graph


def restore_ends(
    graph: Graph, ends: IoDevices, devices: Mapping[str, Device], at: str
) -> IoDevices:
    """Return the `ends` of `graph` if its `devices` can share arrays; errors name a place `at`."""
    try:
        found = check_ends(graph, ends.inputs, ends.outputs, devices)
    except PlaitError as error:
        raise damaged_error(f"its ends make no sense: {error}", at) from error
    # Saved ends are complete: checking must not add a device.
    if found != ends:
        raise damaged_error("its ends are on the host", at)
    return ends


def restore_partition(
    graph: Graph,
    assignment: Mapping[str, str],
    reasons: Mapping[str, str],
    groups: Sequence[SavedSubgraph],
    devices: Mapping[str, Device],
    at: str,
) -> Partition:
    """Return the partition of `graph` into the saved `groups`, by `assignment`.

    `reasons` are those for devices of nodes. Raises ParseError with the place `at` if it is not a
    partition of the graph, not in a topological order, or if one of `devices` does not support a
    node.
    """
    check_assignment(graph, assignment, devices, at)
    if reasons.keys() != assignment.keys():
        raise damaged_error("the reasons are not for the graph's nodes", at)
    # In the order of the file, earlier subgraphs must write the inputs of each one.
    known = {*graph.entering, *graph.constants, *graph.prepared}
    left = dict(enumerate(graph.nodes))
    subgraphs: list[Subgraph] = []
    # Each node leaves `left` once, so none is in two subgraphs.
    for group in groups:
        nodes: list[Node] = []
        for place_of in group.nodes:
            node = left.pop(place_of, None)
            if node is None:
                raise damaged_error(f"subgraph {group.name!r} has a node that is not left", at)
            if assignment[node.name] != group.device or not known.issuperset(
                filter(None, node.inputs)
            ):
                raise damaged_error(f"{node} cannot be in subgraph {group.name!r}", at)
            known.update(node.outputs)
            nodes.append(node)
        subgraphs.append(Subgraph(len(subgraphs), group.device, graph.extract(nodes, group.name)))
    if left or len({group.name for group in groups}) != len(groups):
        raise damaged_error("the subgraphs are not a partition of the graph", at)
    return Partition(assignment, reasons, tuple(subgraphs))


def restore_placement(
    graph: Graph,
    partition: Partition,
    devices: Mapping[str, Device],
    ends: IoDevices,
    edges: Sequence[tuple[int, int]],
    at: str,
) -> Placement:
    """Place `partition` of `graph` on its devices, and add the waits of the memory plan, `edges`.

    Inputs and outputs are at `ends`. Raises ParseError with the place `at` if shapes are open,
    names of steps are not unique, or a wait is not for an earlier step.
    """
    if not graph.is_static:
        raise damaged_error("there is a memory plan, but not all shapes are known", at)
    placement = place(graph, partition, devices, ends)
    if len({step.name for step in placement.steps}) != len(placement.steps):
        raise damaged_error("two steps have one name", at)
    for earlier, later in edges:
        # A cycle of waits would block a session forever.
        if not 0 <= earlier < later < len(placement.steps):
            raise damaged_error(f"step {later} waits for step {earlier}", at)
    return placement.with_waits(edges)


def verify_plan(plan: Plan, at: str) -> Plan:
    """Return `plan` after checking that its memory plan is sound and fits into this machine.

    Raises ParseError with the place `at` if buffers overlap, or lie outside of their regions;
    DoesNotFitError if a device has too little memory; DeviceUnavailableError or PlanError if a
    replica is missing or differs from the others.
    """
    if not 1 <= plan.max_in_flight <= MOST_IN_FLIGHT:
        raise damaged_error(f"it is for {plan.max_in_flight} items in flight", at)
    if not set(plan.pins.values()) <= set(plan.devices):
        raise damaged_error("its pins make no sense", at)
    if any(len(names) < 2 or names[0] not in plan.devices for names in plan.replicas):
        raise damaged_error("its replicas make no sense", at)
    for names in plan.replicas:
        check_alike(names)
    if plan.memory is None and not plan.bounds:
        return plan
    if plan.memory is None:
        raise damaged_error("with bounds there is a memory plan", at)
    for name, pool in plan.memory.pools.items():
        _check_pool(name, pool, plan, at)
    # These checks come first, since the proof assumes that locations are valid.
    _check_locations(plan, plan.memory, at)
    try:
        verify_memory(plan)
    except (InternalError, AssertionError, LookupError) as error:
        raise damaged_error(f"the memory plan is unsound: {error}", at) from error
    limits = find_limits({}, plan.prototypes)
    for name in find_exceeded(plan.memory, limits):
        raise DoesNotFitError(
            f"the plan needs {format_bytes(plan.memory.pools[name].nbytes)} of memory {name!r}; "
            f"{limits[name].owner} has {format_bytes(limits[name].nbytes)} here",
            at=at,
            fix=AGAIN,
        )
    return plan


def damaged_error(detail: str, at: str) -> ParseError:
    return ParseError(f"the plan is damaged: {detail}", at=at, fix=AGAIN)


def check_assignment(
    graph: Graph, assignment: Mapping[str, str], devices: Mapping[str, Device], at: str
) -> None:
    nodes = {path: (around, node) for path, around, node in iterate_placed_nodes(graph)}
    if nodes.keys() != assignment.keys():
        raise damaged_error("the assignment is not of the graph's nodes", at)
    for path, (around, node) in nodes.items():
        name = assignment[path]
        if waits(node) != (name == SESSION) or name not in (SESSION, *devices):
            raise damaged_error(f"{node} is on {name!r}", at)
        if name == SESSION:
            continue
        # Devices run the bounded form of an operator, whose results have room for the largest.
        asked = replace(node, name=path, op=node.operator.bounded or node.op)
        # While shapes are open, nodes may still be decomposed for the device later.
        support = offer(around, asked, devices[name], writes_out=not graph.is_static)
        if not support.ok:
            raise ParseError(
                f"{name} does not run {node} any more: {support.reason}", at=at, fix=AGAIN
            )


def _check_pool(name: str, pool: Pool, plan: Plan, at: str) -> None:
    completion = len(plan.steps)
    if pool.memory != name or pool.slots != plan.max_in_flight:
        raise damaged_error(f"the pool of memory {name!r} is for something else", at)
    for key, region in pool.regions.items():
        # A release may be the landing, which comes after all steps.
        is_timed = all(-1 <= claim < completion for claim in region.claims) and all(
            -1 <= release <= completion for release in region.releases
        )
        if (
            (region.memory, region.name) != (name, key)
            or region.nbytes < 0
            or not 1 <= region.copies <= MOST_IN_FLIGHT
            or not is_timed
        ):
            raise damaged_error(f"the region {key!r} of memory {name!r} makes no sense", at)


def _check_locations(plan: Plan, memory: MemoryPlan, at: str) -> None:
    """Check that tensors of `plan` are aligned in regions of `memory`; errors name a place `at`."""
    sizes = dict(_list_placed_tensors(plan))
    if sizes.keys() != memory.locations.keys():
        raise damaged_error("the memory plan is not of the plan's tensors", at)
    most: dict[tuple[str, str], int] = {}
    for (tensor, where), location in memory.locations.items():
        pool = memory.pools.get(location.memory)
        region = pool.regions.get(location.region) if pool is not None else None
        alignment = find_alignment(where, plan.prototypes)
        end = location.offset + sizes[tensor, where]
        if (
            location.memory != where
            or region is None
            or not 0 <= location.offset <= end <= region.nbytes
            or location.offset % alignment
        ):
            raise damaged_error(f"{tensor!r} lies where no tensor of memory {where!r} can", at)
        # Regions larger than their tensors would let a file exhaust memory.
        key = location.memory, location.region
        most[key] = most.get(key, 0) + sizes[tensor, where] + alignment
    for region in memory.regions:
        if region.nbytes > most.get((region.memory, region.name), 0):
            raise damaged_error(f"region {region.name!r} is larger than all it holds", at)


def _list_placed_tensors(plan: Plan) -> Iterator[tuple[PlacedTensor, int]]:
    assert plan.placement is not None
    graph, home = plan.graph, plan.placement.home
    reserved: dict[str, dict[str, int]] = defaultdict(dict)
    for name, nbytes in (plan.memory.scratch if plan.memory is not None else {}).items():
        reserved[name.partition("\0")[0]][name] = nbytes
    for name in set(graph.entering) - plan.placement.arrivals:
        yield (name, home[name]), graph.tensors[name].nbytes
    for placed in plan.placement.prepared:
        yield placed, graph.tensors[placed[0]].nbytes
    for step in plan.steps:
        work = step.work
        if isinstance(work, Transfer):
            if not work.leaves:
                yield (work.tensor, work.target), work.nbytes
            continue
        device = plan.prototypes[step.device]
        atomic = device.capabilities.atomic_programs
        for node in work.graph.nodes:
            for name in filter(None, node.outputs):
                if not atomic or name in work.graph.fetched:
                    yield (name, home[name]), graph.tensors[name].nbytes
            if not atomic:
                specs = scratch_specs(device, graph, node)
                sizes = {name: spec.nbytes for name, spec in specs.items()} | reserved[node.name]
                for name, nbytes in sizes.items():
                    yield (name, plan.placement.local[SCRATCH, step.device]), nbytes


def restore_sections(
    graph: Graph, assignment: Mapping[str, str], at: str
) -> tuple[Graph | None, Graph]:
    """Split `graph` into its prologue, or None without `assignment`, and the nodes of each item.

    Raises ParseError with the place `at` if the nodes of the prologue are not those of the file.
    """
    if not assignment:
        return None, graph
    parts = split_prologue(graph)
    if parts is None or {node.name for node in parts.prologue.nodes} != assignment.keys():
        raise damaged_error("what runs once does not follow from constants", at)
    return parts.prologue, parts.rest


def add_prologue(plan: Plan, once: Graph | None, assignment: Mapping[str, str], at: str) -> Plan:
    """Return `plan` with the nodes of `once`, if any, as its prologue, placed by `assignment`.

    Raises ParseError with the place `at` if a node is on a device that does not support it;
    DoesNotFitError if a memory of this machine is too small.
    """
    if once is None:
        return plan
    check_assignment(once, assignment, plan.prototypes, at)
    return with_prologue(plan, once, assignment)
