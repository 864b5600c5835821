"""Predicted gain of a measured stream if some of its operators were faster."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from ...graph.core.ir import Node
from ...graph.core.printing import format_count
from ...graph.operators.bounded_call import get_called_op
from ...graph.values.errors import join_lines
from ..costs import Costs
from ..costs.signature import make_signature
from ..errors import SessionError
from ..planner.simulate import name_nodes, simulate, with_known_shapes
from ..plans.partition import Subgraph
from ..plans.plan import Plan
from ..profile.profile import Profile
from ..profile.records import Record
from ..simulation.simulation import Simulation

MOST_ITEMS = 256
"""Limit of the simulated stream."""


Basis: TypeAlias = Literal["measured", "profiled share", "modelled share", "model"]

_BASES: Mapping[Basis, str] = {
    "measured": "measured",
    "profiled share": "a share of the measured time of its subgraph, by its device's own profiler",
    "modelled share": "a share of the measured time of its subgraph, by the model",
    "model": "by the model alone: its subgraph did not run",
}
"""Meaning of each basis of a node's time."""


@dataclass(frozen=True)
class WhatIf:
    """An answer, as a ratio of two predictions by the same measured times."""

    faster: Mapping[str, float]
    """The question: speedup by operator or name of node."""
    before: Simulation = field(repr=False)
    after: Simulation = field(repr=False)
    """The stream with measured times, and with the speedups."""
    source_s: float
    consumer_s: float
    """Mean times of source and consumer for an item; they bound the stream."""
    basis: Mapping[str, Basis] = field(default_factory=dict)
    """Basis of the time of each node in question: ``"measured"``; a share of the measured time of
    its subgraph, by the device's profiler (``"profiled share"``) or by the model (``"modelled
    share"``); or ``"model"``."""

    @property
    def gain(self) -> float:
        """Relative gain in items per second: 0.5 for half as many more."""
        return self._item_s(self.before) / (self._item_s(self.after) or 1.0) - 1

    @property
    def latency_gain(self) -> float:
        """Relative reduction of the time from an item's admission to its result."""
        return 1 - self.after.latency_s(0.5) / (self.before.latency_s(0.5) or 1.0)

    @property
    def limit(self) -> str | None:
        """The bottleneck with the speedups: ``"source"``, ``"consumer"``, or a lane."""
        slowest = self._item_s(self.after)
        if slowest > self.after.makespan_s / self.after.items:
            return "source" if slowest == self.source_s else "consumer"
        return self.after.bottleneck

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain values, for JSON."""
        return {
            "faster": dict(self.faster),
            "gain": self.gain,
            "latency_gain": self.latency_gain,
            "limit": self.limit,
            "basis": dict(self.basis),
        }

    def __str__(self) -> str:
        question = ", ".join(f"{name} were {factor:g}" for name, factor in self.faster.items())
        limit = f"; then {self.limit} limits it" if self.limit is not None else ""
        answer = (
            f"if {question} times as fast, the stream would be "
            f"{_format_change(self.gain, 'faster', 'slower')} and an item's latency "
            f"{_format_change(self.latency_gain, 'shorter', 'longer')}{limit}"
        )
        bases = Counter(self.basis.values()).items()
        known = [
            f"time of {format_count(count, 'node')}: {_BASES[basis]}" for basis, count in bases
        ]
        return join_lines([answer, *known])

    def _item_s(self, simulation: Simulation) -> float:
        return max(simulation.makespan_s / simulation.items, self.source_s, self.consumer_s)


def _format_change(gain: float, more: str, less: str) -> str:
    return f"{abs(gain):.1%} {less if round(gain, 3) < 0 else more}"


def predict_faster(
    profile: Profile, plan: Plan, faster: Mapping[str, float], max_in_flight: int | None
) -> WhatIf:
    plan = with_known_shapes(plan)
    asked = list(_find_nodes(plan, name_nodes(plan, faster)))
    timed = {(node.name, node.device) for node in profile.nodes}
    if not profile.records or any(
        (node.name, subgraph.device) not in timed
        and not plan.prototypes[subgraph.device].capabilities.atomic_programs
        for subgraph, node in asked
    ):
        raise SessionError(
            "the profile does not say what nodes take",
            fix="run some items in a Session(plan, measure=True)",
        )
    costs = Costs.from_profile(profile, plan)
    items = min(max(len(profile.records), 1), MOST_ITEMS)

    def predicted(factors: Mapping[str, float]) -> Simulation:
        return simulate(plan, items=items, max_in_flight=max_in_flight, costs=costs, faster=factors)

    # Factors of 1 make the first prediction add up nodes, too, instead of whole subgraphs.
    before, after = predicted(dict.fromkeys(faster, 1.0)), predicted(faster)
    basis = {
        node.name: "measured"
        if (node.name, subgraph.device) in timed
        else _find_basis(costs, subgraph, node)
        for subgraph, node in asked
    }
    return WhatIf(dict(faster), before, after, *_average_outside_s(profile.records), basis)


def _find_nodes(plan: Plan, faster: Mapping[str, float]) -> Iterator[tuple[Subgraph, Node]]:
    for subgraph in plan.subgraphs:
        for node in subgraph.graph.nodes:
            if not faster.keys().isdisjoint((get_called_op(node), node.name)):
                yield subgraph, node


def _find_basis(costs: Costs, subgraph: Subgraph, node: Node) -> Basis:
    found = costs.nodes.get(subgraph.device, {}).get(make_signature(subgraph.graph, node))
    if found is None:
        return "model"
    return "modelled share" if found.is_share else "profiled share"


def _average_outside_s(records: Sequence[Record]) -> tuple[float, float]:
    marks = [record.marks for record in records]
    source = [m.given_ns - m.asked_ns for m in marks if m.asked_ns and m.given_ns]
    consumer = [m.released_ns - m.taken_ns for m in marks if m.taken_ns and m.released_ns]
    return (statistics.fmean(source or [0]) / 1e9, statistics.fmean(consumer or [0]) / 1e9)
