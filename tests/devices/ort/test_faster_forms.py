"""Forms with faster kernels compute what the nodes do that they stand in for."""

from __future__ import annotations

from typing import Any

import numpy as np
import plait as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("onnxruntime")
from plait.devices.ort.engine import Engine
from plait.devices.ort.faster_forms import BEFORE_DILATIONS, is_faster_before
from plait.devices.ort.runtime import make_options
from plait.devices.ort.session import Model, Session
from releases import newer_ort

EXTREMES = np.array(
    [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -1e-45, 3e38, -3e38, 88.8, -88.8, -20, 20, 1, -1],
    np.float32,
)
BELOW_ONE, ABOVE, ZERO = (0.25, -0.5, 1.0), (0.25, -3.0, 2.0), (0.25, 0.0, -1.0)


def graph_of(op: str, *constants: np.ndarray) -> pl.Graph:
    b = pl.GraphBuilder("formed")
    inputs = [b.constant(constant, f"c{n}") for n, constant in enumerate(constants)]
    b.output("y", b.op(op, b.input("x", "float32", (3, len(EXTREMES))), *inputs))
    return b.build()


def computed_ops(graph: pl.Graph) -> list[str]:
    loaded = Session(graph, lambda computed: Model(computed, make_options(), "ort"))
    return [node.op for node in loaded.computed.nodes]


@pytest.mark.parametrize("slopes", [BELOW_ONE, ABOVE, ZERO, (np.inf, 1.0, 1.0)])
@newer_ort
def test_prelu_is_the_same_to_the_bit_at_all_extremes(slopes: tuple[float, ...]) -> None:
    slope = np.array(slopes, np.float32)[:, None]
    graph = graph_of("PRelu", slope)
    ops = ["Mul", "Max"] if slopes == BELOW_ONE else ["Max", "Min", "Mul", "Add"]
    assert computed_ops(graph) == (ops if np.isfinite(slope).all() else ["PRelu"])
    x = np.tile(EXTREMES, (3, 1))
    found = pl.run(graph, {"x": x}, devices=["ort"])["y"]
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(found, np.where(x < 0, x * slope, x))


def test_mish_is_as_exact_as_float32_is() -> None:
    graph = graph_of("Mish")
    assert "Mish" not in computed_ops(graph)
    drawn = np.random.default_rng(0).uniform(-80, 80, (2, len(EXTREMES))).astype(np.float32)
    x = np.concatenate([EXTREMES[None], drawn])
    wide = np.clip(x, -1000, 90).astype(np.float64)  # tanh is 0 or 1 beyond
    with np.errstate(all="ignore"):
        wanted = x * np.tanh(np.log1p(np.exp(wide)))
    found = pl.run(graph, {"x": x}, devices=["ort"])["y"]
    np.testing.assert_allclose(found[1:], wanted[1:], rtol=1e-6)
    finite = np.isfinite(EXTREMES)
    np.testing.assert_allclose(found[0][finite], wanted[0][finite], rtol=1e-6, atol=1e-36)
    np.testing.assert_array_equal(found[0][:2], [np.nan, np.inf])


def test_slopes_that_are_not_known_before_keep_their_node() -> None:
    b = pl.GraphBuilder("fed")
    b.output("y", b.op("PRelu", b.input("x", "float32", (3, 2)), b.input("s", "float32", (3, 1))))
    assert computed_ops(b.build()) == ["PRelu"]


