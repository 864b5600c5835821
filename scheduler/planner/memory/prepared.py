"""Regions beside those of items: for prepared tensors, and for those without a largest size.

Prepared tensors are there from when the plan is opened until it is closed, one copy for all items:
these read them, and none of them writes. A variable has a region of its own, for the session keeps
it for all plans that it opens.

What is assigned has one too where it can: then the two change places when an item has ended well,
and nothing is copied.

Tensors whose lengths have no bound lie one behind the other, and share no bytes: they can be laid
out anew for other lengths while all else stays where it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from ....devices.device import Device
from ....graph.ir import Graph
from ...plans.placement import Commit, Placement
from ...plans.regions import ADMISSION, Location, MemoryPlan, PlacedTensor, Pool, Region
from .buffers import Buffer, alignment_of
from .happens_before import START

AT_OPEN = "at open"
"""The name of the region of what is computed then."""


def region_of(variable: str) -> str:
    """Return the name of a variable's region."""
    return f"variable {variable}"


def next_region_of(variable: str) -> str:
    """Return the name of the region in which a variable's next value is written."""
    return f"next of variable {variable}"


def variables_in(graph: Graph, all_placed: Iterable[PlacedTensor]) -> dict[str, set[str]]:
    """Return in which memories variables are, going by some placed tensors."""
    found: dict[str, set[str]] = {}
    for tensor, memory in all_placed:
        if tensor in graph.variables:
            found.setdefault(graph.variables[tensor].name, set()).add(memory)
    return found


def regions_of(variables: Mapping[str, set[str]]) -> frozenset[tuple[str, str]]:
    """Return the regions, by memory and name, of variables in memories and of their next values."""
    return frozenset(
        (memory, region(name))
        for name, memories in variables.items()
        for memory in memories
        for region in (region_of, next_region_of)
    )


