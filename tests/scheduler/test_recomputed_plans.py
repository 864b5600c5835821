"""Plans with recomputation: less memory, more time, the same losses."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import plait as pl
import pytest
from fake_devices import PrivateDevice
from numpy.typing import NDArray
from plait import learning
from plait.graph.core.ir import Graph
from plait.graph.gradients.checkpoints import Checkpoints

Feeds = dict[str, NDArray[Any]]
LAYERS, BLOCKS = 16, 12
EVERY_THIRD = [f"h{i}" for i in range(2, LAYERS - 1, 3)]
EVERY_SECOND_BLOCK = [f"block{i}" for i in range(1, BLOCKS - 1, 2)]


def perceptron(checkpoint: Checkpoints, batch: int | str = 256) -> Graph:
    random = np.random.default_rng(0)
    b = pl.GraphBuilder("perceptron")
    h = b.input("x", "float32", (batch, 16))
    for i in range(LAYERS):
        w = b.variable(f"w{i}", learning.he_normal((16, 16), random))
        h = b.op("MatMul", h, w, name=f"product/{i}")
        (h,) = b.op("Relu", h, name=f"relu/{i}", outputs=[f"h{i}"])
    loss = b.op("ReduceMean", b.op("Mul", h, h), keepdims=False)
    b.output("loss", loss)
    b.output("train", learning.minimize(b, loss, learning.SGD(0.1), checkpoint=checkpoint))
    return b.build()


def residual(checkpoint: Checkpoints) -> Graph:
    """Return a network with batch normalization, whose averages are assigned once."""
    random = np.random.default_rng(0)
    b = pl.GraphBuilder("residual")
    h = b.input("x", "float32", ("batch", 4, 8, 8))
    for i in range(BLOCKS):
        w = b.variable(f"w{i}", learning.he_normal((4, 4, 3, 3), random))
        parts = [b.variable(f"{part}{i}", np.full(4, part in "sv", "float32")) for part in "sbmv"]
        made = b.op("Conv", h, w, pads=[1] * 4)
        y, *kept = b.op("BatchNormalization", made, *parts, training_mode=1, outputs=3)
        for average, value in zip(parts[2:], kept, strict=True):
            b.assign(average, value)
        (h,) = b.op("Add", h, b.op("Relu", y), outputs=[f"block{i}"])
    loss = b.op("ReduceMean", b.op("Mul", h, h), keepdims=False)
    b.output("loss", loss)
    b.output("train", learning.minimize(b, loss, learning.SGD(0.1), checkpoint=checkpoint))
    return b.build()


def x(*shape: int) -> Feeds:
    return {"x": np.random.default_rng(1).normal(size=shape).astype("float32")}


def losses(plan: pl.Plan, feeds: Feeds) -> list[float]:
    with pl.BlockingSession(plan) as session:
        return [float(session.run(feeds)["loss"]) for _ in range(4)]


def peak(plan: pl.Plan) -> int:
    assert plan.memory is not None
    return sum(pool.item_nbytes for pool in plan.memory.pools.values())


@pytest.mark.parametrize("kept", [EVERY_THIRD, "auto"])
def test_a_deep_chain_needs_half_the_memory_for_the_same_losses(kept: Checkpoints) -> None:
    plain, saving = (pl.plan(perceptron(checkpoint)) for checkpoint in (None, kept))
    assert peak(saving) * 2 <= peak(plain)
    feeds = x(256, 16)
    assert losses(saving, feeds) == losses(plain, feeds)


def test_so_does_a_residual_network_though_its_averages_are_assigned() -> None:
    feeds = x(8, 4, 8, 8)
    shapes = {"x": feeds["x"].shape}
    plain, saving = (pl.plan(residual(kept), shapes=shapes) for kept in (None, EVERY_SECOND_BLOCK))
    assert peak(saving) * 2 <= peak(plain)
    assert losses(saving, feeds) == losses(plain, feeds)


def test_two_devices_need_less_memory_too() -> None:
    plans = []
    for kept in (None, EVERY_THIRD):
        graph = perceptron(kept)
        later = {n.name for n in graph.nodes if re.search(r"/(8|9|1\d)(/|$)", n.name)}
        pins = {n.name: "npu" if n.name in later else "cpu" for n in graph.nodes}
        plans.append(pl.plan(graph, ["cpu", PrivateDevice("npu")], pin=pins))
    plain, saving = plans
    assert plain.memory is not None
    assert saving.memory is not None
    for memory, pool in saving.memory.pools.items():
        assert pool.item_nbytes * 1.4 < plain.memory.pools[memory].item_nbytes
    assert losses(saving, x(256, 16)) == losses(plain, x(256, 16))


def test_what_does_not_fit_may_fit_when_less_is_kept() -> None:
    limit = {"cpu": 200_000}
    with pytest.raises(pl.DoesNotFitError):
        pl.plan(perceptron(None), memory_limits=limit)
    assert peak(pl.plan(perceptron("auto"), memory_limits=limit)) < 200_000


def test_in_half_precision_checkpoints_are_halves() -> None:
    graph = pl.plan(perceptron(["h3", "h7"]), precision="float16").graph
    dtypes = [graph.tensors[n.inputs[0]].dtype.name for n in graph.nodes if n.op == "After"]
    assert sorted(dtypes) == ["float16", "float32"]  # that of x, which is fed, among them


def test_the_report_says_what_is_computed_again_and_what_need_not_be_kept() -> None:
    plan = pl.plan(perceptron(["h7"]))
    (line,) = (line for line in plan.report().splitlines() if "computed again" in line)
    flops = 7 * 2 * 256 * 16 * 16  # of the products before h7; that of h7 is kept, as no rule asks
    assert "14 nodes" in line
    assert f"{(flops + 7 * 256 * 16) / 1e6:.3f} of " in line
    assert "115 KB are not kept until then" in line
    plain = pl.plan(perceptron(None))
    assert "computed again" not in plain.report()
    assert pl.simulate(plan).makespan_s > pl.simulate(plain).makespan_s


def test_the_report_counts_nodes_while_shapes_are_unknown() -> None:
    report = pl.plan(perceptron(["h7"], batch="n")).report()
    assert "  computed again for gradients: 14 nodes\n" in report
