from __future__ import annotations

import json

import numpy as np
import plait as pl
import pytest
from fake_devices import PrivateDevice
from plait.devices.device import Device
from plait.graph.core.ir import Graph
from plait.scheduler.plans.plan import Plan


def graph(n: int | str = 1000, *, extra: bool = False) -> Graph:
    b = pl.GraphBuilder("compared")
    h = b.op("Relu", b.input("x", "float32", (n,)), name="first")
    h = b.op("Add", h, np.float32(1), name="second")
    b.output("y", b.op("Neg", h, name="third") if extra else h)
    return b.build()


def plan(*devices: str | Device, n: int | str = 1000, extra: bool = False) -> Plan:
    return pl.plan(graph(n, extra=extra), devices, strategy="preference", passes=())


def npu() -> PrivateDevice:
    return PrivateDevice("npu", lacks=["Add"])


def test_a_plan_does_not_differ_from_itself() -> None:
    found = pl.diff(plan("cpu"), plan("cpu"))
    assert found.is_empty
    assert found.predicted_change == 0
    assert "they decide the same" in str(found)


def test_nodes_that_moved_are_named_with_the_reason() -> None:
    found = pl.diff(plan("cpu"), plan(npu(), "cpu"))
    (moved,) = found.moved
    assert (moved.node, moved.source, moved.target) == ("first", "cpu", "npu")
    assert moved.reason == plan(npu(), "cpu").reasons["first"]
    assert "cpu to npu: first" in str(found)


def test_bytes_that_are_copied_are_summed_by_pair_of_memories() -> None:
    found = pl.diff(plan("cpu"), plan(npu(), "cpu"))
    assert found.copied == {
        ("host", "memory of npu"): (0, 4000),
        ("memory of npu", "host"): (0, 4000),
    }
    assert (found.before.transfers, found.after.transfers) == (0, 2)
    assert found.after.transferred_nbytes == 8000
    assert pl.diff(plan(npu(), "cpu"), plan("cpu")).copied["host", "memory of npu"] == (4000, 0)


def test_nodes_of_one_plan_only_are_removed_or_added() -> None:
    forth = pl.diff(plan("cpu"), plan("cpu", extra=True))
    back = pl.diff(plan("cpu", extra=True), plan("cpu"))
    assert (forth.added, forth.removed) == (("third",), ())
    assert (back.added, back.removed) == ((), ("third",))


def test_both_plans_are_predicted_by_the_costs_of_the_second() -> None:
    before, after = plan("cpu"), plan("cpu", extra=True)
    slower = pl.plan(
        graph(extra=True),
        passes=(),
        strategy="preference",
        costs=after.costs.scaled("Relu", 1000),
    )
    assert pl.diff(before, slower).before.predicted_s == pytest.approx(
        pl.simulate(before, costs=slower.costs).makespan_s
    )
    change = pl.diff(before, after).predicted_change
    assert change is not None
    assert change > 0


def test_symbolic_plans_have_no_prediction() -> None:
    found = pl.diff(plan("cpu", n="n"), plan(npu(), "cpu", n="n"))
    assert (found.before.predicted_s, found.predicted_change) == (None, None)
    assert found.moved
    assert "-" in str(found)


def test_memory_before_and_after_is_told() -> None:
    found = pl.diff(plan("cpu"), plan(npu(), "cpu"))
    assert set(found.before.memory) == {"host"}
    assert set(found.after.memory) == {"host", "memory of npu"}


def test_a_difference_is_plain_values_for_json() -> None:
    values = json.loads(json.dumps(pl.diff(plan("cpu"), plan(npu(), "cpu")).to_dict()))
    assert (values["format"], values["version"]) == ("plait plan diff", 1)
    assert values["moved"][0]["node"] == "first"
    assert {"source": "host", "target": "memory of npu", "before": 0, "after": 4000} in values[
        "copied"
    ]


def test_what_is_no_plan_is_refused() -> None:
    with pytest.raises(pl.PlanError, match="expected a plan, got Graph"):
        pl.diff(plan("cpu"), graph())  # type: ignore[arg-type]


def test_rates_of_streams_are_compared() -> None:
    one, four = (pl.plan(graph(), ["cpu"], max_in_flight=k) for k in (1, 4))
    found = pl.diff(one, four)
    assert found.before.items_per_s == pytest.approx(1 / pl.simulate(one).makespan_s)
    assert found.after.items_per_s == pl.simulate(four, items=16).items_per_s
    assert "a stream" in str(found)
