"""Measures devices by short runs: speed of computing and copying, and overhead.

Every figure is the fastest of many runs: other load only adds to it. A run is short enough to fit
between two preemptions, so that some runs are undisturbed on a busy machine as well. A figure is
accepted only if several runs agree, and otherwise reported as missing. Runs of different sizes
separate the fixed cost from the cost by size. They take turns, so that a busy period does not
affect only one figure. A device is opened as a session opens it, which leaves a core to the loop;
one with scaling programs gets one core, since figures are for one.
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
from ...devices.host import count_cores
from ...devices.kinds import get_model
from ...devices.memory import ALIGNMENT, HOST, SHARED, Arena, SharedArena, View, host_arena
from ...devices.model import DeviceModel
from ...graph.core.infer import get_cost
from ...graph.core.ir import Graph, Node
from ...graph.core.operator import Cost
from ...graph.values.tensor import Shape, TensorSpec
from .costs import Costs
from .figures import Link

MATRIX_SIDES = (16, 32, 64, 96, 128, 192, 256, 384, 512, 1024)
STREAM_ELEMENTS = (1 << 12, 1 << 16, 1 << 18, 1 << 20, 1 << 22)
COPY_BYTES = (1 << 12, 1 << 18, 1 << 21)
UNDISTURBED_S = 2e-3
"""Limit of the largest product and stream: systems preempt threads after some milliseconds."""

MORE = 20
REPEATS, MOST_REPEATS = 30, 600
FEWEST = 3
"""Minimal number of runs, however long they take, and of runs that must agree."""

AGREEING = 1.2
"""Runs agree if they exceed the shortest by no more than this factor."""

UNDISTURBED = 1.5
"""Runs that exceed the shortest by more than this factor were disturbed."""

BUDGET_S, LIMIT_S = 0.4, 3.0
"""Times after which a figure is taken from the runs so far: the first if they agree, the second in
any case, unless the caller gives a shorter one."""

MOSTLY = 2.0
"""Ratio of a run's time to the fixed cost from which its size is measurable."""

WAIT_S = 60.0


Clock: TypeAlias = Callable[[], int]
"""Returns the time in nanoseconds."""


Note: TypeAlias = Callable[[str], object]
"""Called with remarks for the user."""


def measure(
    devices: Mapping[str, Device],
    *,
    clock: Clock = perf_counter_ns,
    note: Note = lambda _: None,
    limit_s: float = LIMIT_S,
) -> Costs:
    """Run each of the closed `devices` for about a second and return its figures.

    Direct copies between these devices are measured as well. Devices with their own model, such as
    simulated ones, are not measured. Figures for which no runs agreed within `limit_s` seconds keep
    the model's values, and `note` is called. Raises DeviceError if a device fails.
    """
    watch = _Watch(clock, limit_s)
    models: dict[str, DeviceModel] = {}
    links: dict[tuple[str, str], Link] = {}
    for name, device in devices.items():
        model = get_model(device, name)
        # A model given by the user or an earlier measurement takes precedence.
        if model.is_guess:
            with _open(device):
                model = _measure_model(device, model, watch, note)
                links |= _measure_links(device, watch)
        models[name] = model
    links |= measure_peers(devices.values(), clock=clock)
    memories = {name: device.capabilities.memory for name, device in devices.items()}
    return Costs(models=models, memories=memories, links=links)


@contextmanager
def _open(device: Device) -> Iterator[None]:
    # As sessions open it: with all cores, figures would ignore the loop and other devices.
    device.open(1 if isinstance(device, Scaling) else max(1, count_cores() - 1))
    try:
        yield
    finally:
        device.close()


def measure_peers(
    devices: Iterable[Device], *, clock: Clock = perf_counter_ns
) -> dict[tuple[str, str], Link]:
    found = {}
    real = [device for device in devices if get_model(device, device.name).is_guess]
    for device, other in permutations(real, 2):
        source, target = other.capabilities.memory, device.capabilities.memory
        if source in device.capabilities.copies_from:
            with _open(other), _open(device):
                found[source, target] = _measure_link(device, source, target, _Watch(clock), other)
    return found


