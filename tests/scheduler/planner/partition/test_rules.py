"""Tengine's rule, the minimum cut, and pipelines for streams."""

from __future__ import annotations

from itertools import product
from random import Random

import plait as pl
import pytest
from fake_devices import PrivateDevice
from machines import chain, random_graph, random_machine
from plait import Costs
from plait.devices.sim import SimDevice, SimModel
from plait.graph.core.ir import Graph
from plait.scheduler.planner.partition.capacity import Capacity
from plait.scheduler.planner.partition.min_cut import find_least_work
from plait.scheduler.planner.partition.offers import ask
from plait.scheduler.planner.partition.pipeline import make_pipelines
from plait.scheduler.planner.partition.problem import PartitionProblem


def row(*ops: str) -> Graph:
    b = pl.GraphBuilder("row")
    last = b.input("x", "float32", (4, 4))
    for index, op in enumerate(ops):
        last = b.op(op, last, *([last] if op in ("Gemm", "Add") else []), name=f"n{index}")
    b.output("y", last)
    return b.build()


def by_runs(graph: Graph, *lacks: str) -> dict[str, str]:
    devices: list[str | PrivateDevice] = [PrivateDevice("npu", lacks=lacks), "cpu"]
    return dict(pl.plan(graph, devices, strategy="tengine", passes=()).assignment)


ROWS: dict[str, tuple[tuple[str, ...], str]] = {
    "all on the device": (("Relu", "Neg"), "nn"),
    "two behind the gap are too few": (("Relu", "Exp", "Neg", "Neg"), "nccc"),
    "three are enough": (("Relu", "Exp", "Neg", "Neg", "Neg"), "ncnnn"),
    "one fully connected is enough": (("Relu", "Exp", "Gemm"), "ncn"),
    "what comes first may be short": (("Relu", "Exp"), "nc"),
    "a gap at the beginning": (("Exp", "Neg", "Neg", "Neg"), "cnnn"),
    "two gaps": (("Exp", "Neg", "Exp", "Neg", "Neg", "Neg"), "cccnnn"),
    "only gaps": (("Exp", "Exp"), "cc"),
}


@pytest.mark.parametrize(("ops", "wanted"), ROWS.values(), ids=ROWS)
def test_runs_by_tengines_rule(ops: tuple[str, ...], wanted: str) -> None:
    names = {"n": "npu", "c": "cpu"}
    found = by_runs(row(*ops), "Exp")
    assert found == {f"n{index}": names[letter] for index, letter in enumerate(wanted)}


def test_a_branch_beside_an_unsupported_node_is_not_torn() -> None:
    b = pl.GraphBuilder("beside")
    x, z = b.input("x", "float32", (4,)), b.input("z", "float32", (4,))
    first = b.op("Neg", x, name="first")
    b.output("lonely", b.op("Exp", z, name="gap"))
    for index in range(3):
        first = b.op("Neg", first, name=f"next{index}")
    b.output("y", first)
    devices: list[str | PrivateDevice] = [PrivateDevice("npu", lacks=["Exp"]), "cpu"]
    plan = pl.plan(b.build(), devices, strategy="tengine", passes=())
    assert sorted(len(one.graph.nodes) for one in plan.subgraphs) == [1, 4]


def test_what_only_the_device_supports_stays_there_however_short_the_run() -> None:
    devices = [PrivateDevice("npu", lacks=["Exp"]), PrivateDevice("dsp", lacks=["Neg"])]
    plan = pl.plan(row("Exp", "Neg"), devices, strategy="tengine", passes=())
    assert plan.assignment == {"n0": "dsp", "n1": "npu"}


def test_a_pin_wins_over_tengines_rule() -> None:
    devices: list[str | PrivateDevice] = [PrivateDevice("npu"), "cpu"]
    plan = pl.plan(row("Relu", "Neg"), devices, pin={"n1": "cpu"}, strategy="tengine")
    assert plan.assignment == {"n0": "npu", "n1": "cpu"}
    assert plan.reasons["n1"] == "pinned by 'n1'"


def test_a_rule_that_makes_too_many_subgraphs_is_refused() -> None:
    devices: list[str | PrivateDevice] = [PrivateDevice("npu", lacks=["Exp"]), "cpu"]
    with pytest.raises(pl.PlanError, match="by preference there are 3 subgraphs"):
        pl.plan(row("Neg", "Exp", "Neg"), devices, strategy="preference", max_subgraphs=2)


def problem(graph: Graph, machine: list[SimDevice], in_flight: int = 0) -> PartitionProblem:
    devices = {device.name: device for device in machine}
    costs = Costs.of(devices)
    seconds = ask(graph, devices, {}).seconds(costs)
    capacity = Capacity.of(graph, devices, None, 1)
    return PartitionProblem(graph, devices, costs, seconds, in_flight, None, capacity)


def work(given: PartitionProblem, assignment: list[int]) -> float:
    """Return all the work and copying of an assignment, one after the other."""
    ways, caller = given.ways, len(given.names)
    total = sum(given.seconds[node][device] for node, device in enumerate(assignment))
    for producer, nbytes, readers, fetched in given.tensors:
        source = assignment[producer] if producer >= 0 else caller
        for target in {assignment[reader] for reader in readers} | ({caller} if fetched else set()):
            if target != source and (producer >= 0 or ways[source][target].latency_s):
                total += ways[source][target].latency_s + nbytes * ways[source][target].s_per_byte
                total += given.submit_s[target] if target != caller else 0.0
    return total


@pytest.mark.parametrize("seed", range(15))
def test_of_two_devices_no_assignment_has_less_work_than_the_cut(seed: int) -> None:
    random = Random(seed)
    graph = random_graph(random, random.randint(2, 9))
    given = problem(graph, random_machine(random, 2))
    found = find_least_work(given, [0] * given.n_nodes)
    least = min(work(given, list(one)) for one in product((0, 1), repeat=given.n_nodes))
    assert work(given, found) == pytest.approx(least)


def test_stages_are_as_even_as_they_can_be() -> None:
    model = SimModel(flops_per_s=1e9, bytes_per_s=1e9, launch_s=0, copy_latency_s=0)
    machine = [SimDevice(f"sim:{name}", model) for name in "abc"]
    found = make_pipelines(problem(chain(9, 64, "Exp"), machine, 4))
    assert len(found) == 6
    for assignment in found.values():
        assert sorted(map(assignment.count, range(3))) == [3, 3, 3]
