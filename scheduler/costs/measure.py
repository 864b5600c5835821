"""Measuring devices by short runs: how fast they compute, copy, and take up work.

Every figure is the fastest of several runs: what else the machine does only ever adds to it. The
runs differ in size, so that what a run costs at all can be told from what its size costs; they take
turns, so that no figure alone suffers from a time in which the machine is busy. A device is opened
as a session of its own opens it, which leaves a core to the loop.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate, permutations
from time import perf_counter_ns
from typing import TypeAlias

from ...devices.device import Device, scratch_specs
from ...devices.errors import DeviceError
from ...devices.host import core_count
from ...devices.memory import ALIGNMENT, HOST, SHARED, Arena, SharedArena, View, host_arena
from ...devices.model import DeviceModel, model_of
from ...graph.infer import cost_of
from ...graph.ir import Graph, Node
from ...graph.operator import Cost
from ...graph.tensor import TensorSpec
from .costs import Costs
from .figures import Link

MATRIX_SIDES = (16, 64, 192, 512, 1024)
"""The largest product that a device does within its time tells its speed."""

STREAM_ELEMENTS = (1 << 12, 1 << 18, 1 << 22)
COPY_BYTES = (1 << 12, 1 << 18, 1 << 22)
CHAIN = 20
REPEATS = 15
FEWEST = 3
"""So many runs there are of everything, however long they take."""

BUDGET_S = 0.4
"""After so long a figure is taken from the runs that there were; what is expected to take so long
itself is not tried."""

WAIT_S = 60.0


Clock: TypeAlias = Callable[[], int]
"""Tells the time in nanoseconds."""


def measure(devices: Mapping[str, Device], *, clock: Clock = perf_counter_ns) -> Costs:
    """Run each device for about a second and return what was found; they must be closed.

    Copies from one of them to another are measured where that takes no detour through the host.
    Devices that have a model of their own, such as simulated ones, are left as they are.

    Raises
    ------
    DeviceError
        If a device fails.
    """
    models: dict[str, DeviceModel] = {}
    links: dict[tuple[str, str], Link] = {}
    for name, device in devices.items():
        model = model_of(device, name)
        if model.is_guess:
            with _opened(device):
                model = _measured(device, model, clock)
                links |= _links(device, clock)
        models[name] = model
    links |= measure_peers(devices.values(), clock=clock)
    memories = {name: device.capabilities.memory for name, device in devices.items()}
    return Costs(models=models, memories=memories, links=links)


@contextmanager
def _opened(device: Device) -> Iterator[None]:
    device.open(max(1, core_count() - 1))
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
                found[source, target] = _link(device, source, target, clock, other)
    return found


_FREE = Cost(0, 0)


@dataclass(slots=True, eq=False)
class _Run:
    """What can be run again and again, and the seconds of the fastest run so far."""

    once: Callable[[], None]
    cost: Cost = _FREE
    seconds: float = math.inf


def _measured(device: Device, model: DeviceModel, clock: Clock) -> DeviceModel:
    """Return a device's model with what short runs say in it."""
    with ExitStack() as arenas:
        bound = [_bound(device, _relus(count, 16), arenas) for count in (1, 1 + CHAIN)]
        streams = [_relus(1, elements) for elements in STREAM_ELEMENTS]
        larger = [
            _largest(device, graphs, arenas, clock)
            for graphs in (streams, [_product(side) for side in MATRIX_SIDES])
        ]
        one, many, stream, product = (*bound, *larger)
        if one is None or many is None:
            raise DeviceError(f"device {device.name!r} cannot run Relu, which measuring takes")
        _repeat([run for run in (one, many, stream, product) if run is not None], clock)
    launch_s = max((many.seconds - one.seconds) / CHAIN, 1e-8)
    submit_s = max(one.seconds - launch_s, 0.0)
    model = replace(model, launch_s=launch_s, submit_s=submit_s, is_guess=False)
    if stream is not None:
        model = replace(model, bytes_per_s=stream.cost.nbytes / _beyond(stream, one))
    if product is not None:
        model = replace(model, flops_per_s=product.cost.flops / _beyond(product, one))
    return model


