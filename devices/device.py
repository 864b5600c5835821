"""The device protocol: the scheduler's requirements of a place that runs kernels.

Everything is bound at `compile` time, so that in the steady state `submit` allocates nothing and
costs microseconds. Arenas, views and programs are made when a plan is opened, never while items
run. A device has at least one lane: an in-order queue.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeGuard, runtime_checkable

from ..graph.core.infer import asking
from ..graph.core.ir import Graph, Node
from ..graph.core.nested import find_async_operator
from ..graph.core.operator import Call, Specs, strip_bounded_form
from ..graph.values.dtypes import TEXT, has_objects
from ..graph.values.tensor import Array, TensorSpec
from .errors import DeviceError, DeviceLostError
from .event import Event
from .memory import ALIGNMENT, HOST, Arena, View
from .refusals import find_refusal

if TYPE_CHECKING:
    from .operator_instances import OperatorInstances

OnDone: TypeAlias = Callable[[Event], None]

MOST_ALIGNMENT = 1 << 30
"""The coarsest alignment of offsets that a device may ask for, in bytes."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The properties of a device that planning uses.

    Attributes
    ----------
    memory : str
        The memory where its arenas lie.
    accesses : frozenset of str
        The memories that its kernels read and write in place.
    alignment : int
        Bytes, a power of two up to `MOST_ALIGNMENT`; every view's offset is a multiple of them, and
        of 64.
    memory_bytes : int or None
        Size of its memory; None if unknown.
    native_waits : bool
        True when `submit` and `copy` take events of this device that are not complete yet and keep
        the order themselves, so that a chain is submitted without a trip to the host.
    runs_python : bool
        True when Python functions run here.
    awaits : bool
        True when it also binds async functions. The session awaits their program's `fetch` on its
        event loop, and then has the program `run`, which stores the results.
    atomic_programs : bool
        True when a program is one unit: it reads its inputs and writes its outputs in its own
        order, so these must not share bytes, and it needs no buffers for tensors in between. The
        times of single nodes are unknown then.
    takes_donations : bool
        True when programs read donated arrays of views: those of Python functions, or with atomic
        programs any. Results of functions are donated then.
    takes_text : bool
        True when its programs read and write tensors of text, in this process.
    takes_objects : bool
        True when its programs pass Python objects on.
    software : str
        The software of its kernels, with the version, unless that is numpy: a saved plan loads only
        with the same.
    copies_from : frozenset of str
        The memories of other devices that its `copy` reads without a detour through the host. With
        `native_waits`, `submit` and `copy` also take events of those devices.

    Raises
    ------
    DeviceError
        If the alignment is not a power of two in this range.

    Examples
    --------
    >>> from plait.devices import Capabilities
    >>> Capabilities(memory="npu", accesses=frozenset({"npu"}), alignment=256).runs_python
    False
    """

    memory: str = HOST
    accesses: frozenset[str] = frozenset({HOST})
    alignment: int = ALIGNMENT
    memory_bytes: int | None = None
    native_waits: bool = False
    runs_python: bool = False
    awaits: bool = False
    atomic_programs: bool = False
    takes_donations: bool = False
    takes_text: bool = False
    takes_objects: bool = False
    software: str = ""
    copies_from: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        bits = self.alignment
        if not isinstance(bits, int) or not 0 < bits <= MOST_ALIGNMENT or bits & (bits - 1):
            raise DeviceError(
                f"the alignment is {self.alignment!r}",
                at=f"the capabilities of a device with memory {self.memory!r}",
                fix=f"give a power of two of bytes, {MOST_ALIGNMENT} at most",
            )


class Support(NamedTuple):
    """Whether a device can run a node, and the reason.

    Examples
    --------
    >>> import plait as pl
    >>> b = pl.GraphBuilder("relu")
    >>> b.output("y", b.op("Relu", b.input("x", "float32", (2,)), name="relu"))
    >>> graph = b.build()
    >>> pl.device("cpu").supports(graph.node("relu"), graph.call(graph.node("relu")))
    Support(ok=True, reason='has a kernel')
    """

    ok: bool
    reason: str


class Program(Protocol):
    """A subgraph bound to views: what a device's `compile` returns and its `submit` takes."""

    @property
    def graph(self) -> Graph:
        """The subgraph."""


