"""How close do simulations come to what really happens?

For each real model and each set of devices, the costs are measured once: what passes between steps
by short streams made for it, and every node on every device of the set, one item at a time. Then
the model is cut in several ways, and single items and streams with several items in flight are both
simulated from these costs and run. The baseline is the real makespan; no prediction has seen a run
that it predicts. Where other processes took more than a little of the cores, a row says so
(`disturbance`) and does not count as quiet.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import plait as pl
import trio
from measure import save
from plait.graph.tensor import Array
from plait.scheduler.calibration import completed
from plait.scheduler.profile import Record
from quiet import Watch, wait_until_quiet
from real_models import REAL_MODELS

DEVICES = (("cpu",), ("cpu", "worker:0"), ("worker:0", "worker:1"))
ITEMS, STREAMS, PIECES, ATTEMPTS = 16, 7, 2, 6
PIECE_S = 0.2
"""What others do is told in hundredths of a second, so that it takes some of them."""

QUIET = 0.05
"""Of one core: what others may take before a run counts as disturbed."""

IN_FLIGHT = (1, 2, 4, 8)
GOAL = {"median": 0.05, "p95": 0.10}


@dataclass(frozen=True)
class Case:
    """One question: how long does this take?"""

    name: str
    plan: pl.Plan
    items: int
    max_in_flight: int


@dataclass(frozen=True)
class Piece:
    """What was recorded in a moment, and how much others disturbed it."""

    records: Sequence[Record]
    disturbance: float


async def piece(session: pl.Session, feeds: Mapping[str, Array], items: int, k: int) -> Piece:
    """Run streams for a moment."""
    before, watch, begin = len(session.profile().records), Watch(), perf_counter()
    while perf_counter() - begin < PIECE_S:
        async with session.stream([feeds] * items, max_in_flight=k) as results:
            async for item in results:
                _ = item.outputs
    return Piece(session.profile().records[before:], watch.disturbance())


async def quiet_pieces(
    session: pl.Session, feeds: Mapping[str, Array], items: int, k: int
) -> tuple[list[Piece], float]:
    """Return what was recorded in quiet moments, as far as there were any."""
    await piece(session, feeds, items, k)  # warms up
    pieces: list[Piece] = []
    for _ in range(ATTEMPTS):
        pieces.append(await piece(session, feeds, items, k))
        quiet = [one for one in pieces if one.disturbance <= QUIET]
        if len(quiet) >= PIECES and sum(len(one.records) for one in quiet) >= STREAMS * items:
            return quiet, max(one.disturbance for one in quiet)
    pieces.sort(key=lambda one: one.disturbance)
    return pieces[:PIECES], pieces[PIECES - 1].disturbance


def stream(plan: pl.Plan, feeds: Mapping[str, Array], items: int, k: int) -> tuple[float, float]:
    """Return the median makespan of streams, and how much others disturbed them."""

    async def run() -> tuple[list[Piece], float]:
        async with pl.Session(plan) as session:
            return await quiet_pieces(session, feeds, items, k)

    pieces, disturbance = trio.run(run)
    spans = [
        makespan_s(one.records[at : at + items])
        for one in pieces
        for at in range(0, len(one.records), items)
    ]
    return statistics.median(spans), disturbance


def makespan_s(records: Sequence[Record]) -> float:
    first = min(record.admitted_ns for record in records)
    return (max(record.landed_ns for record in records) - first) / 1e9


def measured_costs(
    graph: pl.Graph, devices: Sequence[str], feeds: Mapping[str, Array]
) -> tuple[pl.Costs, float]:
    """Return the costs of every node on every device, all of which are open meanwhile.

    And how much others disturbed that.
    """

    async def run(plan: pl.Plan) -> tuple[pl.Profile, float]:
        async with pl.Session(plan, measure=True) as session:
            pieces, disturbance = await quiet_pieces(session, feeds, ITEMS, 1)
            records = tuple(record for one in pieces for record in one.records)
            return replace(session.profile(), records=records), disturbance

    costs, disturbances = pl.Costs(), []
    for device in devices:
        plan = pl.plan(graph, devices, pin={"*": device}, shapes=shapes(feeds))
        profile, disturbance = trio.run(run, plan)
        costs = costs.merged(pl.Costs.from_profile(profile, plan))
        disturbances.append(disturbance)
    return completed(costs, plan), max(disturbances)


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
    for parts in (1,) if len(devices) == 1 else (2, 4):
        pins = cut(static, costs, devices, parts)
        for k in IN_FLIGHT:
            plan = pl.plan(static, devices, pin=pins, max_in_flight=k, passes=())
            name = f"{'+'.join(devices)} in {parts}"
            if k == 1:
                yield Case(f"{name}, one item", plan, 1, 1)
            yield Case(f"{name}, {ITEMS} items, {k} in flight", plan, ITEMS, k)


def compare(case: Case, costs: pl.Costs, feeds: Mapping[str, Array]) -> dict[str, Any]:
    predicted = pl.simulate(
        case.plan, items=case.items, max_in_flight=case.max_in_flight, costs=costs
    )
    real_s, disturbance = stream(case.plan, feeds, case.items, case.max_in_flight)
    return {
        "case": case.name,
        "real_ms": round(real_s * 1e3, 3),
        "predicted_ms": round(predicted.makespan_s * 1e3, 3),
        "error": round(predicted.makespan_s / real_s - 1, 4),
        "disturbance": round(disturbance, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    names = ["PP-OCR direction", "magika", "PP-OCRv4 recognition"]
    parser.add_argument("--models", nargs="*", default=names, choices=list(REAL_MODELS))
    parser.add_argument("--patience-s", type=float, default=60, help="wait so long for quiet")
    parser.add_argument("--limit-s", type=float, default=360, help="leave out what comes later")
    arguments = parser.parse_args()
    deadline = perf_counter() + arguments.limit_s
    rows = []
    for name in arguments.models:
        model = REAL_MODELS[name]
        feeds = model.feeds(1)
        graph = pl.load(model.path())
        for devices in DEVICES:
            if perf_counter() > deadline:
                break
            wait_until_quiet(QUIET, arguments.patience_s)
            costs, disturbance = measured_costs(graph, devices, feeds)
            for case in cases(graph, devices, costs, feeds):
                if perf_counter() > deadline:
                    break
                row = {"model": name, **compare(case, costs, feeds)}
                row["disturbance"] = max(row["disturbance"], round(disturbance, 3))
                rows.append(row)
                print(row, flush=True)
    quiet = [row for row in rows if row["disturbance"] <= QUIET]
    figures = {"all": errors(rows), "quiet": errors(quiet)}
    what = {"load": os.getloadavg(), "goal": GOAL}
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
