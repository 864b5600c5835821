"""The placement: in which memory each tensor lies, and the steps of an item."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from .steps import Step, Transfer, link

OUTSIDE = ""
"""Stands for the caller, who feeds and fetches, where a device is asked for."""

SCRATCH = ""
"""Stands for what a device's kernels need beside tensors, where a tensor is asked for."""


class Commit(NamedTuple):
    """What becomes a variable's value in one of the memories that hold it.

    Attributes
    ----------
    source, target : (str, str)
        A tensor and its memory; the target is prepared.
    device : str
        One that reaches both.
    """

    source: tuple[str, str]
    target: tuple[str, str]
    device: str


@dataclass(frozen=True, slots=True)
class Placement:
    """Where every tensor lies, and the steps that compute and move them.

    Attributes
    ----------
    steps : tuple of Step
    home : Mapping of str to str
        The memory that each tensor is written in; constants have none.
    local : Mapping of (str, str) to str
        For a tensor and a device (or `OUTSIDE`) that reads it: the memory it is read in; for
        `SCRATCH` and a device, the memory of its kernels' scratch buffers.
    prepared : frozenset of (str, str)
        Tensors in memories that hold the same for all items: no step writes them.
    commits : tuple of Commit
        What is kept for the next item when all steps have ended well.
    """

    steps: tuple[Step, ...]
    home: Mapping[str, str]
    local: Mapping[tuple[str, str], str]
    prepared: frozenset[tuple[str, str]] = frozenset()
    commits: tuple[Commit, ...] = ()

    @property
    def arrivals(self) -> frozenset[str]:
        """The inputs that steps bring to their homes; the others are fed there."""
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
        """Return it with further waits: for each pair of steps the later waits for the earlier."""
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
