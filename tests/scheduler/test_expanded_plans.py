"""Plans for devices that lack operators: these are written out in what the devices have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import plait as pl
import pytest
from fake_devices import PrivateDevice
from numpy.typing import NDArray
from plait.devices.device import Device, Support
from plait.devices.opencl.device import OpenClDevice
from plait.graph.core.ir import Graph, Node
from plait.graph.core.operator import Call
from plait.graph.passes import PASSES, simplify
from plait.graph.passes.expand import expand_unsupported
from plait.scheduler.planner.partition.partition import may_merge
from pocl import pocl_device


def one(op: str, *inputs: NDArray[np.float32], name: str = "node", **attributes: Any) -> Graph:
    b = pl.GraphBuilder("one")
    x = b.input("x", "float32", (2, 6, 4, 5))
    b.output("y", b.op(op, x, *inputs, name=name, **attributes))
    return b.build()


def small(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(0).standard_normal(shape, np.float32)


X = small(2, 6, 4, 5)

CASES: Mapping[str, tuple[Graph, tuple[str, ...]]] = {
    "an activation": (one("Gelu"), ("Gelu",)),
    "in two steps": (one("HardSwish"), ("HardSwish", "HardSigmoid")),
    "in three": (one("Mish"), ("Mish", "Softplus", "Abs", "Tanh", "Neg")[:2]),
    "a normalization": (one("GroupNormalization", small(6), small(6), num_groups=2),
                        ("GroupNormalization", "ReduceMean", "Reciprocal")),
    "groups": (one("Conv", small(8, 3, 3, 3), small(8), group=2, pads=(1, 1, 1, 1)),
               ("GroupedConv",)),
    "an equation": (one("Einsum", small(7, 6), equation="nchw,kc->nkhw"), ("Einsum",)),
}  # fmt: skip


class Lacking(PrivateDevice):
    """Has neither some operators nor convolutions of groups, if that is one of them."""

    def supports(self, node: Node, call: Call) -> Support:
        if "GroupedConv" in self._lacks and node.attributes.get("group", 1) > 1:
            return Support(False, "no groups")
        return super().supports(node, call)


def test_what_does_not_fit_in_simpler_operators_is_not_written_out() -> None:
    b = pl.GraphBuilder("products")
    a, scale, zero = b.input("a", "int8", (2, 2)), np.ones(1, np.float32), np.zeros(1, np.int8)
    two = np.zeros(2, np.int8)  # zero points: QLinearMatMul takes them, DequantizeLinear does not
    b.output("y", b.op("QLinearMatMul", a, scale, two, a, scale, zero, scale, zero))
    with pytest.raises(pl.UnsupportedOpError, match="QLinearMatMul"):
        pl.plan(b.build(), [Lacking("npu", lacks=("QLinearMatMul",))])


@pytest.mark.parametrize("what", CASES)
def test_a_device_runs_what_it_lacks_in_what_it_has(what: str) -> None:
    graph, lacks = CASES[what]
    plan = pl.plan(graph, [Lacking("npu", lacks=lacks)])
    assert {node.op for node in plan.graph.nodes}.isdisjoint(lacks)
    assert any(one.name == "expand_unsupported" for one in plan.applied)
    found = pl.run(plan, {"x": X})["y"]
    np.testing.assert_allclose(found, pl.run(graph, {"x": X})["y"], rtol=1e-4, atol=1e-5)


def test_a_node_that_one_device_has_stays() -> None:
    plan = pl.plan(one("Gelu"), [Lacking("npu", lacks=["Gelu"]), "cpu"])
    assert [(node.op, plan.assignment[node.name]) for node in plan.graph.nodes] == [("Gelu", "cpu")]


def test_a_node_is_written_out_for_the_device_that_it_is_pinned_to() -> None:
    devices: list[str | Device] = [Lacking("npu", lacks=["Gelu"]), "cpu"]
    plan = pl.plan(one("Gelu", name="act"), devices, pin={"act": "npu"})
    assert len(plan.graph.nodes) > 1
    assert set(plan.assignment.values()) == {"npu"}


def test_the_error_says_what_was_tried() -> None:
    with pytest.raises(pl.UnsupportedOpError, match=r"written out as Mul, Erf, Add: Erf: npu: no"):
        pl.plan(one("Gelu"), [Lacking("npu", lacks=["Gelu", "Erf"])])


def test_the_error_says_that_the_pass_is_left_out() -> None:
    with pytest.raises(pl.UnsupportedOpError, match="expand_unsupported is left out"):
        pl.plan(one("Gelu"), [Lacking("npu", lacks=["Gelu"])], passes=["-expand_unsupported"])


def test_no_rule_is_tried_for_ever() -> None:
    lacks = ["Greater", "Less", "GreaterOrEqual"]
    b = pl.GraphBuilder("compared")
    x = b.input("x", "float32", (3,))
    b.output("y", b.op("GreaterOrEqual", x, np.float32(0)))
    with pytest.raises(pl.UnsupportedOpError, match="written out as Greater, Equal, Or"):
        pl.plan(b.build(), [Lacking("npu", lacks=lacks)])


def test_writing_out_twice_changes_nothing() -> None:
    graph, lacks = CASES["in two steps"]
    ask = may_merge({"npu": Lacking("npu", lacks=lacks)}, {})
    once = simplify(graph, PASSES, ask)
    assert expand_unsupported(once, ask) is once


def test_without_devices_to_ask_nothing_is_written_out() -> None:
    graph = one("Gelu")
    assert expand_unsupported(graph) is graph


async def test_a_node_is_written_out_before_its_shape_is_known() -> None:
    b = pl.GraphBuilder("symbolic")
    b.output("y", b.op("Softmax", b.input("x", "float32", ("n", 5))))
    plan = pl.plan(b.build(), [Lacking("npu", lacks=["Softmax"])])
    async with pl.Session(plan) as session:
        for rows in (3, 4):
            y = await session.run({"x": small(rows, 5)})
            np.testing.assert_allclose(y["y"].sum(-1), np.ones(rows), rtol=1e-6)


def test_opencl_runs_an_equation_that_no_kernel_is_generated_for() -> None:
    device = OpenClDevice("opencl:0", device=pocl_device())
    graph, _ = CASES["an equation"]
    found = pl.run(graph, {"x": X}, devices=[device])
    np.testing.assert_allclose(found["y"], pl.run(graph, {"x": X})["y"], rtol=1e-4, atol=1e-5)


def recurrent(steps: int) -> Graph:
    b = pl.GraphBuilder("recurrent")
    x = b.input("x", "float32", (steps, 2, 3))
    b.output("y", b.op("LSTM", x, small(1, 20, 3), small(1, 20, 5), small(1, 40)))
    return b.build()


def test_opencl_runs_a_short_recurrent_layer() -> None:
    graph, x = recurrent(3), small(3, 2, 3)
    found = pl.run(graph, {"x": x}, devices=[OpenClDevice("opencl:0", device=pocl_device())])
    np.testing.assert_allclose(found["y"], pl.run(graph, {"x": x})["y"], rtol=1e-4, atol=1e-5)


def test_a_long_recurrent_layer_is_not_written_out() -> None:
    with pytest.raises(pl.UnsupportedOpError, match="LSTM"):
        pl.plan(recurrent(33), [Lacking("npu", lacks=["LSTM"])])


def test_nodes_inside_of_control_flow_are_written_out_too() -> None:
    body = pl.GraphBuilder("body")
    body.output("y", body.op("Gelu", body.input("x", "float32", (4,)), name="act"))
    other = pl.GraphBuilder("other")
    other.output("y", other.op("Neg", other.input("x", "float32", (4,))))
    b = pl.GraphBuilder("branches")
    x, condition = b.input("x", "float32", (4,)), b.input("c", "bool", ())
    b.output("y", b.op("If", condition, x, then_branch=body.build(), else_branch=other.build()))
    plan = pl.plan(b.build(), [Lacking("npu", lacks=["Gelu"])])
    fed = {"x": small(4), "c": np.True_}
    reference = pl.run(b.build(), fed)["y"]
    np.testing.assert_allclose(pl.run(plan, fed)["y"], reference, rtol=1e-5, atol=1e-6)
