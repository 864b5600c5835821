"""How many bytes do plans take, of one item and of many in flight, and how long does planning take?

For every real model whose shapes can be known: the peak of one item over its lower bound, whole and
in stages; what breaking the graph k times over `cpu` and `worker:0` adds to the peak; and what K
items in flight take in two and in four stages, as a multiple of one item. Then the seconds that
laying out memory takes, for the models and for graphs that are large or odd. Nothing is run.

Goals: 1.01 x the bound; 2 % for breaks; 2.2 x one item in two stages and 4.5 x in four at any K;
1,000 tensors in 0.1 s.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import plait as pl
from measure import alternate, save
from plait.devices.cpu import CpuDevice
from plait.devices.device import Device
from plait.graph.core.ir import Graph
from plait.graph.values.errors import PlaitError
from plait.scheduler.planner.memory.memory_plan import plan_memory
from plait.scheduler.plans.regions import MemoryPlan
from real_models import REAL_MODELS

BREAKS = (1, 2, 4, 8)
IN_FLIGHT = (1, 2, 4, 8, 64)
STAGES = (2, 4)


def pieces(graph: Graph, devices: Sequence[str], count: int) -> dict[str, str]:
    """Return pins that cut a graph into pieces of as many nodes, given to the devices in turn."""
    names = [node.name for node in graph.nodes]
    return {n: devices[i * count // len(names) % len(devices)] for i, n in enumerate(names)}


def laid_out(graph: Graph, pieces_: int, devices: Sequence[Device | str], slots: int) -> MemoryPlan:
    names = [device if isinstance(device, str) else device.name for device in devices]
    pins = pieces(graph, names, pieces_)
    plan = pl.plan(graph, devices, pin=pins, passes=(), max_in_flight=slots)
    assert plan.memory is not None
    return plan.memory


def bound(memory: MemoryPlan) -> int:
    return sum(pool.lower_bound for pool in memory.pools.values())


def in_stages(graph: Graph, stages: int) -> dict[str, Any]:
    """Return what K items take in a pipeline of devices that share a memory."""
    devices = [CpuDevice(f"stage{index}") for index in range(stages)]
    plans = {slots: laid_out(graph, stages, devices, slots) for slots in IN_FLIGHT}
    return {
        "over_bound": plans[1].nbytes / bound(plans[1]),
        "times_one_item": {k: plan.nbytes / plans[1].nbytes for k, plan in plans.items()},
        "layouts": {k: plan.pools["host"].layout for k, plan in plans.items()},
        "period": {k: plan.period for k, plan in plans.items()},
    }


def figures(graph: Graph) -> dict[str, Any]:
    whole = laid_out(graph, 1, ["cpu"], 1)
    pool = whole.pools["host"]
    broken = {k: laid_out(graph, k + 1, ["cpu", "worker:0"], 1).nbytes for k in BREAKS}
    return {
        "nodes": len(graph.nodes),
        "nbytes": whole.nbytes,
        "unshared_nbytes": pool.tensors_nbytes,
        "constants_nbytes": pool.constants_nbytes,
        "over_bound": whole.nbytes / bound(whole),
        "breaks_cost": {k: nbytes / whole.nbytes - 1 for k, nbytes in broken.items()},
        **{f"{stages}_stages": in_stages(graph, stages) for stages in STAGES},
        "planning_s": planning_s(graph),
    }


def planning_s(graph: Graph, slots: int = 1) -> float:
    """Return the seconds that laying out memory takes, of a graph on the cpu."""
    plan = pl.plan(graph, passes=())
    placement = plan.placement
    assert placement is not None
    call = {"": lambda: plan_memory(plan.graph, placement, plan.prototypes, slots)}
    return alternate(call, rounds=5, at_least_s=0)[""]


def static(name: str) -> Graph | None:
    """Return a real model for one item, simplified; None if it has shapes that depend on values."""
    model = REAL_MODELS[name]
    shapes = {each: array.shape for each, array in model.feeds(1).items()}
    plan = pl.plan(pl.load(model.path()), shapes=shapes)
    return plan.graph if plan.is_static else None


def independent(count: int) -> Graph:
    b = pl.GraphBuilder(f"{count} independent nodes")
    for index in range(count):
        b.output(f"y{index}", b.op("Relu", b.input(f"x{index}", "float32", (64,))))
    return b.build()


def skipping(count: int) -> Graph:
    """Return sums in a row, each of the last one and one of the three before it."""
    b = pl.GraphBuilder(f"{count} nodes in a row that skip")
    random, known = np.random.default_rng(0), [b.input("x", "float32", (256,))]
    for _ in range(count):
        known.append(
            b.op("Sub", known[-1], known[max(0, len(known) - 1 - int(random.integers(3)))])
        )
    b.output("y", known[-1])
    return b.build()


def unrolled(turns: int) -> Graph:
    """Return the body of a loop, as often as it runs: 46 nodes a turn."""
    b = pl.GraphBuilder(f"{turns} turns of a loop")
    x = state = b.input("x", "float32", (256,))
    for _ in range(turns):
        gates = [b.op("Relu", b.op("Add", state, float(gate))) for gate in range(15)]
        total = gates[0]
        for gate in gates[1:]:
            total = b.op("Add", total, gate)
        state = b.op("Sub", b.op("Mul", total, 0.1), x)
    b.output("y", state)
    return b.build()


def timings() -> Iterator[tuple[str, Mapping[str, float]]]:
    for graph in (skipping(1000), independent(811), unrolled(100)):
        yield graph.name, {f"K = {slots}": planning_s(graph, slots) for slots in (1, 4)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", default=list(REAL_MODELS), choices=REAL_MODELS)
    models: dict[str, Any] = {}
    for name in parser.parse_args().models:
        try:
            graph = static(name)
            models[name] = "shapes depend on values" if graph is None else figures(graph)
        except PlaitError as error:
            models[name] = error.what
    save("memory_plan", {"models": models, "planning_s": dict(timings())})


if __name__ == "__main__":
    main()