class Rebindable(Program, Protocol):
    """A program that may serve other lengths of its tensors."""

    def rebound(self, views: Mapping[str, View]) -> Program | None:
        """Return the program bound to other `views`; None if their lengths need another program."""


class TakesConstants(Rebindable, Protocol):
    def rebound_with(
        self, views: Mapping[str, View], constants: Mapping[str, Array]
    ) -> Program | None:
        """Return the program bound to other `views` with other `constants`, by their names.

        None if these lengths or constants need another program.
        """


class SharesConstants(Program, Protocol):
    """A program with converted constants that other programs can share."""

    @property
    def loaded(self) -> Hashable:
        """The object that holds them, equal for all programs that share it."""


def is_rebindable(program: Program) -> TypeGuard[Rebindable]:
    return _has(type(program), "rebound")


def can_take_constants(program: Program) -> TypeGuard[TakesConstants]:
    return _has(type(program), "rebound_with")


def can_share_constants(program: Program) -> TypeGuard[SharesConstants]:
    return _has(type(program), "loaded")


@cache
def _has(kind: type, name: str) -> bool:
    """Return whether objects of `kind` have the attribute `name`.

    It is called for each new length: `isinstance` with a protocol checks all members each time,
    which takes longer on Python 3.11 (0.4 ms) than binding the program.
    """
    return hasattr(kind, name)


class Device(Protocol):
    """A place that runs kernels.

    Life cycle: constructed (cheap, holds nothing) → `open` → arena, view, compile, submit, copy →
    `close` (drains, then frees; afterwards `open` is allowed again). All methods may be called
    from any thread.

    Examples
    --------
    >>> import plait as pl
    >>> cpu = pl.device("cpu")
    >>> cpu.name, cpu.capabilities.memory, cpu.capabilities.runs_python
    ('cpu', 'host', True)
    """

    @property
    def name(self) -> str:
        """The name that users give: ``"cpu"``, ``"worker:0"``."""

    @property
    def capabilities(self) -> Capabilities:
        """The device's properties; valid before `open`.

        Raises
        ------
        DeviceUnavailableError
            If this machine lacks the device; the message has the reason.
        """

    def supports(self, node: Node, call: Call) -> Support:
        """Return whether the device can run `call` of `node`; reports show the reason."""

    def scratch(self, node: Node, call: Call, outputs: Specs) -> tuple[TensorSpec, ...]:
        """Return specs of scratch buffers for `node`, given its static `call` and `outputs`."""

    def open(self, cores: int | None = None) -> None:
        """Start lanes, threads, processes.

        `cores` limits the cores of the host that its kernels use at once; None for no limit.

        Raises
        ------
        DeviceUnavailableError
            If this machine lacks the device.
        """

    def arena(self, memory: str, nbytes: int) -> Arena:
        """Allocate an arena of `nbytes` in `memory`, which the device accesses.

        Raises
        ------
        DeviceMemoryError
            If the memory is too small.
        """

    def view(self, arena: Arena, offset: int, spec: TensorSpec) -> View:
        """Return a view of `arena` at `offset`, by `spec`: also a source or target of `copy`.

        Such arenas are in host memory, or in memory that it `copies_from`.
        """

    def compile(
        self, subgraph: Graph, views: Mapping[str, View], *, measure: bool = False
    ) -> Program:
        """Return a program of the nodes of `subgraph`, bound to `views` of its tensors.

        `views` holds every tensor of the subgraph but its constants, and scratch buffers under the
        names that `scratch_name` gives; with `atomic_programs` the inputs and outputs alone. With
        `measure`, each run's event has `node_ns`, unless programs are atomic.
        May be slow: it is called when a plan is opened. May write to arenas that are unused.
        """

    def submit(
        self, program: Program, waits: Sequence[Event] = (), on_done: OnDone | None = None
    ) -> Event:
        """Queue `program` after earlier ones; call `on_done` at its end; return its event at once.

        `waits` are events of this device, of one with its memory, or of one that it `copies_from`;
        empty unless it has `native_waits`. If one of them fails, the program does not run and its
        event fails with the same error.
        """

    def copy(
        self, target: View, source: View, waits: Sequence[Event] = (), on_done: OnDone | None = None
    ) -> Event:
        """Queue a copy from `source` to `target`, with `waits` and `on_done` as for `submit`.

        It is between one of its memories and a host memory, in either direction, or into its own
        memory, from there or from memory that it `copies_from`.
        """

    def close(self) -> None:
        """Finish the queued work, then free everything. Closing twice is allowed."""


