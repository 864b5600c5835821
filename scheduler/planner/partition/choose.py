"""The choice of a partition: by cost, by order of preference, or by Tengine's rule.

By cost, many assignments are tried, and the simulator says which is best. Whatever is tried,
everything on one device is tried too, and a split is taken only where it is predicted to win by a
margin: models are not so good that less would mean anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf

from ....devices.device import Device
from ....graph.ir import Graph
from ....graph.names import Names
from ....graph.passes import Placing
from ....graph.printing import counted
from ...costs import Costs
from ...costs.host import computes_here
from ...errors import PlanError
from ...plans.partition import Decision, Partition, Subgraph
from ...plans.placement import Placement
from ...plans.regions import MemoryPlan
from ...plans.request import PlanRequest
from .capacity import Capacity, filled
from .cutting import cut
from .improvement import improve
from .judge import PATIENCE, SAME, Judge, Judged
from .list_scheduling import portfolio
from .min_cut import least_work
from .offers import (
    Offers,
    WrittenOut,
    ask,
    by_order,
    options,
    settled_reasons,
    weighed_reasons,
    written_reasons,
)
from .partition import by_preference, may_merge
from .pipeline import pipelines
from .problem import PartitionProblem
from .ranking import Ranking
from .search import Search, every
from .tengine import by_runs


def merging(request: PlanRequest) -> Placing:
    """Return the rule by which passes make one node of several."""
    return may_merge(request.devices, request.kept, writes_out=request.writes_out)


def choices(
    graph: Graph, request: PlanRequest, *, is_static: bool, template: Graph | None = None
) -> Iterator[Choice]:
    """Yield partitions, the best first; others follow lest the first need too much memory.

    `template` is the graph with its symbols, where the same nodes are for other shapes too.

    Raises
    ------
    UnsupportedOpError
        If nodes find no device; the message lists all of them.
    PlanError
        If there is no partition of so few subgraphs.
    """
    if request.strategy == "auto" and is_static:
        yield from choose(graph, request, template)
    else:
        yield from _by_rule(graph, request, is_static, template)


def _by_rule(
    graph: Graph, request: PlanRequest, is_static: bool, template: Graph | None
) -> Iterator[Choice]:
    """Yield the only assignment that a rule knows, cut well, and then in leaner ways."""
    devices, writes_out = request.devices, request.writes_out
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
        ask=partial(options, graph, devices, request.costs),
    )
    if not is_static:
        assignment, reasons = by_preference(graph, devices, request.pins, writes_out=writes_out)
        subgraphs = cut(graph, assignment, overlaps=request.overlaps)
        if request.strategy != "auto":
            _check_count(subgraphs, request)
        yield Choice(Partition(assignment, reasons, subgraphs), None, decision, graph)
        return
    offers = ask(graph, devices, request.pins, writes_out=writes_out, template=template)
    told = partial(options, graph, devices, request.costs, offers.forms)
    decision = replace(decision, ask=told)
    rule = by_runs if request.strategy == "tengine" else by_order
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
"""By what share a split must be predicted faster than the best single device: where models are
taken at their word, where devices share this machine's cores with all else that it does, and where
nothing is known of a device but its kind."""

MARGIN_EACH = 0.01
"""What each subgraph beyond the second adds to that on this machine: every hand-over may cost a
little more than is known, in caches, layouts and wake-ups."""

NODE_ESTIMATES = 80_000
"""Estimates made at most, times the nodes of the graph."""

MOST_ESTIMATES = 600
STARTS = 3

MOST_ANNEALED = 40
"""Up to so many nodes the schedules of the list schedulers are improved as schedules, too."""

ANNEALING_STEPS = 400
MOST_JUDGED = 4
"""Splits that the simulator is asked about."""

MOST_NAMED = 3
"""Nodes that the name of a candidate lists, which says what pins would make it."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A partition to plan with, and how it was come by.

    Attributes
    ----------
    partition : Partition
    placement : Placement or None
        None while dimensions are symbolic.
    decision : Decision
    graph : Graph
        What is partitioned, in the form that the devices get.
    written : WrittenOut
        What stands in it in place of nodes that devices lack.
    judged : Judged or None
        What was weighed against others.
    """

    partition: Partition
    placement: Placement | None
    decision: Decision
    graph: Graph
    written: WrittenOut = field(default_factory=WrittenOut)
    judged: Judged | None = None

    @classmethod
    def of(cls, way: Judged, reasons: Mapping[str, str], decision: Decision) -> Choice:
        """Return the choice of an assignment in one way to cut it."""
        told = {
            **reasons,
            **written_reasons(way.judge.graph, way.written, way.partition.assignment),
        }
        partition = replace(way.partition, reasons=told)
        return cls(partition, way.placement, decision, way.graph, way.written)

    @property
    def seconds(self) -> float:
        """What it is predicted to take if memory does not matter; 0 if there are no others."""
        return self.judged.seconds if self.judged is not None else 0.0

    @property
    def is_on_one_device(self) -> bool:
        """True if all nodes are on the same device."""
        return len(set(self.partition.assignment.values())) == 1

    def seconds_with(self, memory: MemoryPlan) -> float:
        """Return what it is predicted to take where steps wait for memory, too."""
        if self.judged is None or self.placement is None:
            return 0.0
        placement = self.placement.with_waits(memory.added_edges)
        return self.judged.judge.seconds(placement, memory.regions)


def choose(graph: Graph, request: PlanRequest, template: Graph | None = None) -> Iterator[Choice]:
    """Yield partitions of a graph with known shapes, as `choices` does, by what they would take."""
    costs = request.costs
    ranks = {name: rank for rank, name in enumerate(request.devices)}
    devices = {name: request.devices[name] for name in sorted(ranks)}  # ranks decide ties alone
    offers = ask(graph, devices, request.pins, writes_out=request.writes_out, template=template)
    told = partial(options, graph, devices, costs, offers.forms)
    decision = Decision("auto", request.objective, "", "", ask=told)
    judge = Judge.of(offers, request)
    if offers.is_settled:
        yield from _settled(offers, judge, decision)
        return
    seconds = offers.seconds(costs)
    # The judge asks for the same nodes hundreds of times: their times are worked out once.
    judge = replace(judge, costs=offers.priced(costs, seconds))
    problem = PartitionProblem(
        graph, devices, costs, seconds, judge.in_flight, request.max_subgraphs,
        Capacity.of(graph, devices, request.memory_limits, request.max_in_flight),
        _margin(devices, costs), request.ends,
        MARGIN_EACH * any(map(computes_here, devices.values())), judge.labels,
    )  # fmt: skip
    single, split = _candidates(problem)
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
    yield from _choices(offers, ranking, costs, decision)


def _settled(offers: Offers, judge: Judge, decision: Decision) -> Iterator[Choice]:
    """Yield the only partition there is, and then cuts of it that take less memory."""
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
    reasons = settled_reasons(offers)
    # Who runs what is given, but cuts may differ in memory.
    for way in one.ways(PATIENCE):
        yield Choice.of(way, reasons, decided)


def _margin(devices: Mapping[str, Device], costs: Costs) -> float:
    if any(map(costs.is_guess, devices)):
        return GUESSED_MARGIN
    return HOST_MARGIN if any(map(computes_here, devices.values())) else MARGIN


def _candidates(problem: PartitionProblem) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    """Return the assignments worth the simulator's time: all on one device, and the best splits."""
    # An estimate takes time by the number of nodes: large graphs get fewer.
    budget = max(20, min(MOST_ESTIMATES, NODE_ESTIMATES // max(problem.n_nodes, 1)))
    search = Search(problem, budget)
    single = {}
    for device, name in enumerate(problem.names):
        if any(row[device] < inf for row in problem.seconds):
            base = _mostly(problem, device)
            share = "all" if len(set(base)) == 1 else "most"
            single[f"{share} on {name}"] = base
    best = min(search.estimate(one).key for one in single.values())
    # Only where memory is no matter: a split may be needed though it is slower.
    if best[0] == 0 and not problem.in_flight and best[1] <= problem.bound_s * (1 + problem.margin):
        return single, {}  # no split can win by the margin
    # So few that no rule is needed to choose among them.
    everything = every(problem, MOST_JUDGED * 2)
    if everything is not None:
        return single, _distinct(_by_places(problem, everything), single)
    found = _seeds(problem, sorted(single.values(), key=lambda one: search.estimate(one).key))
    merged = {name: search.merged(one) for name, one in found.items()}
    ranked = sorted(
        {**single, **merged}.items(), key=lambda item: (search.estimate(item[1]).key, item[0])
    )
    improved = {}
    for index, (name, start) in enumerate(ranked[:STARTS]):
        # What one start leaves over is for those after it.
        allowance = search.budget // (STARTS - index)
        improved[f"{name}, improved"] = search.improve(start, allowance)
    everyone = _distinct({**merged, **improved}, single)
    best_first = sorted(everyone, key=lambda name: (search.estimate(everyone[name]).key, name))
    # Users can pin what is where; by which rule that was found tells them nothing.
    return single, _by_places(problem, [everyone[name] for name in best_first[:MOST_JUDGED]])


def _by_places(problem: PartitionProblem, assignments: Iterable[list[int]]) -> dict[str, list[int]]:
    """Name assignments after what a pin would say: which nodes are not where most of them are."""
    names, found = Names(separator=", way "), {}
    for one in assignments:
        most, _ = Counter(one).most_common(1)[0]
        apart: dict[int, list[str]] = {}
        for node, device in zip(problem.graph.nodes, one, strict=True):
            if device != most:
                apart.setdefault(device, []).append(node.name)
        places = [f"{_some(nodes)} on {problem.names[device]}" for device, nodes in apart.items()]
        rest = f"the rest on {problem.names[most]}" if places else f"all on {problem.names[most]}"
        found[names.take(", ".join([*places, rest]))] = one
    return found


def _some(nodes: Sequence[str]) -> str:
    return ", ".join(nodes) if len(nodes) <= MOST_NAMED else counted(len(nodes), "node")


def _seeds(problem: PartitionProblem, bases: Sequence[list[int]]) -> dict[str, list[int]]:
    """Return assignments to start from, by name; `bases` are those of one device."""
    tasks = problem.tasks
    timelines = portfolio(tasks)
    found = {name: list(timeline.machine) for name, timeline in timelines.items()}
    if tasks.n_tasks <= MOST_ANNEALED:
        shortest = min(timelines.values(), key=lambda timeline: timeline.makespan_s)
        found["annealed"] = list(improve(shortest, ANNEALING_STEPS).machine)
    # Of two devices one cut is the least from any start; of more, pairs in turns end where they
    # began.
    for index, base in enumerate(bases[: 1 if len(problem.names) == 2 else 2]):
        found[f"least work{', again' * index}"] = least_work(problem, base)
    if problem.in_flight > 1:
        found |= pipelines(problem)
    return found | filled(problem)


def _mostly(problem: PartitionProblem, device: int) -> list[int]:
    """Return everything on one device, and what it lacks where that is fastest."""
    return [
        device if row[device] < inf else min((s, d) for d, s in enumerate(row))[1]
        for row in problem.seconds
    ]


def _distinct(
    found: Mapping[str, list[int]], known: Mapping[str, list[int]]
) -> dict[str, list[int]]:
    seen = {tuple(one) for one in known.values()}
    kept = {}
    for name, one in found.items():
        if tuple(one) not in seen:
            seen.add(tuple(one))
            kept[name] = one
    return kept


def _choices(
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
        reasons = weighed_reasons(offers, ranking.problem, costs, assignment)
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