@dataclass(frozen=True, slots=True)
class PreparedTensors:
    """The regions of prepared tensors.

    Attributes
    ----------
    locations : Mapping of PlacedTensor to Location
        What is computed, one behind the other in each memory.
    sizes : Mapping of (str, str) to int
        Of the regions, by memory and name.
    next_sizes : Mapping of (str, str) to int
        Likewise of those that variables change places with.
    """

    locations: Mapping[PlacedTensor, Location]
    sizes: Mapping[tuple[str, str], int]
    next_sizes: Mapping[tuple[str, str], int] = field(default_factory=dict)

    @classmethod
    def of(
        cls, graph: Graph, placement: Placement, devices: Mapping[str, Device]
    ) -> PreparedTensors:
        """Return those of what the steps of a placement read."""
        locations: dict[PlacedTensor, Location] = {}
        ends: dict[tuple[str, str], int] = {}
        # Sorted, as a set has an order of its own in each process, and plans have to be the same.
        for name, memory in sorted(placement.prepared):
            held = graph.variables.get(name)
            region = AT_OPEN if held is None else region_of(held.name)
            alignment = alignment_of(memory, devices)
            offset = -(-ends.get((memory, region), 0) // alignment) * alignment
            locations[name, memory] = Location(memory, region, offset)
            ends[memory, region] = offset + graph.tensors[name].nbytes
        return cls(locations, ends)

    def nbytes(self, memory: str) -> int:
        """Return what they take of a memory."""
        sizes = (*self.sizes.items(), *self.next_sizes.items())
        return sum(nbytes for (where, _), nbytes in sizes if where == memory)

    def with_next(
        self, graph: Graph, placement: Placement, buffers: Mapping[str, list[Buffer]]
    ) -> tuple[PreparedTensors, dict[str, list[Buffer]]]:
        """Return them with what is assigned in regions of its own, and the buffers that are left.

        By memory. It must be all of a buffer, which nothing else is to have a part of when the item
        has ended: neither another variable nor who fetches.
        """
        commits: dict[PlacedTensor, list[Commit]] = {}
        for one in placement.commits:
            commits.setdefault(one.source, []).append(one)
        locations, sizes = dict(self.locations), dict[tuple[str, str], int]()
        left: dict[str, list[Buffer]] = {memory: [] for memory in buffers}
        for memory, inside in buffers.items():
            for buffer in inside:
                found = [one for source in buffer.offsets for one in commits.get(source, ())]
                # Then the buffer is the next value as it stands: when the item ends, the two
                # regions change places and nothing is copied.
                if len(found) == 1 and _may_become(buffer, found[0], graph):
                    name = next_region_of(graph.variables[found[0].target[0]].name)
                    sizes[memory, name] = buffer.nbytes
                    places = {one: Location(memory, name, at) for one, at in buffer.offsets.items()}
                    locations.update(places)
                else:
                    left[memory].append(buffer)
        some = {memory: inside for memory, inside in left.items() if inside}
        return replace(self, locations=locations, next_sizes=sizes), some

    def beside(
        self, plan: MemoryPlan, slots: int, completion: int, constants: Mapping[str, int]
    ) -> MemoryPlan:
        """Return a plan for items in flight with these regions, too; `landing` follows all steps.

        `constants` are the bytes of those by memory. Items that assign run one at a time, so that
        one copy of what they write is enough.
        """
        pools = dict(plan.pools)
        regions = [Region(*key, nbytes, copies=1) for key, nbytes in self.sizes.items()]
        regions += [
            # Held for the whole item: what it assigned is not there before it has ended well.
            Region(*key, nbytes, copies=1, claims=(ADMISSION,), releases=(completion,))
            for key, nbytes in self.next_sizes.items()
        ]
        for one in regions:
            beside = constants.get(one.memory, 0)
            empty = Pool(one.memory, {}, slots, "joint", 0, 0, 0, constants_nbytes=beside)
            pool = pools.get(one.memory, empty)
            pools[one.memory] = replace(pool, regions={**pool.regions, one.name: one})
        return replace(plan, locations={**plan.locations, **self.locations}, pools=pools)


def _may_become(buffer: Buffer, commit: Commit, graph: Graph) -> bool:
    """True when a buffer holds, at the end of an item, what is assigned and nothing else."""
    if buffer.memory != commit.target[1] or buffer.offsets[commit.source]:
        return False
    if buffer.nbytes != graph.tensors[commit.source[0]].nbytes:
        return False
    # Who fetches reads it after the item; what is fed was written before the item had the region.
    is_fetched = any(name in graph.outputs for name, _ in buffer.offsets)
    return bool(buffer.nbytes) and not is_fetched and START not in buffer.writers


GROWING = "growing"
"""The name of the region."""

MOST_COPIES = 64
"""More items than this share the copies of the region in turn."""


def set_apart(
    buffers: Mapping[str, list[Buffer]], growing: frozenset[str]
) -> tuple[dict[str, list[Buffer]], dict[PlacedTensor, int]]:
    """Return the buffers without those of some tensors, by memory, and the bytes of these."""
    left: dict[str, list[Buffer]] = {}
    sizes: dict[PlacedTensor, int] = {}
    for memory, inside in buffers.items():
        for buffer in inside:
            names = [name for name, _ in buffer.offsets]
            if growing.isdisjoint(names):
                left.setdefault(memory, []).append(buffer)
            else:
                assert len(names) == 1, "they share no bytes"
                sizes[names[0], memory] = buffer.nbytes
    return left, sizes


def beside(
    plan: MemoryPlan,
    sizes: Mapping[PlacedTensor, int],
    slots: int,
    completion: int,
    constants: Mapping[str, int],
    devices: Mapping[str, Device],
) -> MemoryPlan:
    """Return a plan for so many items with the region in each memory; `completion` follows all.

    `constants` are the bytes of those by memory.
    """
    # A multiple of the period: programs are bound to one combination of copies for each place in
    # it.
    copies = max(plan.period, min(-(-slots // plan.period) * plan.period, MOST_COPIES))
    copies -= copies % plan.period
    locations, ends = _laid_out(sizes, devices)
    pools = dict(plan.pools)
    for memory, nbytes in ends.items():
        region = Region(memory, GROWING, nbytes, copies, (ADMISSION,), (completion,))
        empty = Pool(memory, {}, slots, "joint", 0, 0, 0, constants_nbytes=constants.get(memory, 0))
        pool = pools.get(memory, empty)
        pools[memory] = replace(pool, regions={**pool.regions, GROWING: region})
    return replace(plan, locations={**plan.locations, **locations}, pools=pools)


def grown(plan: MemoryPlan, nbytes: Mapping[str, int], devices: Mapping[str, Device]) -> MemoryPlan:
    """Return a plan in which the tensors of the regions take so many bytes, by name."""
    inside = [placed for placed, at in plan.locations.items() if at.region == GROWING]
    locations, ends = _laid_out(
        {one: nbytes[one[0]] for one in inside if one[0] in nbytes}, devices
    )
    pools = dict(plan.pools)
    for memory, end in ends.items():
        regions = pools[memory].regions
        larger = replace(regions[GROWING], nbytes=end)
        pools[memory] = replace(pools[memory], regions={**regions, GROWING: larger})
    return replace(plan, locations={**plan.locations, **locations}, pools=pools)


def _laid_out(
    sizes: Mapping[PlacedTensor, int], devices: Mapping[str, Device]
) -> tuple[dict[PlacedTensor, Location], dict[str, int]]:
    """Return where buffers lie, one behind the other, and where they end in each memory."""
    locations: dict[PlacedTensor, Location] = {}
    ends: dict[str, int] = {}
    for (name, memory), nbytes in sizes.items():
        alignment = alignment_of(memory, devices)
        offset = -(-ends.get(memory, 0) // alignment) * alignment
        locations[name, memory] = Location(memory, GROWING, offset)
        ends[memory] = offset + nbytes
    return locations, ends