@runtime_checkable
class Restartable(Protocol):
    """Implemented by a device that may die while this process lives on.

    `open` starts it again; programs and views from before are invalid then.

    Examples
    --------
    >>> import plait as pl
    >>> from plait.devices import Restartable
    >>> isinstance(pl.device("worker:0"), Restartable), isinstance(pl.device("cpu"), Restartable)
    (True, False)
    """

    @property
    def generation(self) -> int:
        """The number of starts."""

    @property
    def failure(self) -> DeviceLostError | None:
        """The reason of its loss; None while it lives, and when it is closed."""

    @property
    def can_restart(self) -> bool:
        """True when `open` can start it again."""

    @property
    def on_failure(self) -> list[Callable[[], object]]:
        """Callbacks for its death, on any thread; not called if the device cannot notice it."""

    def kill(self, event: Event, reason: str) -> bool:
        """Kill the device for `reason` if it executes `event`; return whether it did."""


@runtime_checkable
class Pollable(Protocol):
    """Implemented by a device that is cheap to poll for progress.

    Polling is faster than a notification by a thread, but occupies a processor.

    Examples
    --------
    >>> import plait as pl
    >>> from plait.devices import CudaDevice, Pollable
    >>> isinstance(CudaDevice("cuda:0"), Pollable), isinstance(pl.device("cpu"), Pollable)
    (True, False)
    """

    def attend(self, attendant: Callable[[], bool]) -> None:
        """Call `attendant` whenever this thread submits work, until the device is closed.

        It returns True if this thread will `poll` until the work is over, or else `watch`.
        """

    def leave(self, attendant: Callable[[], bool]) -> None:
        """Remove `attendant`."""

    def poll(self) -> bool:
        """Complete all finished work without waiting; return whether any is in flight."""

    def watch(self) -> None:
        """Make threads wait for the work in flight."""


@runtime_checkable
class Routed(Protocol):
    """Implemented by a device that knows the route of copies from another one's memory."""

    def way_from(self, memory: str) -> str:
        """Describe the route of copies from `memory` for reports: ``"directly"``."""


@runtime_checkable
class Remote(Protocol):
    """Implemented by a device in another process, perhaps on another machine.

    Its functions and kernels are assumed to take none of this machine's cores.
    """

    def reached(self) -> str:
        """Describe the connection and its speed for reports."""


@runtime_checkable
class Configured(Protocol):
    """Implemented by a device with options.

    Examples
    --------
    >>> import plait as pl
    >>> from plait.devices import Configured
    >>> isinstance(pl.device("cpu", threads=2), Configured)
    True
    """

    @property
    def options(self) -> Mapping[str, Any]:
        """The options that it was made with; a saved plan makes it with the same."""


@runtime_checkable
class Chaining(Protocol):
    """Implemented by a device that wants chains of elementwise nodes as one Fused node.

    Examples
    --------
    >>> import plait as pl
    >>> from plait.devices import Chaining
    >>> isinstance(pl.device("cpu"), Chaining)
    True
    """

    def chains(self, node: Node, call: Call) -> bool:
        """Return whether `node` may be part of a chain, given its `call` of static specs."""


@runtime_checkable
class Profiled(Protocol):
    """Implemented by a device with atomic programs that can attribute time to nodes."""

    def shares(self, subgraph: Graph) -> Mapping[str, float]:
        """Return the share of each node in the time of the static `subgraph`; may be slow.

        Empty if unknown.
        """


@runtime_checkable
class Scaling(Protocol):
    """Implemented by a device with programs that compute on several of the host's cores.

    It gets all cores while nothing else computes; see `scheduler/dispatch/core_shares.py`.
    """

    def compile_on(
        self, cores: int, subgraph: Graph, views: Mapping[str, View], *, measure: bool = False
    ) -> Program:
        """Return a program of `subgraph` on `views` as `compile` does, for `cores` cores.

        With `measure` it measures nodes.
        """

    def speedup(self, seconds: float, cores: int) -> float:
        """Return the factor by which `cores` cores shorten a program of `seconds` on one core."""

    def computes_on(self, cores: int) -> str:
        """Describe the hardware that programs use, given `cores` cores, for reports."""


