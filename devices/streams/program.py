"""Programs that are queued on a stream, step by step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from ...graph.ir import Graph, Node
from ..function_steps import Step
from ..program import BoundProgram
from .traps import Traps

Steps: TypeAlias = list[tuple[Node, Step]]


@dataclass(eq=False, slots=True)
class QueuedProgram:
    """A subgraph bound to views.

    Attributes
    ----------
    graph : Graph
    run : BoundProgram
        Queues the work on the compute stream.
    measures : bool
        Whether the end of each node is marked on the stream.
    held : sequence
        What it uses on the device, constants among it: they live as long as it does.
    traps : Traps or None
        What its kernels report; None where none can fail.
    starts_whole : bool
        Whether the device begins once all is queued. Short kernels take less time than it takes to
        queue them: where each is measured, they would be found to take as long as that.
    has_run : bool
        False until it was queued once; until then kernels may have to be loaded on the way, which
        waits for the device.
    """

    graph: Graph
    run: BoundProgram
    measures: bool
    held: Sequence[object]
    traps: Traps | None = None
    starts_whole: bool = False
    has_run: bool = False


def marked(steps: Steps, mark: Callable[[str], Any]) -> Steps:
    """Return steps that call `mark` with their node's name once they are queued."""

    def queue(node: Node, step: Step) -> None:
        step()
        mark(node.name)

    return [(node, partial(queue, node, step)) for node, step in steps]
