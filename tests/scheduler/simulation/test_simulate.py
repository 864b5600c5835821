from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import plait as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plait.devices.model import DeviceModel
from plait.devices.sim import SimDevice, SimModel
from plait.graph.core.ir import Graph
from plait.scheduler.costs import Costs
from plait.scheduler.simulation.lanes import describe_host
from plait.scheduler.simulation.workload import SimulatedHost
from random_graphs import graphs

MODEL = SimModel(
    flops_per_s=1e9, bytes_per_s=1e9, copy_bytes_per_s=1e9, copy_latency_s=1e-6, launch_s=0.0
)


def relus(length: int, count: int = 1000) -> Graph:
    builder = pl.GraphBuilder("chain")
    last = builder.input("x", "float32", (count,))
    for _ in range(length):
        last = builder.op("Relu", last)
    builder.output("y", last)
    return builder.build()


def on_sim(max_in_flight: int = 1, length: int = 2) -> pl.Plan:
    devices = [SimDevice("sim:a", MODEL)]
    return pl.plan(relus(length), devices, passes=(), max_in_flight=max_in_flight)


def two_stages(max_in_flight: int = 1) -> pl.Plan:
    graph = relus(2)
    devices = [SimDevice("sim:a", MODEL), SimDevice("sim:b", MODEL)]
    first, second = (node.name for node in graph.nodes)
    return pl.plan(
        graph, devices, pin={first: "sim:a", second: "sim:b"}, max_in_flight=max_in_flight
    )


def test_one_item_takes_its_copies_and_its_kernels() -> None:
    # 4,000 bytes in, two kernels of 8,000 bytes each, 4,000 bytes out, at 1 byte per ns.
    found = pl.simulate(on_sim(), host=SimulatedHost())
    assert found.makespan_s == pytest.approx(5e-6 + 16e-6 + 5e-6)
    assert [(one.step.name.split(":")[0], one.cause) for one in found.critical_path] == [
        ("x", "admission"),
        (found.plan.subgraphs[0].name.split(":")[0], "input"),
        (found.plan.graph.outputs[0], "input"),
    ]


def test_a_stream_is_as_fast_as_its_busiest_lane() -> None:
    found = pl.simulate(on_sim(max_in_flight=3), items=10, host=SimulatedHost())
    assert found.makespan_s == pytest.approx(5e-6 + 160e-6 + 5e-6)
    assert found.bottleneck == "sim:a"
    assert found.busy == pytest.approx({"sim:a in": 5 / 17, "sim:a": 16 / 17, "sim:a out": 5 / 17})
    assert found.items_per_s == pytest.approx(10 / 170e-6)


def test_another_number_in_flight_is_planned_anew() -> None:
    plan = two_stages()
    alone, streamed = pl.simulate(plan, items=8), pl.simulate(plan, items=8, max_in_flight=4)
    assert streamed.makespan_s < alone.makespan_s
    assert streamed.plan.max_in_flight == 4
    assert plan.max_in_flight == 1
    planned = two_stages(max_in_flight=4).memory
    assert planned is not None
    assert {name: use.planned_nbytes for name, use in streamed.memory.items()} == {
        name: pool.nbytes for name, pool in planned.pools.items()
    }


def test_a_faster_operator_takes_its_share_of_the_time() -> None:
    once = pl.simulate(on_sim(), host=SimulatedHost())
    twice = pl.simulate(on_sim(), host=SimulatedHost(), faster={"Relu": 2})
    assert once.makespan_s - twice.makespan_s == pytest.approx(8e-6)


def test_a_single_node_can_be_faster() -> None:
    plan = on_sim()
    once = pl.simulate(plan, host=SimulatedHost())
    twice = pl.simulate(plan, host=SimulatedHost(), faster={plan.graph.nodes[0].name: 2})
    assert once.makespan_s - twice.makespan_s == pytest.approx(4e-6)


def test_a_device_can_be_taken_for_other_hardware(tmp_path: Path) -> None:
    faster = replace(MODEL, bytes_per_s=2e9, copy_bytes_per_s=4e9)
    found = pl.simulate(on_sim(), {"sim:a": faster}, host=SimulatedHost())
    assert found.makespan_s == pytest.approx(2e-6 + 8e-6 + 2e-6)
    file = tmp_path / "gpu.json"
    file.write_text(json.dumps({"bytes_per_s": 2e9, "copy_bytes_per_s": 4e9, "launch_s": 0.0,
                                "copy_latency_s": 1e-6, "flops_per_s": 1e9}))  # fmt: skip
    assert (
        pl.simulate(on_sim(), {"sim:a": file}, host=SimulatedHost()).makespan_s == found.makespan_s
    )


def test_a_file_of_costs_knows_the_models_of_its_machine(tmp_path: Path) -> None:
    file = tmp_path / "costs.json"
    Costs({"sim:a": DeviceModel(bytes_per_s=2e9, launch_s=0.0)}).save(file)
    found = pl.simulate(on_sim(), {"sim:a": file})
    assert found.costs.model("sim:a").bytes_per_s == 2e9
    with pytest.raises(pl.ParseError, match="say nothing of a device 'sim:b'"):
        pl.simulate(two_stages(), {"sim:b": file})


