"""Texts about a plan's memory."""

from __future__ import annotations

from collections.abc import Iterator

from ...graph.printing import bytes_text, counted
from ..planner.memory.prepared import AT_OPEN, next_region_of, region_of
from ..plans.plan import Plan
from ..plans.regions import ADMISSION, MemoryPlan, Pool, Region

LISTED_REGIONS = 12
LISTED_EDGES = 8
LISTED_STEPS = 3


def memory_lines(plan: Plan, memory: MemoryPlan) -> Iterator[str]:
    """Yield what every memory holds, with its regions, limits, and the waits added for them."""
    columns = ("total", "one item", "bound", "unshared", "constants")
    width = max((len(name) for name in memory.pools), default=6)
    yield f"{'memory':{width}} " + " ".join(f"{column:>11}" for column in columns) + "  layout"
    for name, pool in memory.pools.items():
        sizes = (
            pool.nbytes,
            pool.item_nbytes,
            pool.lower_bound,
            pool.tensors_nbytes,
            pool.constants_nbytes,
        )
        texts = (f"{bytes_text(nbytes):>11}" for nbytes in sizes)
        yield f"{name:{width}} {' '.join(texts)}  {pool.layout}"
        yield from _regions(plan, pool)
    for name, nbytes in (plan.request.memory_limits or {}).items():
        yield f"limit of {name}: {bytes_text(nbytes)}"
    yield from _edges(plan, memory)


def _regions(plan: Plan, pool: Pool) -> Iterator[str]:
    regions = [region for region in pool.regions.values() if region.nbytes]
    if len(regions) < 2 and pool.slots == 1:
        return  # the pool's line says it all
    for region in regions[:LISTED_REGIONS]:
        copies = f"{region.copies} copies of " if region.copies > 1 else ""
        yield f"  {region.name}: {copies}{bytes_text(region.nbytes)}, {_held(plan, region)}"
    if len(regions) > LISTED_REGIONS:
        yield f"  and {len(regions) - LISTED_REGIONS} more regions"


def _held(plan: Plan, region: Region) -> str:
    """Return when an item has a copy of a region for itself."""
    if region.name == AT_OPEN:
        return "computed when the plan is opened, the same for all items"
    variables = [node.name for node in plan.graph.variables.values()]
    if region.name in map(region_of, variables):
        return "kept by the session from item to item"
    if region.name in map(next_region_of, variables):
        return "changes places with it when an item has ended well"
    if not region.claims:
        return "shared by items: its device runs one step at a time"
    return f"held from {_points(plan, region.claims)} to {_points(plan, region.releases)}"


def _points(plan: Plan, points: tuple[int, ...]) -> str:
    ends = {ADMISSION: "admission", len(plan.steps): "landing"}
    named = [ends.get(point) or plan.steps[point].name for point in points[:LISTED_STEPS]]
    return ", ".join(named) + (", ..." if len(points) > LISTED_STEPS else "")


def _edges(plan: Plan, memory: MemoryPlan) -> Iterator[str]:
    if not memory.added_edges:
        return
    yield (
        f"{counted(len(memory.added_edges), 'wait')} added to keep the limits: "
        f"{memory.slowdown - 1:.1%} slower, as predicted"
    )
    for earlier, later in memory.added_edges[:LISTED_EDGES]:
        yield f"  {plan.steps[later].name} waits for {plan.steps[earlier].name}"
    if len(memory.added_edges) > LISTED_EDGES:
        yield f"  and {len(memory.added_edges) - LISTED_EDGES} more"
