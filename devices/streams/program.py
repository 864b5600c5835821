"""Programs that a host queues on a stream, step by step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from ...graph.core.ir import Graph, Node
from ...graph.values.tensor import Array
from ..codegen.pieces import Trap
from ..errors import KernelError
from ..function_steps import Step
from ..program import BoundProgram


@dataclass(slots=True, eq=False)
class Traps:
    """The traps of one program, checked after each of its runs: its kernels cannot raise.

    `words`, an int64 for each, are written by the kernels, and on the host when a run is complete;
    0 means no error. `clear` resets all words, on the device as well: a program runs again only
    after its last run is known to be complete.
    """

    _device: str
    _traps: Sequence[Trap]
    _words: Array
    _clear: Callable[[], object]

    def take(self) -> KernelError | None:
        """Return the error of the last run, if any, and clear the traps."""
        if not self._words.any():
            return None
        index = int(self._words.nonzero()[0][0])  # the first node: its error may cause others
        _, node, text = self._traps[index]
        error = KernelError(
            text.format(int(self._words[index])), at=f"{node}, on device {self._device!r}"
        )
        self._clear()
        return error


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
