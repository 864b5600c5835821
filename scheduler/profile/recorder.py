"""Recording while a session runs: a few numbers for each step, as they are known anyway."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from ...devices.event import Event
from ..running.executor import Execution
from ..running.marks import Marks
from ..running.open_plan import OpenPlan
from ..steps import Step, Transfer
from .profile import Profile
from .records import NodeTime, Part, Record

KEPT_SPANS = 50_000
"""Steps remembered, 5 MB of them; the oldest items are forgotten beyond."""

SPANS_OF_ITEM = 6
"""An item takes as much memory as that many steps (0.1 KB each), besides its own."""

NOTHING = Part((), ())


class Recorder:
    """Keeps the times of the latest items; cheap enough to be always on.

    Parameters
    ----------
    keeps : bool, default True
        Otherwise it only counts items.

    Attributes
    ----------
    done, failed : int
        Items that have ended, and those among them that failed.
    """

    def __init__(self, *, keeps: bool = True) -> None:
        self.done = self.failed = 0
        self._keeps = keeps
        self._records: deque[Record] = deque()
        self._spans = self._forgotten = 0
        self._nodes: dict[tuple[str, str, str], list[int]] = {}

    def part(self, open_plan: OpenPlan, execution: Execution) -> Part:
        """Return what an execution knows of its steps."""
        if not self._keeps:
            return NOTHING
        times: list[int] = []
        measures = False
        for ready_ns, event in zip(execution.ready_ns, execution.events, strict=True):
            if event is None:
                times += (0, 0, 0)
            else:
                times += (ready_ns, event.started_ns, event.ended_ns)
                if event.node_ns is not None:
                    measures = True
        if measures:
            self._measure_nodes(open_plan.plan.steps, execution.events)
        memory = open_plan.plan.memory
        assert memory is not None, "an open plan has one"
        return Part(open_plan.outlines, times, memory.pools)

    def count(self, failed: bool) -> None:
        """Count an item that has ended, be it that it never started, or ran in a batch."""
        self.done += 1
        self.failed += failed

    def record(self, parts: Iterable[Part], marks: Marks, failed: bool) -> None:
        """Take over what is known of an item, or of a batch; its last marks follow."""
        if not self._keeps:
            return
        record = Record(tuple(parts), marks, failed)
        self._records.append(record)
        self._spans += record.n_steps + SPANS_OF_ITEM
        while self._spans > KEPT_SPANS and len(self._records) > 1:
            self._spans -= self._records.popleft().n_steps + SPANS_OF_ITEM
            self._forgotten += 1

    def profile(self) -> Profile:
        """Return what is known by now."""
        nodes = [
            NodeTime(name, op, device, count, total)
            for (name, op, device), (count, total) in self._nodes.items()
        ]
        nodes.sort(key=lambda node: -node.total_ns)
        return Profile(tuple(self._records), tuple(nodes), self._forgotten)

    def _measure_nodes(self, steps: Sequence[Step], events: Sequence[Event | None]) -> None:
        for step, event in zip(steps, events, strict=True):
            if event is None or event.node_ns is None or isinstance(step.work, Transfer):
                continue
            for node, spent in zip(step.work.graph.nodes, event.node_ns, strict=True):
                total = self._nodes.setdefault((node.name, node.op, step.device), [0, 0])
                total[0] += 1
                total[1] += spent
