"""Does `auto` ever lose to the best single device that it was given; does it take what it predicts?

Each of `real_models`, one item at a time, and every set of two or more of `cpu`, `compiled`, `ort`
and `worker:0`, or of other devices: `--devices cpu,compiled,ort,ort:openvino`. Time of the plan
over that of the best device of the set that runs the whole model alone, for three plans:

- by the built-in figures;
- by costs that `pl.tune` took of the model on all of them;
- tuned: whatever of the set's single devices and the plan by costs was faster in the odd rounds.

All plans of a model that differ are open at once and take turns of some milliseconds; ratios are of
the shortest of the even rounds, so that no choice is judged by the times it was made by, nor by
what else the machine did. Goals: tuned never above 1.05 and 1.0 in the geometric mean; predicted
within 15 % of what it takes; where one device alone is at least 1.2 times as fast as `ort`, the
plan for all of them is so, too, in the geometric mean. Medians are reported beside.

OpenVINO's provider lists processors of Intel alone. On others the library of the tests is put in
front of it, and the result says so.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Hashable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from itertools import combinations
from pathlib import Path
from typing import Any

import plait as pl
import trio
from measure import save
from plait.graph.values.tensor import Array
from plait.scheduler.costs.signature import make_digest
from real_models import REAL_MODELS

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
import openvino_anywhere

DEVICES = ("cpu", "compiled", "ort", "worker:0")
TURN_S = 0.005
WARMING = 5
"""Runs of a turn that are not timed, at most."""
GOAL, PREDICTED_WITHIN = 1.05, 0.15
FASTER, THAN = 1.2, "ort"
WAYS = ("built in", "by costs", "tuned")

Figures = dict[str, Any]


class Plans:
    """The plans of a model that differ, each under the name it was first met by."""

    def __init__(self) -> None:
        self.by_name: dict[str, pl.Plan] = {}
        self._names: dict[Hashable, str] = {}

    def add(self, name: str, plan: pl.Plan) -> str:
        """Return the name of a plan that does the same, which may be this one."""
        known = self._names.setdefault(
            tuple((part.device, make_digest(part.graph)) for part in plan.subgraphs), name
        )
        self.by_name.setdefault(known, plan)
        return known


def sets_of(names: Sequence[str]) -> list[tuple[str, ...]]:
    sizes = range(2, len(names) + 1)
    return [chosen for size in sizes for chosen in combinations(names, size)]


def planned(
    graph: pl.Graph, feeds: Mapping[str, Array], names: Sequence[str]
) -> tuple[Plans, Figures, pl.Costs]:
    """Return all plans, for each set and way of planning which one it is, and the costs."""
    shapes = {name: array.shape for name, array in feeds.items()}
    tuned = pl.tune(graph, names, feeds=feeds)
    plans = Plans()
    for name in names:
        with suppress(pl.UnsupportedOpError):  # it is no rival then
            plans.add(name, pl.plan(graph, [name], shapes=shapes))
    chosen = {
        way: {
            ",".join(devices): plans.add(
                f"{','.join(devices)} {way}", pl.plan(graph, devices, shapes=shapes, costs=costs)
            )
            for devices in sets_of(names)
        }
        for way, costs in (("built in", None), ("by costs", tuned.costs))
    }
    return plans, chosen, tuned.costs


async def alternated(
    plans: Mapping[str, pl.Plan], feeds: Mapping[str, Array], rounds: int
) -> dict[str, list[float]]:
    """Return the seconds per item of every plan in every round; they take turns."""
    seconds = {name: list[float]() for name in plans}
    async with AsyncExitStack() as stack:
        sessions, repeats = {}, {}
        for name, plan in plans.items():
            sessions[name] = session = await stack.enter_async_context(pl.Session(plan))
            await session.run(feeds)
            start = time.perf_counter()
            await session.run(feeds)
            repeats[name] = max(1, int(TURN_S / (time.perf_counter() - start)))
        for _ in range(rounds):
            for name, session in sessions.items():
                for _ in range(min(WARMING, repeats[name])):  # caches hold what the others used
                    await session.run(feeds)
                start = time.perf_counter()
                for _ in range(repeats[name]):
                    await session.run(feeds)
                seconds[name].append((time.perf_counter() - start) / repeats[name])
    return seconds


def compared(name: str, names: Sequence[str], rounds: int) -> Figures:
    """Return the ratios of a model."""
    model = REAL_MODELS[name]
    graph, feeds = pl.load(model.path()), model.feeds(1)
    plans, chosen, costs = planned(graph, feeds, names)
    seconds = trio.run(alternated, plans.by_name, feeds, rounds)
    judged = {plan: min(every[::2]) for plan, every in seconds.items()}
    seen = {plan: min(every[1::2]) for plan, every in seconds.items()}
    ratios: Figures = {}
    for devices in sets_of(names):
        key, alone = ",".join(devices), [name for name in devices if name in judged]
        best = min(judged[name] for name in alone)
        # What is simple goes first, and is beaten only by more than a hundredth.
        tuned = min(alone, key=seen.__getitem__)
        if seen[chosen["by costs"][key]] < 0.99 * seen[tuned]:
            tuned = chosen["by costs"][key]
        ratios[key] = {way: judged[of[key]] / best for way, of in chosen.items()}
        ratios[key] |= {"tuned": judged[tuned] / best, "plan": tuned}
    return {
        "ms": {plan: value * 1e3 for plan, value in judged.items()},
        "median_ms": {plan: statistics.median(each) * 1e3 for plan, each in seconds.items()},
        "ratios": ratios,
        "predicted_over_run": predictions(plans, costs, judged),
    }


def predictions(plans: Plans, costs: pl.Costs, judged: Mapping[str, float]) -> Figures:
    return {
        name: pl.simulate(plan, costs=costs).makespan_s / judged[name]
        for name, plan in plans.by_name.items()
        if plan.is_static and not name.endswith("built in")
    }


def summary(figures: Mapping[str, Figures]) -> Figures:
    found: Figures = {}
    for way in WAYS:
        every = [ratio[way] for one in figures.values() for ratio in one["ratios"].values()]
        found[way] = {
            "worst": max(every),
            "geometric_mean": statistics.geometric_mean(every),
            "above_goal": sum(ratio > GOAL for ratio in every),
            "of": len(every),
        }
    found |= gains(figures)
    predicted = [p for one in figures.values() for p in one["predicted_over_run"].values()]
    if not predicted:  # models of which nothing is planned before it runs
        return found
    found["predicted_over_run"] = {
        "median": statistics.median(predicted),
        "within": sum(abs(math.log(p)) <= math.log(1 + PREDICTED_WITHIN) for p in predicted),
        "of": len(predicted),
    }
    return found


def gains(figures: Mapping[str, Figures]) -> Figures:
    """Return how much faster than `THAN` all devices are, where one alone is a good deal faster."""
    found = []
    for one in figures.values():
        alone = {name: ms for name, ms in one["ms"].items() if "," not in name}
        if THAN in alone and alone[THAN] / min(alone.values()) >= FASTER:
            *_, all_of_them = one["ratios"].values()
            found.append(alone[THAN] / one["ms"][all_of_them["plan"]])
    if not found:
        return {}
    mean = statistics.geometric_mean(found)
    return {f"faster_than_{THAN}": {"geometric_mean": mean, "of": len(found)}}


def about(names: Sequence[str]) -> Figures:
    """Return what the devices compute with, and what was done to have them."""
    software = {name: pl.device(name).capabilities.software for name in names}
    notes = [note for note in (openvino_anywhere.note(),) if note and "ort:openvino" in names]
    return {"software": {name: told for name, told in software.items() if told}, "notes": notes}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=";".join(REAL_MODELS), help="names, separated by ;")
    parser.add_argument("--devices", default=",".join(DEVICES), help="names, separated by commas")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--out", default="auto", help="the name of the file in results/")
    given = parser.parse_args()
    openvino_anywhere.install()
    names, figures = given.devices.split(","), {}
    told = about(names)  # before all that takes time: a device may be missing
    for name in given.models.split(";"):
        start = time.perf_counter()
        figures[name] = compared(name, names, given.rounds)
        worst = {way: max(ratio[way] for ratio in figures[name]["ratios"].values()) for way in WAYS}
        shown = ", ".join(f"{way} {ratio:.2f}" for way, ratio in worst.items())
        print(f"{name}: worst {shown} ({time.perf_counter() - start:.0f} s)", file=sys.stderr)
    save(given.out, {**told, "summary": summary(figures), "figures": figures})


if __name__ == "__main__":
    main()
