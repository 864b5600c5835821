"""Measuring devices by short runs: how fast they compute, copy, and take up work.

Every figure is the fastest of many runs: what else the machine does only ever adds to it. A run is
short enough to fit between two moments at which the system gives a core to somebody else, so that
on a busy machine, too, some runs are whole; only when several agree is a figure believed, and else
it is said that there is none. The runs differ in size, so that what a run costs at all can be told
from what its size costs; they take turns, so that no figure alone suffers from a time in which the
machine is busy. A device is opened as a session of its own opens it, which leaves a core to the
loop; one whose programs scale has one core, as figures are of one.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import accumulate, permutations
from time import perf_counter_ns
from typing import Any, NamedTuple, TypeAlias

from ...devices.device import Device, Scaling, scratch_specs
from ...devices.errors import DeviceError
from ...devices.host import core_count
from ...devices.kinds import model_of
from ...devices.memory import ALIGNMENT, HOST, SHARED, Arena, SharedArena, View, host_arena
from ...devices.model import DeviceModel
from ...graph.infer import cost_of
from ...graph.ir import Graph, Node
from ...graph.operator import Cost
from ...graph.tensor import Shape, TensorSpec
from .costs import Costs
from .figures import Link

MATRIX_SIDES = (16, 32, 64, 96, 128, 192, 256, 384, 512, 1024)
STREAM_ELEMENTS = (1 << 12, 1 << 16, 1 << 18, 1 << 20, 1 << 22)
COPY_BYTES = (1 << 12, 1 << 18, 1 << 21)
UNDISTURBED_S = 2e-3
"""The largest product, and stream, that takes no longer tells a speed: systems leave a core to a
thread for some milliseconds at least."""

MORE = 20
REPEATS, MOST_REPEATS = 30, 600
FEWEST = 3
"""So many runs there are of everything, however long they take; so many have to agree."""

AGREEING = 1.2
"""Runs agree that are longer than the shortest by no more than this factor."""

UNDISTURBED = 1.5
"""What takes longer than the shortest by more than this factor was disturbed."""

BUDGET_S, LIMIT_S = 0.4, 3.0
"""After the first time a figure is taken from the runs that there were, if they agree; after the
second in any case, unless it is asked for sooner."""

MOSTLY = 2.0
"""A run must take so many times what it costs at all, for its size to be told from that."""

WAIT_S = 60.0


Clock: TypeAlias = Callable[[], int]
"""Tells the time in nanoseconds."""


Note: TypeAlias = Callable[[str], object]
"""Takes a remark for whoever waits."""


def measure(
    devices: Mapping[str, Device],
    *,
    clock: Clock = perf_counter_ns,
    note: Note = lambda _: None,
    limit_s: float = LIMIT_S,
) -> Costs:
    """Run each device for about a second and return what was found; they must be closed.

    Copies from one of them to another are measured where that takes no detour through the host.
    Devices that have a model of their own, such as simulated ones, are left as they are. What could
    not be measured, as no runs agreed for `limit_s` seconds, stays what it is by the model, and
    `note` is told.

    Raises
    ------
    DeviceError
        If a device fails.
    """
    watch = _Watch(clock, limit_s)
    models: dict[str, DeviceModel] = {}
    links: dict[tuple[str, str], Link] = {}
    for name, device in devices.items():
        model = model_of(device, name)
        # Who knows better, by a data sheet or an earlier measurement, is believed.
        if model.is_guess:
            with _opened(device):
                model = _measured(device, model, watch, note)
                links |= _links(device, watch)
        models[name] = model
    links |= measure_peers(devices.values(), clock=clock)
    memories = {name: device.capabilities.memory for name, device in devices.items()}
    return Costs(models=models, memories=memories, links=links)


@contextmanager
def _opened(device: Device) -> Iterator[None]:
    # As sessions open it: figures of all cores would be too good beside the loop and the
    # neighbours.
    device.open(1 if isinstance(device, Scaling) else max(1, core_count() - 1))
    try:
        yield
    finally:
        device.close()


def measure_peers(
    devices: Iterable[Device], *, clock: Clock = perf_counter_ns
) -> dict[tuple[str, str], Link]:
    """Return how fast closed devices copy from each other, where that takes one copy.

    Raises
    ------
    DeviceError
        If a device fails.
    """
    found = {}
    real = [device for device in devices if model_of(device, device.name).is_guess]
    for device, other in permutations(real, 2):
        source, target = other.capabilities.memory, device.capabilities.memory
        if source in device.capabilities.copies_from:
            with _opened(other), _opened(device):
                found[source, target] = _link(device, source, target, _Watch(clock), other)
    return found


def agreed(found: Iterable[float]) -> float | None:
    """Return the least of some figures; None unless several are about that."""
    # Other processes only ever add: several runs that agree at the lower end were disturbed least.
    fastest = sorted(found)[:FEWEST]
    agree = len(fastest) == FEWEST and fastest[-1] <= AGREEING * fastest[0]
    return fastest[0] if agree else None


def undisturbed(found: Sequence[float]) -> float | None:
    """Return the median of figures that nothing seems to have added to; None unless some agree."""
    least = agreed(found)
    if least is None:
        return None
    return statistics.median(one for one in found if one <= UNDISTURBED * least)


class _Watch(NamedTuple):
    """Times runs, and tells how long they are waited for that do not agree."""

    clock: Clock
    limit_s: float = LIMIT_S


_FREE = Cost(0, 0)


@dataclass(slots=True, eq=False)
class _Run:
    """What can be run again and again, and the seconds of the fastest runs so far."""

    once: Callable[[], None]
    cost: Cost = _FREE
    fastest: list[float] = field(default_factory=list)

    def add(self, seconds: float) -> None:
        self.fastest = sorted([*self.fastest, seconds])[:FEWEST]

    @property
    def seconds(self) -> float:
        """Of the fastest run."""
        return self.fastest[0]

    @property
    def agrees(self) -> bool:
        """True when several runs were about as fast as the fastest."""
        return agreed(self.fastest) is not None


def _measured(device: Device, model: DeviceModel, watch: _Watch, note: Note) -> DeviceModel:
    """Return a device's model with what short runs say in it."""
    with ExitStack() as arenas:
        # Of elementwise nodes some devices make one kernel, of products none.
        op = "MatMul" if _supports(device, _chain("MatMul", 1, (4, 4))) else "Relu"
        bound = [_bound(device, _chain(op, count, (4, 4)), arenas) for count in (1, 1 + MORE)]
        streams = [_chain("Relu", 1, (elements,)) for elements in STREAM_ELEMENTS]
        larger = [
            _largest(device, graphs, arenas, watch)
            for graphs in (streams, [_chain("MatMul", 1, (n, n)) for n in MATRIX_SIDES])
        ]
        one, many, stream, product = (*bound, *larger)
        if one is None or many is None:
            raise DeviceError(f"device {device.name!r} cannot run Relu, which measuring takes")
        _repeat([run for run in (one, many, stream, product) if run is not None], watch)
    found: dict[str, Any] = {}
    if one.agrees and many.agrees:
        # The difference of two programs: what both take to be submitted cancels out.
        found["launch_s"] = max((many.seconds - one.seconds) / MORE, 1e-8)
        found["submit_s"] = max(one.seconds - found["launch_s"], 0.0)
    if stream is not None and _tells(stream, one):
        found["bytes_per_s"] = stream.cost.nbytes / (stream.seconds - one.seconds)
    if product is not None and _tells(product, one):
        found["flops_per_s"] = product.cost.flops / (product.seconds - one.seconds)
    missing = [name for name in _FIGURES if name not in found]
    if missing:
        note(
            f"{device.name}: {', '.join(missing)} could not be measured, since no {FEWEST} runs "
            "agreed: is the machine very busy? What is built in stays"
        )
    return replace(model, is_guess=len(missing) == len(_FIGURES), **found)


