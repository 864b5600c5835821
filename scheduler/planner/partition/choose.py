"""The choice of a partition: by cost, by order of preference, or by Tengine's rule.

By cost, the simulator compares many assignments. Everything on one device is always among them, and
a split must be predicted to win by a margin, because models are not exact enough for less.

To place nodes on unequal devices, with copies between them, in the shortest time is NP-hard, also
for two devices. So rules propose and the simulator decides. No list scheduler is the best on all
graphs (`benchmarks/bench_partition.py` compares SAGA's twenty). They are cheap, so many of them
propose, beside a minimum cut, pipelines, and local search on the best few.

List schedulers place single nodes, and a device runs subgraphs: each border costs a launch, a copy
and the fusion across it. So their assignments are cut into subgraphs first and judged as those,
by the engine that `plait.simulate` uses, with the steps that the plan would have. A quicker
estimate only ranks candidates on the way.

Rejected: a greedy choice by support, which puts a tiny node between two copies; to cut a linear
order into runs of one device, which ties unrelated branches together; to anneal the schedules: for
240 random graphs of 8 to 40 nodes the plans were as fast without it (mean ratio 1.0003). If devices
learn to fuse across our borders, look at the cost of a border again.

All randomness is seeded and work is counted, not timed: the same graph has the same plan anywhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf

from ....devices.device import Device
from ....graph.core.ir import Graph
from ....graph.core.printing import format_count
from ....graph.passes.rewriting import Placing
from ....graph.values.names import Names
from ...costs import Costs
from ...costs.host import is_on_host
from ...errors import PlanError
from ...plans.partition import Decision, Partition, Subgraph
from ...plans.placement import Placement
from ...plans.regions import MemoryPlan
from ...plans.request import PlanRequest
from .capacity import Capacity, fill_devices
from .cutting import cut
from .judge import PATIENCE, SAME, Judge, Judged
from .list_scheduling import run_portfolio
from .min_cut import find_least_work
from .offers import (
    Offers,
    WrittenOut,
    ask,
    assign_by_order,
    assign_by_runs,
    explain_settled,
    explain_weighed,
    explain_written,
    list_options,
)
from .partition import assign_by_preference, may_merge
from .pipeline import make_pipelines
from .problem import PartitionProblem
from .ranking import Ranking
from .replicable import explain_never
from .search import Search, try_every


def make_merging_rule(request: PlanRequest) -> Placing:
    return may_merge(request.devices, request.kept, writes_out=request.options.writes_out)


def list_choices(
    graph: Graph, request: PlanRequest, *, is_static: bool, template: Graph | None = None
) -> Iterator[Choice]:
    """Yield partitions of `graph` for `request`, best first; later ones take less memory.

    They follow a rule unless `is_static`. `template` is the graph with its symbols, if its nodes
    are for other shapes too. Raises UnsupportedOpError with all nodes that no device supports, and
    PlanError if no partition has so few subgraphs.
    """
    if request.strategy == "auto" and is_static:
        yield from choose(graph, request, template)
    else:
        yield from _assign_by_rule(graph, request, is_static, template)


def _assign_by_rule(
    graph: Graph, request: PlanRequest, is_static: bool, template: Graph | None
) -> Iterator[Choice]:
    """Yield cuts of `graph` by the rule of `request`, best first; one only if not `is_static`."""
    devices, writes_out = request.devices, request.options.writes_out
    why = "each node goes to the first device that supports it"
    if request.strategy == "auto":
        why += ", until shapes are known"
    elif request.strategy == "tengine" and is_static:
        why = f"runs of nodes that {next(iter(devices))} supports, if they are long enough"
    decision = Decision(
        request.strategy,
        request.objective,
        "preference" if request.strategy == "auto" else request.strategy,
        why,
        ask=partial(list_options, graph, devices, request.costs),
    )
    if not is_static:
        assignment, reasons = assign_by_preference(
            graph, devices, request.pins, writes_out=writes_out
        )
        subgraphs = cut(graph, assignment, overlaps=request.overlaps)
        if request.strategy != "auto":
            _check_count(subgraphs, request)
        yield Choice(Partition(assignment, reasons, subgraphs), None, decision, graph)
        return
    offers = ask(graph, devices, request.pins, writes_out=writes_out, template=template)
    told = partial(list_options, graph, devices, request.costs, offers.forms)
    decision = replace(decision, ask=told)
    rule = assign_by_runs if request.strategy == "tengine" else assign_by_order
    assignment, reasons = rule(offers)
    best = Judge.of(offers, request)("", [assignment[node.name] for node in graph.nodes])
    _check_count(best.partition.subgraphs, request)
    for one in best.ways(PATIENCE):
        yield Choice.of(one, reasons, decision)


def _check_count(subgraphs: Sequence[Subgraph], request: PlanRequest) -> None:
    count, most = len(subgraphs), request.max_subgraphs
    if most is not None and count > most:
        raise PlanError(
            f"by {request.strategy} there are {count} subgraphs, max_subgraphs is {most}",
            fix="allow more subgraphs, change the pins, or use strategy='auto'",
        )


MARGIN, HOST_MARGIN, GUESSED_MARGIN = 0.03, 0.1, 0.25
"""The share by which a split must be predicted faster than the best single device: with measured
models, on devices that share this machine's cores with other work, and with guessed models."""

