"""Runs kernels of libraries once before the first item, to compile or load them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from ...graph.core.ir import Graph
from ...graph.values.recent import RecentItems
from ...graph.values.tensor import Array
from ..errors import DeviceMemoryError
from ..memory import View
from .libraries import RefusedError
from .lowering import Lowering
from .parts import Execute, Multiply, Part
from .trials import Trials


class Warmer:
    """Runs each kind of library kernel once when it is bound.

    CuPy compiles a kernel at its first launch, which takes up to a second, and libraries load
    theirs.
    """

    def __init__(self, lowering: Lowering, trials: Trials, cudnn: Any, *, records: bool) -> None:
        self._lowering = lowering
        self._trials = trials
        self._cudnn = cudnn
        self._records = records
        self._warm: RecentItems[Hashable, bool] = RecentItems()

    def warm(
        self,
        graph: Graph,
        parts: Sequence[Part],
        constants: Mapping[str, Array],
        views: Mapping[str, View],
    ) -> bool:
        """Run the new `parts` of `graph`, with tensors in `constants` and `views`.

        Return False if a library refuses a node, if its work cannot be recorded, or if there is too
        little memory to try it: the parts must be rebuilt, with a generated kernel. Raises
        KernelError naming a node that fails.
        """
        taken = True
        for part in parts:
            work = part.of_libraries
            if work is None:
                continue
            alone = graph.extract(part.nodes, part.node.name)
            try:
                kind = self._get_kind(graph, work)
                if kind in self._warm:
                    continue
                with self._trials.of(alone, self._lowering, constants, views) as trial:
                    trial.run([work])
                    if self._records and work.queued is not None:
                        with trial.refusals():
                            trial.record([work])
            except (RefusedError, DeviceMemoryError):
                taken = taken and work.queued is None
                for item in work.queued or ():
                    if isinstance(item, Multiply | Execute):
                        self._lowering.refuse(item)
            else:
                self._warm[kind] = True
        return taken

    def _get_kind(self, graph: Graph, work: Part) -> Hashable:
        """Return a key that is equal for `work` in `graph` with the same kernels, while loaded."""
        if work.queued is None:
            return f"{work.node.op} {graph.call(work.node).inputs} {work.node.attributes}"
        products = (item.product for item in work.queued if isinstance(item, Multiply))
        calls = (item[:2] for item in work.queued if isinstance(item, Execute))
        return *products, *(self._cudnn.refer(*call) for call in calls)
