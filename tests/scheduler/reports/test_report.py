from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import plait as pl
import pytest
from fake_devices import PrivateDevice
from plait.graph.core.ir import Graph
from plait.graph.core.printing import format_seconds
from plait.scheduler.dispatch import hand_over


def graph(*shape: int | str) -> Graph:
    builder = pl.GraphBuilder("reported")
    h = builder.op("Relu", builder.input("x", "float32", shape), name="first")
    builder.output("y", builder.op("Add", h, 1.0, name="second"))
    return builder.build()


def split() -> pl.Plan:
    devices: list[str | PrivateDevice] = [PrivateDevice("npu", lacks=["Add"]), "cpu"]
    return pl.plan(graph(1000), devices, max_in_flight=3, strategy="preference")


def test_the_report_names_subgraphs_transfers_memory_and_reasons() -> None:
    report = split().report()
    for line in (
        "2 nodes in 2 subgraphs on npu, cpu; 3 in flight",
        "x float32[1000]",
        "first            npu",
        "second           cpu",
        "transfers: 2, 8 KB per item",
        "memory of npu",
        "not on npu: no kernel for 'Add'",
    ):
        assert line in report


def listed(plan: pl.Plan) -> list[str]:
    lines = plan.report(nodes=True).splitlines()
    (start,) = (index for index, line in enumerate(lines) if line.startswith("nodes"))
    return lines[start + 1 :]


def test_the_report_lists_every_node_when_asked() -> None:
    listing = listed(split())[1:]
    assert [line.split()[:2] for line in listing] == [["first", "npu"], ["second", "cpu"]]


def test_a_plan_prints_as_its_report() -> None:
    assert str(split()) == split().report()


def test_the_report_says_what_a_hand_over_costs_where_that_was_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert "hand-over" not in split().report()
    monkeypatch.setattr(hand_over, "_measured_ns", 12_345)
    assert "a hand-over costs 12.3 µs here" in split().report()


def test_the_report_says_when_memory_is_not_planned_yet() -> None:
    plan = pl.plan(graph("n"))
    assert not plan.is_static
    assert "planned when the input shapes are known" in plan.report()
    assert plan.for_shapes({"x": (4,)}).is_static


def test_the_report_as_plain_values_is_json() -> None:
    values = json.loads(json.dumps(split().to_dict()))
    assert values["nodes"]["second"]["device"] == "cpu"
    assert [s["device"] for s in values["subgraphs"]] == ["npu", "cpu"]
    assert values["transfers"][0] == {
        "tensor": "x",
        "source": "host",
        "target": "memory of npu",
        "nbytes": 4000,
    }
    assert values["memory"]["host"]["nbytes"] >= 3 * values["memory"]["host"]["slot_nbytes"]


def test_symbolic_plans_are_plain_values_too() -> None:
    values = pl.plan(graph("n")).to_dict()
    assert values["inputs"] == {"x": "float32[n]"}
    assert values["memory"] == {}


def test_a_symbolic_plan_says_which_subgraphs_wait_for_which() -> None:
    plan = pl.plan(graph("n"), [PrivateDevice("npu", lacks=["Add"]), "cpu"])
    (line,) = (line for line in plan.report().splitlines() if line.startswith("second  "))
    assert " first " in line


def test_the_report_predicts_times_and_says_what_was_weighed() -> None:
    plan = pl.plan(graph(1000), ["cpu", PrivateDevice("npu")], max_in_flight=2)
    report = plan.report()
    assert "predicted: one item " in report
    assert "items/s" in report
    assert plan.decision is not None
    assert plan.decision.why in report
    for candidate in plan.decision.candidates[:8]:
        assert candidate.name in report


def test_every_node_says_what_it_costs_here_and_elsewhere() -> None:
    plan = pl.plan(graph(1000), ["cpu", PrivateDevice("npu", lacks=["Add"])])
    columns, first, second = listed(plan)
    assert columns.split() == ["node", "device", "on", "cpu", "on", "npu", "why"]
    assert len(re.findall(r"\d (?:ns|µs|ms|s)\b", first)) == 2
    assert second.split()[1] == "cpu"
    assert "no kernel for 'Add' on this device" in second


