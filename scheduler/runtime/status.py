"""The status of a session: for live views and gauges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from ..planner.memory.prepared import name_next_region, name_region

if TYPE_CHECKING:
    from ..plans.plan import Plan
    from ..plans.regions import Region
    from .items.item import ItemRun


@dataclass(frozen=True, slots=True)
class DeviceStatus:
    """One device now."""

    at_work: int = 0
    """Steps that it was given and has not ended."""
    waiting: int = 0
    """Steps that have all their inputs and wait for it."""


@dataclass(frozen=True, slots=True)
class SubgraphStatus:
    """The runs of one subgraph, of all items in flight."""

    at_work: int = 0
    """Runs that its device has begun or holds."""
    waiting: int = 0
    """Runs that have all their inputs and wait for the device."""

    @property
    def state(self) -> str:
        """``"running"``, ``"ready"`` or ``"idle"``."""
        return "running" if self.at_work else "ready" if self.waiting else "idle"


@dataclass(frozen=True, slots=True)
class PlansStatus:
    """The plans that a session keeps open: by fetched tensors, and shapes of inputs."""

    hits: int = 0
    """How often a plan was there when one was looked for."""
    misses: int = 0
    """How often it had to be made."""
    kept: int = 0
    """How many there are."""


@dataclass(frozen=True, slots=True)
class Status:
    """One session now."""

    done: int
    failed: int
    """Items that have ended so far, and those among them that failed."""
    in_flight: int
    """Items that are under way."""
    devices: Mapping[str, DeviceStatus]
    memory: Mapping[str, int]
    """The bytes that its open plans have of each memory, without constants."""
    plans: PlansStatus = PlansStatus()
    dropped: int = 0
    """Items of live sources so far that there was no room for."""
    subgraphs: Mapping[str, SubgraphStatus] = field(default_factory=dict)
    """By the names that reports give them."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "done": self.done,
            "failed": self.failed,
            "dropped": self.dropped,
            "in_flight": self.in_flight,
            "devices": {
                name: {"at_work": one.at_work, "waiting": one.waiting}
                for name, one in self.devices.items()
            },
            "subgraphs": {
                name: {"state": one.state, **asdict(one)} for name, one in self.subgraphs.items()
            },
            "memory": dict(self.memory),
            "plans": asdict(self.plans),
        }


def describe_devices(
    devices: Iterable[str], item_runs: Iterable[ItemRun]
) -> dict[str, DeviceStatus]:
    """Return for each of `devices` how many steps of `item_runs` it works on, and how many wait.

    The calls of async functions are listed separately.
    """
    found = {name: [0, 0] for name in devices}
    for execution in filter(None, map(_get_execution, item_runs)):
        for step, given in execution.pending():
            found.setdefault(step.place, [0, 0])[0 if given else 1] += 1
    return {name: DeviceStatus(*counts) for name, counts in found.items()}


def count_subgraph_runs(plan: Plan, item_runs: Iterable[ItemRun]) -> dict[str, SubgraphStatus]:
    found = {subgraph.name: [0, 0] for subgraph in plan.subgraphs}
    for execution in filter(None, map(_get_execution, item_runs)):
        for step, given in execution.pending():
            if step.transfer is None:
                found.setdefault(step.name, [0, 0])[0 if given else 1] += 1
    return {name: SubgraphStatus(*counts) for name, counts in found.items()}


def describe_memory(plans: Iterable[Plan], grown: Iterable[Region] = ()) -> dict[str, int]:
    """Return the bytes that `plans` have in each memory; variables they have in common.

    `grown` are regions beside those of the plans, one for each arena.
    """
    found: dict[str, int] = {}
    kept: dict[tuple[str, str], int] = {}
    for plan in plans:
        names = (node.name for node in plan.graph.variables.values())
        variables = {
            region for name in names for region in (name_region(name), name_next_region(name))
        }
        for name, pool in plan.memory.pools.items() if plan.memory is not None else ():
            common = {one: pool.regions[one].nbytes for one in variables & pool.regions.keys()}
            kept.update(((name, one), nbytes) for one, nbytes in common.items())
            found[name] = found.get(name, 0) + pool.nbytes - sum(common.values())
    for (name, _), nbytes in kept.items():
        found[name] += nbytes
    for region in grown:
        found[region.memory] += region.nbytes
    return found


def _get_execution(item_run: ItemRun) -> Any:
    return (item_run if item_run.part is None else item_run.part).execution
