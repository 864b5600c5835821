"""How close do simulations come to what really happens?

For each real model and each set of devices, the costs of every node on every device are measured,
one item at a time, in turns with the runs that are to be predicted: the model cut in several ways,
single items and streams with several items in flight. So a machine that becomes slower does so for
both. What passes between steps is then measured by short streams made for it. The baseline is the
real makespan, a median; no prediction has seen a run that it predicts. Where other processes took
more than a little of the cores, a row says so (`disturbance`) and does not count as quiet.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any

import plait as pl
import trio
from measure import save
from plait.graph.values.tensor import Array
from plait.scheduler.profile import Record
from plait.scheduler.simulation.lanes import USUAL
from plait.scheduler.tuning.calibration import calibrate
from plait.scheduler.tuning.contention import Disturbance, extract_beginning, measure_items
from quiet import Watch, wait_until_quiet
from real_models import REAL_MODELS

DEVICES = (("cpu",), ("cpu", "worker:0"), ("worker:0", "worker:1"))
ITEMS, ROUNDS = 16, 9
MOMENT_S = 0.12
"""For how long each plan runs in a round, at least."""

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


class Runner:
    """A session that runs one plan again and again, a moment at a time.

    Attributes
    ----------
    records : list of Record
        What was recorded in those moments, without what warms up.
    """

    def __init__(self, session: pl.Session, feeds: Mapping[str, Array], items: int, k: int) -> None:
        self.records: list[Record] = []
        self._session, self._feeds = session, feeds
        self._items, self._k = items, k

    async def moment(self) -> None:
        """Run streams for a moment; the first one warms up."""
        await self._stream()
        before, begin = len(self._session.profile().records), perf_counter()
        while perf_counter() - begin < MOMENT_S:
            await self._stream()
        self.records += self._session.profile().records[before:]

    def profile(self) -> pl.Profile:
        """Return a profile of those moments."""
        return replace(self._session.profile(), records=tuple(self.records))

    def makespan_s(self) -> float:
        """Return the median makespan of the streams."""
        spans = []
        for at in range(0, len(self.records), self._items):
            of_stream = self.records[at : at + self._items]
            first = min(record.admitted_ns for record in of_stream)
            spans.append((max(record.landed_ns for record in of_stream) - first) / 1e9)
        return statistics.median(spans)

    async def _stream(self) -> None:
        items = [self._feeds] * self._items
        async with self._session.stream(items, max_in_flight=self._k) as results:
            async for item in results:
                _ = item.outputs


async def measured(
    graph: pl.Graph, devices: Sequence[str], cases: Sequence[Case], feeds: Mapping[str, Array]
) -> tuple[pl.Costs, float, list[float], list[float]]:
    """Return the costs of every node on every device, real makespans, and what disturbed rounds.

    All take turns, in another order each time: a machine whose speed changes, changes it for all.
    """
    ways = [pl.plan(graph, devices, pin={"*": device}, shapes=shapes(feeds)) for device in devices]
    async with AsyncExitStack() as stack:
        costs, alone, real = [], [], []
        for plan in ways:
            session = await stack.enter_async_context(pl.Session(plan, measure=True))
            costs.append(Runner(session, feeds, ITEMS, 1))
            part = pl.plan(extract_beginning(plan), plan.devices, passes=())
            alone.append(await stack.enter_async_context(pl.Session(part)))
        for case in cases:
            session = await stack.enter_async_context(pl.Session(case.plan))
            real.append(Runner(session, feeds, case.items, case.max_in_flight))
        first = {name: feeds[name] for name in extract_beginning(ways[0]).inputs}
        disturbance = Disturbance([partial(measure_items, session, first) for session in alone])
        await disturbance.warm_up()
        runners, disturbances, draw = [*costs, *real], [], random.Random(1)
        for _ in range(ROUNDS):
            watch = Watch()
            for runner in draw.sample(runners, len(runners)):
                await runner.moment()
            if len(alone) > 1:
                await disturbance.round()
            disturbances.append(round(watch.disturbance(), 3))
        found = pl.Costs()
        for runner, plan in zip(costs, ways, strict=True):
            found = found.merged(pl.Costs.from_profile(runner.profile(), plan))
        shared = disturbance.estimate() if len(alone) > 1 else 0.0
        shared = USUAL.contention if shared is None else shared
        return found, shared, [runner.makespan_s() for runner in real], disturbances


def shapes(feeds: Mapping[str, Array]) -> dict[str, tuple[int, ...]]:
    return {name: array.shape for name, array in feeds.items()}


def cut(graph: pl.Graph, devices: Sequence[str], count: int) -> dict[str, str]:
    """Give so many parts of the graph, of about the same time, to the devices in turn."""
    costs = pl.Costs()
    spent = [costs.node_s("cpu", graph, node) for node in graph.nodes]
    whole, passed, pins = sum(spent), 0.0, {}
    for node, seconds in zip(graph.nodes, spent, strict=True):
        part = min(int(count * passed / whole), count - 1)
        pins[node.name] = devices[part % len(devices)]
        passed += seconds
    return pins


def cases_of(graph: pl.Graph, devices: Sequence[str], feeds: Mapping[str, Array]) -> Iterator[Case]:
    static = pl.plan(graph, devices, shapes=shapes(feeds), strategy="preference").graph
    for parts in (1,) if len(devices) == 1 else (2, 4):
        pins = cut(static, devices, parts)
        for k in IN_FLIGHT:
            plan = pl.plan(static, devices, pin=pins, max_in_flight=k, passes=())
            name = f"{'+'.join(devices)} in {parts}"
            if k == 1:
                yield Case(f"{name}, one item", plan, 1, 1)
            yield Case(f"{name}, {ITEMS} items, {k} in flight", plan, ITEMS, k)


def compare(model: str, devices: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield for each case what was predicted and what happened."""
    feeds = REAL_MODELS[model].feeds(1)
    graph = pl.load(REAL_MODELS[model].path())
    cases = list(cases_of(graph, devices, feeds))
    costs, shared, real, disturbances = trio.run(measured, graph, devices, cases, feeds)
    costs = calibrate(cases[0].plan).merged(costs)
    if costs.loop is not None:
        costs = replace(costs, loop=costs.loop._replace(contention=shared))
    for case, real_s in zip(cases, real, strict=True):
        found = pl.simulate(
            case.plan, items=case.items, max_in_flight=case.max_in_flight, costs=costs
        )
        yield {
            "model": model,
            "case": case.name,
            "real_ms": round(real_s * 1e3, 3),
            "predicted_ms": round(found.makespan_s * 1e3, 3),
            "error": round(found.makespan_s / real_s - 1, 4),
            "contention": round(shared, 3),
            "disturbance": statistics.median(disturbances),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    names = ["PP-OCR direction", "magika", "PP-OCRv4 recognition"]
    parser.add_argument("--models", nargs="*", default=names, choices=list(REAL_MODELS))
    parser.add_argument("--patience-s", type=float, default=60, help="wait so long for quiet")
    arguments = parser.parse_args()
    rows = []
    for model in arguments.models:
        for devices in DEVICES:
            wait_until_quiet(QUIET, arguments.patience_s)
            for row in compare(model, devices):
                rows.append(row)
                print(*row.values(), sep=" | ", flush=True)
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
