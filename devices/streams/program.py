"""Programs that a host queues on a stream, step by step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from ...graph.core.ir import Graph, Node
from ..function_steps import Step
from ..program import BoundProgram
from .traps import Traps

Steps: TypeAlias = list[tuple[Node, Step]]


@dataclass(eq=False, slots=True, weakref_slot=True)
class QueuedProgram:
    graph: Graph
    run: BoundProgram
    """Queues the work on the compute stream."""
    measures: bool
    """Whether the end of each node is marked on the stream."""
    held: Sequence[object]
    """Objects on the device, such as constants, that live as long as the program."""
    traps: Traps | None = None
    """Errors of its kernels; None if none can fail."""
    starts_whole: bool = False
    """Whether the device begins only when all is queued. Measured programs do: queueing a short
    kernel takes longer than the kernel, and would be measured in its place."""
    has_run: bool = False
    """False until the first run, which may load kernels and so wait for the device."""


def mark_steps(steps: Steps, mark: Callable[[str], Any]) -> Steps:
    """Return `steps` that, after queueing a node, call `mark` with its name."""

    def queue(node: Node, step: Step) -> None:
        step()
        mark(node.name)

    return [(node, partial(queue, node, step)) for node, step in steps]
