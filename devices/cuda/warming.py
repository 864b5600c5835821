"""Runs kernels of libraries once before the first item, to compile or load them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from ...graph.ir import Graph
from ...graph.tensor import Array
from .libraries import RefusedError
from .lowering import Lowering
from .parts import Execute, Multiply, Part
from .trials import Trials


class Warmer:
    """Runs each kind of library kernel once when it is bound.

    CuPy compiles a kernel at its first launch, which takes up to a second, and libraries load
    theirs.
    """

    def __init__(self, lowering: Lowering, trials: Trials) -> None:
        self._lowering = lowering
        self._trials = trials
        self._warm: set[Hashable] = set()

    def warm(
        self, graph: Graph, parts: Sequence[Part], constants: Mapping[str, Array], stream: Any
    ) -> bool:
        """Run the nodes of new kinds; raise KernelError naming one that fails.

        Return False if a library refuses a node, contrary to its documentation: the parts must be
        rebuilt, with a generated kernel.
        """
        taken = True
        for part in parts:
            work = part.of_libraries
            if work is None or (kind := _get_kind(graph, work)) in self._warm:
                continue
            alone = graph.extract(part.nodes, part.node.name)
            try:
                with self._trials.of(alone, self._lowering, constants, stream) as trial:
                    trial.run([work])
            except RefusedError:
                taken = False
                for item in work.queued or ():
                    if isinstance(item, Multiply | Execute):
                        self._lowering.refuse(item)
            else:
                self._warm.add(kind)
        return taken


def _get_kind(graph: Graph, work: Part) -> Hashable:
    """Return a key that is equal for nodes with the same kernels."""
    if work.queued is None:
        return f"{work.node.op} {graph.call(work.node).inputs} {work.node.attributes}"
    calls = [item for item in work.queued if isinstance(item, Multiply | Execute)]
    return tuple(item[:2] if isinstance(item, Execute) else item.product for item in calls)