_FIGURES = ("launch_s", "submit_s", "bytes_per_s", "flops_per_s")


def _tells(run: _Run, least: _Run) -> bool:
    """True when what a run takes is known, and mostly due to its size."""
    return run.agrees and run.seconds >= MOSTLY * least.seconds


def _largest(
    device: Device, graphs: Sequence[Graph], arenas: ExitStack, watch: _Watch
) -> _Run | None:
    """Return the last graph that is expected to be undisturbed, bound; they grow."""
    found: _Run | None = None
    for graph in graphs:
        cost = cost_of(graph, graph.nodes[0])
        # A graph that takes longer is likelier to be disturbed, and tells no more.
        if found is not None and found.seconds * cost.flops / found.cost.flops > UNDISTURBED_S:
            break
        run = _bound(device, graph, arenas)
        if run is None:
            break
        _repeat([run], watch)
        found = run
    return found


def _bound(device: Device, graph: Graph, arenas: ExitStack) -> _Run | None:
    """Return a graph bound to memory that is freed with others; None if the device lacks a node."""
    if not _supports(device, graph):
        return None
    specs = dict(graph.tensors)
    # It has no room for what lies between.
    if device.capabilities.atomic_programs:
        specs = {name: specs[name] for name in (*graph.inputs, *graph.outputs)}
    else:
        for one in graph.nodes:
            specs |= scratch_specs(device, graph, one)
    align = max(ALIGNMENT, device.capabilities.alignment)
    sizes = {name: -(-spec.nbytes // align) * align for name, spec in specs.items()}
    arena = device.arena(device.capabilities.memory, sum(sizes.values()))
    arenas.callback(arena.close)
    starts = accumulate(sizes.values(), initial=0)
    views = {
        name: device.view(arena, offset, specs[name])
        for name, offset in zip(specs, starts, strict=False)
    }
    for name in graph.inputs:
        _clear(device, views[name])
    program = device.compile(graph, views)
    return _Run(lambda: device.submit(program).wait(WAIT_S), cost_of(graph, graph.nodes[0]))


def _supports(device: Device, graph: Graph) -> bool:
    node = graph.nodes[0]
    return device.supports(node, graph.call(node)).ok


def _clear(device: Device, view: View) -> None:
    """Write zeros: what lies in memory by chance may be numbers that are slow to compute with."""
    zeros = host_arena(view.spec.nbytes)
    zeros.buffer[:] = 0
    _copy(device, view, device.view(zeros, 0, view.spec))
    zeros.close()


def _links(device: Device, watch: _Watch) -> dict[tuple[str, str], Link]:
    """Return how fast bytes go between the device's memory and those of the host."""
    memory = device.capabilities.memory
    found = {}
    for other in (HOST, SHARED):
        if other != memory:
            found[other, memory] = _link(device, other, memory, watch)
            found[memory, other] = _link(device, memory, other, watch)
    return found


def _link(
    device: Device, source: str, target: str, watch: _Watch, owner: Device | None = None
) -> Link:
    """Return how fast a device copies; `owner` is that of the source if it is another device."""
    with ExitStack() as arenas:
        # Two sizes, for two unknowns: latency and speed.
        runs = [_Run(_copying(device, source, target, n, owner, arenas)) for n in COPY_BYTES]
        _repeat(runs, watch)
    small, large = (COPY_BYTES[0], runs[0].seconds), (COPY_BYTES[-1], runs[-1].seconds)
    if large[1] < MOSTLY * small[1]:  # no telling latency from speed: both are at least so good
        return Link(large[1] / 2, large[0] / (large[1] / 2))
    per_byte = (large[1] - small[1]) / (large[0] - small[0])
    return Link(max(small[1] - small[0] * per_byte, 0.0), 1 / per_byte)


def _copying(
    device: Device, source: str, target: str, nbytes: int, owner: Device | None, arenas: ExitStack
) -> Callable[[], None]:
    """Return what copies so many bytes."""
    spec, views = TensorSpec("uint8", (nbytes,)), list[View]()
    for side, memory in ((owner or device, source), (device, target)):
        arena = _arena(side, memory, nbytes)
        arenas.callback(arena.close)
        views.append(device.view(arena, 0, spec))
    return lambda: _copy(device, views[1], views[0])


def _copy(device: Device, target: View, source: View) -> None:
    device.copy(target, source).wait(WAIT_S)


def _arena(device: Device, memory: str, nbytes: int) -> Arena:
    if memory == device.capabilities.memory:
        return device.arena(memory, nbytes)
    return SharedArena(nbytes) if memory == SHARED else host_arena(nbytes)


def _repeat(runs: Sequence[_Run], watch: _Watch) -> None:
    """Time several runs of each, which take turns; what each does first is left out."""
    for run in runs:
        run.once()
    spent = [0.0] * len(runs)
    for turn in range(MOST_REPEATS):
        if turn >= REPEATS and all(run.agrees for run in runs):
            break
        for place, run in enumerate(runs):
            # In turns, so that a disturbance does not strike all runs of one.
            if turn < FEWEST or spent[place] < (BUDGET_S if run.agrees else watch.limit_s):
                start = watch.clock()
                run.once()
                seconds = (watch.clock() - start) / 1e9
                run.add(seconds)
                spent[place] += seconds


def _chain(op: str, count: int, shape: Shape) -> Graph:
    """Return a graph of so many nodes, one behind the other; products share their other input."""
    more = ("w",) if op == "MatMul" else ()
    nodes = [Node(f"n{i}", op, (f"t{i}", *more), (f"t{i + 1}",)) for i in range(count)]
    names = (*more, *(f"t{i}" for i in range(count + 1)))
    tensors = dict.fromkeys(names, TensorSpec("float32", shape))
    return Graph("measured", ("t0", *more), (f"t{count}",), tuple(nodes), tensors, {})
