"""Plans that compute in float16 where the user allows it and it is safe."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import plait as pl
import pytest
from fake_devices import PrivateDevice
from numpy.typing import NDArray
from plait import learning
from plait.devices.device import Device, Support
from plait.devices.opencl.device import OpenClDevice
from plait.graph.core.ir import Graph, Node
from plait.graph.core.operator import Call, find_operator
from plait.scheduler.plans.placement import Transfer
from plait.scheduler.plans.plan import Plan
from pocl import pocl_device

HALF = np.dtype(np.float16)


def small(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(0).standard_normal(shape, np.float32)


def network(bias: float = 0.5, *, width: int | str = 6) -> Graph:
    b = pl.GraphBuilder("network")
    x = b.input("x", "float32", (1, 3, 6, width))
    h = b.op("Conv", x, 0.2 * small(4, 3, 3, 3), np.full(4, bias, np.float32), name="first")
    h = b.op("Relu", h, name="relu")
    h = b.op("Softmax", h, axis=1, name="softmax")
    h = b.op("Conv", h, 0.2 * small(4, 4, 1, 1), name="second")
    b.output("y", b.op("Relu", h, name="last"))
    return b.build()


X = small(1, 3, 6, 6)


def computed_in(plan: Plan) -> Mapping[str, str]:
    tensors = plan.graph.tensors
    return {node.name: tensors[node.outputs[0]].dtype.name for node in plan.graph.nodes}


def transferred(plan: Plan) -> int:
    return sum(step.work.nbytes for step in plan.steps if isinstance(step.work, Transfer))


def test_products_and_what_follows_them_compute_in_float16_and_softmax_does_not() -> None:
    plan = pl.plan(network(), precision="float16")
    found = computed_in(plan)
    names = "first", "relu", "softmax", "second", "last"
    assert [found[n] for n in names] == ["float16", "float16", "float32", "float16", "float16"]
    y = pl.run(plan, {"x": X})["y"]
    assert y.dtype == np.float32
    np.testing.assert_allclose(y, pl.run(network(), {"x": X})["y"], atol=2e-3)


def test_weights_are_converted_ahead() -> None:
    plan = pl.plan(network(), precision="float16")
    assert {value.dtype for value in plan.graph.constants.values()} == {HALF}


def test_there_is_one_conversion_where_float16_begins_or_ends() -> None:
    casts = [n for n in pl.plan(network(), precision="float16").graph.nodes if n.op == "Cast"]
    assert [node.attributes["to"] for node in casts] == ["float16", "float32", "float16", "float32"]


def test_a_constant_that_float16_cannot_hold_keeps_its_node_in_float32() -> None:
    found = computed_in(pl.plan(network(bias=1e5), precision="float16"))
    assert (found["first"], found["relu"], found["second"]) == ("float32", "float32", "float16")


def test_a_constant_that_float16_would_lose_keeps_its_node_in_float32() -> None:
    b = pl.GraphBuilder("tiny")
    h = b.op("MatMul", b.input("x", "float32", (2, 2)), small(2, 2), name="product")
    b.output("y", b.op("Max", h, np.float32(1e-6), name="bound"))
    found = computed_in(pl.plan(b.build(), precision="float16"))
    assert (found["product"], found["bound"]) == ("float16", "float32")


def test_nothing_is_converted_for_elementwise_nodes_alone() -> None:
    b = pl.GraphBuilder("scaled")
    b.output("y", b.op("Mul", b.input("x", "float32", (4,)), np.float32(2)))
    assert len(pl.plan(b.build(), precision="float16").graph.nodes) == 1


class HalfDevice(PrivateDevice):
    """Has float16, unless it lacks it."""

    def supports(self, node: Node, call: Call) -> Support:
        if "float16" in self._lacks and any(s is not None and s.dtype == HALF for s in call.inputs):
            return Support(False, "no float16")
        return super().supports(node, call)


PINS = {"first": "npu", "relu": "npu", "softmax": "cpu", "second": "npu", "last": "npu"}


def test_half_the_bytes_pass_between_a_device_of_float16_and_another() -> None:
    devices: list[str | Device] = [HalfDevice("npu"), "cpu"]
    plain = pl.plan(network(), devices, pin=PINS)
    plan = pl.plan(network(), devices, pin=PINS, precision={"npu": "float16"})
    ends = X.nbytes + plan.graph.tensors["y"].nbytes  # what is fed and fetched stays float32
    assert transferred(plan) - ends == (transferred(plain) - ends) / 2
    assert plan.pins == PINS
    assert {n: plan.assignment[n] for n in PINS} == PINS
    y = pl.run(plan, {"x": X})["y"]
    np.testing.assert_allclose(y, pl.run(network(), {"x": X})["y"], atol=2e-3)


def test_where_it_is_not_allowed_nothing_is_float16() -> None:
    devices: list[str | Device] = [HalfDevice("npu"), "cpu"]
    plan = pl.plan(network(), devices, precision={"cpu": "float16"}, pin={"*": "npu"})
    assert set(computed_in(plan).values()) == {"float32"}


def test_a_device_without_float16_computes_in_float32() -> None:
    plan = pl.plan(network(), [HalfDevice("npu", lacks=["float16"])], precision="float16")
    assert set(computed_in(plan).values()) == {"float32"}


def test_planning_again_changes_nothing_but_memory() -> None:
    plan = pl.plan(network(), precision="float16")
    again = plan.replan(max_in_flight=2)
    assert again.graph == plan.graph
    assert again.request.precision == plan.request.precision
    assert again.request.halved == plan.request.halved


def test_what_is_float16_stays_on_its_device_when_it_is_planned_again() -> None:
    devices: list[str | Device] = [HalfDevice("npu"), "cpu"]
    plan = pl.plan(network(), devices, precision={"npu": "float16"}, pin={"first": "npu"})
    assert plan.request.halved.items() <= plan.replan(max_in_flight=3).assignment.items()


def test_a_saved_plan_is_the_same(tmp_path: Path) -> None:
    plan = pl.plan(network(), precision="float16")
    plan.save(tmp_path / "half.plan")
    assert pl.load_plan(tmp_path / "half.plan") == plan


def gate(length: int | str) -> Graph:
    b = pl.GraphBuilder("gate")
    product = b.op("MatMul", b.input("x", "float32", (length, 8)), small(8, 8), name="first")
    gate = b.op("Sigmoid", product, name="gate")
    gated = b.op("Mul", product, gate, name="gated")
    b.output("y", b.op("MatMul", gated, small(8, 8), name="second"))
    b.output("s", gate)
    return b.build()


@pytest.mark.parametrize(("length", "bounds"), [(3, None), ("n", {"n": (2, 4)})])
def test_a_part_of_a_saved_plan_stays_where_it_is_float16(
    tmp_path: Path, length: int | str, bounds: dict[str, tuple[int, int]] | None
) -> None:
    # Without the output s, the gate could be one node of Swish, for which the device has no kernel.
    npu = HalfDevice("npu", lacks=["Swish"])
    pins, precision = {"first": "npu", "second": "npu"}, {"npu": "float16"}
    plan = pl.plan(gate(length), ["cpu", npu], pin=pins, precision=precision, bounds=bounds)
    assert plan.request.halved["gated"] == "npu"
    plan.save(tmp_path / "half.plan")
    part = pl.load_plan(tmp_path / "half.plan", [npu]).fetching("y")
    assert {name: part.assignment[name] for name in ("gate", "gated")} == {
        "gate": "npu",
        "gated": "npu",
    }


def test_the_report_says_what_computes_in_float16_and_why_the_rest_does_not() -> None:
    text = pl.plan(network(), precision="float16").report()
    assert "in float16 on cpu: 4 of 5 nodes, 4 conversions" in text
    assert f"1 Softmax in float32: {find_operator('Softmax').float16.reason}" in text


def test_shapes_that_become_known_later_decide_later() -> None:
    plan = pl.plan(network(width="w"), precision="float16")
    assert "decided when shapes are known" in plan.report()
    fixed = pl.plan(network(), precision="float16")
    np.testing.assert_array_equal(pl.run(plan, {"x": X})["y"], pl.run(fixed, {"x": X})["y"])


def test_all_shapes_within_bounds_run_in_float16() -> None:
    plan = pl.plan(network(width="w"), bounds={"w": (4, 8)}, precision="float16")
    assert computed_in(plan)["first"] == "float16"
    fixed = pl.plan(network(), precision="float16")
    np.testing.assert_array_equal(pl.run(plan, {"x": X})["y"], pl.run(fixed, {"x": X})["y"])


@pytest.mark.parametrize("precision", ["float64", {"cpu": 16}, 16, {"npu": "float16"}])
def test_what_is_no_precision_is_refused(precision: object) -> None:
    with pytest.raises(pl.PlanError, match="precision"):
        pl.plan(network(), precision=precision)  # type: ignore[arg-type]


def test_opencl_computes_in_float16() -> None:
    device = OpenClDevice("opencl:0", device=pocl_device())
    plan = pl.plan(network(), [device], precision="float16")
    y = pl.run(plan, {"x": X})["y"]
    np.testing.assert_allclose(y, pl.run(network(), {"x": X})["y"], atol=2e-3)


def test_where_memory_is_short_another_assignment_is_converted() -> None:
    devices: list[str | Device] = [HalfDevice("npu", nbytes=3000), "cpu"]
    plan = pl.plan(network(), devices, precision={"npu": "float16"})
    y = pl.run(plan, {"x": X})["y"]
    np.testing.assert_allclose(y, pl.run(network(), {"x": X})["y"], atol=2e-3)


def test_where_no_assignment_has_memory_that_is_said() -> None:
    with pytest.raises(pl.DoesNotFitError):
        pl.plan(network(), [HalfDevice("npu", nbytes=100)], precision="float16")


def trained(optimizer: learning.Optimizer) -> Graph:
    b = pl.GraphBuilder("trained")
    x, wanted = b.input("x", "float32", (32, 8)), b.input("wanted", "float32", (32, 8))
    w, bias = b.variable("w", small(8, 8)), b.variable("bias", learning.zeros((8,)))
    h = b.op("Tanh", b.op("Add", b.op("MatMul", x, w, name="product"), bias), name="tanh")
    loss = learning.mean_squared_error(b, h, wanted)
    b.output("loss", loss)
    b.output("train", learning.minimize(b, loss, optimizer))
    return b.build()


@pytest.mark.parametrize(
    "optimizer", [learning.SGD(1e-4), learning.SGD(0.1, 0.9), learning.Adam(0.01)], ids=str
)
def test_weights_are_updated_as_in_float32(optimizer: learning.Optimizer) -> None:
    graph, moved = trained(optimizer), []
    fed = {"x": small(32, 8), "wanted": 1e-3 * small(32, 8)}
    for precision in (None, "float16"):
        with pl.BlockingSession(pl.plan(graph, precision=precision)) as session:
            for _ in range(20):
                session.run(fed, "train")
            moved.append(session.variables["w"] - small(8, 8))
    assert np.abs(moved[0] - moved[1]).max() < 0.05 * np.abs(moved[0]).max()


def test_what_leads_to_what_is_assigned_is_float32_and_the_report_says_why() -> None:
    plan = pl.plan(trained(learning.SGD(0.1)), precision="float16")
    found = computed_in(plan)
    assert found["product"] == found["gradient/product/gemm"] == "float16"
    assert {found[n] for n in found if n.startswith("train/w/")} == {"float32"}
    assert "Sub in float32: small steps are lost beside weights" in plan.report()