@pytest.mark.parametrize("axis", [1, -2])
def test_softmax_of_channels_is_that_of_definitions(axis: int) -> None:
    b = pl.GraphBuilder("channels")
    b.output("y", b.op("Softmax", b.input("x", "float32", (2, 5, 3, 4)), axis=axis))
    graph = b.build()
    assert ("Softmax" in computed_ops(graph)) == (axis != 1)
    x = np.random.default_rng(0).uniform(-90, 90, (2, 5, 3, 4)).astype(np.float32)
    x[0, :, 0, 0], x[0, 1, 0, 1], x[0, 1, 0, 2] = -np.inf, -np.inf, np.inf
    found, wanted = (pl.run(graph, {"x": x}, devices=[one])["y"] for one in ("ort", "formal"))
    np.testing.assert_allclose(found, wanted, 1e-5, 1e-30)


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[Any, ...]:
    """Return x, weights, biases if any, pads, stride and dilation."""
    taps, stride, dilation = draw(
        st.tuples(st.integers(1, 6), st.integers(1, 3), st.integers(1, 2))
    )
    pads, channels = draw(st.tuples(*[st.integers(0, 3)] * 2)), draw(st.sampled_from([1, 3, 20]))
    reach = (draw(st.integers(0, 7)) * stride) + (taps - 1) * dilation + 1
    length = max(1, reach + draw(st.integers(0, stride - 1)) - sum(pads))
    random = np.random.default_rng(draw(st.integers(0, 99)))
    weights = random.normal(size=(4096 // (channels * taps) + 1, channels, taps))
    biases = [random.normal(size=len(weights)).astype("f")] * draw(st.integers(0, 1))
    x = random.normal(size=(5, channels, length)).astype("f")
    x[1, 0, -1], x[2, -1, 0] = np.nan, np.inf
    return x, weights.astype("f"), biases, pads, stride, dilation


@settings(max_examples=60, deadline=None)
@given(convolutions())
def test_few_windows_of_many_items_are_one_product(case: tuple[Any, ...]) -> None:
    x, weights, biases, pads, stride, dilation = case
    b = pl.GraphBuilder("few windows")
    given_x = b.input("x", "float32", x.shape)
    numbers = {"pads": pads, "strides": [stride], "dilations": [dilation]}
    b.output("y", b.op("Conv", given_x, weights, *biases, **numbers))
    loaded = Session(b.build(), lambda computed: Model(computed, make_options(), "ort"))
    assert "Conv" not in [node.op for node in loaded.computed.nodes]
    (found,) = loaded.inference.run(None, {"x": x})
    framed = np.pad(x, ((0, 0), (0, 0), pads)).astype(float)
    reach = (weights.shape[2] - 1) * dilation + 1
    windows = np.lib.stride_tricks.sliding_window_view(framed, reach, 2)[:, :, ::stride, ::dilation]
    with np.errstate(invalid="ignore"):
        wanted = (windows[:, None] * weights[:, :, None]).sum((2, 4))
    np.testing.assert_allclose(found, wanted + sum(one[:, None] for one in biases), 1e-4, 1e-4)


@settings(max_examples=40, deadline=None)
@given(
    rank=st.integers(1, 3),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 3),
    pad=st.integers(0, 1),
    counted=st.booleans(),
    last=st.sampled_from(["Relu", "Erf", "Gelu", "ceil", "dilated"]),
)
def test_averages_are_of_the_opset_that_is_faster(
    rank: int, kernel: int, stride: int, pad: int, counted: bool, last: str
) -> None:
    """Nodes that the older opset lacks or defines otherwise keep the newer one."""
    b = pl.GraphBuilder("pool")
    x = b.input("x", "float32", (2, 5, *[7] * rank))
    y = b.op(
        "AveragePool",
        x,
        kernel_shape=[kernel] * rank,
        strides=[stride] * rank,
        pads=[min(pad, kernel - 1)] * (2 * rank),
        dilations=[2] * rank if last == "dilated" else None,
        ceil_mode=int(last == "ceil"),
        count_include_pad=int(counted),
    )
    b.output("y", b.op(last, y) if last in ("Relu", "Erf", "Gelu") else y)
    graph, opsets = b.build(), []
    if last == "ceil":  # which releases refuse that know opset 21 alone
        assert not is_faster_before(graph)
        return

    def load(engine: Engine, model: Any, chosen: Any) -> Any:
        opsets.append(model.opset_import[0].version)
        return loaded(engine, model, chosen)

    feeds = {"x": np.random.default_rng(0).normal(size=(2, 5, *[7] * rank)).astype(np.float32)}
    loaded = Engine.load
    with pytest.MonkeyPatch.context() as patch:
        plan = pl.plan(graph, "ort", passes=())
        patch.setattr(Engine, "load", load)
        found = pl.run(plan, feeds)["y"]
    np.testing.assert_allclose(found, pl.run(graph, feeds, "cpu")["y"], 1e-5, 1e-6)
    assert [*map(BEFORE_DILATIONS.__eq__, opsets)] == [last in ("Relu", "Erf")]
