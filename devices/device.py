"""The device protocol: what the scheduler asks of a place that runs kernels.

Everything is bound at `compile` time, so that in the steady state `submit` allocates nothing and
costs microseconds. Arenas, views and programs are made when a plan is opened, never while items
run. A device has at least one lane: an in-order queue.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import (
    TYPE_CHECKING,
    Any,
    NamedTuple,
    Protocol,
    TypeAlias,
    TypeGuard,
    runtime_checkable,
)

from ..graph.dtypes import TEXT, has_objects
from ..graph.infer import asking
from ..graph.ir import Graph, Node
from ..graph.nested import awaited
from ..graph.operator import Call, Specs, strip_bounded_form
from ..graph.tensor import TensorSpec
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
    """What a device is like, for the planner.

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
        How much memory there is; None when it is not known.
    native_waits : bool
        True when `submit` and `copy` take events of this device that are not complete yet and keep
        the order themselves, so that a chain is submitted without a trip to the host.
    runs_python : bool
        True when Python functions run here.
    awaits : bool
        True when it binds async functions too. These are nobody's work: the session awaits what
        their program's `fetch` does, on its event loop, and then has the program `run`, which
        stores the results.
    atomic_programs : bool
        True when a program is one piece: it reads its inputs and writes its outputs in an order of
        its own, so that none of these share bytes, and needs no buffers for tensors in between.
        There are no times of its nodes then.
    takes_donations : bool
        True when programs read the arrays of views' donations, if there are any: those of Python
        functions, and where programs are one piece all. What functions return is donated then.
    takes_text : bool
        True when its programs read and write tensors of text, in this process.
    takes_objects : bool
        True when its programs hand on Python objects.
    software : str
        What its kernels come from, with the version, where that is not numpy: a saved plan is
        loaded for the same one only.
    copies_from : frozenset of str
        The memories of other devices that its `copy` reads without a detour through the host; with
        `native_waits` it takes events of those devices, too, as of those that have its own memory.

    Raises
    ------
    DeviceError
        If the alignment is not such a power of two.

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
    """Whether a device can run a node, and why or why not.

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
        ...


class Rebindable(Program, Protocol):
    """A program that may serve other lengths of its tensors as it is."""

    def rebound(self, views: Mapping[str, View]) -> Program | None:
        """Return it bound to other views; None where their lengths take another program."""
        ...


class SharesConstants(Program, Protocol):
    """A program with forms of its own of constants, which others may have in common with it."""

    @property
    def loaded(self) -> Hashable:
        """What holds them; the same for all that share it."""
        ...


def is_rebindable(program: Program) -> TypeGuard[Rebindable]:
    """Say whether a program may serve other lengths."""
    return _has(type(program), "rebound")


def shares_constants(program: Program) -> TypeGuard[SharesConstants]:
    """Say whether others may have constants in common with a program."""
    return _has(type(program), "loaded")


@cache
def _has(kind: type, name: str) -> bool:
    """Say whether a class has an attribute; asked for each new length.

    `isinstance` of a protocol goes through all its members each time: on Python 3.11 that takes
    longer (0.4 ms) than to bind the program.
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
        """How users call it: ``"cpu"``, ``"worker:0"``."""
        ...

    @property
    def capabilities(self) -> Capabilities:
        """What it is like; valid before `open`.

        Raises
        ------
        DeviceUnavailableError
            If this machine lacks it; the message says why.
        """
        ...

    def supports(self, node: Node, call: Call) -> Support:
        """Say whether the device can run a node; the reason ends up in the plan's report."""
        ...

    def scratch(self, node: Node, call: Call, outputs: Specs) -> tuple[TensorSpec, ...]:
        """Return the scratch buffers that a node's kernel needs, given static specs."""
        ...

    def open(self, cores: int | None = None) -> None:
        """Start lanes, threads, processes.

        `cores` is how many of the host's cores its kernels may use at once, where it computes on
        them; as many as it likes when left out.

        Raises
        ------
        DeviceUnavailableError
            If this machine lacks it.
        """
        ...

    def arena(self, memory: str, nbytes: int) -> Arena:
        """Allocate an arena in one of the memories it accesses.

        Raises
        ------
        DeviceMemoryError
            If there is too little.
        """
        ...

    def view(self, arena: Arena, offset: int, spec: TensorSpec) -> View:
        """Return a view; the arena may also be one that `copy` reads or writes.

        Those are of host memory, or of devices that it `copies_from`.
        """
        ...

    def compile(
        self, subgraph: Graph, views: Mapping[str, View], *, measure: bool = False
    ) -> Program:
        """Bind a subgraph's nodes to views of its tensors.

        `views` holds every tensor of the subgraph but its constants, and scratch buffers under the
        names that `scratch_name` gives; with `atomic_programs` the inputs and outputs alone. With
        `measure`, each run's event has `node_ns`, unless programs are atomic.
        May be slow: it is called when a plan is opened.
        """
        ...

    def submit(
        self, program: Program, waits: Sequence[Event] = (), on_done: OnDone | None = None
    ) -> Event:
        """Queue a program behind what was submitted before; never blocks.

        `waits` are events of this device, of one that has its memory, or that it `copies_from`;
        empty unless it has `native_waits`. When one of them failed, the program does not run and
        its event fails with the same error.
        """
        ...

    def copy(
        self,
        target: View,
        source: View,
        waits: Sequence[Event] = (),
        on_done: OnDone | None = None,
    ) -> Event:
        """Queue a copy between one of its memories and a host memory, in either direction.

        Or into its own memory, from there or from one that it `copies_from`.
        """
        ...

    def close(self) -> None:
        """Finish what is queued, then free everything. Closing twice is allowed."""
        ...


