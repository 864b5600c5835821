"""Devices that ONNX Runtime computes for: whole subgraphs on plait's buffers, on a lane thread."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import inf
from typing import Any

from ...graph.extras import ORT_DISABLE_TELEMETRY
from ...graph.ir import Graph, Node
from ...graph.operator import Call, Specs
from ...graph.printing import counted
from ...graph.tensor import TensorSpec
from ..device import Capabilities, Program, Support
from ..errors import DeviceError
from ..host import HostDevice, core_count, given, physical_memory
from ..memory import HOST, SHARED, View
from .engine import PROCESSOR, Engine
from .plugins import ProviderEngine, find
from .profiling import shares_of
from .program import OrtProgram
from .providers import Place, place_of
from .runtime import newest_opset, runtime
from .session import Sessions
from .special_values import find_special_difference
from .support import Answers
from .threads import (
    ONE_THREAD,
    WORTH_S,
    Threads,
    is_machine_loaded,
    speedup,
    threads_for,
    work_s,
)


class OrtDevice(HostDevice):
    """Hands subgraphs to ONNX Runtime, which reads and writes the planned buffers in place.

    Parameters
    ----------
    name : str
        ``"ort"``, or ``"ort:"`` and anything that is no provider's.
    threads : int, optional
        On how many threads each subgraph computes; when left out, on as many as its work is worth
        of the device's share of the cores.
    affinity : sequence of int, optional
        The cores that these threads are bound to.
    spinning : bool, optional
        Whether they wait for each other in busy loops while a subgraph runs; when left out they do
        where the device has all cores. Between runs they never do.
    engine : Engine, optional
        What ONNX Runtime computes with; its own kernels when left out.

    Notes
    -----
    ONNX Runtime joins and reorders nodes, so a program is one piece: no run has times of single
    nodes, though its profiler tells how they share it. What lies between its nodes is in ONNX
    Runtime's own memory, which the memory plan does not count. A running program stops when it is
    cancelled, between two of its nodes.
    """

    def __init__(
        self,
        name: str = "ort",
        *,
        threads: int | None = None,
        affinity: Sequence[int] | None = None,
        spinning: bool | None = None,
        engine: Engine = PROCESSOR,
    ) -> None:
        super().__init__(name, given(threads, affinity, spinning))
        self._cores = 1
        self._engine = engine
        self._answers = Answers(engine)
        self._sessions = Sessions(name, affinity or (), engine)

    @cached_property
    def capabilities(self) -> Capabilities:
        """What it is like; raises DeviceUnavailableError where ONNX Runtime is not installed."""
        newest_opset()
        return Capabilities(
            accesses=frozenset({HOST, SHARED}),
            memory_bytes=physical_memory(),
            atomic_programs=True,
            takes_donations=True,
            takes_text=True,
            software=f"onnxruntime {runtime().__version__}",
        )

    def supports(self, node: Node, call: Call) -> Support:
        """Say whether ONNX Runtime has a kernel."""
        if self.options.get("nan") == "formal" and (why := find_special_difference(node, call)):
            return Support(False, why)
        return self._answers.of(node, call)

    def scratch(self, node: Node, call: Call, outputs: Specs) -> tuple[TensorSpec, ...]:
        """Return nothing: ONNX Runtime has memory of its own."""
        return ()

    def open(self, cores: int | None = None) -> None:
        """Start the lane's thread."""
        newest_opset()
        self._cores = cores or 1
        self._lane.open()

    def compile(
        self, subgraph: Graph, views: Mapping[str, View], *, measure: bool = False
    ) -> Program:
        """Load the subgraph, unless it is loaded, and bind its inputs and outputs."""
        return self.compile_on(self._cores, subgraph, views, measure=measure)

    def compile_on(
        self, cores: int, subgraph: Graph, views: Mapping[str, View], *, measure: bool = False
    ) -> Program:
        """Do so for as many threads as the program is worth, of those that may compute."""
        threads = self._threads_for(subgraph, cores)
        return OrtProgram(self._sessions.of(subgraph, threads), views, self.name)

    def shares(self, subgraph: Graph) -> Mapping[str, float]:
        """Return which share of a subgraph's time each node takes, by ONNX Runtime's profiler."""
        return shares_of(
            subgraph, self._threads_for(subgraph, self._cores), self.name, self._engine
        )

    def speedup(self, seconds: float, cores: int) -> float:
        """Return by what factor a program is faster on its threads than on one."""
        return speedup(self._threads(seconds, cores))

    def computes_on(self, cores: int) -> str:
        """Return on how many threads its larger programs compute, and whether these spin."""
        threads = self._threads(inf, cores)
        return f"{counted(threads.count, 'thread')}{', spinning' * threads.spinning}"

    def _threads_for(self, subgraph: Graph, cores: int) -> Threads:
        most = self._most(cores)
        if "threads" in self.options or most == 1:
            return self._threads(0.0, cores)
        enough_s = most * WORTH_S[self._spins(cores)]
        return self._threads(work_s(subgraph, self.name, enough_s), cores)

    def _threads(self, seconds: float, cores: int) -> Threads:
        """Return the threads of a program that takes so long on one core."""
        most = self._most(cores)
        spinning = self._spins(cores)
        if "threads" in self.options:
            return Threads(most, spinning and most > 1)
        return threads_for(seconds, most, spinning=spinning)

    def _spins(self, cores: int) -> bool:
        if "spinning" not in self.options:
            return cores >= core_count() and not is_machine_loaded(cores)
        return bool(self.options["spinning"])

    def _most(self, cores: int) -> int:
        bound = self.options.get("affinity")
        share = cores if bound is None else min(cores, len(bound))
        most: int = self.options.get("threads", share)
        return most