def _largest(
    device: Device, graphs: Sequence[Graph], arenas: ExitStack, clock: Clock
) -> _Run | None:
    """Return the last graph that is not expected to be slow, bound; they grow."""
    found: _Run | None = None
    for graph in graphs:
        cost = cost_of(graph, graph.nodes[0])
        if found is not None and found.seconds * cost.flops / found.cost.flops > BUDGET_S:
            break
        run = _bound(device, graph, arenas)
        if run is None:
            break
        _repeat([run], clock)
        found = run
    return found


def _beyond(run: _Run, least: _Run) -> float:
    """Return the seconds of a run that its size is to blame for."""
    return max(run.seconds - least.seconds, run.seconds / 10)


def _bound(device: Device, graph: Graph, arenas: ExitStack) -> _Run | None:
    """Return a graph bound to memory that is freed with others; None if the device lacks a node."""
    node = graph.nodes[0]
    if not device.supports(node, graph.call(node)).ok:
        return None
    specs = dict(graph.tensors)
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
    return _Run(lambda: device.submit(program).wait(WAIT_S), cost_of(graph, node))


def _clear(device: Device, view: View) -> None:
    """Write zeros: what lies in memory by chance may be numbers that are slow to compute with."""
    zeros = host_arena(view.spec.nbytes)
    zeros.buffer[:] = 0
    _copy(device, view, device.view(zeros, 0, view.spec))
    zeros.close()


def _links(device: Device, clock: Clock) -> dict[tuple[str, str], Link]:
    """Return how fast bytes go between the device's memory and those of the host."""
    memory = device.capabilities.memory
    found = {}
    for other in (HOST, SHARED):
        if other != memory:
            found[other, memory] = _link(device, other, memory, clock)
            found[memory, other] = _link(device, memory, other, clock)
    return found


def _link(
    device: Device, source: str, target: str, clock: Clock, owner: Device | None = None
) -> Link:
    """Return how fast a device copies; `owner` is that of the source if it is another device."""
    with ExitStack() as arenas:
        runs = [_Run(_copying(device, source, target, n, owner, arenas)) for n in COPY_BYTES]
        _repeat(runs, clock)
    small, large = (COPY_BYTES[0], runs[0].seconds), (COPY_BYTES[-1], runs[-1].seconds)
    per_byte = max((large[1] - small[1]) / (large[0] - small[0]), 1e-13)
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


def _repeat(runs: Sequence[_Run], clock: Clock) -> None:
    """Time several runs of each, which take turns; what each does first is left out."""
    for run in runs:
        run.once()
    spent = [0.0] * len(runs)
    for turn in range(REPEATS):
        for place, run in enumerate(runs):
            if turn < FEWEST or spent[place] < BUDGET_S:
                start = clock()
                run.once()
                seconds = (clock() - start) / 1e9
                run.seconds = min(run.seconds, seconds)
                spent[place] += seconds


def _relus(count: int, elements: int) -> Graph:
    names = [f"t{index}" for index in range(count + 1)]
    nodes = [
        Node(f"relu{index}", "Relu", (names[index],), (names[index + 1],)) for index in range(count)
    ]
    return _graph(nodes, dict.fromkeys(names, TensorSpec("float32", (elements,))), names)


def _product(side: int) -> Graph:
    spec = TensorSpec("float32", (side, side))
    node = Node("product", "MatMul", ("a", "b"), ("y",))
    return _graph([node], dict.fromkeys("aby", spec), ["a", "b", "y"])


def _graph(nodes: Sequence[Node], tensors: dict[str, TensorSpec], names: Sequence[str]) -> Graph:
    inputs = tuple(name for name in names if all(name not in node.outputs for node in nodes))
    return Graph("measured", inputs, (names[-1],), tuple(nodes), tensors, {})