@runtime_checkable
class Restartable(Protocol):
    """What a device adds that may die while this process lives on.

    `open` starts it in place of what has died; what was bound before is of no use then.

    Examples
    --------
    >>> import plait as pl
    >>> from plait.devices import Restartable
    >>> isinstance(pl.device("worker:0"), Restartable), isinstance(pl.device("cpu"), Restartable)
    (True, False)
    """

    @property
    def generation(self) -> int:
        """How many times it has been started."""
        ...

    @property
    def failure(self) -> DeviceLostError | None:
        """Why it is lost; None while it lives, and when it is closed."""
        ...

    @property
    def can_restart(self) -> bool:
        """True when `open` can start it again."""
        ...

    @property
    def on_failure(self) -> list[Callable[[], object]]:
        """What to call, on any thread, when it dies; a device that cannot tell calls nothing."""
        ...

    def kill(self, event: Event, reason: str) -> bool:
        """End the device if it works at this event; say whether it did."""
        ...


@runtime_checkable
class Pollable(Protocol):
    """What a device adds that can be asked at little cost whether its work is over.

    To ask is sooner than to be told by a thread, and takes a processor meanwhile.

    Examples
    --------
    >>> import plait as pl
    >>> from plait.devices import Pollable
    >>> from plait.devices.cuda.device import CudaDevice
    >>> isinstance(CudaDevice("cuda:0"), Pollable), isinstance(pl.device("cpu"), Pollable)
    (True, False)
    """

    def attend(self, attendant: Callable[[], bool]) -> None:
        """Call `attendant` whenever this thread submits work, until the device is closed.

        True means that this thread will `poll` until the work is over, or else `watch`.
        """
        ...

    def leave(self, attendant: Callable[[], bool]) -> None:
        """Call an attendant no more."""
        ...

    def poll(self) -> bool:
        """Complete what is over, without waiting; say whether something is under way."""
        ...

    def watch(self) -> None:
        """Have threads wait for what is under way."""
        ...


@runtime_checkable
class Routed(Protocol):
    """What a device adds that knows how copies from another one's memory go."""

    def way_from(self, memory: str) -> str:
        """Return it in words, for reports: ``"directly"``."""
        ...


