"""How good is the core of the partition: tasks on unlike machines, against SAGA's schedulers?

SAGA (PyPI `anrg-saga`, extra `bench`) has generators of instances and some twenty list schedulers.
Each of 1,000 instances is scheduled by all of these and by plait, under SAGA's own cost model: a
task takes cost / speed, an edge size / speed of the link. Goals: never worse than the best of them;
a median gap of at most 3 % to the shortest schedule where there are at most 12 tasks; a graph of
1,000 nodes partitioned within a second.
"""

from __future__ import annotations

import argparse
import logging
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
from annealing import improve
from measure import save
from plait import Costs
from plait.scheduler.planner.partition.choose import choose
from plait.scheduler.planner.partition.list_scheduling import run_portfolio
from plait.scheduler.planner.partition.tasks import TaskGraph, TaskTimes
from plait.scheduler.plans.request import Objective, PlanRequest
from shortest_schedules import schedule, search_exact

logging.disable(logging.WARNING)  # of generators that add a source or a sink

import saga.schedulers as saga_schedulers  # noqa: E402
from saga import Network  # noqa: E402
from saga import TaskGraph as SagaGraph  # noqa: E402
from saga.schedulers.data import random as trees  # noqa: E402
from saga.schedulers.data import riotbench  # noqa: E402
from saga.utils import random_graphs as dags  # noqa: E402

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

INSTANCES = 1000
CCRS = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Mean time of a copy over mean time of a task."""

ASKED: tuple[tuple[Objective, int], ...] = (("latency", 1), ("throughput", 4))
"""Objectives, and the items in flight."""

NO_LIST_SCHEDULERS = {"BruteForceScheduler", "SMTScheduler", "HybridScheduler"}
MOST_EXACT = 12
STATES = 12_000
TOLERANCE = 1e-6


def weight(*names: object) -> float:
    """Return a weight around 1; the generators' default is a constant."""
    return min(max(0.1, random.gauss(1, 1 / 3)), 2.0)


class Weights:
    """What the generators of small graphs draw weights from."""

    def sample(self) -> float:
        """Return a weight."""
        return weight()


WEIGHTS = {"get_task_weight": weight, "get_dependency_weight": weight}

KINDS: dict[str, Callable[[], SagaGraph]] = {
    "in-tree": lambda: trees.gen_in_trees(1, random.randint(2, 3), random.randint(2, 3), **WEIGHTS)[
        0
    ],
    "out-tree": lambda: trees.gen_out_trees(1, random.randint(2, 3), 2, **WEIGHTS)[0],
    "chains": lambda: trees.gen_parallel_chains(
        1, random.randint(2, 5), random.randint(2, 5), **WEIGHTS
    )[0],
    "diamond": partial(dags.get_diamond_dag, Weights()),
    "chain": lambda: dags.get_chain_dag(random.randint(4, 12), Weights()),
    "fork": partial(dags.get_fork_dag, Weights()),
    "branching": lambda: dags.get_branching_dag(random.randint(3, 4), 2, Weights()),
    "etl": lambda: riotbench.get_etl_task_graphs(1)[0],
    "stats": lambda: riotbench.get_stats_task_graphs(1)[0],
    "train": lambda: riotbench.get_train_task_graphs(1)[0],
    "predict": lambda: riotbench.get_predict_task_graphs(1)[0],
}


def instances(count: int) -> Iterator[tuple[str, Network, SagaGraph]]:
    """Yield graphs of all kinds in turn, on networks of two to five machines."""
    for index in range(count):
        random.seed(index)
        np.random.seed(index)
        kind = list(KINDS)[index % len(KINDS)]
        graph = KINDS[kind]()
        (network,) = trees.gen_random_networks(
            1, 2 + index // len(KINDS) % 4, lambda _: random.uniform(0.2, 2.0), weight
        )
        yield kind, with_ccr(network, graph, CCRS[index % len(CCRS)]), graph


def with_ccr(network: Network, graph: SagaGraph, ccr: float) -> Network:
    """Return a network whose links are as slow as that; on one machine nothing is copied."""
    speeds = statistics.fmean(node.speed for node in network.nodes)
    task_s = statistics.fmean(task.cost for task in graph.tasks) / speeds
    sizes = statistics.fmean(edge.size for edge in graph.dependencies)
    factor = sizes / (ccr * task_s)
    links = [(e.source, e.target, e.speed * factor) for e in network.edges if e.source != e.target]
    return Network.create(network.nodes, links)


def as_tasks(network: Network, graph: SagaGraph) -> TaskGraph:
    """Return an instance in plait's form."""
    order = list(nx.lexicographical_topological_sort(graph.graph))
    place = {name: index for index, name in enumerate(order)}
    costs = {task.name: task.cost for task in graph.tasks}
    machines = sorted(network.nodes)
    producers: list[list[tuple[int, float]]] = [[] for _ in order]
    for edge in graph.dependencies:
        producers[place[edge.target]].append((place[edge.source], edge.size))
    return TaskGraph(
        [[costs[name] / machine.speed for machine in machines] for name in order],
        [sorted(reads) for reads in producers],
        [[0.0] * len(machines) for _ in machines],
        [[0.0 if a is b else 1 / network.get_edge(a, b).speed for b in machines] for a in machines],
    )


