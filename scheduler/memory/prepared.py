"""Where prepared tensors lie: in regions of each memory that nothing else is in.

They are there from when the plan is opened until it is closed, one copy for all items: these read
them, and none of them writes. A variable has a region of its own, for the session keeps it for all
plans that it opens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ...devices.device import Device
from ...graph.ir import Graph
from ..placement import Placement
from .buffers import alignment_of
from .regions import Location, MemoryPlan, Pool, Region, Replica

AT_OPEN = "at open"
"""The name of the region of what is computed then."""


def region_of(variable: str) -> str:
    """Return the name of a variable's region."""
    return f"variable {variable}"


def variables_in(graph: Graph, replicas: Iterable[Replica]) -> dict[str, set[str]]:
    """Return in which memories variables are, going by some replicas."""
    found: dict[str, set[str]] = {}
    for tensor, memory in replicas:
        if tensor in graph.variables:
            found.setdefault(graph.variables[tensor].name, set()).add(memory)
    return found


@dataclass(frozen=True, slots=True)
class Prepared:
    """The regions of prepared tensors.

    Attributes
    ----------
    locations : Mapping of Replica to Location
        What is computed, one behind the other in each memory.
    sizes : Mapping of (str, str) to int
        Of the regions, by memory and name.
    """

    locations: Mapping[Replica, Location]
    sizes: Mapping[tuple[str, str], int]

    @classmethod
    def of(cls, graph: Graph, placement: Placement, devices: Mapping[str, Device]) -> Prepared:
        """Return those of what the steps of a placement read."""
        locations: dict[Replica, Location] = {}
        ends: dict[tuple[str, str], int] = {}
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
        return sum(nbytes for (where, _), nbytes in self.sizes.items() if where == memory)

    def beside(self, plan: MemoryPlan, slots: int) -> MemoryPlan:
        """Return a plan for items in flight with these regions, too."""
        pools = dict(plan.pools)
        for (memory, name), nbytes in self.sizes.items():
            pool = pools.get(memory) or Pool(memory, {}, slots, "joint", 0, 0, 0)
            regions = {**pool.regions, name: Region(memory, name, nbytes, copies=1)}
            pools[memory] = replace(pool, regions=regions)
        return replace(plan, locations={**plan.locations, **self.locations}, pools=pools)
