"""Does a pipeline deliver as fast as its slowest stage?

Stages on devices of their own, streamed with one item more in flight than there are stages; the
baseline is the slowest stage alone, as a plan of its own, streamed on its device, in turns.
Simulated devices in real time, with even and uneven stages, show what the runtime adds; matrix
products on two real cores (`cpu`, `worker:0`) show what a machine gives. Others do the same
products beside it (anchors.py): asyncio with executors, and OpenVINO's AsyncInferQueue.
Every stream checks that results are in order, and counts the items alive: from before the source is
asked until the consumer asks for the next result. Goals: at least 0.95 times the slowest stage's
items per second, at most stages + 1 items alive.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np
import plait as pl
import trio
from anchors import PRODUCTS, SIDE, ask
from measure import save
from plait.devices.sim import SimDevice, SimModel
from plait.graph.core.ir import Graph
from plait.graph.values.tensor import Array
from quiet import Watch

GOALS = {"of the slowest stage, at least": 0.95, "alive beyond the stages, at most": 1}
NODE_S = 1e-3
SIMULATED = {"even": (5, 5, 5), "uneven": (2, 5, 3), "seven stages": (3, 2, 3, 1, 3, 2, 3)}
"""Stages, in nodes of 1 ms."""

MODEL = SimModel(
    flops_per_s=1e15,
    bytes_per_s=1e15,
    copy_bytes_per_s=1e12,
    copy_latency_s=5e-6,
    launch_s=NODE_S,
    submit_s=0,
)


@dataclass
class Counted:
    """A source whose items say which they are, and a count of those alive."""

    items: int
    shape: tuple[int, ...]
    alive: int = 0
    peak: int = 0

    def __iter__(self) -> Iterator[Mapping[str, Array]]:
        for index in range(self.items):
            self.alive += 1
            self.peak = max(self.peak, self.alive)
            yield {"x": np.full(self.shape, index, np.float32)}

    def release(self) -> None:
        """Take note that a consumer is through with an item."""
        self.alive -= 1


@dataclass
class Streamed:
    """A plan that is streamed a round at a time.

    Attributes
    ----------
    peak : int
        How many items were alive at once.
    per_s : list of float
        Items per second, by round.
    """

    session: pl.Session
    shape: tuple[int, ...]
    in_flight: int
    peak: int = 0
    per_s: list[float] = field(default_factory=list)

    async def round(self, items: int) -> None:
        """Stream items; the first ones fill the pipeline and are not timed."""
        source, filled, index = Counted(items, self.shape), 2 * self.in_flight, 0
        async with self.session.stream(iter(source), max_in_flight=self.in_flight) as results:
            async for item in results:
                if index == filled:
                    start = perf_counter()
                if item["y"].flat[0] != index:
                    raise RuntimeError(f"item {index} is out of order")
                index += 1
                source.release()
        self.per_s.append((items - 1 - filled) / (perf_counter() - start))
        self.peak = max(self.peak, source.peak)


async def against_its_slowest_stage(
    whole: pl.Plan, slowest: pl.Plan, shape: tuple[int, ...], items: int, rounds: int
) -> dict[str, float]:
    """Return items per second of a pipeline and of its slowest stage, in turns."""
    stages = len(whole.devices)
    async with AsyncExitStack() as stack:
        pipeline, alone = [
            Streamed(await stack.enter_async_context(pl.Session(plan)), shape, in_flight)
            for plan, in_flight in ((whole, stages + 1), (slowest, 2))
        ]
        for _ in range(rounds):
            await pipeline.round(items)
            await alone.round(items)
    medians = [statistics.median(each.per_s) for each in (pipeline, alone)]
    return {
        "items_per_s": medians[0],
        "slowest_stage_per_s": medians[1],
        "ratio": medians[0] / medians[1],
        "stages": stages,
        "alive_at_most": pipeline.peak,
    }


async def simulated(lengths: tuple[int, ...], items: int, rounds: int) -> dict[str, float]:
    """Run stages of so many nodes on simulated devices, in real time."""

    def planned(lengths: Mapping[int, int]) -> pl.Plan:
        builder, pins = pl.GraphBuilder("stages"), {}
        last = builder.input("x", "float32", (4,))
        for stage, length in lengths.items():
            for index in range(length):
                last = builder.op("Relu", last, name=f"s{stage}.{index}")
            pins[f"s{stage}.*"] = f"sim:{stage}"
        builder.output("y", last)
        devices = [SimDevice(f"sim:{stage}", MODEL) for stage in lengths]
        return pl.plan(builder.build(), devices, pin=pins)

    stages = dict(enumerate(lengths))
    slowest = max(stages, key=stages.__getitem__)
    alone = planned({slowest: lengths[slowest]})
    return await against_its_slowest_stage(planned(stages), alone, (4,), items, rounds)


# on real cores


def products(stages: Mapping[str, str]) -> tuple[Graph, dict[str, str]]:
    """Return stages of matrix products, which leave the values as they are, and their pins."""
    b, weights = pl.GraphBuilder("products"), np.eye(SIDE, dtype=np.float32)
    last = b.input("x", "float32", (SIDE, SIDE))
    for stage in stages:
        for index in range(PRODUCTS):
            last = b.op("MatMul", last, weights, name=f"{stage}.{index}")
    b.output("y", last)
    return b.build(), {f"{stage}.*": device for stage, device in stages.items()}


async def on_cores(items: int, rounds: int) -> dict[str, float]:
    """Run two stages of products on two cores, and the first of them alone."""
    graph, pins = products({"first": "cpu", "second": "worker:0"})
    whole = pl.plan(graph, ["cpu", "worker:0"], pin=pins)
    alone = pl.plan(products({"first": "cpu"})[0], ["cpu"])
    return await against_its_slowest_stage(whole, alone, (SIDE, SIDE), items, rounds)


def beside_others(items: int, rounds: int) -> tuple[dict[str, float], dict[str, float]]:
    """Return medians of what plait and others do on the two cores, in turns."""
    ours: list[dict[str, float]] = []
    theirs: dict[str, list[float]] = {}
    for _ in range(rounds):
        ours.append(trio.run(on_cores, items, 1))
        for name, per_s in ask("pipeline", items).items():
            if isinstance(per_s, float):  # else it says why there is none
                theirs.setdefault(name, []).append(per_s)
    plait = {name: statistics.median(each[name] for each in ours) for name in ours[0]}
    return plait, {name: statistics.median(each) for name, each in theirs.items()}


def main() -> None:
    items, rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 120, 7
    watch = Watch()
    stages = {
        name: trio.run(simulated, lengths, items, rounds) for name, lengths in SIMULATED.items()
    }
    plait, others = beside_others(items, rounds)
    figures = {
        "goals": GOALS,
        "simulated": stages,
        "two cores": plait,
        "others_per_s": others,
        "disturbance": watch.disturbance(),
    }
    save("throughput", figures)


if __name__ == "__main__":
    main()