def find_agreement(found: Iterable[float]) -> float | None:
    """Return the least of the figures `found` if several are close to it, else None."""
    # Other processes only add time: agreeing fastest runs were disturbed least.
    fastest = sorted(found)[:FEWEST]
    agree = len(fastest) == FEWEST and fastest[-1] <= AGREEING * fastest[0]
    return fastest[0] if agree else None


def find_undisturbed(found: Sequence[float]) -> float | None:
    """Return the median of undisturbed figures in `found`; None unless some agree."""
    least = find_agreement(found)
    if least is None:
        return None
    return statistics.median(one for one in found if one <= UNDISTURBED * least)


class _Watch(NamedTuple):
    """The clock, and the time limit for disagreeing runs."""

    clock: Clock
    limit_s: float = LIMIT_S


_FREE = Cost(0, 0)


@dataclass(slots=True, eq=False)
class _Run:
    """A repeatable run, with the times of the fastest ones so far."""

    once: Callable[[], None]
    cost: Cost = _FREE
    fastest: list[float] = field(default_factory=list)

    def add(self, seconds: float) -> None:
        self.fastest = sorted([*self.fastest, seconds])[:FEWEST]

    @property
    def seconds(self) -> float:
        return self.fastest[0]

    @property
    def agrees(self) -> bool:
        return find_agreement(self.fastest) is not None


def _measure_model(device: Device, model: DeviceModel, watch: _Watch, note: Note) -> DeviceModel:
    with ExitStack() as arenas:
        # Some devices fuse elementwise nodes to one kernel, but never products.
        op = "MatMul" if _supports(device, _build_chain("MatMul", 1, (4, 4))) else "Relu"
        bound = [_bind(device, _build_chain(op, count, (4, 4)), arenas) for count in (1, 1 + MORE)]
        streams = [_build_chain("Relu", 1, (elements,)) for elements in STREAM_ELEMENTS]
        larger = [
            _bind_largest(device, graphs, arenas, watch)
            for graphs in (streams, [_build_chain("MatMul", 1, (n, n)) for n in MATRIX_SIDES])
        ]
        one, many, stream, product = (*bound, *larger)
        if one is None or many is None:
            raise DeviceError(f"device {device.name!r} cannot run Relu, which measuring takes")
        _repeat([run for run in (one, many, stream, product) if run is not None], watch)
    found: dict[str, Any] = {}
    if one.agrees and many.agrees:
        # The difference of two programs: their submission cancels out.
        found["launch_s"] = max((many.seconds - one.seconds) / MORE, 1e-8)
        found["submit_s"] = max(one.seconds - found["launch_s"], 0.0)
    if stream is not None and _is_informative(stream, one):
        found["bytes_per_s"] = stream.cost.nbytes / (stream.seconds - one.seconds)
    if product is not None and _is_informative(product, one):
        found["flops_per_s"] = product.cost.flops / (product.seconds - one.seconds)
    missing = [name for name in _FIGURES if name not in found]
    if missing:
        note(
            f"{device.name}: {', '.join(missing)} could not be measured, since no {FEWEST} runs "
            "agreed: is the machine very busy? What is built in stays"
        )
    return replace(model, is_guess=len(missing) == len(_FIGURES), **found)


_FIGURES = ("launch_s", "submit_s", "bytes_per_s", "flops_per_s")


def _is_informative(run: _Run, least: _Run) -> bool:
    return run.agrees and run.seconds >= MOSTLY * least.seconds


def _bind_largest(
    device: Device, graphs: Sequence[Graph], arenas: ExitStack, watch: _Watch
) -> _Run | None:
    found: _Run | None = None
    for graph in graphs:
        cost = get_cost(graph, graph.nodes[0])
        # A longer graph is more likely to be disturbed, and not more informative.
        if found is not None and found.seconds * cost.flops / found.cost.flops > UNDISTURBED_S:
            break
        run = _bind(device, graph, arenas)
        if run is None:
            break
        _repeat([run], watch)
        found = run
    return found


