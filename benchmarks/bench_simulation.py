"""How close do simulations come to what really happens?

For each real model and each set of devices, the costs are measured once: every node on every device
of the set, one item at a time. Then the model is cut in several ways, and single items and streams
with several items in flight are both simulated from these costs and run. The baseline is the real
makespan; no prediction has seen a run that it predicts. Where other processes took more than a
little of the cores, a row says so (`disturbance`) and does not count as quiet.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import plait as pl
import trio
from measure import save
from plait.graph.tensor import Array
from plait.scheduler.profile import Record
from plait.scheduler.simulation.lanes import host_of
from plait.scheduler.simulation.workload import Host
from quiet import Watch, wait_until_quiet
from real_models import REAL_MODELS

DEVICES = (("cpu",), ("cpu", "worker:0"), ("worker:0", "worker:1"))
ITEMS, MEASURED, REPEATS, ATTEMPTS, SINGLE = 16, 12, 3, 6, 20
QUIET = 0.05
"""Of one core: what others may take before a run counts as disturbed."""

IN_FLIGHT = (1, 2, 4)
GOAL = {"median": 0.05, "p95": 0.10}


@dataclass(frozen=True)
class Case:
    """One question: how long does this take?"""

    name: str
    plan: pl.Plan
    items: int
    max_in_flight: int


@dataclass(frozen=True)
class Sample:
    """A makespan, and how much others disturbed it."""

    seconds: float
    disturbance: float


def stream(plan: pl.Plan, feeds: Mapping[str, Array], items: int, k: int) -> Sample:
    """Return the median makespan of streams that were left alone, after one to warm up."""

    async def run() -> list[Sample]:
        samples = []
        async with pl.Session(plan) as session:
            for attempt in range(1 + ATTEMPTS):
                before, watch = len(session.profile().records), Watch()
                for _ in range(SINGLE if items == 1 else 1):
                    async with session.stream([feeds] * items, max_in_flight=k) as results:
                        async for item in results:
                            _ = item.outputs
                disturbance, records = watch.disturbance(), session.profile().records[before:]
                parts = [records[at : at + items] for at in range(0, len(records), items)]
                if attempt:
                    samples.append(Sample(statistics.median(map(makespan_s, parts)), disturbance))
                if sum(sample.disturbance <= QUIET for sample in samples) == REPEATS:
                    break
        return samples

    samples = sorted(trio.run(run), key=lambda sample: sample.disturbance)[:REPEATS]
    middle = sorted(samples, key=lambda sample: sample.seconds)[len(samples) // 2]
    return Sample(middle.seconds, max(sample.disturbance for sample in samples))


def makespan_s(records: Sequence[Record]) -> float:
    first = min(record.admitted_ns for record in records)
    return (max(record.landed_ns for record in records) - first) / 1e9


def measured_costs(
    graph: pl.Graph, devices: Sequence[str], feeds: Mapping[str, Array]
) -> tuple[pl.Costs, float]:
    """Return the costs of every node on every device, all of which are open meanwhile.

    And how much others disturbed that.
    """

    async def run(plan: pl.Plan) -> tuple[float, pl.Profile]:
        async with pl.Session(plan, measure=True) as session:
            await session.run(feeds)
            watch = Watch()
            for _ in range(MEASURED):
                await session.run(feeds)
            disturbance = watch.disturbance()
        return disturbance, session.profile()

    costs, disturbances = pl.Costs(), []
    for device in devices:
        plan = pl.plan(graph, devices, pin={"*": device}, shapes=shapes(feeds))
        tries: list[tuple[float, pl.Profile]] = []
        while not tries or (len(tries) < REPEATS and tries[-1][0] > QUIET):
            tries.append(trio.run(run, plan))
        disturbance, profile = min(tries, key=lambda one: one[0])
        costs = costs.merged(pl.Costs.from_profile(profile, plan))
        costs = with_overhead(costs, plan, profile, device)
        disturbances.append(disturbance)
    return costs, max(disturbances)


def with_overhead(costs: pl.Costs, plan: pl.Plan, profile: pl.Profile, device: str) -> pl.Costs:
    """Return the costs with what passed between items and kernels in that profile besides."""
    predicted = pl.simulate(plan, costs=costs)
    usual = statistics.quantiles(map(overhead_s, profile.records), n=4)[0]  # when undisturbed
    missing_s = max(0.0, usual - overhead_s(predicted.records[0]))
    model = plan.costs.merged(costs).model(device)
    return costs.merged(pl.Costs({device: replace(model, submit_s=model.submit_s + missing_s)}))


def overhead_s(record: Record) -> float:
    """Return the seconds between admission and landing in which no step ran."""
    return makespan_s([record]) - sum(s.ended_ns - s.started_ns for s in record.spans()) / 1e9


def shapes(feeds: Mapping[str, Array]) -> dict[str, tuple[int, ...]]:
    return {name: array.shape for name, array in feeds.items()}


def cut(graph: pl.Graph, costs: pl.Costs, devices: Sequence[str], count: int) -> dict[str, str]:
    """Give so many parts of the graph, of about the same time, to the devices in turn."""
    spent = [costs.node_s(devices[0], graph, node) for node in graph.nodes]
    whole, passed, pins = sum(spent), 0.0, {}
    for node, seconds in zip(graph.nodes, spent, strict=True):
        part = min(int(count * passed / whole), count - 1)
        pins[node.name] = devices[part % len(devices)]
        passed += seconds
    return pins


def cases(
    graph: pl.Graph, devices: Sequence[str], costs: pl.Costs, feeds: Mapping[str, Array]
) -> Iterator[Case]:
    static = pl.plan(graph, devices, shapes=shapes(feeds), strategy="preference").graph
    for parts in (1,) if len(devices) == 1 else (2, 3, 4):
        pins = cut(static, costs, devices, parts)
        for k in IN_FLIGHT:
            plan = pl.plan(static, devices, pin=pins, max_in_flight=k, passes=())
            name = f"{'+'.join(devices)} in {parts}"
            if k == 1:
                yield Case(f"{name}, one item", plan, 1, 1)
            yield Case(f"{name}, {ITEMS} items, {k} in flight", plan, ITEMS, k)


def contention() -> float:
    """Return by how much products and copies take longer while the other core does the same."""
    builder = pl.GraphBuilder("pair")
    x = builder.input("x", "float32", (256, 256))
    for side in "ab":
        last = x
        for index in range(30):
            last = builder.op("MatMul", last, x, name=f"{side}{index}")
            last = builder.op("Tanh", last, name=f"{side}t{index}")
        builder.output(side, last)
    graph = builder.build()
    devices = "cpu", "worker:0"
    feeds = {"x": 0.05 * REAL_MODELS["PP-OCR direction"].feeds(1)["x"].ravel()[: 1 << 14]}
    feeds = {"x": feeds["x"].repeat(4).reshape(256, 256)}
    alone = pl.plan(graph, devices, pin={"*": "cpu"})
    pair = pl.plan(graph, devices, pin={"a*": "cpu", "b*": "worker:0"})
    one, two = (quickest(plan, feeds) for plan in (alone, pair))
    return max(0.0, 2 * two / one - 1)


def quickest(plan: pl.Plan, feeds: Mapping[str, Array]) -> float:
    """Return the shortest of many runs, which is the one that was disturbed least."""

    async def run() -> float:
        async with pl.Session(plan) as session:
            for _ in range(10 * MEASURED):
                await session.run(feeds)
        return min(makespan_s([record]) for record in session.profile().records)

    return trio.run(run)


def compare(case: Case, costs: pl.Costs, feeds: Mapping[str, Array], host: Host) -> dict[str, Any]:
    predicted = pl.simulate(
        case.plan, items=case.items, max_in_flight=case.max_in_flight, costs=costs, host=host
    )
    real = stream(case.plan, feeds, case.items, case.max_in_flight)
    return {
        "case": case.name,
        "real_ms": round(real.seconds * 1e3, 3),
        "predicted_ms": round(predicted.makespan_s * 1e3, 3),
        "error": round(predicted.makespan_s / real.seconds - 1, 4),
        "disturbance": round(real.disturbance, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    names = ["PP-OCR direction", "magika", "PP-OCRv4 recognition"]
    parser.add_argument("--models", nargs="*", default=names, choices=list(REAL_MODELS))
    parser.add_argument("--patience-s", type=float, default=60, help="wait so long for quiet")
    arguments = parser.parse_args()
    wait_until_quiet(QUIET, arguments.patience_s)
    slower = min(contention() for _ in range(REPEATS))  # disturbances only add to it
    rows = []
    for name in arguments.models:
        model = REAL_MODELS[name]
        feeds = model.feeds(1)
        graph = pl.load(model.path())
        for devices in DEVICES:
            wait_until_quiet(QUIET, arguments.patience_s)
            costs, disturbance = measured_costs(graph, devices, feeds)
            for case in cases(graph, devices, costs, feeds):
                host = replace(host_of(case.plan.graph), contention=slower)
                row = {"model": name, **compare(case, costs, feeds, host)}
                row["disturbance"] = max(row["disturbance"], round(disturbance, 3))
                rows.append(row)
                print(row, flush=True)
    quiet = [row for row in rows if row["disturbance"] <= QUIET]
    figures = {"all": errors(rows), "quiet": errors(quiet)}
    what = {"load": os.getloadavg(), "contention": round(slower, 3), "goal": GOAL}
    save("simulation", {**what, "absolute errors": figures, "rows": rows})


def errors(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what the absolute relative errors of some rows are like."""
    found = sorted(abs(row["error"]) for row in rows)
    if not found:
        return {"rows": 0}
    return {
        "rows": len(found),
        "median": found[len(found) // 2],
        "p95": found[int(0.95 * (len(found) - 1))],
        "within 5%": round(sum(error <= 0.05 for error in found) / len(found), 3),
        "within 10%": round(sum(error <= 0.10 for error in found) / len(found), 3),
    }


if __name__ == "__main__":
    main()
