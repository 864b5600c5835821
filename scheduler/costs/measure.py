"""Measuring devices by short runs: how fast they compute, copy, and take up work.

Every figure is the fastest of several runs: what else the machine does only ever adds to it. The
runs differ in size, so that what a run costs at all can be told from what its size costs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import permutations
from time import perf_counter, perf_counter_ns

from ...devices.device import Device
from ...devices.errors import DeviceError
from ...devices.memory import ALIGNMENT, HOST, SHARED, Arena, SharedArena, View, host_arena
from ...devices.model import DeviceModel, model_of
from ...graph.infer import cost_of
from ...graph.ir import Graph, Node
from ...graph.tensor import TensorSpec
from .costs import Costs
from .figures import Link, Measured

MATRIX_SIDES = (16, 64, 192, 512, 1024)
"""The largest product that a device does within its time tells its speed."""

STREAM_ELEMENTS = (1 << 12, 1 << 18, 1 << 22)
COPY_BYTES = (1 << 12, 1 << 18, 1 << 22)
CHAIN = 20
REPEATS = 7
BUDGET_S = 0.4
"""After so long a figure is taken from the runs that there were."""

WAIT_S = 60.0


def measure(devices: Mapping[str, Device]) -> Costs:
    """Run each device for about a second and return what was found; they must be closed.

    Copies from one of them to another are measured where that takes no detour through the host.
    Simulated devices are left as they are modelled.

    Raises
    ------
    DeviceError
        If a device fails.
    """
    models: dict[str, DeviceModel] = {}
    links: dict[tuple[str, str], Link] = {}
    for name, device in devices.items():
        model = model_of(device, name)
        if not _is_modelled(device):
            with _opened(device):
                model = _measured(device, model)
                links |= _links(device)
        models[name] = model
    links |= measure_peers(devices.values())
    memories = {name: device.capabilities.memory for name, device in devices.items()}
    return Costs(models=models, memories=memories, links=links)


def _is_modelled(device: Device) -> bool:
    return isinstance(getattr(device, "model", None), DeviceModel)


@contextmanager
def _opened(device: Device) -> Iterator[None]:
    device.open()
    try:
        yield
    finally:
        device.close()


def measure_peers(devices: Iterable[Device]) -> dict[tuple[str, str], Link]:
    """Return how fast closed devices copy from each other, where that takes one copy.

    Raises
    ------
    DeviceError
        If a device fails.
    """
    found = {}
    real = [device for device in devices if not _is_modelled(device)]
    for device, other in permutations(real, 2):
        source, target = other.capabilities.memory, device.capabilities.memory
        if source in device.capabilities.copies_from:
            with _opened(other), _opened(device):
                found[source, target] = _link(device, source, target, other)
    return found


def _measured(device: Device, model: DeviceModel) -> DeviceModel:
    """Return a device's model with what short runs say in it."""
    one, many = (_time(device, _relus(count, 16)) for count in (1, 1 + CHAIN))
    if one is None or many is None:
        raise DeviceError(f"device {device.name!r} cannot run Relu, which measuring takes")
    launch_s = max((many - one) / CHAIN, 1e-8)
    model = replace(model, launch_s=launch_s, submit_s=max(one - launch_s, 0.0))
    if stream := _largest(device, [_relus(1, elements) for elements in STREAM_ELEMENTS]):
        model = replace(model, bytes_per_s=stream.cost.nbytes / _beyond(stream, one))
    if product := _largest(device, [_product(side) for side in MATRIX_SIDES]):
        model = replace(model, flops_per_s=product.cost.flops / _beyond(product, one))
    return model


def _largest(device: Device, graphs: Sequence[Graph]) -> Measured | None:
    """Return what the last graph took that is not expected to be slow; they grow."""
    found = None
    for graph in graphs:
        cost = cost_of(graph, graph.nodes[0])
        if found is not None and found.seconds * cost.flops / found.cost.flops > BUDGET_S:
            break
        seconds = _time(device, graph)
        if seconds is None:
            break
        found = Measured(seconds, cost)
    return found


def _beyond(measured: Measured, least_s: float) -> float:
    """Return the seconds of a run that its size is to blame for."""
    return max(measured.seconds - least_s, measured.seconds / 10)


def _time(device: Device, graph: Graph) -> float | None:
    """Return the seconds from submitting a graph to its end; None if the device lacks a node."""
    node = graph.nodes[0]
    if not device.supports(node, graph.call(node)).ok:
        return None
    align = max(ALIGNMENT, device.capabilities.alignment)
    sizes = {name: -(-spec.nbytes // align) * align for name, spec in graph.tensors.items()}
    arena = device.arena(device.capabilities.memory, sum(sizes.values()))
    try:
        views, offset = {}, 0
        for name, nbytes in sizes.items():
            views[name] = device.view(arena, offset, graph.tensors[name])
            offset += nbytes
        crossing = {*graph.inputs, *graph.outputs}
        if device.capabilities.atomic_programs:
            views = {name: view for name, view in views.items() if name in crossing}
        for name in graph.inputs:
            _clear(device, views[name])
        program = device.compile(graph, views)

        def once() -> None:
            device.submit(program).wait(WAIT_S)

        return _fastest(once)
    finally:
        arena.close()


def _clear(device: Device, view: View) -> None:
    """Write zeros: what lies in memory by chance may be numbers that are slow to compute with."""
    zeros = host_arena(view.spec.nbytes)
    zeros.buffer[:] = 0
    _copy(device, view, device.view(zeros, 0, view.spec))
    zeros.close()


def _links(device: Device) -> dict[tuple[str, str], Link]:
    """Return how fast bytes go between the device's memory and those of the host."""
    memory = device.capabilities.memory
    found = {}
    for other in (HOST, SHARED):
        if other != memory:
            found[other, memory] = _link(device, other, memory)
            found[memory, other] = _link(device, memory, other)
    return found


def _link(device: Device, source: str, target: str, owner: Device | None = None) -> Link:
    """Return how fast a device copies; `owner` is that of the source if it is another device."""
    seconds = [_copy_s(device, source, target, nbytes, owner) for nbytes in COPY_BYTES]
    small, large = (COPY_BYTES[0], seconds[0]), (COPY_BYTES[-1], seconds[-1])
    per_byte = max((large[1] - small[1]) / (large[0] - small[0]), 1e-13)
    return Link(max(small[1] - small[0] * per_byte, 0.0), 1 / per_byte)


def _copy_s(device: Device, source: str, target: str, nbytes: int, owner: Device | None) -> float:
    spec = TensorSpec("uint8", (nbytes,))
    arenas = [_arena(owner or device, source, nbytes), _arena(device, target, nbytes)]
    try:
        there, here = (device.view(arena, 0, spec) for arena in arenas)

        def once() -> None:
            _copy(device, here, there)

        return _fastest(once)
    finally:
        for arena in arenas:
            arena.close()


def _copy(device: Device, target: View, source: View) -> None:
    device.copy(target, source).wait(WAIT_S)


def _arena(device: Device, memory: str, nbytes: int) -> Arena:
    if memory == device.capabilities.memory:
        return device.arena(memory, nbytes)
    return SharedArena(nbytes) if memory == SHARED else host_arena(nbytes)


def _fastest(once: Callable[[], None]) -> float:
    """Return the seconds of the fastest of several calls, the first left out."""
    once()
    best, begin = math.inf, perf_counter()
    for _ in range(REPEATS):
        start = perf_counter_ns()
        once()
        best = min(best, (perf_counter_ns() - start) / 1e9)
        if perf_counter() - begin > BUDGET_S:
            break
    return best


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
