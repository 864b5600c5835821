"""The sentence about the limit of a stream: a device with its longest step, or the source."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import plait as pl
import pytest
from plait.scheduler.profile.limit import describe_limit

STEPS = [
    {"step": "detect", "kind": "subgraph", "device": "ort:0", "runs": 5, "run_ms": 60.0},
    {"step": "detect", "kind": "subgraph", "device": "ort:1", "runs": 5, "run_ms": 60.0},
    {"step": "read", "kind": "subgraph", "device": "ort:0", "runs": 5, "run_ms": 20.0},
    {"step": "read", "kind": "subgraph", "device": "ort:1", "runs": 5, "run_ms": 20.0},
    {"step": "crop", "kind": "subgraph", "device": "cpu", "runs": 10, "run_ms": 10.0},
    {"step": "read/rows", "kind": "wait for rows", "device": "ort:0", "runs": 5, "run_ms": 500.0},
    {"step": "fetch", "kind": "wait", "device": "ort:1", "runs": 5, "run_ms": 500.0},
]


@dataclass
class Measured:
    """The figures that the sentence is made from: ten items in half a second."""

    wall_ms: float = 1000.0
    spent_ms: dict[str, float] = field(default_factory=dict)
    busy_s: dict[str, float] = field(default_factory=dict)
    active_s: float = 0.5

    def attribution(self) -> Any:
        spent = {kind: ms * 1e6 for kind, ms in self.spent_ms.items()}
        return SimpleNamespace(wall_ns=self.wall_ms * 1e6, spent_ns=spent)

    def steps(self) -> list[dict[str, Any]]:
        return STEPS


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        (
            Measured(busy_s={"ort:0": 0.4, "ort:1": 0.4, "cpu": 0.1}),
            "limit: ort, busy for 80% of the time; 'detect' takes 75% of that, and at twice its"
            " speed the rate is 1.6 times",
        ),
        (
            Measured(wall_ms=5000.0, active_s=2.0, busy_s={"cpu": 1.9}),
            "limit: cpu, busy for 95% of the time; no step takes more of that than 'crop', 5%",
        ),
        (
            Measured(busy_s={"gpu": 0.4, "cpu": 0.1}),
            "limit: gpu, busy for 80% of the time; none of its steps was timed",
        ),
        (
            Measured(spent_ms={"source": 450.0}, busy_s={"ort:0": 0.35, "cpu": 0.1}),
            "limit: the source, which was at work for 90% of the time",
        ),
        (
            Measured(spent_ms={"scheduler": 600.0, "compute": 300.0}, busy_s={"cpu": 0.1}),
            "no kind of device was busy for more than 20% of the time; most of an item's time, 60%,"
            " is scheduler",
        ),
        (
            Measured(wall_ms=500.0, busy_s={"ort:0": 0.4, "ort:1": 0.0}),
            "items ran one at a time; 'fetch' takes 100% of that, and at twice its speed the rate"
            " is 2 times",
        ),
    ],
)
def test_the_limit_is_named_with_the_gain_of_one_change(measured: Any, expected: str) -> None:
    assert describe_limit(measured) == expected


def test_a_profile_begins_with_its_limit_and_has_none_without_items() -> None:
    b = pl.GraphBuilder("one")
    b.output("y", b.input("x", "float32", (4,)).exp())
    plan = pl.plan(b.build(), "cpu")
    profile = pl.simulate(plan, items=4).profile
    assert profile.table().splitlines()[1] == describe_limit(profile) != ""
    with pl.BlockingSession(plan) as session:
        assert describe_limit(session.profile()) == ""