@runtime_checkable
class Remote(Protocol):
    """What a device adds that computes in another process, which may be on another machine.

    Its functions and kernels take none of this machine's cores from others, as far as is known.
    """

    def reached(self) -> str:
        """Return how it is reached and how fast, in words, for reports."""
        ...


@runtime_checkable
class Configured(Protocol):
    """What a device adds that has options.

    Examples
    --------
    >>> import plait as pl
    >>> from plait.devices import Configured
    >>> isinstance(pl.device("cpu", threads=2), Configured)
    True
    """

    @property
    def options(self) -> Mapping[str, Any]:
        """Return those that it was made with; a saved plan makes it with the same."""
        ...


@runtime_checkable
class Chaining(Protocol):
    """What a device adds that asks for chains of elementwise nodes as one Fused node.

    Examples
    --------
    >>> import plait as pl
    >>> from plait.devices import Chaining
    >>> isinstance(pl.device("cpu"), Chaining)
    True
    """

    def chains(self, node: Node, call: Call) -> bool:
        """True when a node may be part of one, given its static specs."""
        ...


@runtime_checkable
class Profiled(Protocol):
    """What a device with atomic programs adds that can tell where in them time goes."""

    def shares(self, subgraph: Graph) -> Mapping[str, float]:
        """Return which share of a static subgraph's time each node takes, by name; may be slow.

        Nothing where it cannot be told.
        """
        ...


@runtime_checkable
class Scaling(Protocol):
    """What a device adds whose programs compute on several of the host's cores at once.

    While nothing else computes it is given all cores; see `plait.scheduler.dispatch.core_shares`.
    """

    def compile_on(
        self, cores: int, subgraph: Graph, views: Mapping[str, View], *, measure: bool = False
    ) -> Program:
        """Do as `compile`, for a program that may compute on so many cores."""
        ...

    def speedup(self, seconds: float, cores: int) -> float:
        """Return by what factor a program that takes so long on one core is faster on several."""
        ...

    def computes_on(self, cores: int) -> str:
        """Return on what its programs compute, given so many cores, in words, for reports."""
        ...


@runtime_checkable
class Varying(Protocol):
    """What a device adds whose kind says little of how fast it is.

    Before a plan first has to choose between it and others, its figures are measured, and kept for
    this hardware.

    Examples
    --------
    >>> import plait as pl
    >>> from plait.devices.device import Varying
    >>> isinstance(pl.device("cpu"), Varying)
    False
    """

    def hardware(self) -> str:
        """Return all that its figures depend on, in words: hardware, driver, versions."""
        ...

    def spare(self) -> Device:
        """Return another device on the same hardware, closed; this one may be in use."""
        ...


@runtime_checkable
class StatefulDevice(Protocol):
    """What a device adds that runs nodes which own something.

    See `plait.graph.operator_lifecycle`.
    """

    def compile_with(
        self,
        subgraph: Graph,
        views: Mapping[str, View],
        lives: OperatorInstances,
        *,
        measure: bool = False,
    ) -> Program:
        """Do as `compile`; some nodes are instances of classes, and `lives` keeps those.

        Raises
        ------
        OperatorError, KernelError, DeviceMemoryError
            What `OperatorInstances.of` raises.
        """
        ...


def is_device(one: object) -> TypeGuard[Device]:
    """Say whether an object is meant as a device, by what planning asks of it first."""
    return hasattr(one, "capabilities")


def scratch_specs(device: Device, graph: Graph, node: Node) -> dict[str, TensorSpec]:
    """Return the specs of a node's scratch buffers, by the names that they have in `views`.

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
    r"""Return the name under which a node's scratch buffer stands in `views`; no tensor has it.

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


def support(graph: Graph, node: Node, device: Device) -> Support:
    """Say whether a device can run a node of a graph."""
    if awaited(node) is not None and not device.capabilities.awaits:
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


def why_not(device: Device, graph: Graph, node: Node) -> str | None:
    """Return why a device cannot run a node of a graph; None where it can."""
    answer = support(graph, node, device)
    return None if answer.ok else answer.reason
