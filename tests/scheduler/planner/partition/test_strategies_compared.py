"""`auto` against the other strategies, as the simulator sees both plans."""

from __future__ import annotations

from random import Random
from typing import Any

import plait as pl
import pytest
from machines import random_graph, random_machine
from plait.scheduler.planner.partition.judge import SAME
from plait.scheduler.plans.request import Strategy

ROUNDS, SEEDS = 8, 25
OTHERS: tuple[Strategy, ...] = ("preference", "tengine")


def question(seed: int) -> tuple[pl.Graph, list[Any], dict[str, Any]]:
    """Return a graph, a machine, and what is asked for."""
    random = Random(seed)
    graph = random_graph(random, random.choice((1, 3, 6, 10, 16, 30)))
    objective, in_flight = random.choice((("latency", 1), ("throughput", 4), ("throughput", 2)))
    devices: list[Any] = [*random_machine(random, random.randint(2, 3))]
    asked: dict[str, Any] = {"objective": objective, "max_in_flight": in_flight}
    if random.random() < 0.3:
        asked["max_subgraphs"] = random.randint(1, 6)
    if random.random() < 0.5:
        random.shuffle(devices)
    return graph, devices, asked


def predicted_s(plan: pl.Plan) -> float:
    """Return the seconds of one item, or per item of a stream that is long under way."""
    if plan.request.objective == "latency":
        return pl.simulate(plan).makespan_s
    count = ROUNDS * plan.max_in_flight
    short, long = (pl.simulate(plan, items=items).makespan_s for items in (count, 2 * count))
    return (long - short) / count


def limited(plan: pl.Plan, share: float) -> dict[str, int]:
    """Return limits that leave a plan that share of what it takes of each device's memory."""
    assert plan.memory is not None
    return {
        memory: round((pool.nbytes + pool.constants_nbytes) * share)
        for memory, pool in plan.memory.pools.items()
    }


def assert_no_slower(seed: int, **limits: Any) -> None:
    graph, devices, asked = question(seed)
    theirs: dict[Strategy, float] = {}
    for other in OTHERS:
        try:
            made = pl.plan(graph, devices, strategy=other, **asked, **limits)
        except (pl.PlanError, pl.DoesNotFitError):
            continue  # auto may find a way, or none
        theirs[other] = predicted_s(made)
    if theirs:
        ours = predicted_s(pl.plan(graph, devices, **asked, **limits))
        slower = [other for other, seconds in theirs.items() if ours > seconds * (1 + SAME)]
        assert slower == [], seed


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [range(start, SEEDS, 5) for start in range(5)])
def test_auto_is_never_predicted_slower_than_the_other_strategies(seeds: range) -> None:
    for seed in seeds:
        assert_no_slower(seed)


@pytest.mark.extended
@pytest.mark.parametrize("seeds", [range(start, SEEDS, 5) for start in range(5)])
def test_nor_is_it_where_memory_is_short(seeds: range) -> None:
    for seed in seeds:
        graph, devices, asked = question(seed)
        try:
            plan = pl.plan(graph, devices, strategy=Random(seed).choice(OTHERS), **asked)
        except pl.PlanError:
            continue
        assert_no_slower(seed, memory_limits=limited(plan, Random(seed).uniform(0.7, 1.2)))
