"""Passes that please one device take no choice from another: each gets nodes in its form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from random import Random

import numpy as np
import plait as pl
import pytest
from fake_devices import PrivateDevice
from machines import random_graph, random_machine
from plait import Costs
from plait.devices.cpu import CpuDevice
from plait.devices.device import Device
from plait.devices.model import DeviceModel
from plait.graph.core.ir import Graph
from plait.graph.values.tensor import Array
from plait.scheduler.planner.partition.ranking import EQUAL
from plait.scheduler.plans.request import Objective, Strategy

BLOCKS = 6
OBJECTIVES: tuple[tuple[Objective, int], ...] = (("latency", 1), ("throughput", 3))


def network(*, batch: int | str = 1) -> Graph:
    """Return convolutions, each with an activation that exporters write as Mul and Sigmoid."""
    random = np.random.default_rng(0)
    b = pl.GraphBuilder("network")
    x = b.input("x", "float32", (batch, 4, 8, 8))
    for block in range(BLOCKS):
        weights = random.standard_normal((4, 4, 3, 3), np.float32) / 6
        x = b.op("Conv", x, weights, pads=(1, 1, 1, 1), name=f"conv{block}")
        gate = b.op("Sigmoid", x, name=f"gate{block}")
        x = b.op("Mul", x, gate, name=f"act{block}")
    b.output("y", x)
    return b.build()


def feeds(batch: int = 1) -> dict[str, Array]:
    return {"x": np.random.default_rng(1).standard_normal((batch, 4, 8, 8), np.float32)}


def expected(x: Array) -> Array:
    """Return the results of the network by ONNX Runtime, which plait has no part in."""
    runtime = pytest.importorskip("onnxruntime")
    from plait.graph.formats.onnx.writer import to_onnx

    model = to_onnx(network(batch="n")).SerializeToString()
    session = runtime.InferenceSession(model, providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {"x": x})
    return np.asarray(y)


class Modelled(PrivateDevice):
    """A device that is taken at its word for how fast it is."""

    def __init__(self, name: str, model: DeviceModel, *, lacks: Sequence[str] = ()) -> None:
        super().__init__(name, lacks=lacks)
        self.model = model


def machine(lacking: str) -> list[Device]:
    """Return two devices; the fast one is "a", and one lacks what passes make of activations."""
    models = {"a": DeviceModel(), "b": DeviceModel(flops_per_s=1e9, bytes_per_s=1e9)}
    return [
        Modelled(name, model, lacks=["Swish"] * (name == lacking)) for name, model in models.items()
    ]


def ops(plan: pl.Plan) -> Counter[str]:
    return Counter(node.op for node in plan.graph.nodes)


@pytest.mark.parametrize("lacking", ["a", "b"])
@pytest.mark.parametrize("batch", [1, 3])
def test_each_device_alone_is_a_candidate_in_its_own_form(lacking: str, batch: int) -> None:
    for devices in permutations(machine(lacking)):
        plan = pl.plan(network(batch=batch), devices)
        assert plan.decision is not None
        alone = {one.name for one in plan.decision.candidates if one.subgraphs == 1}
        assert alone == {"all on a", "all on b"}

        for device in devices:
            pinned = pl.plan(network(batch=batch), devices, pin={"*": device.name})
            assert ops(pinned) == ops(pl.plan(network(batch=batch), [device]))


@pytest.mark.parametrize("strategy", ["auto", "preference", "tengine"])
@pytest.mark.parametrize("lacking", ["a", "b"])
def test_results_are_those_of_another_runtime_in_every_form(
    strategy: Strategy, lacking: str
) -> None:
    fed = feeds()
    for devices in permutations(machine(lacking)):
        plan = pl.plan(network(), devices, strategy=strategy)
        assert len(plan.subgraphs) == 1
        with pl.BlockingSession(plan) as session:
            np.testing.assert_allclose(session.run(fed)["y"], expected(fed["x"]), atol=1e-5)


def test_a_form_is_that_of_all_shapes_within_bounds() -> None:
    plan = pl.plan(network(batch="n"), machine("a"), bounds={"n": 4})
    assert ops(plan) == {"Conv": BLOCKS, "Sigmoid": BLOCKS, "Mul": BLOCKS}
    with pl.BlockingSession(plan) as session:
        for batch in (4, 1, 3):
            fed = feeds(batch)
            np.testing.assert_allclose(session.run(fed)["y"], expected(fed["x"]), atol=1e-5)


def test_what_is_written_out_says_of_what_it_is_a_part() -> None:
    plan = pl.plan(network(), machine("a"))
    assert {*plan.assignment.values()} == {"a"}
    assert {plan.reasons[f"act{block}[sigmoid]"] for block in range(BLOCKS)} == {
        "written out: a lacks Swish"
    }
    assert plan.applied[-1].name == "write_out"
    assert "write_out" in plan.report()


def test_nodes_stay_as_they_are_without_the_pass_that_writes_them_out() -> None:
    b = pl.GraphBuilder("one")
    b.output("y", b.op("Swish", b.input("x", "float32", (4,)), name="act"))
    graph = b.build()
    plan = pl.plan(graph, machine("a"), passes=["-expand_unsupported"])
    assert plan.assignment == {"act": "b"}
    with pytest.raises(pl.UnsupportedOpError, match="pass expand_unsupported is left out"):
        pl.plan(graph, machine("a"), pin={"act": "a"}, passes=())


def test_a_plan_for_another_number_in_flight_finds_the_same_forms() -> None:
    plan = pl.plan(network(), machine("a"))
    again = plan.replan(3)
    assert ops(again) == ops(plan)
    assert [one.name for one in again.applied].count("write_out") == 1


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [range(start, 60, 6) for start in range(6)])
def test_the_order_of_devices_decides_nothing_but_ties(seeds: range) -> None:
    for seed in seeds:
        random = Random(seed)
        graph = random_graph(random, random.choice((3, 6, 12, 24)))
        devices = random_machine(random, random.randint(2, 3))
        objective, in_flight = random.choice(OBJECTIVES)
        plans = [
            pl.plan(graph, order, objective=objective, max_in_flight=in_flight)
            for order in (devices, devices[::-1])  # any two the other way round
        ]
        weighed = [
            {one.name: replace(one, note="") for one in plan.decision.candidates}
            for plan in plans
            if plan.decision is not None
        ]
        chosen = [plan.decision.chosen for plan in plans if plan.decision is not None]
        assert all(one == weighed[0] for one in weighed)
        if weighed[0]:
            times = [weighed[0][name].seconds for name in chosen]
            assert max(times) <= min(times) * EQUAL
            assert len({weighed[0][name].subgraphs for name in chosen}) == 1


def test_ties_go_to_the_device_that_was_named_first() -> None:
    random = Random(0)
    graph = random_graph(random, 8)
    for names in permutations(("cpu:a", "cpu:b", "cpu:c")):
        plan = pl.plan(graph, names)
        assert {*plan.assignment.values()} == {names[0]}


def row(count: int) -> Graph:
    """Return operators in turns, on tensors of a megabyte."""
    b = pl.GraphBuilder("row")
    x = b.input("x", "float32", (512, 512))
    for index in range(count):
        x = b.op("Exp" if index % 2 else "Sin", x, name=f"n{index}")
    b.output("y", x)
    return b.build()


class InHostMemory(CpuDevice):
    """A device without memory of its own, taken at its word for how fast it is."""

    def __init__(self, name: str, model: DeviceModel) -> None:
        super().__init__(name)
        self.model = model


@pytest.mark.parametrize("objective", ["latency", "throughput"])
@pytest.mark.parametrize(("layout", "subgraphs"), [(None, 12), (1e9, 1)])
def test_a_network_is_not_cut_where_handing_over_costs_more_than_is_gained(
    layout: float | None,
    subgraphs: int,
    objective: Objective,
) -> None:
    figures = DeviceModel(bytes_per_s=1e9, submit_s=1e-6, layout_bytes_per_s=layout)
    machine = [
        InHostMemory("cpu:a", replace(figures, operators={"Sin": 0.5})),
        InHostMemory("cpu:b", replace(figures, operators={"Exp": 0.5})),
    ]
    for devices in permutations(machine):
        plan = pl.plan(row(12), devices, objective=objective)
        assert len(plan.subgraphs) == subgraphs


def test_what_a_program_takes_has_the_layout_of_its_ends_in_it() -> None:
    graph = row(3)
    plain, laid = (Costs({"npu": DeviceModel(layout_bytes_per_s=speed)}) for speed in (None, 1e9))
    ends = 2 * 4 * 512 * 512 / 1e9
    assert laid.program_s("npu", graph) == pytest.approx(plain.program_s("npu", graph) + ends)


def test_a_split_in_many_must_win_by_more() -> None:
    figures = DeviceModel(bytes_per_s=1e9, submit_s=1e-6)
    machine = [
        InHostMemory("cpu:a", replace(figures, operators={"Sin": 0.6})),
        InHostMemory("cpu:b", replace(figures, operators={"Exp": 0.6})),
    ]
    gained = {count: pl.plan(row(count), machine).decision for count in (2, 26)}
    chosen = {count: one.chosen for count, one in gained.items() if one is not None}
    assert not chosen[2].startswith("all on")
    assert chosen[26].startswith("all on")
    assert gained[26] is not None
    notes = [one.note for one in gained[26].candidates if one.subgraphs == 26]
    assert notes
    assert all(note.endswith("split in 26 it must win by 34%") for note in notes)
