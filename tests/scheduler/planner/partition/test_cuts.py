"""One assignment, cut in several ways: the time that it takes, and the memory."""

from __future__ import annotations

import plait as pl
import pytest
from machines import branches
from plait import Costs
from plait.devices.cpu import CpuDevice
from plait.devices.device import Device
from plait.scheduler.planner.partition.cutting import list_cuts
from plait.scheduler.planner.partition.judge import SAME, Judge

PIECES = 4


def with_a_shortcut() -> pl.Graph:
    """Return a chain of wide tensors; at its end a wide one is added that could be made first."""
    b = pl.GraphBuilder("shortcut")
    x = b.input("x", "float32", (8, 1))
    last = b.op("Expand", x, [8, 4096], name="n0")
    for index in range(1, 2 * PIECES):
        soft = b.op("Softmax", last, name=f"n{index}.soft")
        last = b.op("Add", last, soft, name=f"n{index}")
    wide = b.op("Expand", x, [8, 4096], name="wide")
    b.output("y", b.op("Add", last, wide, name="sum"))
    return b.build()


def pinned() -> dict[str, str]:
    home = {f"n{index}*": "ab"[index // 2 % 2] for index in range(2 * PIECES)}
    return {**home, "wide": "a", "sum": "a"}


def planned(pin: dict[str, str] | None = None, **asked: object) -> pl.Plan:
    devices = [CpuDevice("a"), CpuDevice("b")]
    return pl.plan(with_a_shortcut(), devices, pin=pin or {"*": "a"}, passes=(), **asked)  # type: ignore[arg-type]


def taken(plan: pl.Plan) -> int:
    assert plan.memory is not None
    return plan.memory.nbytes


def test_what_is_needed_late_is_not_made_early_only_because_it_could_be() -> None:
    assert taken(planned(pinned())) <= taken(planned()) * 1.02


@pytest.mark.parametrize("strategy", ["preference", "tengine"])
def test_rules_cut_as_well_as_auto_does(strategy: str) -> None:
    assert taken(planned(pinned(), strategy=strategy)) == taken(planned(pinned()))


def test_where_only_a_leaner_cut_fits_that_is_taken() -> None:
    graph, names = branches(2, 3), {"b0": "a", "b1": "b", "su": "a"}
    devices: dict[str, Device] = {"a": CpuDevice("a"), "b": CpuDevice("b")}
    judge = Judge(graph, devices, Costs.of(devices))
    first, *leaner = judge("", [names[node.name[:2]] for node in graph.nodes]).ways(SAME)
    assert leaner
    assert all(first.seconds <= one.seconds * (1 + SAME) for one in leaner)
    assert [one.nbytes for one in leaner] == sorted(one.nbytes for one in leaner)
    assert all(one.nbytes < first.nbytes for one in leaner)
    limit = {"host": min(one.nbytes for one in leaner)}
    pins = {"b0*": "a", "b1*": "b", "sum": "a"}
    plan = pl.plan(graph, devices.values(), pin=pins, memory_limits=limit, passes=())
    assert taken(plan) <= limit["host"]


def test_where_all_levels_agree_there_is_one_cut() -> None:
    chain = with_a_shortcut()
    assert len(list_cuts(chain.producer_indices, ["a"] * len(chain.nodes))) == 1