class ProviderDevice(OrtDevice):
    """Hands subgraphs to a provider, such as OpenVINO's, by way of ONNX Runtime.

    Parameters
    ----------
    name : str
        ``"ort:openvino"``, ``"ort:cuda:0"``: see `providers`.
    place : Place
        What that stands for.
    precision : str, optional
        In which products and sums are computed; that of the model when left out.
    threads : int, optional
        As of `OrtDevice`, where the provider computes on the processor.
    cache : str, optional
        A folder for what the provider compiles.
    settings : str, optional
        The provider's own options, as JSON; they go before all others.

    Notes
    -----
    Planned memory is the host's: ONNX Runtime copies inputs to the provider's memory in each run,
    and outputs from there.
    """

    def __init__(
        self,
        name: str,
        place: Place,
        *,
        precision: str | None = None,
        threads: int | None = None,
        cache: str | None = None,
        settings: str | None = None,
    ) -> None:
        if place.hardware == "cpu":  # of which there is one: numbers tell devices on it apart
            place = place._replace(number=0)
        more = {"precision": precision, "cache": cache, "settings": settings}
        told = {option: value for option, value in more.items() if value is not None}
        super().__init__(name, engine=ProviderEngine(place.kind, place, **told), threads=threads)
        self.options = {**given(threads, None), **told}
        self._place = place

    @cached_property
    def capabilities(self) -> Capabilities:
        """What it is like; raises DeviceUnavailableError where it is not there."""
        found = find(self._place)
        named = f"{self._place.provider.registered} {found.version}"
        on = f", on {found.hardware}" if found.hardware else ""
        return replace(
            super().capabilities, software=f"{named} of onnxruntime {runtime().__version__}{on}"
        )

    def open(self, cores: int | None = None) -> None:
        """Start the lane's thread, once the provider is found."""
        find(self._place)
        super().open(cores)

    def _spins(self, cores: int) -> bool:
        return False  # its threads are told of no spinning


class AcceleratorDevice(ProviderDevice):
    """A device on a provider that takes none of the host's cores: it has hardware of its own."""

    def reached(self) -> str:
        """Return on what it computes."""
        return f"by ONNX Runtime, on {find(self._place).hardware or 'hardware that it finds'}"

    def speedup(self, seconds: float, cores: int) -> float:
        """Return 1: the host's cores are of no use."""
        return 1.0

    def _threads(self, seconds: float, cores: int) -> Threads:
        return ONE_THREAD


def ort_device(
    name: str, *, telemetry: bool = False, nan: str | None = None, **options: Any
) -> OrtDevice:
    """Return the device of a name: of the provider that it names, or of ONNX Runtime's own.

    Raises
    ------
    DeviceError
        If ONNX Runtime may report its use, and has been loaded to be silent.
    """
    if telemetry:
        _allow_telemetry(name)
    place = place_of(name)
    if place is None:
        device = OrtDevice(name, **options)
    else:
        made = ProviderDevice if place.hardware == "cpu" else AcceleratorDevice
        device = made(name, place, **options)
    if nan is not None:
        device.options = {**device.options, "nan": nan}
    return device


def _allow_telemetry(name: str) -> None:
    if os.environ.setdefault(ORT_DISABLE_TELEMETRY, "0") == "1":
        raise DeviceError(
            f"{name!r} cannot have telemetry: {ORT_DISABLE_TELEMETRY} is 1 in this process",
            fix=f"set {ORT_DISABLE_TELEMETRY}=0 before it starts",
        )