MARGIN_EACH = 0.01
"""Added for each subgraph beyond the second on this machine: hand-overs have unmodelled costs in
caches, layouts and wake-ups."""

NODE_ESTIMATES = 80_000
"""Most estimates times nodes of the graph."""

MOST_ESTIMATES = 600
STARTS = 3

MOST_JUDGED = 4
"""Splits that are simulated."""

MOST_NAMED = 3
"""Nodes in the name of a candidate, which shows the pins that would reproduce it."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A partition to plan with, and its origin."""

    partition: Partition
    placement: Placement | None
    """None while dimensions are symbolic."""
    decision: Decision
    graph: Graph
    """The partitioned graph, in the form that the devices get."""
    written: WrittenOut = field(default_factory=WrittenOut)
    """Replacements of nodes that devices lack."""
    judged: Judged | None = None
    """The judged assignment, if others were compared."""

    @classmethod
    def of(cls, way: Judged, reasons: Mapping[str, str], decision: Decision) -> Choice:
        told = {
            **reasons,
            **explain_written(way.judge.graph, way.written, way.partition.assignment),
        }
        partition = replace(way.partition, reasons=told)
        return cls(partition, way.placement, decision, way.graph, way.written)

    @property
    def seconds(self) -> float:
        """The predicted time regardless of memory; 0 without competitors."""
        return self.judged.seconds if self.judged is not None else 0.0

    @property
    def is_on_one_device(self) -> bool:
        return len(set(self.partition.assignment.values())) == 1

    def seconds_with(self, memory: MemoryPlan) -> float:
        """Return the predicted seconds with the waits of a memory plan; 0 if not predicted."""
        if self.judged is None or self.placement is None:
            return 0.0
        placement = self.placement.with_waits(memory.added_edges)
        return self.judged.judge.seconds(placement, memory.regions)