def test_times_stand_in_the_listing_once() -> None:
    plan = pl.plan(graph(1000), ["cpu", "worker:0"])
    assert " here, " in plan.reasons["first"]
    assert not any("here" in line for line in listed(plan))


def test_reasons_compare_the_same_nodes_on_each_device() -> None:
    b = pl.GraphBuilder("reported")
    x = b.input("x", "float32", (1000,))
    for index in range(4):
        x = b.op("Exp" if index % 2 else "Sin", x, name=f"n{index}")
    b.output("y", x)
    plan = pl.plan(b.build(), ["cpu", PrivateDevice("npu", lacks=["Sin"])], passes=())
    reasons = plan.report().rpartition("why")[2].splitlines()[1:]
    (alone,) = (line for line in reasons if "no kernel for 'Sin'" in line)
    assert alone.startswith("  cpu: 2 nodes: ")
    assert " on npu" not in alone.replace("not on npu", "")  # no time is told of what it lacks
    (weighed,) = (line for line in reasons if line != alone)
    seconds = plan.decision.options if plan.decision is not None else {}
    for device in plan.devices:
        times = [one.seconds for n in ("n1", "n3") for one in seconds[n] if one.device == device]
        total = sum(time for time in times if time is not None)
        assert format_seconds(total) in weighed


def test_the_first_line_says_what_is_decided_anew() -> None:
    told = "to be decided anew for what is fed"
    assert told in pl.plan(graph("n"), ["cpu", "worker:0"]).report().splitlines()[0]
    for settled in (
        pl.plan(graph("n"), ["cpu"]),
        pl.plan(graph("n"), ["cpu", "worker:0"], pin={"*": "worker:0"}),
        pl.plan(graph("n"), ["cpu", "worker:0"], strategy="preference"),
        pl.plan(graph("n"), ["cpu", "worker:0"], bounds={"n": 8}),
        pl.plan(graph(8), ["cpu", "worker:0"]),
    ):
        assert told not in settled.report()


