"""Costs: what things take, by model or as measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import plait as pl
import pytest
from machines import chain
from plait import Costs
from plait.devices.cpu import CpuDevice
from plait.devices.model import DeviceModel
from plait.devices.sim import SimDevice, SimModel
from plait.graph.core.infer import get_cost
from plait.graph.core.ir import Graph
from plait.graph.core.operator import Cost
from plait.graph.values.tensor import Array
from plait.scheduler.costs.costs import PYTHON_S
from plait.scheduler.costs.figures import Link, Measured, Timing
from plait.scheduler.costs.signature import make_digest, make_signature
from plait.scheduler.profile.figures import fit_link

SIM = SimModel(flops_per_s=1e9, bytes_per_s=1e9, launch_s=1e-6, submit_s=5e-6)


def relu(length: int = 1000, name: str = "n0") -> Graph:
    b = pl.GraphBuilder("relu")
    b.output("y", b.op("Relu", b.input("x", "float32", (length,)), name=name))
    return b.build()


def measured(graph: Graph, seconds: float, device: str = "cpu") -> Costs:
    node = graph.nodes[0]
    entry = {make_signature(graph, node): Measured(Timing(seconds), get_cost(graph, node))}
    return Costs.of({"cpu": CpuDevice()}).merged(Costs(nodes={device: entry}))


def test_a_simulated_device_costs_what_its_own_model_says() -> None:
    graph = relu()
    costs = Costs.of({"sim:a": SimDevice("sim:a", SIM)})
    modelled = SIM.kernel_s("Relu", get_cost(graph, graph.nodes[0]))
    assert costs.node_s("sim:a", graph, graph.nodes[0]) == modelled
    assert costs.program_s("sim:a", graph) == SIM.submit_s + modelled
    assert costs.basis("sim:a", graph, graph.nodes[0]) == "model"


def test_a_measured_time_is_believed_whatever_the_node_is_called() -> None:
    costs, other = measured(relu(), 0.25), relu(name="another")
    assert costs.node_s("cpu", other, other.nodes[0]) == 0.25
    assert costs.basis("cpu", other, other.nodes[0]) == "measured"


def test_other_shapes_scale_by_what_the_model_says_of_both() -> None:
    small, large = relu(1000), relu(64000)
    costs = measured(small, 3e-3)
    model = costs.model("cpu")
    ratio = model.kernel_s("Relu", get_cost(large, large.nodes[0])) / model.kernel_s(
        "Relu", get_cost(small, small.nodes[0])
    )
    assert costs.node_s("cpu", large, large.nodes[0]) == pytest.approx(3e-3 * ratio)
    assert costs.basis("cpu", large, large.nodes[0]) == "scaled"


def test_the_measurement_of_the_nearest_size_is_scaled() -> None:
    small, middle, large = relu(10), relu(1 << 20), relu(1 << 21)
    costs = measured(small, 1.0).merged(measured(middle, 1e-3))
    assert costs.node_s("cpu", large, large.nodes[0]) < 1e-2


def test_one_worker_stands_for_the_other_but_one_graphics_card_does_not() -> None:
    graph = relu()
    node = graph.nodes[0]
    assert measured(graph, 0.5, "worker:0").basis("worker:1", graph, node) == "measured"
    assert measured(graph, 0.5, "worker").basis("worker:1", graph, node) == "measured"
    assert measured(graph, 0.5, "cuda:0").basis("cuda:1", graph, node) == "model"


def test_a_worker_has_the_kernels_of_the_cpu() -> None:
    graph = relu()
    node = graph.nodes[0]
    assert measured(graph, 0.5, "cpu").node_s("worker:1", graph, node) == 0.5
    own = measured(graph, 0.5, "cpu").merged(measured(graph, 0.25, "worker:0"))
    assert own.node_s("worker:1", graph, node) == 0.25
    assert own.node_s("cpu", graph, node) == 0.5
    assert own.basis("compiled", graph, node) == "model"


def test_one_way_between_devices_stands_for_another_between_their_kinds() -> None:
    costs = Costs(hops={("worker:0", "worker:1"): 2e-5, ("worker:0", "worker:0"): 1e-5})
    assert costs.hop_s("worker:2", "worker:3") == 2e-5
    assert costs.hop_s("worker:3", "worker:3") == 1e-5
    assert costs.hop_s("cpu", "worker:0") is None


@pytest.mark.parametrize("kind", ["cuda", "opencl", "sim", "npu"])
def test_what_was_measured_of_one_piece_of_hardware_says_nothing_of_another(kind: str) -> None:
    graph = relu(64)
    (node,) = graph.nodes
    costs = measured(graph, 0.5, f"{kind}:0")
    assert costs.basis(f"{kind}:0", graph, node) == "measured"
    assert costs.basis(f"{kind}:1", graph, node) == "model"
    assert costs.program_s(f"{kind}:1", graph) < 0.5
    hops = Costs(hops={(f"{kind}:0", f"{kind}:1"): 2e-5, (f"{kind}:0", "cpu"): 2e-5})
    assert hops.hop_s(f"{kind}:1", f"{kind}:2") is None
    assert hops.hop_s(f"{kind}:1", "cpu") is None


def test_instances_of_a_kind_that_works_in_host_memory_are_alike() -> None:
    graph = relu(64)
    (node,) = graph.nodes
    costs = replace(measured(graph, 0.5, "fast:0"), memories={"fast:0": "host", "fast:1": "host"})
    assert costs.node_s("fast:1", graph, node) == 0.5


def test_views_take_no_time() -> None:
    b = pl.GraphBuilder("flat")
    b.output("y", b.op("Reshape", b.input("x", "float32", (2, 3)), np.array([6])))
    graph = b.build()
    assert Costs.of({"cpu": CpuDevice()}).node_s("cpu", graph, graph.nodes[0]) == 0.0


@pl.operator(pl.TensorSpec("float32", (2,)))
def same(x: Array) -> Array:
    return x


def test_a_python_function_nobody_measured_is_taken_to_cost_something() -> None:
    b = pl.GraphBuilder("python")
    b.output("y", b.call(same, b.input("x", "float32", (2,)), name="python"))
    graph = b.build()
    assert Costs.of({"cpu": CpuDevice()}).node_s("cpu", graph, graph.nodes[0]) == PYTHON_S


def test_a_subgraph_measured_whole_takes_that_time_and_the_submission() -> None:
    graph = chain(3)
    costs = Costs.of({"cpu": CpuDevice()}).merged(
        Costs(programs={"cpu": {make_digest(graph): Timing(0.5)}})
    )
    assert costs.program_s("cpu", graph) == 0.5 + costs.model("cpu").submit_s
    assert make_digest(chain(4)) != make_digest(graph)


def test_what_if_an_operator_took_twice_as_long() -> None:
    graph = relu()
    costs = measured(graph, 0.25)
    node = graph.nodes[0]
    assert costs.scaled("Relu", 2).node_s("cpu", graph, node) == 0.5
    assert costs.scaled("n0", 2).scaled("n0", 2).node_s("cpu", graph, node) == 1.0
    with pytest.raises(pl.PlanError, match="factor of 'Relu' is 0"):
        costs.scaled("Relu", 0)


def test_what_if_a_device_were_other_hardware() -> None:
    graph = relu()
    model = DeviceModel(flops_per_s=1, bytes_per_s=1e9, launch_s=0)
    costs = measured(graph, 0.25).with_models({"cpu": model})
    assert costs.node_s("cpu", graph, graph.nodes[0]) == 1000
    assert costs.basis("cpu", graph, graph.nodes[0]) == "model"


def test_a_copy_from_one_device_to_another_takes_what_the_model_of_the_second_says() -> None:
    slow = SimModel(copy_latency_s=1, copy_bytes_per_s=4)
    models = {"sim:a": slow, "sim:b": SimModel(copy_latency_s=2, peer_bytes_per_s=8)}
    costs = Costs.of({name: SimDevice(name, model) for name, model in models.items()})
    assert costs.copy_s("sim:a", "sim:b", 16) == 2 + 2
    assert costs.copy_s("sim:b", "sim:a", 16) == 1 + 4
    known = replace(costs, links={("sim:a", "sim:b"): Link(3, 16)})
    assert known.copy_s("sim:a", "sim:b", 16) == 3 + 1


def test_a_copy_that_nobody_measured_takes_what_the_devices_model_says() -> None:
    model = SimModel(copy_latency_s=1, copy_bytes_per_s=4)
    costs = Costs.of({"sim:a": SimDevice("sim:a", model)})
    assert costs.copy_s("host", "sim:a", 8) == costs.copy_s("sim:a", "shared", 8) == 3


def test_later_costs_stand_in_front() -> None:
    graph = relu()
    costs = measured(graph, 1.0).merged(measured(graph, 2.0))
    assert costs.node_s("cpu", graph, graph.nodes[0]) == 2.0


@pytest.mark.parametrize(("latency", "speed"), [(1e-5, 1e9), (0.0, 1e8), (1e-3, 1e12)])
def test_latency_and_speed_follow_from_copies_of_several_sizes(
    latency: float, speed: float
) -> None:
    points = [(n, latency + n / speed) for n in (1 << 10, 1 << 16, 1 << 24)]
    link = fit_link(points)
    for nbytes, seconds in points:
        assert link.copy_s(nbytes) == pytest.approx(seconds, rel=1e-3)


def test_copies_of_one_size_are_predicted_as_they_were() -> None:
    assert fit_link([(1000, 1e-3)]).copy_s(1000) == pytest.approx(1e-3)


async def test_a_profile_tells_what_nodes_subgraphs_and_copies_took() -> None:
    devices: list[str | SimDevice] = ["cpu", SimDevice("sim:a", SIM)]
    plan = pl.plan(chain(4), devices, pin={"n[01]": "cpu", "n[23]": "sim:a"})
    async with pl.Session(plan, measure=True) as session:
        for _ in range(3):
            await session.run({"x": np.ones((64, 64), np.float32)})
        costs = Costs.from_profile(session.profile(), plan)
        with pytest.raises(pl.PlanError, match="the profile is a Plan") as swapped:
            Costs.from_profile(plan, session.profile())  # type: ignore[arg-type]
        assert "Costs.from_profile(profile, plan)" in str(swapped.value.fix)
    node = plan.graph.nodes[0]
    assert costs.basis("cpu", plan.graph, node) == "measured"
    assert costs.basis("sim:a", plan.graph, node) == "measured"
    assert set(costs.programs) == {"cpu", "sim:a"}
    assert {("host", "sim:a"), ("sim:a", "host")} <= set(costs.links)
    modelled = SIM.kernel_s("Relu", get_cost(plan.graph, node))
    assert costs.node_s("sim:a", plan.graph, node) == pytest.approx(modelled, rel=0.5)


def test_a_cost_has_operations_and_bytes() -> None:
    graph = relu(10)
    assert get_cost(graph, graph.nodes[0]) == Cost(10, 80)


def wrong(value: object) -> Any:
    """Return a value of a wrong type, past the type checker."""
    return value


@pytest.mark.parametrize(
    ("ask", "expected"),
    [
        (lambda costs: Costs.load(wrong(None)), "expected a path, got NoneType"),
        (lambda costs: Costs.of(wrong(["cpu"])), "map names to device objects"),
        (lambda costs: Costs.of(wrong({"cpu": "cpu"})), "map names to device objects"),
        (lambda costs: costs.merged(wrong({})), "expected Costs, got dict"),
        (lambda costs: costs.scaled("Relu", wrong("twice")), "the factor of 'Relu' is 'twice'"),
        (lambda costs: costs.with_models(wrong({"cpu": "fast"})), "the model of 'cpu' is 'fast'"),
    ],
)
def test_what_makes_no_sense_is_refused(ask: Callable[[Costs], object], expected: str) -> None:
    with pytest.raises(pl.PlaitError, match=expected):
        ask(Costs())


# how far runs were apart


def test_of_runs_that_are_far_apart_the_shortest_counts() -> None:
    close, apart = Timing.of([1.0, 1.0, 1.05, 1.1, 9.0]), Timing.of([1.0, 2.0, 3.0, 4.0, 9.0])
    assert (close.seconds, close.least_s, close.runs) == (1.05, 1.0, 5)
    assert close.mad_s == pytest.approx(0.05)
    assert not close.is_noisy
    assert close.trusted_s == 1.05
    assert apart.is_noisy
    assert apart.trusted_s == 1.0


def entry(timing: Timing, *, is_share: bool = False) -> Costs:
    graph = relu()
    (node,) = graph.nodes
    found = Measured(timing, get_cost(graph, node), is_share)
    return Costs(
        nodes={"cpu": {make_signature(graph, node): found}}, programs={"cpu": {"all": timing}}
    )


def seconds(costs: Costs) -> tuple[float, float]:
    graph = relu()
    return costs.node_s("cpu", graph, graph.nodes[0]), costs.programs["cpu"]["all"].trusted_s


def test_reports_and_simulations_say_whose_figures_were_measured_and_whose_were_not() -> None:
    pytest.importorskip("onnxruntime")
    with pl.BlockingSession(pl.plan(chain(4), ["ort"])) as session:
        session.run({"x": np.ones((64, 64), np.float32)})
        costs = Costs.from_profile(session.profile(), session.plan)
    mixed = "figures of ort were measured or given, those of cpu are built in"
    for devices, known, expected in [
        (["ort", "cpu"], costs, True),
        (["ort", "cpu"], None, False),
        (["ort"], costs, False),
        (["cpu", "worker:0"], costs, False),
    ]:
        plan = pl.plan(chain(4), devices, costs=known)
        for text in (plan.report(), pl.simulate(plan).table()):
            assert (mixed in text) == ("built in" in text) == expected
            assert ("plait profile --devices cpu --costs FILE" in text) == expected


def test_what_is_noisy_replaces_nothing_that_is_not() -> None:
    quiet, noisy = entry(Timing(1.0)), entry(Timing(3.0, 2.0, 1.0, 5))
    assert seconds(quiet.merged(noisy)) == (1.0, 1.0)
    assert seconds(noisy.merged(quiet)) == (1.0, 1.0)
    assert seconds(noisy.merged(entry(Timing(4.0, 3.0, 2.0, 5)))) == (3.0, 3.0)


def test_a_share_of_a_whole_replaces_nothing_that_was_measured() -> None:
    graph = relu()
    share, own = entry(Timing(5.0), is_share=True), entry(Timing(3.0, 2.0, 1.0, 5))
    assert share.basis("cpu", graph, graph.nodes[0]) == "scaled"
    for costs in (share.merged(own), own.merged(share)):
        assert costs.node_s("cpu", graph, graph.nodes[0]) == 2.0
        assert costs.basis("cpu", graph, graph.nodes[0]) == "measured"


# programs in one piece


class InOnePiece(CpuDevice):
    """A cpu that says of its programs only how long they take, and perhaps how that is shared."""

    def __init__(self, told: dict[str, float] | None = None) -> None:
        super().__init__("piece")
        self._told = told

    def compile(self, subgraph: Graph, views: Any, *, measure: bool = False) -> Any:
        return super().compile(subgraph, views)

    def shares(self, subgraph: Graph) -> dict[str, float]:
        return self._told or {}


async def of_one_piece(device: InOnePiece) -> tuple[Costs, pl.Plan]:
    plan = pl.plan(chain(3), [device], passes=())
    async with pl.Session(plan, measure=True) as session:
        for _ in range(3):
            await session.run({"x": np.ones((64, 64), np.float32)})
        return Costs.from_profile(session.profile(), plan), plan


@pytest.mark.parametrize(
    ("told", "expected", "basis"),
    [
        (None, (1 / 3, 1 / 3, 1 / 3), "scaled"),
        ({"n0": 0.5, "n1": 0.25, "n2": 0.25}, (0.5, 0.25, 0.25), "measured"),
    ],
)
async def test_nodes_share_the_time_of_a_program_in_one_piece(
    told: dict[str, float] | None, expected: tuple[float, ...], basis: str
) -> None:
    costs, plan = await of_one_piece(InOnePiece(told))
    (program,) = costs.programs["piece"].values()
    # All three nodes are alike, so that one entry stands for them.
    found = costs.node_s("piece", plan.graph, plan.graph.nodes[0])
    middle = sorted(expected)[1]
    assert found == pytest.approx(program.trusted_s * middle, rel=1e-6)
    assert costs.basis("piece", plan.graph, plan.graph.nodes[0]) == basis


async def test_nodes_take_no_more_than_their_subgraph_took_that_was_measured_whole() -> None:
    plan = pl.plan(chain(4), ["cpu"], passes=())
    feeds = {"x": np.ones((64, 64), np.float32)}
    profiles = []
    for measure in (True, False):
        async with pl.Session(plan, measure=measure) as session:
            for _ in range(5):
                await session.run(feeds)
            profiles.append(session.profile())
    timed, wholes = profiles
    (subgraph,) = plan.subgraphs
    tenth = replace(
        wholes,
        records=tuple(
            one._replace(parts=tuple(_sped_up(part) for part in one.parts))
            for one in wholes.records
        ),
    )
    costs = Costs.from_profile(timed, plan, tenth)
    parts = sum(costs.node_s("cpu", subgraph.graph, node) for node in subgraph.graph.nodes)
    (program,) = costs.programs["cpu"].values()
    # All four are alike, and one stands for them: the middle one, which is no more than the whole.
    assert parts <= 4 * program.trusted_s


def _sped_up(part: Any) -> Any:
    """Return a part whose steps took a tenth of a microsecond."""
    times = list(part.times)
    for index in range(0, len(times), 3):
        times[index + 2] = times[index + 1] + 100
    return part._replace(times=times)
