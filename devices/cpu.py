"""The cpu device: numpy kernels on a lane thread. It is always available."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..graph.core.ir import Graph, Node
from ..graph.core.operator import Call, Specs
from ..graph.functions.operator_lifecycle import OperatorLifecycle
from ..graph.values.tensor import TensorSpec
from . import program as programs
from .blas import lift_limit, limit_threads
from .device import Capabilities, Program, Support
from .host import HostDevice, collect_options, read_physical_memory
from .kernels.fused import takes
from .memory import HOST, SHARED, View
from .operator_instances import OperatorInstances


class CpuDevice(HostDevice):
    """Runs numpy kernels and Python functions one at a time, in order, on its own thread.

    Parameters
    ----------
    threads : int, optional
        The most that BLAS uses in this process while the device is open; by default the session's
        share of the cores.
    affinity : sequence of int, optional
        The cores that its thread is bound to.
    """

    def __init__(
        self,
        name: str = "cpu",
        *,
        threads: int | None = None,
        affinity: Sequence[int] | None = None,
    ) -> None:
        super().__init__(name, collect_options(threads, affinity))
        cls = type(self)  # subclasses that bind differently take no donations
        self.capabilities = Capabilities(
            accesses=frozenset({HOST, SHARED}),
            memory_bytes=read_physical_memory(),
            runs_python=True,
            awaits=True,
            takes_donations=(cls.compile, cls.bind) == (CpuDevice.compile, CpuDevice.bind),
            takes_text=True,
            takes_objects=True,
        )

    def supports(self, node: Node, call: Call) -> Support:
        return programs.supports(node, "cpu", runs_python=True, keeps_lives=True, call=call)

    def scratch(self, node: Node, call: Call, outputs: Specs) -> tuple[TensorSpec, ...]:
        return programs.scratch(node, "cpu", call, outputs)

    def chains(self, node: Node, call: Call) -> bool:
        """Return whether `call` of `node` may join a chain: numpy passes over memory for each."""
        return takes(node, call)

    def open(self, cores: int | None = None) -> None:
        """Start the lane's thread; limit BLAS to the option `threads`, or else to `cores`."""
        threads = self.options.get("threads", cores)
        if threads is not None:
            limit_threads(self, threads)
        self._lane.open()

    def compile(
        self, subgraph: Graph, views: Mapping[str, View], *, measure: bool = False
    ) -> Program:
        """Return a program of kernels of `subgraph`, bound to `views`; `measure` times nodes."""
        return self.bind(subgraph, views, {}, measure=measure)

    def compile_with(
        self,
        subgraph: Graph,
        views: Mapping[str, View],
        lives: OperatorInstances,
        *,
        measure: bool = False,
    ) -> Program:
        """Return a program as `compile` does, with instances from `lives`, opened on the lane.

        `subgraph` is bound to `views`, and timed by node with `measure`.
        """
        living = lives.of(self.name, subgraph, views, self._lane.call)
        return self.bind(subgraph, views, living, measure=measure)

    def bind(
        self,
        subgraph: Graph,
        views: Mapping[str, View],
        living: Mapping[str, OperatorLifecycle],
        *,
        measure: bool,
    ) -> Program:
        """Return a program of `subgraph` on `views` with `living` instances; `measure` times it."""
        return programs.bind(
            np, self.name, subgraph, views, subgraph.constants, measure=measure, living=living
        )

    def close(self) -> None:
        """Finish the queued work and end the thread."""
        super().close()
        lift_limit(self)