def choose(graph: Graph, request: PlanRequest, template: Graph | None = None) -> Iterator[Choice]:
    """Yield partitions of `graph`, a static one, for `request`, chosen by predicted time.

    `template` is the graph with its symbols, if its nodes are for other shapes too.
    """
    costs = request.costs
    ranks = {name: rank for rank, name in enumerate(request.devices)}
    devices = {name: request.devices[name] for name in sorted(ranks)}  # ranks decide ties alone
    offers = ask(
        graph, devices, request.pins, writes_out=request.options.writes_out, template=template
    )
    told = partial(list_options, graph, devices, costs, offers.forms)
    decision = Decision("auto", request.objective, "", "", ask=told)
    judge = Judge.of(offers, request)
    if offers.is_settled:
        yield from _choose_settled(offers, judge, decision)
        return
    seconds = offers.seconds(costs)
    # The judge asks for the same nodes hundreds of times: cache their times.
    judge = replace(judge, costs=offers.priced(costs, seconds))
    problem = PartitionProblem(
        graph, devices, costs, seconds, judge.in_flight, request.max_subgraphs,
        Capacity.of(graph, devices, request.memory_limits, request.max_in_flight),
        _choose_margin(devices, costs), request.ends,
        MARGIN_EACH * any(map(is_on_host, devices.values())), judge.labels,
    )  # fmt: skip
    shares_cores = all(map(is_on_host, devices.values())) and not explain_never(graph, request)
    single, split = _find_candidates(problem, shares_cores=shares_cores)
    assignments = {**single, **split}
    judged = judge.all(
        {
            name: [problem.names[device] for device in assignment]
            for name, assignment in assignments.items()
        }
    )
    ranking = Ranking(problem, assignments, judged, frozenset(single), ranks)
    if not ranking.order:
        raise _too_many_error(offers, problem, judged)
    yield from _make_choices(offers, ranking, costs, decision)


def _choose_settled(offers: Offers, judge: Judge, decision: Decision) -> Iterator[Choice]:
    """Yield the only partition that `offers` leave, in cuts that may differ in memory.

    `judge` times them, and `decision` gets the reason.
    """
    names, most = tuple(offers.devices), judge.max_subgraphs
    one = judge("", [names[device] for (device,) in offers.allowed])
    found = one.partition
    if most is not None and len(found.subgraphs) > most:
        raise PlanError(
            f"pins and support leave {len(found.subgraphs)} subgraphs, max_subgraphs is {most}",
            fix="allow more subgraphs, change the pins, or add a device that supports more",
        )
    used = sorted(set(found.assignment.values()), key=names.index)
    chosen = f"all on {used[0]}" if len(used) == 1 else "the only one"
    decided = replace(decision, chosen=chosen, why="no node has a choice of devices")
    reasons = explain_settled(offers)
    # The devices are given, but cuts may differ in memory.
    for way in one.ways(PATIENCE):
        yield Choice.of(way, reasons, decided)


def _choose_margin(devices: Mapping[str, Device], costs: Costs) -> float:
    if any(map(costs.is_guess, devices)):
        return GUESSED_MARGIN
    return HOST_MARGIN if any(map(is_on_host, devices.values())) else MARGIN


def name_single(device: str, *, is_whole: bool) -> str:
    """Return the name of the candidate that gives `device` what it can run: all if `is_whole`."""
    return f"{'all' if is_whole else 'most'} on {device}"


