"""Which device runs which node by cost: many ways are tried, the simulator says which is best.

Whatever is tried, everything on one device is tried too, and a split is taken only where it is
predicted to win by a margin: models are not so good that less would mean anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf

from ...devices.device import Device
from ...graph.ir import Graph
from ..costs import Costs
from ..errors import PlanError
from ..placement import Placement, place
from .capacity import Capacity, filled
from .cutting import cut
from .decision import Candidate, Decision
from .improvement import improve
from .judge import Judged, judge
from .list_scheduling import portfolio
from .min_cut import least_work
from .offers import Offers, ask, options
from .partition import Partition
from .pins import Pins
from .pipeline import stages
from .problem import Problem
from .reasons import settled_reasons, time_text, weighed_reasons
from .search import Search, every

MARGIN, GUESSED_MARGIN = 0.03, 0.1
"""By what share a split must be predicted faster than the best single device; the latter where
nothing is known of a device but its kind."""

NODE_ESTIMATES = 80_000
"""Estimates made at most, times the nodes of the graph."""

MOST_ESTIMATES = 600
STARTS = 3

MOST_ANNEALED = 40
"""Up to so many nodes the schedules of the list schedulers are improved as schedules, too."""

ANNEALING_STEPS = 400
MOST_JUDGED = 4
"""Splits that the simulator is asked about."""

LISTED = 12


@dataclass(frozen=True, slots=True)
class Choice:
    """A partition to plan with, and how it was come by."""

    partition: Partition
    placement: Placement
    decision: Decision


def choose(
    graph: Graph,
    devices: Mapping[str, Device],
    pins: Pins,
    costs: Costs,
    *,
    objective: str = "latency",
    max_in_flight: int = 1,
    max_subgraphs: int | None = None,
    memory_limits: Mapping[str, int] | None = None,
) -> Iterator[Choice]:
    """Yield partitions of a graph with known shapes, the best first.

    There are several so that one which turns out to need too much memory can be passed over.

    Raises
    ------
    UnsupportedOpError
        If nodes find no device; the message lists all of them.
    PlanError
        If there is none of so few subgraphs.
    """
    offers = ask(graph, devices, pins)
    in_flight = max_in_flight if objective == "throughput" else 0
    decision = Decision("auto", objective, "", "", ask=partial(options, graph, devices, costs))
    if offers.is_settled:
        yield _settled(offers, decision, max_subgraphs)
        return
    seconds = offers.seconds(costs)
    priced = offers.priced(costs, seconds)
    weigh = partial(judge, graph=graph, devices=devices, costs=priced, in_flight=in_flight)
    problem = Problem(
        graph, devices, costs, seconds, in_flight, max_subgraphs,
        Capacity.of(graph, devices, memory_limits, max_in_flight),
        GUESSED_MARGIN if any(map(costs.is_guess, devices)) else MARGIN,
    )  # fmt: skip
    single, split = _candidates(problem)
    judged = [weigh(name, assignment) for name, assignment in single.items()]
    judged += [weigh(name, assignment) for name, assignment in split.items()]
    alone = {one.name for one in judged if len(one.devices) == 1}
    ranked = _ranked(problem, judged, alone)
    if not ranked:
        raise _too_many(offers, problem, judged)
    yield from _choices(offers, problem, costs, decision, ranked, judged, alone)


def _settled(offers: Offers, decision: Decision, most: int | None) -> Choice:
    """Return the only partition there is."""
    graph, names = offers.graph, tuple(offers.devices)
    assignment = {
        node.name: names[device]
        for node, (device,) in zip(graph.nodes, offers.allowed, strict=True)
    }
    found = Partition(assignment, settled_reasons(offers), cut(graph, assignment))
    if most is not None and len(found.subgraphs) > most:
        raise PlanError(
            f"pins and support leave {len(found.subgraphs)} subgraphs, max_subgraphs is {most}",
            fix="allow more subgraphs, change the pins, or add a device that supports more",
        )
    used = sorted(set(assignment.values()), key=names.index)
    chosen = f"all on {used[0]}" if len(used) == 1 else "the only one"
    why = "no node has a choice of devices"
    return Choice(
        found,
        place(graph, found, offers.devices),
        replace(decision, chosen=chosen, why=why),
    )


def _candidates(problem: Problem) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    """Return the assignments worth the simulator's time: all on one device, and the best splits."""
    budget = max(20, min(MOST_ESTIMATES, NODE_ESTIMATES // max(problem.n_nodes, 1)))
    search = Search(problem, budget)
    single = {}
    for device, name in enumerate(problem.names):
        if any(row[device] < inf for row in problem.seconds):
            base = _mostly(problem, device)
            share = "all" if len(set(base)) == 1 else "most"
            single[f"{share} on {name}"] = base
    best = min(search.estimate(one).key for one in single.values())
    if best[0] == 0 and not problem.in_flight and best[1] <= problem.bound_s * (1 + problem.margin):
        return single, {}  # no split can win by the margin
    everything = every(problem)
    if everything is not None:
        return single, _distinct({"the best of all": everything}, single)
    found = _seeds(problem, sorted(single.values(), key=lambda one: search.estimate(one).key))
    merged = {name: search.merged(one) for name, one in found.items()}
    ranked = sorted(
        {**single, **merged}.items(), key=lambda item: (search.estimate(item[1]).key, item[0])
    )
    improved = {}
    for index, (name, start) in enumerate(ranked[:STARTS]):
        allowance = search.budget // (STARTS - index)
        improved[f"{name}, improved"] = search.improve(start, allowance)
    everyone = _distinct({**merged, **improved}, single)
    best_first = sorted(everyone, key=lambda name: (search.estimate(everyone[name]).key, name))
    return single, {name: everyone[name] for name in best_first[:MOST_JUDGED]}


def _seeds(problem: Problem, bases: Sequence[list[int]]) -> dict[str, list[int]]:
    """Return assignments to start from, by name; `bases` are those of one device."""
    tasks = problem.tasks
    timelines = portfolio(tasks)
    found = {name: list(timeline.machine) for name, timeline in timelines.items()}
    if tasks.n_tasks <= MOST_ANNEALED:
        shortest = min(timelines.values(), key=lambda timeline: timeline.makespan_s)
        found["annealed"] = list(improve(shortest, ANNEALING_STEPS).machine)
    preferred = [min(tasks.machines[node]) for node in range(problem.n_nodes)]
    found["preference"] = preferred
    for index, base in enumerate(bases[: 1 if len(problem.names) == 2 else 2]):
        found[f"least work{', again' * index}"] = least_work(problem, base)
    if problem.in_flight > 1:
        found |= stages(problem)
    return found | filled(problem)


def _mostly(problem: Problem, device: int) -> list[int]:
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


def _ranked(problem: Problem, judged: Sequence[Judged], single: set[str]) -> list[Judged]:
    """Return what respects `max_subgraphs`, the best first, a split only where it wins."""
    most = problem.max_subgraphs
    within = [one for one in judged if most is None or len(one.partition.subgraphs) <= most]

    def key(one: Judged) -> tuple[bool, float]:
        return problem.excess(one.assignment) > 0, one.seconds

    bases = [one for one in within if one.name in single]
    ranked = sorted(within, key=key)  # of equals the one on the device named first
    if bases:
        base = min(bases, key=key)
        first = ranked[0]
        close = first.seconds > base.seconds * (1 - problem.margin)
        if first.name not in single and key(first)[0] == key(base)[0] and close:
            ranked.remove(base)
            ranked.insert(0, base)
    return ranked


def _choices(
    offers: Offers,
    problem: Problem,
    costs: Costs,
    decision: Decision,
    ranked: Sequence[Judged],
    judged: Sequence[Judged],
    single: set[str],
) -> Iterator[Choice]:
    passed: set[str] = set()
    for one in ranked:
        candidates = tuple(
            replace(_candidate(other), note=_note(problem, other, one, single, passed))
            for other in sorted(judged, key=lambda other: other.seconds)[:LISTED]
        )
        decided = replace(
            decision,
            chosen=one.name,
            why=_why(one, judged, single, passed),
            candidates=candidates,
        )
        reasons = weighed_reasons(offers, problem, costs, one.assignment)
        yield Choice(replace(one.partition, reasons=reasons), one.placement, decided)
        passed.add(one.name)


def _note(
    problem: Problem, other: Judged, chosen: Judged, single: set[str], passed: set[str]
) -> str:
    most = problem.max_subgraphs
    if other.name == chosen.name:
        return ""
    if most is not None and len(other.partition.subgraphs) > most:
        return f"more than {most} subgraphs"
    if other.name in passed:
        return "needs more memory than there is"
    if other.seconds < chosen.seconds:
        if problem.excess(other.assignment) > 0:
            return "seems to need more memory than there is"
        gain = 1 - other.seconds / chosen.seconds
        return (
            f"only {gain:.1%} faster, less than the {problem.margin:.0%} that a split must win by"
        )
    return f"{other.seconds / chosen.seconds:.2f} times the time" if chosen.seconds else "no faster"


def _why(one: Judged, judged: Sequence[Judged], single: set[str], passed: set[str]) -> str:
    others = [o for o in judged if o.name in single and o.name != one.name]
    text = f"{one.name}: {time_text(one.seconds)} predicted"
    if one.name in single:
        splits = [o for o in judged if o.name not in single]
        if splits:
            best = min(splits, key=lambda o: o.seconds)
            return f"{text}; the best split found takes {time_text(best.seconds)}"
        return f"{text}; no split can be faster by the margin"
    if others:
        best = min(others, key=lambda o: o.seconds)
        text += f", {best.name} {time_text(best.seconds)}"
    return f"{text}; {len(passed)} better did not fit into memory" if passed else text


def _candidate(one: Judged) -> Candidate:
    return Candidate(one.name, one.seconds, len(one.partition.subgraphs), one.devices)


def _too_many(offers: Offers, problem: Problem, judged: Sequence[Judged]) -> PlanError:
    fewest = min(len(one.partition.subgraphs) for one in judged)
    pinned = sum(pattern is not None for pattern in offers.pinned)
    held = f"{pinned} pinned nodes and " if pinned else ""
    return PlanError(
        f"no partition found has at most {problem.max_subgraphs} subgraphs; "
        f"{held}what devices support leave {fewest} at least",
        fix=f"allow {fewest} subgraphs, change the pins, or add a device that supports more",
    )