@pytest.mark.parametrize(("gains", "is_installed"), [(True, False), (False, False), (True, True)])
def test_the_first_line_says_what_onnx_runtime_would_gain_where_it_is_missing(
    gains: bool, is_installed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = (lambda name: object()) if is_installed else (lambda name: None)
    monkeypatch.setattr("plait.scheduler.reports.report.find_spec", found)
    b = pl.GraphBuilder("conv")
    x = b.input("x", "float32", (1, 64, 32, 32))
    kernels = np.ones((64, 64, 3, 3), "float32")
    b.output("y", x.conv(kernels, pads=(1, 1, 1, 1)) if gains else x[:, :, :2].relu())
    first = pl.plan(b.build(), "cpu").report().splitlines()[0]
    told = r"ONNX Runtime is not installed: .* predicted to be 1\.\d times as fast; pip install "
    assert bool(re.match(told, first)) == (gains and not is_installed)


def test_formulas_of_dimensions_are_cut_short() -> None:
    b = pl.GraphBuilder("wide")
    x = b.input("x", "float32", ("n", 3))
    parts = [b.op("Concat", *[x] * 2, axis=0)]
    for _ in range(20):
        parts.append(
            b.op(
                "Concat",
                parts[-1],
                b.input(f"x{len(parts)}", "float32", (f"many{len(parts)}", 3)),
                axis=0,
            )
        )
    b.output("y", parts[-1])
    (line,) = (line for line in pl.plan(b.build()).report().splitlines() if "  out" in line)
    assert line == "  out  y float32[..., 3]"


def test_what_a_candidate_lacks_stands_beside_it() -> None:
    report = pl.plan(graph(1000), ["cpu", "worker:0"], objective="throughput").report()
    assert "per item" in report
    assert "on cpu, worker:0:" not in report


def test_the_report_lists_regions_with_copies_and_when_they_are_held() -> None:
    report = split().report()
    assert "copies of" in report
    assert "held from" in report
    assert "constants" in report


def test_limits_and_the_waits_they_cost_are_reported() -> None:
    b = pl.GraphBuilder("wide")
    x = b.input("x", "float32", (1000,))
    halves = [b.op("Relu", b.op("Neg", x, name=f"neg{i}"), name=f"relu{i}") for i in range(2)]
    b.output("y", b.op("Add", *halves))
    plan = pl.plan(b.build(), memory_limits={"host": 1 << 20})
    assert "limit of host: 1.05 MB" in plan.report()
    assert plan.memory is not None
    assert plan.placement is not None
    memory = split().memory
    assert memory is not None
    slowed = replace(memory, added_edges=((0, 1),), slowdown=1.25)
    waiting = replace(split(), memory=slowed)
    assert "1 wait added to keep the limits: 25.0% slower" in waiting.report()


def test_json_is_of_the_documented_form() -> None:
    values = json.loads(split().to_json())
    assert (values["format"], values["version"], values["plait"]) == (
        "plait plan",
        1,
        pl.__version__,
    )
    assert values["predicted"]["seconds"] > 0
    options = {one["device"]: one for one in values["nodes"]["second"]["options"]}
    assert (options["npu"]["supported"], options["cpu"]["supported"]) == (False, True)
    (region, *_) = values["memory"]["host"]["regions"]
    assert region["copies"] >= 1
    assert [step["kind"] for step in values["steps"]].count("transfer") == 2


def half_used() -> Graph:
    b = pl.GraphBuilder("half used")
    x = b.input("x", "float32", (6,))
    left = b.op("Exp", x, name="left", outputs=["l"])[0]
    b.op("Split", left, name="parts", outputs=["p", "q"], num_outputs=2)
    b.op("Neg", left, name="negated", outputs=["n"])
    b.output("y", b.op("Relu", x, name="used"))
    return b.build()


def test_dead_nodes_are_told_with_the_reason() -> None:
    plan = pl.plan(half_used())
    assert "dead: 3 nodes that no output needs, dropped\n" in plan.report()
    dead = plan.to_dict()["dead"]
    assert list(dead.values()) == [
        "'l' is only read by 'parts', 'negated', which are dead",
        "nothing reads 'p', 'q'",
        "nothing reads 'n'",
    ]
    for name, why in dead.items():
        assert f"\n  {name}: {why}\n" in plan.report()


def test_dead_nodes_are_told_of_plans_for_shapes_and_for_some_outputs() -> None:
    plan = pl.plan(half_used(), passes=())
    found = [plan, plan.replan(2), plan.fetching("l")]
    assert all(one.dead == plan.dead for one in found)
    assert len(plan.dead) == 3


def test_nothing_is_said_of_dead_nodes_where_there_are_none() -> None:
    plan = split()
    assert "dead" not in plan.report()
    assert plan.to_dict()["dead"] == {}


def test_of_many_dead_nodes_the_first_are_listed() -> None:
    b = pl.GraphBuilder("mostly dead")
    x = b.input("x", "float32", (6,))
    for _ in range(30):
        b.op("Neg", x)
    b.output("y", b.op("Relu", x))
    assert "\n  and 10 nodes more\n" in pl.plan(b.build()).report()


def test_what_functions_take_is_a_guess_until_they_are_measured(forget_operators: None) -> None:
    spec = pl.TensorSpec("float32", (8,))
    scale = pl.operator(spec, inputs=[spec], name="test_report.scale")(lambda x: x * 2)
    b = pl.GraphBuilder("scaled")
    b.output("y", b.op("Relu", b.call(scale, b.input("x", "float32", (8,)))))
    graph = b.build()
    plan = pl.plan(graph)
    guess = "a guess in it: 100 µs or what the bytes take, for each Python function (test_report."
    assert guess in plan.report()
    with pl.BlockingSession(plan, measure=True) as session:
        session.run({"x": np.ones(8, "float32")})
        costs = pl.Costs.from_profile(session.profile(), plan)
    assert "a guess in it" not in pl.plan(graph, costs=costs).report()