def test_measured_costs_stand_in_front_of_models(tmp_path: Path) -> None:
    plan = on_sim()
    (subgraph,) = plan.subgraphs
    costs = Costs.of(plan.prototypes).scaled("Relu", 3)
    found = pl.simulate(plan, costs=costs, host=SimulatedHost())
    assert found.workload.duration_s[1] == pytest.approx(costs.program_s("sim:a", subgraph.graph))
    assert found.makespan_s == pytest.approx(5e-6 + 48e-6 + 5e-6)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[1]", "a device's model is"),
        ('{"flops": 1}', "no figure 'flops'"),
        ('{"flops_per_s": "fast"}', "flops_per_s is 'fast'"),
        ('{"flops_per_s": -1}', "flops_per_s is -1"),
        ('{"format": "other"}', "is not in the format"),
    ],
)
def test_what_is_no_model_is_refused_with_its_file(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "model.json"
    file.write_text(text)
    with pytest.raises(pl.ParseError, match=message) as raised:
        pl.simulate(on_sim(), {"sim:a": file})
    assert str(file) in str(raised.value)
    assert raised.value.fix


def test_a_file_that_is_not_there_is_refused() -> None:
    with pytest.raises(pl.ParseError, match="there is no such file"):
        pl.simulate(on_sim(), {"sim:a": "nowhere.json"})


def test_questions_that_make_no_sense_are_refused() -> None:
    plan = on_sim()
    with pytest.raises(pl.PlanError, match="no device 'gpu'"):
        pl.simulate(plan, {"gpu": MODEL})
    with pytest.raises(pl.PlanError, match="items is 0"):
        pl.simulate(plan, items=0)
    with pytest.raises(pl.PlanError, match="max_in_flight is 1"):
        pl.simulate(plan, max_in_flight=1.5)  # type: ignore[arg-type]
    with pytest.raises(pl.PlanError, match="no operator, node or step 'Conv'"):
        pl.simulate(plan, faster={"Conv": 2})
    with pytest.raises(pl.PlanError, match="0 times as fast"):
        pl.simulate(plan, faster={"Relu": 0})
    with pytest.raises(pl.PlanError, match="too many to simulate"):
        pl.simulate(plan, items=10**9)
    with pytest.raises(pl.PlanError, match="expected a plan, got"):
        pl.simulate(plan.graph)  # type: ignore[arg-type]


def test_a_plan_with_unknown_shapes_is_refused() -> None:
    builder = pl.GraphBuilder("symbolic")
    x = builder.input("x", "float32", ("n",))
    builder.output("y", builder.op("Relu", x))
    graph = builder.build()
    with pytest.raises(pl.PlanError, match="shapes are not all known") as raised:
        pl.simulate(pl.plan(graph))
    assert raised.value.fix == "plan for the shapes of inputs: shapes={'x': (64,)}"
    assert pl.simulate(pl.plan(graph, shapes={"x": (64,)})).makespan_s > 0
    assert pl.simulate(pl.plan(graph, bounds={"n": 64})).makespan_s > 0


@pytest.mark.parametrize("options", [{"shapes": {"x": (5,)}}, {"bounds": {"n": 5}}])
def test_a_plan_whose_lengths_values_decide_is_predicted_up_to_there(
    options: dict[str, Any],
) -> None:
    builder = pl.GraphBuilder("counted")
    above = builder.op("Relu", builder.input("x", "float32", ("n",)))
    kept = builder.op("NonZero", above, name="kept")
    builder.output("y", builder.op("Cast", kept, to="float32"))
    plan = pl.plan(builder.build(), **options)
    with pytest.raises(pl.PlanError, match="values decide what 'kept' yields") as raised:
        pl.simulate(plan)
    assert "node 'kept'" in (raised.value.at or "")
    assert "plan.fetching" in (raised.value.fix or "")
    assert pl.simulate(plan.fetching(above)).makespan_s > 0
    bounded = pl.plan(builder.build(), bounds={"n": 5, "kept.shape[1]": 5})
    assert pl.simulate(bounded).makespan_s > 0


def test_where_one_item_fits_more_follow_each_other() -> None:
    small = SimDevice("sim:a", replace(MODEL, memory_bytes=4096))
    plan = pl.plan(relus(2), [small])
    alone, many = (
        pl.simulate(plan, items=9, max_in_flight=k, host=SimulatedHost()) for k in (1, 50)
    )
    assert many.memory["sim:a"].planned_nbytes <= 4096
    assert many.makespan_s == alone.makespan_s


def test_a_graph_of_constants_alone_takes_no_steps() -> None:
    builder = pl.GraphBuilder("constant")
    builder.input("x", "float32", (2,))
    builder.output("y", builder.constant(np.ones(2, np.float32)))
    found = pl.simulate(pl.plan(builder.build()), items=2, host=SimulatedHost())
    assert found.makespan_s == 0.0
    assert found.critical_path == ()
    assert found.table()


def test_steps_beside_the_critical_path_have_slack() -> None:
    builder = pl.GraphBuilder("fork")
    x = builder.input("x", "float32", (1000,))
    short, long = builder.op("Relu", x, name="short"), builder.op("Relu", x, name="long")
    long = builder.op("Neg", long, name="longer")
    builder.output("y", builder.op("Add", short, long, name="join"))
    pins = {"short": "sim:b", "long": "sim:a", "longer": "sim:a", "join": "sim:a"}
    quick = replace(MODEL, copy_latency_s=0.0, copy_bytes_per_s=1e12, bytes_per_s=1e12)
    devices = [SimDevice("sim:a", MODEL), SimDevice("sim:b", quick)]
    found = pl.simulate(pl.plan(builder.build(), devices, pin=pins), host=SimulatedHost())
    slack = dict(zip((step.name for step in found.plan.steps), found.slack_s, strict=True))
    critical = {one.step.name for one in found.critical_path}
    assert all(slack[name] == 0 for name in critical)
    assert any(spare > 0 for name, spare in slack.items() if name not in critical)


@settings(max_examples=40)
@given(graphs(), st.integers(1, 4), st.integers(1, 3), st.integers(0, 2**30))
def test_predictions_hang_together(graph: Graph, items: int, max_in_flight: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    devices = [SimDevice("sim:a"), SimDevice("sim:b", MODEL), pl.devices.find("cpu")]
    pins = {node.name: devices[random.integers(3)].name for node in graph.nodes}
    plan = pl.plan(graph, devices, pin=pins, max_in_flight=max_in_flight)
    found = pl.simulate(plan, items=items)
    assert plan.memory is not None
    for name, use in found.memory.items():
        assert use.planned_nbytes == plan.memory.pools[name].nbytes
        assert use.occupied_nbytes <= use.held_nbytes <= use.planned_nbytes
        assert use.occupied[-1][1] == 0, "in the end nothing is needed"
        times = [time for time, _ in use.held]
        assert times == sorted(times)
    path = found.critical_path
    assert all(a.ended_s <= b.started_s for a, b in pairwise(path))
    assert all(found.slack_s[one.step.index] == 0 for one in path)
    assert all(0 <= share <= 1 + 1e-9 for share in found.busy.values())
    assert len(found.records) == items


def test_a_prediction_can_be_opened_as_a_trace(tmp_path: Path) -> None:
    pl.simulate(two_stages(2), items=3).save(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert sum(event.get("cat") == "subgraph" for event in events) == 6


def test_the_table_says_what_limits() -> None:
    found = pl.simulate(two_stages(2), items=5)
    text = str(found)
    assert "5 items, up to 2 in flight" in text
    assert "sim:a: busy" in text
    assert "memory sim:a" in text
    assert json.loads(json.dumps(found.to_dict()))["items"] == 5


@pytest.mark.parametrize("one_by_one", [False, True])
def test_large_arrays_are_copied_on_a_thread_as_the_runtime_does(one_by_one: bool) -> None:
    most = 6 if one_by_one else 2
    counts = most << 18, (most << 18) + 1
    small, large = (describe_host(relus(1, count=count), one_by_one=one_by_one) for count in counts)
    assert small.feed_delay_s == 0
    assert large.feed_delay_s > 0
    assert large.feed_s < small.feed_s


def test_the_same_question_has_the_same_answer() -> None:
    first, second = (pl.simulate(two_stages(3), items=7) for _ in range(2))
    assert first.to_dict() == second.to_dict()


@pytest.mark.parametrize("name", ["devices", "faster"])
@pytest.mark.parametrize("value", [["sim:a"], 3, "sim:a"])
def test_what_is_no_mapping_is_refused(name: str, value: Any) -> None:
    with pytest.raises(pl.PlanError, match=f"{name} is "):
        pl.simulate(on_sim(), **{name: value})


def test_a_model_that_is_neither_model_nor_path_is_refused() -> None:
    wrong: Any = 3
    with pytest.raises(pl.ParseError, match="the model of 'sim:a' is 3"):
        pl.simulate(on_sim(), {"sim:a": wrong})


def test_what_would_take_for_ever_is_refused() -> None:
    slow = pl.simulate(on_sim(), {"sim:a": replace(MODEL, launch_s=1e6)})
    assert slow.makespan_s > 1e6
    for model in (
        replace(MODEL, operators={"Relu": 1e300}),
        replace(MODEL, bytes_per_s=1e-300),
        replace(MODEL, copy_bytes_per_s=1e-300),
    ):
        plan = pl.plan(relus(2), [pl.modelled_device("far", model), "cpu"])
        assert set(plan.assignment.values()) == {"cpu"}
        with pytest.raises(pl.PlanError, match=r"it would take [0-9,]+ years"):
            pl.simulate(on_sim(), {"sim:a": model})


@pytest.mark.parametrize("factor", [0, -1, float("inf"), float("nan"), "twice"])
def test_a_factor_that_is_none_is_refused(factor: Any) -> None:
    with pytest.raises(pl.PlanError, match="times as fast"):
        pl.simulate(on_sim(), faster={"Relu": factor})