def best_of_saga(
    network: Network, graph: SagaGraph, tasks: TaskGraph, invalid: Counter[str]
) -> tuple[float, str]:
    """Return the shortest makespan of its list schedulers, and whose it is.

    Schedules that leave tasks out, or start one before its inputs are there, do not count, but are
    counted.
    """
    order = nx.lexicographical_topological_sort(graph.graph)
    place = {name: index for index, name in enumerate(order)}
    machine_of = {node.name: index for index, node in enumerate(sorted(network.nodes))}
    found = []
    for name in saga_schedulers.__all__:
        if name in NO_LIST_SCHEDULERS:
            continue
        made = getattr(saga_schedulers, name)().schedule(network, graph)
        timeline = TaskTimes(tasks)
        entries = [(machine_of[node], one) for node, ones in made.mapping.items() for one in ones]
        for machine, one in entries:
            index = place[one.name]
            timeline.machine[index] = machine
            timeline.start[index], timeline.finish[index] = one.start, one.end
        if is_valid(timeline):
            found.append((made.makespan, name))
        else:
            invalid[name] += 1
    return min(found)


def is_valid(timeline: TaskTimes) -> bool:
    """Say whether a schedule has all tasks, and keeps the model's rules."""
    graph = timeline.graph
    if -1 in timeline.machine:
        return False
    for task, machine in enumerate(timeline.machine):
        length = timeline.finish[task] - timeline.start[task]
        late = timeline.start[task] >= timeline.ready_s(task, machine) - TOLERANCE
        if not late or abs(length - graph.seconds[task][machine]) > TOLERANCE:
            return False
    for machine in range(graph.n_machines):
        ran = [t for t in range(graph.n_tasks) if timeline.machine[t] == machine]
        spans = sorted((timeline.start[t], timeline.finish[t]) for t in ran)
        if any(a[1] > b[0] + TOLERANCE for a, b in pairwise(spans)):
            return False
    return True


def compare(count: int) -> dict[str, Any]:
    """Return how plait's schedules compare."""
    ratios: list[float] = []
    worse: list[str] = []
    searched: list[float] = []
    unsearched: list[float] = []
    final: list[float] = []
    seconds = {"plait": 0.0, "saga": 0.0}
    invalid: Counter[str] = Counter()
    for index, (kind, network, instance) in enumerate(instances(count)):
        start = time.perf_counter()
        tasks = as_tasks(network, instance)
        theirs, winner = best_of_saga(network, instance, tasks, invalid)
        seconds["saga"] += time.perf_counter() - start
        start = time.perf_counter()
        timeline = schedule(tasks)
        seconds["plait"] += time.perf_counter() - start
        assert is_valid(timeline)
        ratios.append(timeline.makespan_s / theirs)
        if ratios[-1] > 1 + TOLERANCE:
            worse.append(f"{index} {kind}: {ratios[-1]:.4f} times {winner}")
        if tasks.n_tasks <= MOST_EXACT:
            shortest, proven = search_exact(tasks, timeline, STATES)
            if proven:
                listed = min(run_portfolio(tasks).values(), key=lambda one: one.makespan_s)
                unsearched.append(listed.makespan_s / shortest.makespan_s - 1)
                searched.append(improve(listed, 500).makespan_s / shortest.makespan_s - 1)
                final.append(timeline.makespan_s / shortest.makespan_s - 1)
    return {
        "instances": count,
        "ratio_to_best_of_saga": {
            "mean": statistics.fmean(ratios),
            "best": min(ratios),
            "worst": max(ratios),
            "shorter": sum(ratio < 1 - TOLERANCE for ratio in ratios),
            "worse": worse,
        },
        "gap_to_proven_shortest": {
            "instances": len(final),
            "list_schedulers": gaps(unsearched),
            "with_local_search": gaps(searched),
            "with_exact_search": gaps(final),
        },
        "invalid_schedules_of_saga": dict(invalid),
        "seconds_per_instance": {name: spent / count for name, spent in seconds.items()},
    }


def gaps(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {
        "median": statistics.median(ordered),
        "p95": ordered[int(0.95 * len(ordered))],
        "worst": ordered[-1],
    }


def large_graphs() -> dict[str, float]:
    """Return the processor's seconds to partition graphs of 1,000 nodes."""
    from machines import random_graph, random_machine

    found = {}
    for count in (2, 3):
        for objective, in_flight in ASKED:
            generator = random.Random(count)
            graph = random_graph(generator, 1000)
            devices = {device.name: device for device in random_machine(generator, count)}
            request = PlanRequest(
                devices=devices,
                costs=Costs.of(devices),
                objective=objective,
                max_in_flight=in_flight,
            )
            start = time.process_time()
            next(choose(graph, request))
            found[f"{count} devices, {objective}"] = time.process_time() - start
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--instances", type=int, default=INSTANCES)
    arguments = parser.parse_args()
    save("partition", {**compare(arguments.instances), "seconds_1000_nodes": large_graphs()})


if __name__ == "__main__":
    main()
