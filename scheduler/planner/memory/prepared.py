"""Regions besides those of items: for prepared tensors, for text and objects, and for growing ones.

Prepared tensors exist while the plan is open, in one copy that all items read and none writes. A
variable has a region of its own, because the session keeps it for all plans that it opens. An
assigned value has one too if possible: the two are swapped when an item succeeds, without a copy.

Tensors of unbounded lengths lie in sequence and share no bytes: for other lengths they can be laid
out anew while all others stay in place. So do text and objects: an arena has an object for every 8
of its bytes once a tensor there needs one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from ....devices.device import Device
from ....graph.core.ir import Graph
from ...plans.placement import Commit, Placement
from ...plans.regions import ADMISSION, Location, MemoryPlan, PlacedTensor, Pool, Region
from .buffers import Buffer, find_alignment, find_objects
from .happens_before import START

AT_OPEN = "at open"
"""The region of values that are computed when the plan is opened."""


def name_region(variable: str) -> str:
    return f"variable {variable}"


def name_next_region(variable: str) -> str:
    return f"next of variable {variable}"


def find_variables(graph: Graph, all_placed: Iterable[PlacedTensor]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for tensor, memory in all_placed:
        if tensor in graph.variables:
            found.setdefault(graph.variables[tensor].name, set()).add(memory)
    return found


def list_regions(variables: Mapping[str, set[str]]) -> frozenset[tuple[str, str]]:
    return frozenset(
        (memory, region(name))
        for name, memories in variables.items()
        for memory in memories
        for region in (name_region, name_next_region)
    )


@dataclass(frozen=True, slots=True)
class PreparedTensors:
    locations: Mapping[PlacedTensor, Location]
    """Computed tensors, in sequence in each memory."""
    sizes: Mapping[tuple[str, str], int]
    """Bytes of the regions, by memory and name."""
    next_sizes: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Bytes of the regions that variables are swapped with."""

    @classmethod
    def of(
        cls, graph: Graph, placement: Placement, devices: Mapping[str, Device]
    ) -> PreparedTensors:
        sizes: dict[PlacedTensor, tuple[str, int]] = {}
        # Sorted: sets have an order of their own in each process, and plans must be equal.
        for name, memory in sorted(placement.prepared):
            held = graph.variables.get(name)
            region = AT_OPEN if held is None else name_region(held.name)
            sizes[name, memory] = region, graph.tensors[name].nbytes
        return cls(*_lay_out(sizes, devices))

    def nbytes(self, memory: str) -> int:
        sizes = (*self.sizes.items(), *self.next_sizes.items())
        return sum(nbytes for (where, _), nbytes in sizes if where == memory)

    def with_next(
        self, graph: Graph, placement: Placement, buffers: Mapping[str, list[Buffer]]
    ) -> tuple[PreparedTensors, dict[str, list[Buffer]]]:
        """Return these with regions for the values that `graph` assigns, and the other `buffers`.

        A value must fill a buffer that nothing else needs after the item: no other variable, no
        fetch.
        """
        commits: dict[PlacedTensor, list[Commit]] = {}
        for one in placement.commits:
            commits.setdefault(one.source, []).append(one)
        locations, sizes = dict(self.locations), dict[tuple[str, str], int]()
        left: dict[str, list[Buffer]] = {memory: [] for memory in buffers}
        for memory, inside in buffers.items():
            for buffer in inside:
                found = [one for source in buffer.offsets for one in commits.get(source, ())]
                # The buffer is the next value: at the item's end the regions are swapped, not
                # copied.
                if len(found) == 1 and _may_become(buffer, found[0], graph):
                    name = name_next_region(graph.variables[found[0].target[0]].name)
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
        """Return `plan` with these regions, which are released at the step `completion`.

        Items that assign run one at a time, so one copy of their values is enough. `slots` and
        `constants`, bytes by memory, are for new pools.
        """
        pools = dict(plan.pools)
        regions = [Region(*key, nbytes, copies=1) for key, nbytes in self.sizes.items()]
        regions += [
            # Held for the whole item: its values count once it has succeeded.
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
    if buffer.memory != commit.target[1] or buffer.offsets[commit.source]:
        return False
    if buffer.nbytes != graph.tensors[commit.source[0]].nbytes:
        return False
    # Fetches read after the item; feeds are written before the item has the region.
    is_fetched = any(name in graph.outputs for name, _ in buffer.offsets)
    return bool(buffer.nbytes) and not is_fetched and START not in buffer.writers


GROWING, OBJECTS, GROWING_OBJECTS = "growing", "objects", "growing objects"
"""The names of the regions of tensors that may grow, and of those of text and objects."""

MOST_COPIES = 64
"""Above this number, items share the copies of the region in turn."""

Apart: TypeAlias = Mapping[PlacedTensor, tuple[str, int]]
"""The regions of tensors that share no bytes with others, and their sizes in bytes."""


def choose_regions(graph: Graph, growing: Iterable[str]) -> dict[str, str]:
    """Return the regions of those tensors and scratch buffers of `graph` that share no bytes."""
    objects = find_objects(graph) - graph.assigned.keys()  # these are swapped with variables
    return dict.fromkeys(objects, OBJECTS) | {
        name: GROWING_OBJECTS if name in objects else GROWING for name in growing
    }


def set_apart(
    buffers: Mapping[str, list[Buffer]], regions: Mapping[str, str]
) -> tuple[dict[str, list[Buffer]], Apart]:
    """Return the buffers without those of tensors in `regions`, and the sizes of these."""
    left: dict[str, list[Buffer]] = {}
    apart: dict[PlacedTensor, tuple[str, int]] = {}
    for memory, inside in buffers.items():
        for buffer in inside:
            names = [name for name, _ in buffer.offsets]
            region = regions.get(names[0])
            if region is None:
                left.setdefault(memory, []).append(buffer)
            else:
                assert len(names) == 1, "they share no bytes"
                apart[names[0], memory] = region, buffer.nbytes
    return left, apart


def add_apart(
    plan: MemoryPlan,
    apart: Apart,
    slots: int,
    completion: int,
    constants: Mapping[str, int],
    devices: Mapping[str, Device],
) -> MemoryPlan:
    """Return `plan` with the regions of tensors that lie `apart`, in each memory of `devices`.

    The other arguments are those of `PreparedTensors.beside`.
    """
    # A multiple of the period: programs are bound to one combination of copies per place in it.
    copies = max(plan.period, min(-(-slots // plan.period) * plan.period, MOST_COPIES))
    copies -= copies % plan.period
    locations, ends = _lay_out(apart, devices)
    pools = dict(plan.pools)
    for (memory, name), nbytes in ends.items():
        region = Region(memory, name, nbytes, copies, (ADMISSION,), (completion,))
        held = constants.get(memory, 0)
        pool = pools.get(memory, Pool(memory, {}, slots, "joint", 0, 0, 0, held))
        pools[memory] = replace(pool, regions={**pool.regions, name: region})
    return replace(plan, locations={**plan.locations, **locations}, pools=pools)


def find_growing(plan: MemoryPlan) -> dict[PlacedTensor, Location]:
    both = (GROWING, GROWING_OBJECTS)
    return {placed: at for placed, at in plan.locations.items() if at.region in both}


def resize_growing(
    plan: MemoryPlan, nbytes: Mapping[str, int], devices: Mapping[str, Device]
) -> MemoryPlan:
    sizes = {
        placed: (at.region, nbytes[placed[0]])
        for placed, at in find_growing(plan).items()
        if placed[0] in nbytes
    }
    locations, ends = _lay_out(sizes, devices)
    pools = dict(plan.pools)
    for (memory, name), end in ends.items():
        regions = pools[memory].regions
        larger = {**regions, name: replace(regions[name], nbytes=end)}
        pools[memory] = replace(pools[memory], regions=larger)
    return replace(plan, locations={**plan.locations, **locations}, pools=pools)


def _lay_out(
    sizes: Apart, devices: Mapping[str, Device]
) -> tuple[dict[PlacedTensor, Location], dict[tuple[str, str], int]]:
    locations: dict[PlacedTensor, Location] = {}
    ends: dict[tuple[str, str], int] = {}
    for (name, memory), (region, nbytes) in sizes.items():
        alignment = find_alignment(memory, devices)
        offset = -(-ends.get((memory, region), 0) // alignment) * alignment
        locations[name, memory] = Location(memory, region, offset)
        ends[memory, region] = offset + nbytes
    return locations, ends
