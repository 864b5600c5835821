"""Partitions by cost: never slower than one device, limits kept, the same every time."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from random import Random

import numpy as np
import plait as pl
import pytest
from counted_work import calls_of
from fake_devices import PrivateDevice
from machines import branches, chain, random_graph, random_machine
from plait import Costs
from plait.devices.cpu import CpuDevice
from plait.devices.sim import SimDevice, SimModel
from plait.graph.core.ir import Graph
from plait.scheduler.planner.partition.choose import GUESSED_MARGIN, MARGIN, choose
from plait.scheduler.planner.partition.judge import Judge
from plait.scheduler.planner.partition.ranking import EQUAL
from plait.scheduler.plans.partition import Decision
from plait.scheduler.plans.request import PlanRequest

SEEDS = range(200)
OBJECTIVES = (("latency", 1), ("latency", 3), ("throughput", 1), ("throughput", 4))

CALLS_PER_NODE = 8000
"""Of choosing devices for a graph of a thousand nodes, in functions."""


def drawn(seed: int) -> tuple[Graph, list[SimDevice], dict[str, object]]:
    """Return a graph, a machine, and what is asked for."""
    random = Random(seed)
    graph = random_graph(random, random.choice((1, 3, 6, 10, 16, 30)))
    objective, in_flight = random.choice(OBJECTIVES)
    devices = random_machine(random, random.randint(2, 4))
    return graph, devices, {"objective": objective, "max_in_flight": in_flight}


def decided(plan: pl.Plan) -> Decision:
    assert plan.decision is not None
    return plan.decision


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [SEEDS[start::20] for start in range(5)])
def test_no_split_is_predicted_slower_than_the_best_device_alone(seeds: range) -> None:
    for seed in seeds:
        graph, machine, asked = drawn(seed)
        devices = {device.name: device for device in machine}
        costs = Costs.of(devices)
        request = PlanRequest(devices=devices, costs=costs, **asked)  # type: ignore[arg-type]
        chosen = next(choose(graph, request))
        in_flight = asked["max_in_flight"] if asked["objective"] == "throughput" else 0
        assert isinstance(in_flight, int)

        judge = Judge(graph, devices, costs, in_flight)
        taken = judge("", [chosen.partition.assignment[n.name] for n in graph.nodes]).seconds
        for device in machine:
            if all(device.model.has(node) for node in graph.nodes):
                alone = judge("", [device.name] * len(graph.nodes)).seconds
                assert taken <= alone * EQUAL
                if len(set(chosen.partition.assignment.values())) > 1:
                    assert taken <= alone * (1 - MARGIN) * (1 + 1e-9)


@pytest.mark.slow
def test_a_split_wins_by_the_margin_even_where_no_device_can_run_all() -> None:
    splits = 0
    for seed in SEEDS[:16]:
        graph, machine, asked = drawn(seed)
        found = decided(pl.plan(graph, machine, passes=(), **asked))  # type: ignore[arg-type]
        fit = [one for one in found.candidates if "memory" not in one.note]
        times = {one.name: one.seconds for one in fit}
        plain = [s for name, s in times.items() if name.startswith(("all on ", "most on "))]
        if plain and not found.chosen.startswith(("all on ", "most on ")):
            splits += 1
            assert times[found.chosen] <= min(plain) * (1 - MARGIN) * (1 + 1e-9)
    assert splits


@pytest.mark.parametrize("seed", SEEDS[:20])
def test_the_same_question_has_the_same_answer(seed: int) -> None:
    graph, machine, asked = drawn(seed)
    first, second = (pl.plan(graph, machine, **asked) for _ in range(2))  # type: ignore[arg-type]
    assert first.partition == second.partition
    assert decided(first).candidates == decided(second).candidates


@pytest.mark.parametrize("seed", SEEDS[:40])
def test_subgraphs_are_convex_and_none_waits_for_itself(seed: int) -> None:
    graph, machine, asked = drawn(seed)
    plan = pl.plan(graph, machine, **asked)  # type: ignore[arg-type]
    home = {node.name: one.index for one in plan.subgraphs for node in one.graph.nodes}
    assert len(home) == sum(len(one.graph.nodes) for one in plan.subgraphs)
    assert home.keys() == {node.name for node in plan.graph.nodes}
    for node in plan.graph.nodes:
        for tensor in node.inputs:
            if tensor in plan.graph.producers:  # along every edge the index rises or stays
                assert home[plan.graph.producers[tensor].name] <= home[node.name]


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS[:40])
def test_pins_hold_whatever_they_cost(seed: int) -> None:
    graph, machine, asked = drawn(seed)
    random = Random(seed)
    pins = {
        node.name: random.choice([d.name for d in machine if d.model.has(node)])
        for node in random.sample(graph.nodes, len(graph.nodes) // 2)
    }
    plan = pl.plan(graph, machine, pin=pins, passes=(), **asked)  # type: ignore[arg-type]
    kept = pins.keys() & plan.assignment.keys()  # what nobody reads is dropped
    assert all(plan.assignment[name] == pins[name] for name in kept)
    assert all("pinned" in plan.reasons[name] for name in kept)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS[:40])
@pytest.mark.parametrize("most", [1, 2, 4])
def test_there_are_never_more_subgraphs_than_allowed(seed: int, most: int) -> None:
    graph, machine, asked = drawn(seed)
    alone = pl.plan(graph, machine[:1], **asked)  # type: ignore[arg-type]
    most = max(most, len(alone.subgraphs))  # the first device has all operators
    plan = pl.plan(graph, machine, max_subgraphs=most, **asked)  # type: ignore[arg-type]
    assert len(plan.subgraphs) <= most


def test_too_few_subgraphs_for_the_pins_are_refused_with_the_number() -> None:
    machine = [PrivateDevice("a"), PrivateDevice("b")]
    pins = {"n0": "a", "n1": "b", "n2": "a"}
    with pytest.raises(pl.PlanError, match="leave 3 subgraphs, max_subgraphs is 2"):
        pl.plan(chain(3), machine, pin=pins, max_subgraphs=2)
    with pytest.raises(pl.PlanError, match=r"has at most 2 subgraphs(.|\n)*3 at least"):
        pl.plan(chain(4), machine, pin=pins, passes=(), max_subgraphs=2)


def every_assignment(graph: Graph, count: int) -> Iterator[list[int]]:
    return map(list, product(range(count), repeat=len(graph.nodes)))


@pytest.mark.parametrize("seed", range(12))
def test_small_graphs_are_shared_out_as_well_as_by_trying_everything(seed: int) -> None:
    random = Random(seed)
    graph = random_graph(random, random.randint(4, 7))
    machine = random_machine(random, 2, lacks=False)
    devices = {device.name: device for device in machine}
    costs = Costs.of(devices)
    chosen = next(choose(graph, PlanRequest(devices=devices, costs=costs))).decision
    judge, names = Judge(graph, devices, costs), [*devices]
    best = min(
        judge("", [names[device] for device in one]).seconds for one in every_assignment(graph, 2)
    )
    taken = next(one for one in chosen.candidates if one.name == chosen.chosen)
    assert taken.seconds <= best * (1 + MARGIN) * 1.02


def model(**figures: float) -> SimModel:
    base = {"flops_per_s": 1e10, "bytes_per_s": 1e10, "launch_s": 1e-6, "copy_latency_s": 1e-6}
    return SimModel(**{**base, **figures})  # type: ignore[arg-type]


def test_parallel_branches_go_to_both_of_two_equal_devices() -> None:
    machine = [SimDevice(f"sim:{name}", model()) for name in "ab"]
    plan = pl.plan(branches(2, 4), machine, passes=())
    assert {plan.assignment["b0.0"], plan.assignment["b1.0"]} == {"sim:a", "sim:b"}
    assert len({plan.assignment[f"b0.{index}"] for index in range(4)}) == 1


def test_a_chain_stays_together_for_latency_and_is_cut_for_throughput() -> None:
    machine = [SimDevice(f"sim:{name}", model()) for name in "ab"]
    graph = chain(8, 256, "Exp")
    assert len(pl.plan(graph, machine).subgraphs) == 1
    stages = pl.plan(graph, machine, objective="throughput", max_in_flight=4)
    assert sorted(len(one.graph.nodes) for one in stages.subgraphs) == [4, 4]


def test_copies_that_cost_more_than_they_save_are_not_made() -> None:
    slow = model(copy_bytes_per_s=1e6)
    machine = [SimDevice("sim:a", slow), SimDevice("sim:b", slow)]
    assert len({*pl.plan(branches(2, 4), machine).assignment.values()}) == 1


def test_what_a_device_lacks_goes_to_another_and_the_reason_says_so() -> None:
    fast = model(flops_per_s=1e13, bytes_per_s=1e12)
    machine = [SimDevice("sim:a", model()), SimDevice("sim:b", fast)]
    object.__setattr__(fast, "supports", frozenset({"Exp"}))
    b = pl.GraphBuilder("two")
    x = b.input("x", "float32", (512, 512))
    b.output("y", b.op("Neg", b.op("Exp", x, name="exp"), name="neg"))
    plan = pl.plan(b.build(), machine)
    assert plan.assignment["neg"] == "sim:a"
    assert "not on sim:b" in plan.reasons["neg"]


def test_a_measured_time_changes_the_decision() -> None:
    machine = [SimDevice("sim:a", model()), SimDevice("sim:b", model(flops_per_s=2e10))]
    graph = branches(1, 6)
    assert {*pl.plan(graph, machine).assignment.values()} == {"sim:b"}
    slower = Costs(models={"sim:b": model(flops_per_s=1e9)})
    assert {*pl.plan(graph, machine, costs=slower).assignment.values()} == {"sim:a"}


def test_a_split_that_wins_by_less_than_the_margin_is_refused_and_listed() -> None:
    machine = [SimDevice("sim:a", model()), SimDevice("sim:b", model(flops_per_s=1.02e10))]
    plan = pl.plan(branches(1, 6), machine)
    found = {one.name: one.note for one in decided(plan).candidates}
    assert found[decided(plan).chosen] == ""
    assert all(note for name, note in found.items() if name != decided(plan).chosen)


def test_a_split_by_guessed_figures_must_win_by_more() -> None:
    machine = [SimDevice(f"sim:{name}", model()) for name in "ab"]
    known = Costs.of({device.name: device for device in machine})
    assert not any(map(known.is_guess, known.models))
    guessed = Costs.of({"cpu": CpuDevice()})
    assert guessed.is_guess("cpu")
    assert not guessed.merged(Costs(models={"cpu": model()})).is_guess("cpu")
    assert GUESSED_MARGIN > MARGIN


def test_every_node_has_the_word_of_every_device() -> None:
    machine = [SimDevice("sim:a", model()), SimDevice("sim:b", model())]
    object.__setattr__(machine[1].model, "supports", frozenset({"Relu"}))
    plan = pl.plan(branches(1, 2), machine)
    here, there = decided(plan).options["b0.0"]
    assert (here.device, here.supported, here.basis) == ("sim:a", True, "model")
    assert here.seconds == pytest.approx(
        plan.costs.node_s("sim:a", plan.graph, plan.graph.nodes[0])
    )
    assert (there.device, there.supported, there.seconds) == ("sim:b", False, None)
    assert "modelled without" in there.reason


def weights(count: int, side: int = 64) -> Graph:
    """Return a chain of products, each with constants of its own."""
    b = pl.GraphBuilder("weights")
    last = b.input("x", "float32", (1, side))
    for index in range(count):
        weight = np.full((side, side), index, np.float32)
        last = b.op("MatMul", last, weight, name=f"n{index}")
    b.output("y", last)
    return b.build()


def test_weights_too_large_for_one_device_are_shared_out() -> None:
    machine = [SimDevice(f"sim:{name}", model()) for name in "ab"]
    whole = 8 * 64 * 64 * 4
    limits = {"sim:a": whole * 5 // 8, "sim:b": whole * 5 // 8}
    plan = pl.plan(weights(8), machine, memory_limits=limits)
    assert plan.memory is not None
    for name, limit in limits.items():
        pool = plan.memory.pools[name]
        assert pool.nbytes + pool.constants_nbytes <= limit


def test_a_model_that_fits_nowhere_is_refused_with_the_sizes() -> None:
    machine = [SimDevice(f"sim:{name}", model()) for name in "ab"]
    with pytest.raises(pl.DoesNotFitError, match="memory_limits"):
        pl.plan(weights(8), machine, memory_limits={"sim:a": 20_000, "sim:b": 20_000})


def test_pins_and_limits_that_clash_are_refused() -> None:
    machine = [SimDevice(f"sim:{name}", model()) for name in "ab"]
    with pytest.raises(pl.DoesNotFitError, match="sim:a"):
        pl.plan(weights(8), machine, pin={"*": "sim:a"}, memory_limits={"sim:a": 50_000})


def test_symbolic_shapes_go_by_preference_until_they_are_known() -> None:
    b = pl.GraphBuilder("symbolic")
    b.output("y", b.op("Exp", b.input("x", "float32", ("n",)), name="exp"))
    machine = [SimDevice("sim:a", model(launch_s=1.0)), SimDevice("sim:b", model())]
    plan = pl.plan(b.build(), machine)
    assert plan.assignment["exp"] == "sim:a"
    assert "until shapes are known" in decided(plan).why
    assert plan.for_shapes({"x": (8,)}).assignment["exp"] == "sim:b"


def test_nodes_without_a_choice_are_not_weighed() -> None:
    plan = pl.plan(chain(3), [SimDevice("sim:a", model())])
    assert decided(plan).candidates == ()
    assert decided(plan).why == "no node has a choice of devices"


ARGUMENTS = {
    "strategy": ("fastest", "strategy is 'fastest'"),
    "objective": ("speed", "objective is 'speed'"),
    "max_subgraphs": (0, "max_subgraphs is 0"),
    "costs": (3, "costs is 3"),
    "memory_limits": ({"tpu": 1}, "memory_limits names 'tpu'"),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_that_make_no_sense_are_refused(name: str) -> None:
    value, message = ARGUMENTS[name]
    with pytest.raises(pl.PlanError, match=message):
        pl.plan(chain(2), ["cpu"], **{name: value})  # type: ignore[arg-type]


@pytest.mark.extended
def test_a_thousand_nodes_are_shared_out_with_little_work() -> None:
    random = Random(1)
    graph = random_graph(random, 1000)
    devices = {device.name: device for device in random_machine(random, 3)}
    request = PlanRequest(devices=devices, costs=Costs.of(devices))
    calls = calls_of(lambda: next(choose(graph, request)))
    assert calls < CALLS_PER_NODE * len(graph.nodes)
