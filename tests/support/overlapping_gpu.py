"""A fake GPU on which a kernel ends only once the next item's input is there."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from cupy_double import CupyDouble
from patience import WAIT_S
from plait.devices import Program
from plait.devices.cuda.device import CudaDevice
from plait.devices.memory import View
from plait.devices.streams.program import QueuedProgram
from plait.graph.core.ir import Graph

NAME = "cuda:7"
ITEMS = 8


class OverlappingGpu:
    """The GPU: of `ITEMS` items each kernel but the last waits for the input of the next item.

    If that is not uploaded meanwhile, the GPU breaks. For graphs with one input and no constants.

    Attributes
    ----------
    double : CupyDouble
    """

    def __init__(self, seed: int = 0) -> None:
        self.double = CupyDouble(seed, devices=8)
        self._changed = threading.Condition()
        self._n_started = 0
        self._n_uploaded = 0
        self._copy = self.double.gpu._copy_now
        self.double.gpu._copy_now = self._copy_now  # type: ignore[method-assign]

    def device(self, name: str) -> CudaDevice:
        return _HeldDevice(name, self)

    def hold(self) -> None:
        """Hold the current stream until one input more is there than programs have begun."""
        self._n_started += 1
        needed = min(self._n_started + 1, ITEMS)
        stream = self.double.current.streams[-1]
        self.double.gpu.call_on_host(stream, lambda: self._wait_for_inputs(needed))

    def _wait_for_inputs(self, needed: int) -> None:
        with self._changed:
            are_there = self._changed.wait_for(lambda: self._n_uploaded >= needed, WAIT_S)
        if not are_there:
            self.double.gpu.break_next()

    def _copy_now(self, target: int, source: int, nbytes: int, kind: int) -> None:
        self._copy(target, source, nbytes, kind)
        if kind == 1:
            with self._changed:
                self._n_uploaded += 1
                self._changed.notify_all()


class _HeldDevice(CudaDevice):
    def __init__(self, name: str, gpu: OverlappingGpu) -> None:
        super().__init__(name, cupy=gpu.double, launch=gpu.double.launch, compiler=None)
        self._gpu = gpu

    def compile(
        self, subgraph: Graph, views: Mapping[str, View], *, measure: bool = False
    ) -> Program:
        program = super().compile(subgraph, views, measure=measure)
        assert isinstance(program, QueuedProgram)
        run = program.run

        def held() -> None:
            self._gpu.hold()
            run()

        program.run = held  # type: ignore[assignment]
        return program
