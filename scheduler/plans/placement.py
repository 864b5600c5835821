"""The placement: in which memory each tensor lies, and the steps of an item.

A step starts when `input_wait_count` other steps are complete.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ...devices.memory import CALLER, HOST_MEMORIES
from ...graph.core.nested import acts_outside, find_async_operator, walk_nodes
from ...graph.core.operator import Operator
from ...graph.functions.operator_lifecycle import has_lives
from ...graph.operators.each import EACH
from ...graph.operators.item_order import find_order
from .partition import Subgraph


@dataclass(frozen=True, slots=True)
class Transfer:
    """A copy of a tensor from one memory to another."""

    tensor: str
    source: str
    target: str
    """Memories; `CALLER` for arrays that callers pass or take on a device."""
    nbytes: int

    @property
    def name(self) -> str:
        return f"{self.tensor}: {self.source} to {self.target}"

    @property
    def arrives(self) -> bool:
        """True if it copies an array that a caller passes on a device."""
        return self.source == CALLER

    @property
    def leaves(self) -> bool:
        """True if it copies a result into an array of the caller on a device."""
        return self.target == CALLER

    @property
    def is_inward(self) -> bool:
        """True if the device that copies is the target's."""
        return self.source in HOST_MEMORIES or self.target not in {CALLER, *HOST_MEMORIES}


class StepState(NamedTuple):
    """The late variables that a step reads where they come to an item, and those that it writes."""

    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()


STATELESS = StepState()


@dataclass(frozen=True, slots=True)
class Step:
    """One run of a subgraph, or one transfer, on one device."""

    index: int
    """Position in the plan, a topological order."""
    device: str
    work: Subgraph | Transfer
    waits: tuple[int, ...]
    """The steps that must be complete before it starts."""
    dependents: tuple[int, ...] = ()
    """The steps that wait for this one."""
    state: StepState = STATELESS
    """The variables that it reads and writes as items hand them on."""

    @property
    def input_wait_count(self) -> int:
        return len(self.waits)

    @property
    def name(self) -> str:
        return self.work.name

    @property
    def has_effects(self) -> bool:
        """True if it has effects beyond its results and the new values of variables."""
        return not isinstance(self.work, Transfer) and any(map(acts_outside, self.work.graph.nodes))

    @property
    def order(self) -> tuple[str, ...]:
        """The keys of its order: it waits until earlier items have released them."""
        variables = map(name_key, dict.fromkeys((*self.state.reads, *self.state.writes)))
        return (*self.functions_in_order, *variables)

    @property
    def releases(self) -> tuple[str, ...]:
        """The keys that it releases for later items, with the other steps that do."""
        return (*self.functions_in_order, *map(name_key, self.state.writes))

    @property
    def functions_in_order(self) -> tuple[str, ...]:
        """The operators of its functions that are called for one item after the other."""
        if isinstance(self.work, Transfer):
            return ()
        found = (key for node in self.work.graph.nodes for key in find_order(node))
        return tuple(dict.fromkeys(found))

    @property
    def owns(self) -> bool:
        return not isinstance(self.work, Transfer) and has_lives(self.work.graph)

    @property
    def loops(self) -> bool:
        """True if its duration depends on values: no other thread should wait for it."""
        return not isinstance(self.work, Transfer) and any(
            node.op == "Loop" for _, _, node in walk_nodes(self.work.graph)
        )

    @property
    def calls_python(self) -> bool:
        return not isinstance(self.work, Transfer) and any(
            node.operator.function is not None for _, _, node in walk_nodes(self.work.graph)
        )

    @property
    def awaited(self) -> Operator | None:
        """The operator of the async function that it calls, outside its device's lanes."""
        if isinstance(self.work, Transfer) or len(self.work.graph.nodes) != 1:
            return None  # such a function is a subgraph of its own
        return find_async_operator(self.work.graph.nodes[0])

    @property
    def runs_rows(self) -> bool:
        """True if it waits for a graph to run on rows, in batches."""
        return self.awaited is not None and self.awaited.name == EACH