def _bind(device: Device, graph: Graph, arenas: ExitStack) -> _Run | None:
    """Bind a graph to memory that `arenas` frees; None if the device does not support it."""
    if not _supports(device, graph):
        return None
    specs = dict(graph.tensors)
    # Atomic programs have no intermediate tensors.
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
    return _Run(lambda: device.submit(program).wait(WAIT_S), get_cost(graph, graph.nodes[0]))


def _supports(device: Device, graph: Graph) -> bool:
    node = graph.nodes[0]
    return device.supports(node, graph.call(node)).ok


def _clear(device: Device, view: View) -> None:
    zeros = host_arena(view.spec.nbytes)
    zeros.buffer[:] = 0
    _copy(device, view, device.view(zeros, 0, view.spec))
    zeros.close()


def _measure_links(device: Device, watch: _Watch) -> dict[tuple[str, str], Link]:
    memory = device.capabilities.memory
    found = {}
    for other in (HOST, SHARED):
        if other != memory:
            found[other, memory] = _measure_link(device, other, memory, watch)
            found[memory, other] = _measure_link(device, memory, other, watch)
    return found


def _measure_link(
    device: Device, source: str, target: str, watch: _Watch, owner: Device | None = None
) -> Link:
    """Measure copies by `device` to `target`; `owner` is the device of `source`, if another one."""
    with ExitStack() as arenas:
        # Two sizes for two unknowns: latency and speed.
        runs = [_Run(_make_copy(device, source, target, n, owner, arenas)) for n in COPY_BYTES]
        _repeat(runs, watch)
    small, large = (COPY_BYTES[0], runs[0].seconds), (COPY_BYTES[-1], runs[-1].seconds)
    if large[1] < MOSTLY * small[1]:  # indistinguishable: both are at least this good
        return Link(large[1] / 2, large[0] / (large[1] / 2))
    per_byte = (large[1] - small[1]) / (large[0] - small[0])
    return Link(max(small[1] - small[0] * per_byte, 0.0), 1 / per_byte)


def _make_copy(
    device: Device, source: str, target: str, nbytes: int, owner: Device | None, arenas: ExitStack
) -> Callable[[], None]:
    spec, views = TensorSpec("uint8", (nbytes,)), list[View]()
    for side, memory in ((owner or device, source), (device, target)):
        arena = _allocate(side, memory, nbytes)
        arenas.callback(arena.close)
        views.append(device.view(arena, 0, spec))
    return lambda: _copy(device, views[1], views[0])


def _copy(device: Device, target: View, source: View) -> None:
    device.copy(target, source).wait(WAIT_S)


def _allocate(device: Device, memory: str, nbytes: int) -> Arena:
    if memory == device.capabilities.memory:
        return device.arena(memory, nbytes)
    return SharedArena(nbytes) if memory == SHARED else host_arena(nbytes)


def _repeat(runs: Sequence[_Run], watch: _Watch) -> None:
    """Time all `runs` in turns with `watch`, several times; the first time does not count."""
    for run in runs:
        run.once()
    spent = [0.0] * len(runs)
    for turn in range(MOST_REPEATS):
        if turn >= REPEATS and all(run.agrees for run in runs):
            break
        for place, run in enumerate(runs):
            # In turns, so that a disturbance does not affect all runs of one.
            if turn < FEWEST or spent[place] < (BUDGET_S if run.agrees else watch.limit_s):
                start = watch.clock()
                run.once()
                seconds = (watch.clock() - start) / 1e9
                run.add(seconds)
                spent[place] += seconds


def _build_chain(op: str, count: int, shape: Shape) -> Graph:
    more = ("w",) if op == "MatMul" else ()
    nodes = [Node(f"n{i}", op, (f"t{i}", *more), (f"t{i + 1}",)) for i in range(count)]
    names = (*more, *(f"t{i}" for i in range(count + 1)))
    tensors = dict.fromkeys(names, TensorSpec("float32", shape))
    return Graph("measured", ("t0", *more), (f"t{count}",), tuple(nodes), tensors, {})
