"""The simulated device: right results at modelled times.

Its memory is its own: host memory in truth, filled with a poison pattern when allocated, so that
reads of unwritten bytes show. It runs the cpu's kernels when the modelled work ends, so that a
consumer that does not wait reads old bytes, as on real hardware. Three engines, each a FIFO queue,
compute, copy in and copy out. (With one queue for both directions, a download that waits for its
kernels would delay the next item's upload.)
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from ...graph.core.infer import get_cost
from ...graph.core.ir import Graph, Node
from ...graph.core.operator import Call, Specs
from ...graph.values.tensor import Array, TensorSpec
from .. import program as programs
from ..constants import ConstantBatch, ConstantStore
from ..device import Capabilities, OnDone, Program, Support
from ..errors import DeviceError, DeviceLostError, DeviceMemoryError, DeviceUnavailableError
from ..event import CancelledWorkError, Event
from ..function_steps import Step
from ..memory import ALIGNMENT, HOST, HOST_MEMORIES, SHARED, Arena, View, host_arena, host_view
from ..model import LONGEST_S, DeviceModel, name_family
from ..program import BoundProgram
from .clock import Clock, RealClock

POISON = 0xA5
COMPUTE, UPLOAD, DOWNLOAD = "compute", "upload", "download"


@dataclass(frozen=True, slots=True)
class Faults:
    """Faults injected into a simulated device.

    Attributes
    ----------
    fail_nodes : Mapping of str to Exception
        Exceptions raised by the kernels of nodes, by node name, on every run.
    lost_after : int or None
        Programs and copies accepted before the device is lost. Incomplete and later work then
        fails, until the device is opened again.
    """

    fail_nodes: Mapping[str, Exception] = field(default_factory=dict)
    lost_after: int | None = None


@dataclass(frozen=True, slots=True)
class SimModel(DeviceModel):
    """The figures of a simulated device, and its faults.

    Attributes
    ----------
    memory_bytes : int
        The size of its memory.

    Notes
    -----
    All other figures are those of `DeviceModel`. Copies always have one queue for each direction.
    """

    memory_bytes: int = 4 << 30
    faults: Faults = field(default_factory=Faults)


class SimDevice:
    """A device of modelled speed, memory and faults.

    Parameters
    ----------
    name : str
        ``"sim:"`` and any suffix; also the name of its memory.
    model : SimModel, optional
        A mid-range accelerator if left out.
    clock : Clock, optional
        A `VirtualClock` makes all times exact, but work advances only when it is moved. A session
        moves it when nothing else can happen; so do waiting for an event and closing the device. A
        `RealClock` of its own if left out: kernels then take the longer of their modelled and
        their real time. Devices that copy from each other share one virtual clock, or have none.

    Notes
    -----
    `Event.started_ns` and `ended_ns` are modelled times on the clock's time line.

    Examples
    --------
    >>> from plait import devices
    >>> from plait.devices import SimDevice, SimModel
    >>> model = SimModel(flops_per_s=1e12)
    >>> devices.register("sim:small", lambda name: SimDevice(name, model))
    """

    def __init__(
        self, name: str = "sim:npu", model: SimModel | None = None, clock: Clock | None = None
    ) -> None:
        self.name = name
        self.model = model or SimModel()
        self.clock = clock or RealClock(f"plait-{name}")
        self.capabilities = Capabilities(
            memory=name,
            accesses=frozenset({name}),
            memory_bytes=self.model.memory_bytes,
            native_waits=True,
            copies_from=self.model.peers,
        )
        self._lock = threading.RLock()  # freeing constants may interrupt the thread that holds it
        self._engines: dict[str, SimulatedEngine] = {}
        self._fate = _Fate()
        self.generation = 0
        self.on_failure: list[Callable[[], object]] = []
        self._accepted = 0
        self._used_bytes = 0
        self._constants = ConstantStore(self, name, ALIGNMENT, _upload)

    def supports(self, node: Node, call: Call) -> Support:
        """Return whether the model has the operator of `node`, and cpu a kernel for `call`."""
        if not self.model.has(node):
            return Support(False, f"{self.name!r} is modelled without {node.op!r}")
        return programs.supports(node, "cpu", runs_python=False, call=call)

    def scratch(self, node: Node, call: Call, outputs: Specs) -> tuple[TensorSpec, ...]:
        return programs.scratch(node, "cpu", call, outputs)

    def open(self, cores: int | None = None) -> None:
        """Start the engines; a lost device works again. `cores` has no effect."""
        with self._lock:
            # Opening twice is allowed; a lost device starts anew.
            if self._engines and self._fate.failure is None:
                return
            if not self._engines:
                self.clock.open()
            self._fate = _Fate()  # work queued before fails with the previous life
            self.generation += 1
            for name in (COMPUTE, UPLOAD, DOWNLOAD):
                self._engines[name] = SimulatedEngine(self.clock, self._fate.why)

    def arena(self, memory: str, nbytes: int) -> Arena:
        assert memory == self.name, memory
        with self._lock:
            free = self.model.memory_bytes - self._used_bytes
            if nbytes > free:
                raise DeviceMemoryError(
                    f"cannot allocate {nbytes} bytes on {self.name!r}: {free} bytes are free",
                    fix="lower max_in_flight, split the graph, or model more memory",
                )
            self._used_bytes += nbytes
        return _SimArena(memory, nbytes, self._release)

    def view(self, arena: Arena, offset: int, spec: TensorSpec) -> View:
        """Return a view of `spec` at `offset` of `arena`, memory of the device, host or a peer."""
        assert arena.memory in {self.name, HOST, SHARED, *self.model.peers}, arena.memory
        return host_view(arena, offset, spec)

    def compile(
        self, subgraph: Graph, views: Mapping[str, View], *, measure: bool = False
    ) -> Program:
        """Bind the cpu's kernels of `subgraph` to `views`; constants move into modelled memory.

        With `measure`, nodes are timed.
        """
        assert all(view.arena.memory == self.name for view in views.values())
        constants, held = self._constants.place(subgraph.constants)
        steps = programs.bind_steps(np, "cpu", subgraph, views, constants)
        modelled_s = {
            node.name: self.model.kernel_s(name_family(subgraph, node), get_cost(subgraph, node))
            for node, _ in steps
        }
        nodes_s = [modelled_s.get(node.name, 0.0) for node in subgraph.nodes]
        broken = [(node, _break(node, step, self.model.faults)) for node, step in steps]
        return _SimProgram(
            graph=subgraph,
            run=BoundProgram(self.name, subgraph, broken, measure=False),
            duration_ns=self._ns(self.model.submit_s + sum(nodes_s)),  # as `Costs` adds up
            node_ns=tuple(map(self._ns, nodes_s)) if measure else None,
            held=held,
        )

    def submit(
        self, program: Program, waits: Sequence[Event] = (), on_done: OnDone | None = None
    ) -> Event:
        assert isinstance(program, _SimProgram)
        event = SimEvent(self.clock, on_done)
        event.node_ns = program.node_ns
        return self._put(
            COMPUTE, SimulatedJob(event, program.run, program.duration_ns, tuple(waits))
        )

    def copy(
        self, target: View, source: View, waits: Sequence[Event] = (), on_done: OnDone | None = None
    ) -> Event:
        event = SimEvent(self.clock, on_done)
        work = partial(np.copyto, target.array, source.array)
        on_host = not HOST_MEMORIES.isdisjoint((source.arena.memory, target.arena.memory))
        take_s = self.model.copy_s if on_host else self.model.peer_copy_s
        duration_ns = self._ns(take_s(source.spec.nbytes))
        engine = UPLOAD if target.arena.memory == self.name else DOWNLOAD
        return self._put(engine, SimulatedJob(event, work, duration_ns, tuple(waits)))

    def lose(self, reason: str = "a fault was injected") -> None:
        """Lose the device for a `reason`: incomplete and later work fails."""
        self._fate.failure = DeviceLostError(
            f"device {self.name!r} is lost: {reason}", fix="close and open it, or plan without it"
        )

    def close(self) -> None:
        """Finish queued work, moving a virtual clock as far as needed."""
        engines = list(self._engines.values())
        # Engines wait for one another's events: one may advance only after another has.
        while not all(engine.is_drained for engine in engines):
            for engine in engines:
                engine.drain()
        with self._lock:
            self._engines.clear()
        if engines:
            self.clock.close()

    @property
    def failure(self) -> DeviceLostError | None:
        return self._fate.failure

    can_restart = True  # opening it again repairs it

    def kill(self, event: Event, reason: str) -> bool:
        return False

    def _ns(self, seconds: float) -> int:
        if seconds > LONGEST_S:
            raise DeviceError(
                f"by the model of {self.name!r} a program or copy takes {seconds:.3g} s",
                fix=f"give it speeds by which each takes at most {LONGEST_S:,} s",
            )
        return round(seconds * 1e9)

    def _put(self, engine: str, job: SimulatedJob) -> Event:
        with self._lock:
            if not self._engines:
                raise DeviceUnavailableError(f"device {self.name!r} is closed", fix="open it")
            self._accepted += 1
            # Before the work is queued: the job at which the device is lost fails, too.
            if self._accepted - 1 == self.model.faults.lost_after:
                self.lose()
            job.submitted_ns = self.clock.now_ns()
            self._engines[engine].put(job)
        return job.event

    def _release(self, nbytes: int) -> None:
        with self._lock:
            self._used_bytes -= nbytes


@dataclass(slots=True)
class _Fate:
    """The fault of one life of the device, if any."""

    failure: DeviceLostError | None = None

    def why(self) -> DeviceLostError | None:
        return self.failure


class _SimArena(Arena):
    """Memory that is filled with poison when allocated and when freed."""

    def __init__(self, memory: str, nbytes: int, release: Callable[[int], None]) -> None:
        super().__init__(memory, nbytes, host_arena(nbytes).buffer)
        self.buffer.fill(POISON)
        self._release = release

    def close(self) -> None:
        if self.buffer is not None:
            self.buffer.fill(POISON)
            self._release(self.nbytes)
        super().close()


@dataclass(frozen=True, slots=True)
class _SimProgram:
    graph: Graph
    run: BoundProgram
    duration_ns: int
    node_ns: tuple[int, ...] | None
    held: list[ConstantBatch]


def _break(node: Node, step: Step, faults: Faults) -> Step:
    error = faults.fail_nodes.get(node.name)
    if error is None:
        return step

    def fail() -> None:
        raise error.with_traceback(None)  # or each run would lengthen it

    return fail


def _upload(view: View, array: Array) -> None:
    np.copyto(view.array, array)


class SimEvent(Event):
    """An event that moves a virtual clock while a thread waits for it."""

    def __init__(self, clock: Clock, on_done: OnDone | None) -> None:
        super().__init__(on_done)
        self._clock = clock

    def wait(self, timeout_s: float | None = None) -> None:
        self._clock.hasten(lambda: self.done)
        super().wait(timeout_s)


@dataclass(slots=True)
class SimulatedJob:
    """A piece of work, its waits and its duration."""

    event: Event
    work: Callable[[], Any]
    duration_ns: int
    waits: tuple[Event, ...]
    submitted_ns: int = 0


class SimulatedEngine:
    """Starts each job when the previous one has ended and its waits are complete.

    The work itself runs when the modelled time is over. `lost` returns the error of a lost device,
    or None; jobs that are incomplete by then fail.
    """

    def __init__(self, clock: Clock, lost: Callable[[], DeviceLostError | None]) -> None:
        self._clock = clock
        self._lost = lost
        self._lock = threading.Lock()
        self._jobs: deque[SimulatedJob] = deque()
        self._is_running = False
        self._free_ns = 0
        self._last: Event | None = None

    @property
    def is_drained(self) -> bool:
        return self._last is None or self._last.done

    def drain(self) -> None:
        """Wait for the last queued job; its errors belong to the caller that queued it."""
        if self._last is not None:
            with suppress(Exception):
                self._last.wait()

    def put(self, job: SimulatedJob) -> None:
        with self._lock:
            self._jobs.append(job)
            self._last = job.event
        for wait in job.waits:
            if not wait.done:
                wait.on_done(self._start)
        self._start()

    def _start(self, _: Event | None = None) -> None:
        with self._lock:
            if self._is_running or not self._jobs:
                return
            if not all(wait.done for wait in self._jobs[0].waits):
                return
            job = self._jobs.popleft()
            self._is_running = True
        waited_ns = max((wait.ended_ns for wait in job.waits), default=0)
        job.event.started_ns = max(self._free_ns, job.submitted_ns, waited_ns)
        refusal = self._refusal(job)
        ended_ns = job.event.started_ns + (job.duration_ns if refusal is None else 0)
        self._clock.call_at(ended_ns, partial(self._finish, job, ended_ns, refusal))

    def _refusal(self, job: SimulatedJob) -> BaseException | None:
        failed = next((wait.error for wait in job.waits if wait.error is not None), None)
        if failed is not None:
            return failed
        if job.event.cancelled:
            return CancelledWorkError("the work was cancelled before it started")
        return self._lost()

    def _finish(self, job: SimulatedJob, ended_ns: int, refusal: BaseException | None) -> None:
        error = refusal or self._lost() or _try(job.work)
        self._free_ns = job.event.ended_ns = ended_ns
        with self._lock:
            self._is_running = False
        job.event.complete(error)
        self._start()


def _try(work: Callable[[], Any]) -> Exception | None:
    try:
        with np.errstate(all="ignore"):
            work()
    except Exception as error:
        return error
    return None