@dataclass(frozen=True, slots=True)
class Outline:
    """A step as profiles keep it, without its plan."""

    index: int
    name: str
    device: str
    dependents: tuple[int, ...]
    transfer: Transfer | None
    """None for the run of a subgraph."""
    nodes: tuple[str, ...]
    """The nodes of the subgraph."""
    awaited: str = ""
    """The operator of the async function that it calls, or the queue of the rows that it waits for;
    empty for other steps."""
    shared_lane: str = ""
    """The lane that its device shares with others; empty if its device has its own."""

    @property
    def place(self) -> str:
        """Its row in a timeline: its device, or the calls of its async function."""
        return name_lane_of_calls(self.awaited) if self.awaited else self.device

    @property
    def lane(self) -> str:
        return self.place if self.awaited else self.shared_lane or self.device


def name_key(variable: str) -> str:
    return f"variable {variable}"


def name_lane_of_calls(operator: str) -> str:
    return f"calls of {operator}"


def summarize_step(step: Step, shared_lane: str = "") -> Outline:
    transfer = step.work if isinstance(step.work, Transfer) else None
    nodes = () if isinstance(step.work, Transfer) else step.work.graph.nodes
    names = tuple(node.name for node in nodes)
    called = "" if step.awaited is None else step.awaited.name
    if called == EACH:
        called = nodes[0].attributes["queue"]
    seen = step.index, step.name, step.device, step.dependents, transfer, names, called
    return Outline(*seen, shared_lane)


def link(steps: Sequence[Step]) -> tuple[Step, ...]:
    dependents: list[list[int]] = [[] for _ in steps]
    for step in steps:
        for earlier in step.waits:
            assert earlier < step.index, "steps are in a topological order"
            dependents[earlier].append(step.index)
    return tuple(
        replace(step, dependents=tuple(after))
        for step, after in zip(steps, dependents, strict=True)
    )


OUTSIDE = ""
"""Stands for the caller in place of a device: it feeds and fetches."""

SCRATCH = ""
"""Stands for the scratch buffers of a device in place of a tensor."""


class Commit(NamedTuple):
    """The new value of a variable in one of the memories that hold it."""

    source: tuple[str, str]
    target: tuple[str, str]
    """A tensor and its memory; the target is prepared."""
    device: str
    """A device that accesses both memories."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The memory of each tensor, and the steps that compute and copy them."""

    steps: tuple[Step, ...]
    home: Mapping[str, str]
    """The memory that each tensor is written in; constants have none."""
    local: Mapping[tuple[str, str], str]
    """For a tensor and a device (or `OUTSIDE`) that reads it: the memory it is read in; for
    `SCRATCH` and a device, the memory of its kernels' scratch buffers."""
    prepared: frozenset[tuple[str, str]] = frozenset()
    """Tensors with the same value for all items: no step writes them."""
    commits: tuple[Commit, ...] = ()
    """New values of variables, which are kept if all steps succeed."""

    @property
    def arrivals(self) -> frozenset[str]:
        """The inputs that steps copy to their home memories; others are fed there."""
        works = (step.work for step in self.steps)
        return frozenset(one.tensor for one in works if isinstance(one, Transfer) and one.arrives)

    @property
    def step_of(self) -> Mapping[str, Step]:
        """The step that runs each node, by the node's name."""
        return {
            node.name: step
            for step in self.steps
            if not isinstance(step.work, Transfer)
            for node in step.work.graph.nodes
        }

    def with_waits(self, edges: Sequence[tuple[int, int]]) -> Placement:
        if not edges:
            return self
        waits = [set(step.waits) for step in self.steps]
        for earlier, later in edges:
            waits[later].add(earlier)
        steps = (
            replace(step, waits=tuple(sorted(more)))
            for step, more in zip(self.steps, waits, strict=True)
        )
        return replace(self, steps=link(tuple(steps)))
