from __future__ import annotations

import json

import plait as pl
from fake_devices import PrivateDevice
from plait.graph.ir import Graph


def graph(*shape: int | str) -> Graph:
    builder = pl.GraphBuilder("reported")
    h = builder.op("Relu", builder.input("x", "float32", shape), name="first")
    builder.output("y", builder.op("Add", h, 1.0, name="second"))
    return builder.build()


def split() -> pl.Plan:
    devices: list[str | PrivateDevice] = [PrivateDevice("npu", lacks=["Add"]), "cpu"]
    return pl.plan(graph(1000), devices, max_in_flight=3)


def test_the_report_names_subgraphs_transfers_memory_and_reasons() -> None:
    report = split().report()
    for line in (
        "2 nodes in 2 subgraphs on npu, cpu; 3 in flight",
        "x float32[1000]",
        "0:npu",
        "1:cpu",
        "transfers: 2, 8 KB per item",
        "memory of npu",
        "not on npu: no kernel for 'Add'",
    ):
        assert line in report


def test_the_report_lists_every_node_when_asked() -> None:
    lines = split().report(nodes=True).splitlines()
    listing = lines[lines.index("nodes") + 1 :]
    assert [line.split()[:2] for line in listing] == [["first", "npu"], ["second", "cpu"]]


def test_a_plan_prints_as_its_report() -> None:
    assert str(split()) == split().report()


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
    (line,) = (line for line in plan.report().splitlines() if line.startswith("1:cpu"))
    assert "0:npu" in line
