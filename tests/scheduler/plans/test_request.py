"""Requests for plans: built by keyword, held by the plan, taken on when it is planned anew."""

from __future__ import annotations

from dataclasses import replace

import plait as pl
import pytest
from plait.devices.registry import find
from plait.scheduler.plans.request import PlanRequest


def doubled() -> pl.Graph:
    b = pl.GraphBuilder("doubled")
    x = b.input("x", "float32", (4,))
    b.output("y", b.op("Add", x, x, name="add"))
    return b.build()


def test_a_request_is_built_by_keyword_alone() -> None:
    with pytest.raises(TypeError, match="positional"):
        PlanRequest({"cpu": find("cpu")})  # type: ignore[call-arg]


def test_requests_are_equal_whatever_objects_stand_for_their_devices() -> None:
    request = PlanRequest(devices={"cpu": find("cpu")})
    assert request == PlanRequest(devices={"cpu": find("formal")})
    assert request != PlanRequest(devices={"worker:0": find("cpu")})


def test_a_plan_holds_what_it_was_to_be_like() -> None:
    plan = pl.plan(doubled(), ["cpu"], pin={"add": "cpu"}, memory_limits={"cpu": 1 << 20})
    request = plan.request
    assert (plan.devices, plan.pins) == (("cpu",), {"add": "cpu"})
    assert (request.memory_limits, request.strategy) == ({"cpu": 1 << 20}, "auto")


def test_planning_anew_changes_only_what_is_asked() -> None:
    plan = pl.plan(doubled(), ["cpu"], pin={"add": "cpu"}, objective="throughput")
    anew = plan.replan(3)
    assert anew.request == replace(plan.request, max_in_flight=3, overlaps=True)
    assert anew.assignment == plan.assignment
