"""Plans in files: they come back equal, run without planning, or are refused with the reason."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import plait as pl
import pytest
from fake_devices import AtomicDevice, PrivateDevice
from hypothesis import given, settings
from hypothesis import strategies as st
from nested_graphs import doubling_body
from plait.devices.device import Device
from plait.devices.registry import register, unregister
from plait.devices.sim import SimDevice, SimModel
from plait.graph.core.ir import Graph
from plait.graph.core.operator import unregister_operator
from plait.graph.passes import PASSES
from plait.graph.values.errors import GraphError, ParseError
from plait.scheduler.planner import planner
from plait.scheduler.plans.plan import Plan
from plait.scheduler.reports import plan_file
from plait.scheduler.reports.plan_file import dump_plan, read_plan
from random_graphs import expected, feeds, graphs


def small(n: int | str = 4) -> Graph:
    b = pl.GraphBuilder("small")
    h = b.op("Relu", b.input("x", "float32", (n,)), name="first")
    b.output("y", b.op("Add", h, np.arange(4, dtype="float32"), name="second"))
    return b.build()


def split(n: int | str = 4, **options: Any) -> Plan:
    devices: list[str | Device] = [PrivateDevice("npu", lacks=["Add"]), "cpu"]
    return pl.plan(small(n), devices, strategy="preference", **options)


def again(plan: Plan, **replaced: Device) -> Plan:
    """Return a plan after a round trip, on the same device objects unless others are given."""
    objects = {name: plan.prototypes[name] for name in plan.request.given}
    return read_plan(dump_plan(plan), "bytes", {**objects, **replaced})


@pytest.mark.parametrize("max_in_flight", [1, 3])
def test_a_plan_that_computes_nothing_comes_back(max_in_flight: int) -> None:
    b = pl.GraphBuilder("shape")
    b.output("y", b.op("Shape", b.input("x", "float32", ("n", 2))))
    plan = again(pl.plan(b.build(), bounds={"n": 4}, max_in_flight=max_in_flight))
    assert not plan.steps
    assert pl.run(plan, {"x": np.ones((3, 2), np.float32)})["y"].tolist() == [3, 2]


@settings(max_examples=25)
@given(graphs(), st.data())
def test_a_plan_comes_back_equal(graph: Graph, data: st.DataObject) -> None:
    npu: Device = data.draw(
        st.sampled_from([PrivateDevice("npu", lacks=["Mul"]), AtomicDevice("npu")])
    )
    limit = data.draw(st.sampled_from([None, {"host": 1 << 20}]))
    plan = pl.plan(
        graph,
        [npu, "cpu"],
        pin={graph.nodes[0].name: "cpu"},
        max_in_flight=data.draw(st.integers(1, 3)),
        strategy=data.draw(st.sampled_from(["auto", "preference"])),
        memory_limits=limit,
    )
    found = again(plan)
    assert found == plan
    assert found.decision == plan.decision
    assert found.report(nodes=True) == plan.report(nodes=True)


@settings(max_examples=10)
@given(graphs())
def test_a_loaded_plan_computes_what_it_computed_before(graph: Graph) -> None:
    plan = pl.plan(graph, [PrivateDevice("npu", lacks=["Neg"]), "cpu"], strategy="preference")
    inputs = feeds(graph)
    results = pl.run(again(plan), inputs)
    for name, value in expected(graph, inputs).items():
        np.testing.assert_array_equal(results[name], value)


def test_nothing_is_planned_when_a_plan_is_loaded_and_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pl.plan(small(), max_in_flight=2).save(tmp_path / "p.plan")
    monkeypatch.setattr(planner, "make_plan", _refuse)
    plan = Plan.load(tmp_path / "p.plan")
    assert pl.run(plan, {"x": np.zeros(4, "float32")})["y"].tolist() == [0, 1, 2, 3]


def _refuse(*arguments: object, **options: object) -> Plan:
    raise AssertionError("planned anew")


def test_constants_outlive_the_file(tmp_path: Path) -> None:
    file = tmp_path / "p.plan"
    pl.plan(small()).save(file)
    plan = pl.load_plan(file)
    file.unlink()
    (constant,) = plan.graph.constants.values()
    assert not constant.flags.owndata
    assert constant.tolist() == [0, 1, 2, 3]


def test_a_symbolic_plan_is_saved_without_memory_and_plans_for_shapes() -> None:
    plan = split("n")
    found = again(plan)
    assert found == plan
    assert not found.is_static
    assert found.for_shapes({"x": (4,)}) == plan.for_shapes({"x": (4,)})


def test_a_plan_with_control_flow_comes_back() -> None:
    b = pl.GraphBuilder("looping")
    trips, x = b.input("trips", "int64", ()), b.input("x", "float32", (3,))
    last, rows = b.op("Loop", trips, None, x, body=doubling_body(limit=9), outputs=2, name="loop")
    b.output("last", last)
    b.output("rows", rows)
    plan = pl.plan(b.build())
    found = again(plan)
    assert found == plan
    inputs = {"trips": np.int64(3), "x": np.ones(3, "float32")}
    np.testing.assert_array_equal(pl.run(found, inputs)["rows"], pl.run(plan, inputs)["rows"])


@pytest.mark.usefixtures("forget_operators")
def test_python_operators_are_found_by_name() -> None:
    @pl.operator(name="plan_file.twice")
    def twice(x: Any) -> Any:
        return x * 2

    b = pl.GraphBuilder("calls")
    b.output("y", b.call(twice, b.input("x", "float32", (2,))))
    data = dump_plan(pl.plan(b.build()))
    assert pl.run(read_plan(data, "bytes", {}), {"x": np.ones(2, "float32")})["y"].tolist() == [
        2,
        2,
    ]
    unregister_operator("plan_file.twice")
    with pytest.raises(pl.UnknownOperatorError, match=r"plan_file\.twice"):
        read_plan(data, "bytes", {})


def test_registered_devices_are_found_by_name_and_opened_by_the_session() -> None:
    register("npu", lambda name: PrivateDevice(name, lacks=["Add"]))
    try:
        found = read_plan(dump_plan(split()), "bytes", {})
        assert found.request.given == frozenset()
        assert pl.run(found, {"x": np.zeros(4, "float32")})["y"].tolist() == [0, 1, 2, 3]
    finally:
        unregister("npu")


def test_a_missing_device_is_named_with_the_way_to_give_it() -> None:
    with pytest.raises(pl.DeviceUnavailableError, match="'npu'") as caught:
        read_plan(dump_plan(split()), "here.plan", {})
    assert "load_plan(..., devices=[...])" in "".join(caught.value.__notes__)


def test_a_device_that_the_plan_has_no_use_for_is_refused() -> None:
    with pytest.raises(ParseError, match="not for tpu"):
        again(split(), tpu=PrivateDevice("tpu"))


def test_a_device_of_other_capabilities_is_refused() -> None:
    other = PrivateDevice("npu", lacks=["Add"])
    other.capabilities = replace(other.capabilities, alignment=4096)
    with pytest.raises(ParseError, match=r"'npu' is not what .* alignment 4096, was 64"):
        again(split(), npu=other)


def test_a_device_of_another_release_is_refused_but_a_patch_is_not() -> None:
    plan, other = split(), PrivateDevice("npu", lacks=["Add"])
    npu = plan.prototypes["npu"]
    npu.capabilities = replace(npu.capabilities, software="driver 1.4.2")  # type: ignore[misc]
    other.capabilities = replace(npu.capabilities, software="driver 1.4.9")
    assert again(plan, npu=other) == plan
    other.capabilities = replace(npu.capabilities, software="driver 1.5.0")
    with pytest.raises(ParseError, match=r"software 'driver 1\.5', was 'driver 1\.4'"):
        again(plan, npu=other)


def test_a_device_that_lost_an_operator_is_refused() -> None:
    with pytest.raises(ParseError, match=r"npu does not run node 'first'.* any more: no kernel"):
        again(split(), npu=PrivateDevice("npu", lacks=["Add", "Relu"]))


def test_a_machine_with_too_little_memory_is_refused() -> None:
    with pytest.raises(pl.DoesNotFitError, match="'memory of npu'; npu has 8 bytes here"):
        again(split(), npu=PrivateDevice("npu", lacks=["Add"], nbytes=8))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("VERSION", "0.0.1", r"made by plait 0\.0\.1, this is"),
        ("hash_layout", lambda: "other", "another build of plait"),
    ],
)
def test_another_version_is_refused(
    name: str, value: object, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(plan_file, name, value)
        data = dump_plan(pl.plan(small()))
    with pytest.raises(ParseError, match=message):
        read_plan(data, "bytes", {})


def test_another_numpy_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(np, "__version__", "1.26.4")
        data = dump_plan(pl.plan(small()))
    with pytest.raises(ParseError, match=r"numpy is not what .*, was 1\.26\.4"):
        read_plan(data, "bytes", {})


@pytest.mark.usefixtures("forget_operators")
def test_an_operator_of_another_definition_is_refused() -> None:
    def build(**options: Any) -> Any:
        @pl.operator(name="plan_file.changing", **options)
        def changing(x: Any) -> Any:
            return x

        return changing

    b = pl.GraphBuilder("changes")
    b.output("y", b.call(build(), b.input("x", "float32", (2,))))
    data = dump_plan(pl.plan(b.build()))
    unregister_operator("plan_file.changing")
    build(effects=True)
    with pytest.raises(ParseError, match=r"operator 'plan_file\.changing' is not what"):
        read_plan(data, "bytes", {})


def test_passes_of_the_user_cannot_be_saved() -> None:
    def my_pass(graph: Graph, may_merge: Any = None) -> Graph:
        return graph

    plan = pl.plan(small(), passes=[*PASSES, my_pass])
    with pytest.raises(pl.PlanError, match="passes that are not plait's: my_pass"):
        dump_plan(plan)


def test_a_graph_is_no_plan_and_a_plan_no_graph(tmp_path: Path) -> None:
    pl.save(small(), tmp_path / "g.plait")
    pl.plan(small()).save(tmp_path / "p.plan")
    with pytest.raises(ParseError, match="this is a graph, not a plan"):
        pl.load_plan(tmp_path / "g.plait")
    with pytest.raises(ParseError, match="this is a saved plan, not a graph"):
        pl.load(tmp_path / "p.plan")


def test_a_file_that_is_missing_or_foreign_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ParseError, match="there is no such file"):
        pl.load_plan(tmp_path / "gone.plan")
    (tmp_path / "text.plan").write_text("a plan, as one writes them by hand")
    with pytest.raises(ParseError, match=r"not a \.plan file"):
        pl.load_plan(tmp_path / "text.plan")
    with pytest.raises(ParseError, match="expected a path, got int"):
        pl.load_plan(3)  # type: ignore[arg-type]


def test_a_file_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="cannot write"):
        pl.plan(small()).save(tmp_path / "gone" / "p.plan")


@pytest.mark.parametrize("name", ["cpu", "worker:0", "compiled", "ort", "formal", "cuda:0"])
def test_plans_for_every_kind_of_device_come_back(name: str) -> None:
    try:
        plan = pl.plan(small(), [name])
    except pl.DeviceUnavailableError as error:
        pytest.skip(error.what)
    assert again(plan) == plan


def test_a_plan_for_simulated_hardware_comes_back() -> None:
    device = SimDevice("sim:npu", SimModel(supports=lambda node: node.op == "Relu"))
    plan = pl.plan(small(), [device, "cpu"], strategy="preference")
    found = again(plan)
    assert (found.assignment, found.memory) == (plan.assignment, plan.memory)
    assert pl.simulate(found).makespan_s == pl.simulate(plan).makespan_s


@pytest.mark.parametrize("devices", [["cpu"], "cpu", 3, [None]])
def test_names_are_no_objects_to_run_on(tmp_path: Path, devices: Any) -> None:
    pl.plan(small()).save(tmp_path / "a.plan")
    with pytest.raises(pl.PlanError, match="is not a device object"):
        pl.load_plan(tmp_path / "a.plan", devices=devices)