@runtime_checkable
class Varying(Protocol):
    """Implemented by a device whose kind does not determine its speed.

    Its figures are measured before a plan first chooses between it and others, and kept for this
    hardware.

    Examples
    --------
    >>> import plait as pl
    >>> from plait.devices import Varying
    >>> isinstance(pl.device("cpu"), Varying)
    False
    """

    def hardware(self) -> str:
        """Describe all that the figures depend on: hardware, driver, versions."""

    def spare(self) -> Device:
        """Return another, closed device on the same hardware; this one may be in use."""


@runtime_checkable
class StatefulDevice(Protocol):
    """Implemented by a device that runs nodes with resources of their own.

    Examples
    --------
    >>> import plait as pl
    >>> from plait.devices import StatefulDevice
    >>> isinstance(pl.device("cpu"), StatefulDevice)
    True
    """

    def compile_with(
        self,
        subgraph: Graph,
        views: Mapping[str, View],
        lives: OperatorInstances,
        *,
        measure: bool = False,
    ) -> Program:
        """Return a program of `subgraph` on `views` as `compile` does, with instances in `lives`.

        With `measure` it measures nodes. Raises OperatorError, KernelError or DeviceMemoryError, as
        `OperatorInstances.of` does.
        """


def is_device(one: object) -> TypeGuard[Device]:
    return hasattr(one, "capabilities")


def scratch_specs(device: Device, graph: Graph, node: Node) -> dict[str, TensorSpec]:
    """Return the specs of scratch buffers of `node`, by their names in `views`.

    Examples
    --------
    >>> import plait as pl
    >>> from plait.devices import scratch_specs
    >>> b = pl.GraphBuilder("relu")
    >>> b.output("y", b.op("Relu", b.input("x", "float32", (2,)), name="relu"))
    >>> graph = b.build()
    >>> scratch_specs(pl.device("cpu"), graph, graph.node("relu"))
    {}
    """
    call = graph.call(node)
    with asking(node, call):
        specs = device.scratch(node, call, graph.output_specs(node))
    return {scratch_name(node, index): spec for index, spec in enumerate(specs)}


def scratch_name(node: Node, index: int) -> str:
    r"""Return the key in `views` of scratch buffer `index` of `node`, which no tensor has.

    Examples
    --------
    >>> import plait as pl
    >>> from plait.devices import scratch_name
    >>> b = pl.GraphBuilder("relu")
    >>> b.output("y", b.op("Relu", b.input("x", "float32", (2,)), name="relu"))
    >>> scratch_name(b.build().node("relu"), 0)
    'relu\x00scratch0'
    """
    return f"{node.name}\0scratch{index}"


def check_support(graph: Graph, node: Node, device: Device) -> Support:
    if find_async_operator(node) is not None and not device.capabilities.awaits:
        return Support(False, f"async functions do not run on {device.name!r}")
    dtypes = [graph.tensors[name].dtype for name in (*node.inputs, *node.outputs) if name]
    if any(map(has_objects, dtypes)) and not device.capabilities.takes_objects:
        return Support(False, f"Python objects do not go to {device.name!r}")
    has_text = any(dtype == TEXT and not has_objects(dtype) for dtype in dtypes)
    if has_text and not device.capabilities.takes_text:
        return Support(False, f"text does not go to {device.name!r}")
    if (reason := find_refusal(device, graph, node)) is not None:
        return Support(False, f"refused when it ran: {reason}")
    bounded = node.operator.bounded
    asked, call = node if bounded is None else replace(node, op=bounded), graph.call(node)
    with asking(node, call):
        answer = device.supports(asked, call)
    return answer._replace(reason=strip_bounded_form(answer.reason))


def supports_lengths(graph: Graph, node: Node, device: Device) -> bool:
    """Return whether `device`, which supports `node` at other lengths, does so at those in `graph`.

    Devices may have a quicker method of this name than `Device.supports`, which is asked otherwise.
    """
    is_quick = _has(type(device), "supports_lengths") and node.operator.bounded is None
    if is_quick and find_refusal(device, graph, node) is None:
        found: bool = device.supports_lengths(node, graph.call(node))  # type: ignore[attr-defined]
        return found
    return check_support(graph, node, device).ok


def explain_refusal(device: Device, graph: Graph, node: Node) -> str | None:
    """Return why `device` cannot run `node` of `graph`; None if it can."""
    answer = check_support(graph, node, device)
    return None if answer.ok else answer.reason
