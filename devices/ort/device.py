"""Devices that run whole subgraphs in ONNX Runtime, on plait's buffers, on a lane thread."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import inf
from typing import Any, ClassVar

from ...graph.core.ir import Graph, Node
from ...graph.core.nested import list_graphs
from ...graph.core.operator import Call, Specs
from ...graph.core.printing import format_count
from ...graph.values.extras import ORT_DISABLE_TELEMETRY
from ...graph.values.tensor import TensorSpec
from ..device import Capabilities, Program, Support
from ..errors import DeviceError
from ..host import HostDevice, collect_options, count_cores, is_machine_loaded, read_physical_memory
from ..memory import HOST, SHARED, View
from .differences import find_difference, find_special_difference
from .empty import is_empty
from .engine import PROCESSOR, Engine
from .plugins import ProviderEngine, find
from .profiling import measure_shares
from .program import OrtProgram
from .providers import Place, parse_place
from .runtime import load_runtime
from .session import Sessions
from .support import Answers
from .threads import ONE_THREAD, WORTH_S, Threads, choose_threads, compute_speedup, estimate_work_s


class OrtDevice(HostDevice):
    """Runs subgraphs in ONNX Runtime, which reads and writes the planned buffers in place.

    Parameters
    ----------
    name : str
        ``"ort"``, or ``"ort:"`` with a suffix that is not a provider.
    threads : int, optional
        Threads for each subgraph; by default as many as its work is worth, up to the device's share
        of the cores.
    affinity : sequence of int, optional
        The cores that these threads are bound to.
    spinning : bool, optional
        Whether they wait for each other in busy loops while a subgraph runs; by default if the
        device has all cores. Between runs they never do.
    engine : Engine, optional
        The engine of ONNX Runtime; by default its own kernels.

    Notes
    -----
    ONNX Runtime fuses and reorders nodes, so programs are atomic: runs have no times of single
    nodes, though its profiler gives their shares. Intermediate tensors are in ONNX Runtime's own
    memory, which the memory plan does not count. A running program can be cancelled between two
    nodes.
    """

    program: ClassVar[type[OrtProgram]] = OrtProgram

    def __init__(
        self,
        name: str = "ort",
        *,
        threads: int | None = None,
        affinity: Sequence[int] | None = None,
        spinning: bool | None = None,
        engine: Engine = PROCESSOR,
    ) -> None:
        super().__init__(name, collect_options(threads, affinity, spinning))
        self._cores = 1
        self._engine = engine
        self._answers = Answers(engine)
        self._sessions = Sessions(name, affinity or (), engine)

    @cached_property
    def capabilities(self) -> Capabilities:
        """The device's properties; raises DeviceUnavailableError without its runtime."""
        return Capabilities(
            accesses=frozenset({HOST, SHARED}),
            memory_bytes=read_physical_memory(),
            atomic_programs=True,
            takes_donations=True,
            takes_text=self._engine.takes_text,
            software=self._engine.find_software(),
        )

    def supports(self, node: Node, call: Call) -> Support:
        if self.options.get("nan") == "formal" and (why := find_special_difference(node, call)):
            return Support(False, why)
        return self._answers.of(node, call)

    def supports_lengths(self, node: Node, call: Call) -> bool:
        """Return whether a `node` that it supports at other lengths is, at those of `call`.

        Only known differences of kernels, and inputs without elements, depend on lengths.
        """
        is_plain = self._engine is PROCESSOR and self.options.get("nan") != "formal"
        if not is_plain or list_graphs(node) or any(map(is_empty, call.inputs, call.values)):
            return self.supports(node, call).ok
        return find_difference(node, call) is None

    def scratch(self, node: Node, call: Call, outputs: Specs) -> tuple[TensorSpec, ...]:
        return ()

    def open(self, cores: int | None = None) -> None:
        self._engine.find_software()
        self._cores = cores or 1
        self._lane.open()

    def compile(
        self, subgraph: Graph, views: Mapping[str, View], *, measure: bool = False
    ) -> Program:
        """Load `subgraph`, unless it is loaded, and bind it to `views`; `measure` has no effect."""
        return self.compile_on(self._cores, subgraph, views, measure=measure)

    def compile_on(
        self, cores: int, subgraph: Graph, views: Mapping[str, View], *, measure: bool = False
    ) -> Program:
        """Compile `subgraph` on `views` for as many threads as it is worth, at most `cores`.

        `measure` has no effect.
        """
        threads = self._threads_for(subgraph, cores)
        return self.program(self._sessions.of(subgraph, threads), views, self.name)

    def shares(self, subgraph: Graph) -> Mapping[str, float]:
        """Return the share of each node in the time of `subgraph`, by ONNX Runtime's profiler."""
        return measure_shares(
            subgraph, self._threads_for(subgraph, self._cores), self.name, self._engine
        )

    def speedup(self, seconds: float, cores: int) -> float:
        return compute_speedup(self._threads(seconds, cores))

    def computes_on(self, cores: int) -> str:
        """Describe the threads of larger programs, which are at most `cores`."""
        threads = self._threads(inf, cores)
        return f"{format_count(threads.count, 'thread')}{', spinning' * threads.spinning}"

    def _threads_for(self, subgraph: Graph, cores: int) -> Threads:
        most = self._most(cores)
        if "threads" in self.options or most == 1:
            return self._threads(0.0, cores)
        enough_s = most * WORTH_S[self._spins(cores)]
        return self._threads(estimate_work_s(subgraph, self.name, enough_s), cores)

    def _threads(self, seconds: float, cores: int) -> Threads:
        most = self._most(cores)
        if "threads" in self.options:
            # Whoever gives it a thread for each core leaves these to it.
            return Threads(most, self._spins(max(cores, most)) and most > 1)
        return choose_threads(seconds, most, spinning=self._spins(cores))

    def _spins(self, cores: int) -> bool:
        if "spinning" not in self.options:
            return self._engine.spins and cores >= count_cores() and not is_machine_loaded(cores)
        return bool(self.options["spinning"])

    def _most(self, cores: int) -> int:
        bound = self.options.get("affinity")
        share = cores if bound is None else min(cores, len(bound))
        most: int = self.options.get("threads", share)
        return most


