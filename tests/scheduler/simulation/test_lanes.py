"""Assumptions about the host before, and after, something was measured."""

from __future__ import annotations

from dataclasses import replace

from machines import chain
from plait import Costs
from plait.scheduler.costs.figures import Loop
from plait.scheduler.simulation.lanes import USUAL, describe_host


def test_busy_cores_disturb_each_other_unless_measured_times_have_that_in_them() -> None:
    graph, measured = chain(2), Costs(nodes={"cpu": {}})
    assert describe_host(graph).contention == USUAL.contention > 0
    assert describe_host(graph, Costs()).contention == USUAL.contention
    assert describe_host(graph, measured).contention == 0
    known = replace(measured, loop=Loop(1e-6, 1e-6, contention=0.5))
    assert describe_host(graph, known).contention == 0.5