def _find_candidates(
    problem: PartitionProblem, *, shares_cores: bool
) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    """Return assignments to single devices, as far as possible, and splits.

    With `shares_cores`, replicas of one device use the cores of the host as well as a split does.
    """
    # Estimates take time in proportion to the nodes: large graphs get fewer.
    budget = max(20, min(MOST_ESTIMATES, NODE_ESTIMATES // max(problem.n_nodes, 1)))
    search = Search(problem, budget)
    single = {}
    for device, name in enumerate(problem.names):
        if any(row[device] < inf for row in problem.seconds):
            base = _place_mostly(problem, device)
            single[name_single(name, is_whole=len(set(base)) == 1)] = base
    best = min(single.values(), key=lambda one: search.estimate(one).key)
    if not problem.in_flight:
        seconds, bound_s = search.estimate(best).seconds, problem.bound_s
    elif shares_cores:  # then it gains by less work alone
        seconds, bound_s = problem.sum_work_s(best), problem.least_work_s
    else:
        seconds, bound_s = inf, 0.0
    # Only if everything fits: otherwise a slower split may be needed.
    if search.estimate(best).excess == 0 and seconds <= bound_s * (1 + problem.margin):
        return single, {}  # no split can win by the margin
    # Few enough to try each.
    everything = try_every(problem, MOST_JUDGED * 2)
    if everything is not None:
        return single, _drop_known(_name_by_places(problem, everything), single)
    found = _make_seeds(problem, sorted(single.values(), key=lambda one: search.estimate(one).key))
    merged = {name: search.merged(one) for name, one in found.items()}
    ranked = sorted(
        {**single, **merged}.items(), key=lambda item: (search.estimate(item[1]).key, item[0])
    )
    improved = {}
    for index, (name, start) in enumerate(ranked[:STARTS]):
        # The next starts get the rest of each one's allowance.
        allowance = search.budget // (STARTS - index)
        improved[f"{name}, improved"] = search.improve(start, allowance)
    everyone = _drop_known({**merged, **improved}, single)
    best_first = sorted(everyone, key=lambda name: (search.estimate(everyone[name]).key, name))
    # Candidates are named by places, which users can pin, not by the rule that found them.
    return single, _name_by_places(problem, [everyone[name] for name in best_first[:MOST_JUDGED]])


def _name_by_places(
    problem: PartitionProblem, assignments: Iterable[list[int]]
) -> dict[str, list[int]]:
    names, found = Names(separator=", way "), {}
    for one in assignments:
        most, _ = Counter(one).most_common(1)[0]
        apart: dict[int, list[str]] = {}
        for node, device in zip(problem.graph.nodes, one, strict=True):
            if device != most:
                apart.setdefault(device, []).append(node.name)
        places = [
            f"{_list_some(nodes)} on {problem.names[device]}" for device, nodes in apart.items()
        ]
        rest = f"the rest on {problem.names[most]}" if places else f"all on {problem.names[most]}"
        found[names.take(", ".join([*places, rest]))] = one
    return found


def _list_some(nodes: Sequence[str]) -> str:
    return ", ".join(nodes) if len(nodes) <= MOST_NAMED else format_count(len(nodes), "node")


def _make_seeds(problem: PartitionProblem, bases: Sequence[list[int]]) -> dict[str, list[int]]:
    """Return named assignments of `problem` to start from; each of `bases` is on one device."""
    timelines = run_portfolio(problem.tasks)
    found = {name: list(timeline.machine) for name, timeline in timelines.items()}
    # With two devices the cut is optimal from any start; with more, it depends on the start.
    for index, base in enumerate(bases[: 1 if len(problem.names) == 2 else 2]):
        found[f"least work{', again' * index}"] = find_least_work(problem, base)
    if problem.in_flight > 1:
        found |= make_pipelines(problem)
    return found | fill_devices(problem)


def _place_mostly(problem: PartitionProblem, device: int) -> list[int]:
    return [
        device if row[device] < inf else min((s, d) for d, s in enumerate(row))[1]
        for row in problem.seconds
    ]


def _drop_known(
    found: Mapping[str, list[int]], known: Mapping[str, list[int]]
) -> dict[str, list[int]]:
    seen = {tuple(one) for one in known.values()}
    kept = {}
    for name, one in found.items():
        if tuple(one) not in seen:
            seen.add(tuple(one))
            kept[name] = one
    return kept


def _make_choices(
    offers: Offers, ranking: Ranking, costs: Costs, decision: Decision
) -> Iterator[Choice]:
    passed: set[str] = set()
    for one in ranking.order:
        decided = replace(
            decision,
            chosen=one.name,
            why=ranking.why(one, passed),
            candidates=ranking.candidates(one, passed),
        )
        assignment = ranking.assignments[one.name]
        reasons = explain_weighed(offers, ranking.problem, costs, assignment)
        for way in one.ways(SAME, ranking.next_s(one)):
            yield replace(Choice.of(way, reasons, decided), judged=way)
        passed.add(one.name)


def _too_many_error(
    offers: Offers, problem: PartitionProblem, judged: Sequence[Judged]
) -> PlanError:
    fewest = min(len(one.partition.subgraphs) for one in judged)
    pinned = sum(pattern is not None for pattern in offers.pinned)
    held = f"{pinned} pinned nodes and " if pinned else ""
    return PlanError(
        f"no partition found has at most {problem.max_subgraphs} subgraphs; "
        f"{held}what devices support leave {fewest} at least",
        fix=f"allow {fewest} subgraphs, change the pins, or add a device that supports more",
    )