class ProviderDevice(OrtDevice):
    """Runs subgraphs on a provider of ONNX Runtime, such as OpenVINO's.

    Parameters
    ----------
    name : str
        ``"ort:openvino"``, ``"ort:cuda:0"``; see `providers`.
    place : Place
        The parsed name.
    precision : str, optional
        The precision of products and sums; by default that of the model.
    threads : int, optional
        As in `OrtDevice`, if the provider computes on the processor.
    cache : str, optional
        A folder for compiled models.
    settings : str, optional
        The provider's own options as JSON, which override all others.

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
        if place.hardware == "cpu":  # there is only one: numbers only distinguish devices on it
            place = place._replace(number=0)
        more = {"precision": precision, "cache": cache, "settings": settings}
        options_given = {option: value for option, value in more.items() if value is not None}
        super().__init__(
            name, engine=ProviderEngine(place.kind, place, **options_given), threads=threads
        )
        self.options = {**collect_options(threads, None), **options_given}
        self._place = place

    @cached_property
    def capabilities(self) -> Capabilities:
        """The device's properties; raises DeviceUnavailableError without the provider."""
        found = find(self._place)
        named = f"{self._place.provider.registered} {found.version}"
        on = f", on {found.hardware}" if found.hardware else ""
        return replace(
            super().capabilities,
            software=f"{named} of onnxruntime {load_runtime().__version__}{on}",
        )

    def open(self, cores: int | None = None) -> None:
        """Find the provider, and start the lane's thread on at most `cores` (None: all)."""
        find(self._place)
        super().open(cores)


class AcceleratorDevice(ProviderDevice):
    """A device on a provider with its own hardware, which takes none of the host's cores."""

    def reached(self) -> str:
        return f"by ONNX Runtime, on {find(self._place).hardware or 'hardware that it finds'}"

    def speedup(self, seconds: float, cores: int) -> float:
        return 1.0

    def _threads(self, seconds: float, cores: int) -> Threads:
        return ONE_THREAD


def create_device(
    name: str, *, telemetry: bool = False, nan: str | None = None, **options: Any
) -> OrtDevice:
    """Create the device `name`, on ONNX Runtime's own kernels or a provider, with `options`.

    `nan` may be "formal", to refuse other special values. Raises DeviceError if `telemetry` is
    wanted, but ONNX Runtime was loaded without it.
    """
    if telemetry:
        _allow_telemetry(name)
    place = parse_place(name)
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
