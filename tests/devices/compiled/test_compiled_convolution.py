"""Compiled convolutions, alone and with what is fused behind them, by their definition."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np
import plait as pl
import pytest
from bound import Bound
from convolutions import Case, cases, convolved
from hypothesis import given, settings
from hypothesis import strategies as st
from plait.devices.device import scratch_name
from plait.graph.core.ir import Graph
from plait.graph.values.tensor import Array
from single_node import single_node_graph

pytest.importorskip("numba", reason="needs numba: pip install '.[compiled]'")

from plait.devices.compiled.device import CompiledDevice
from plait.devices.compiled.tile import ROWS
from plait.devices.compiled.vector import LANES

TOLERANCE: Mapping[str, Any] = {"rtol": 1e-4, "atol": 1e-5}
POISON = 0xFF
"""Bytes of NaNs, which show up in a result if they are read."""


@pytest.fixture(scope="module")
def device() -> Iterator[CompiledDevice]:
    """Return an open device."""
    made = CompiledDevice()
    made.open()
    yield made
    made.close()


@pytest.fixture(scope="module", autouse=True)
def _open(device: CompiledDevice) -> None:
    """Open it before a watched test starts: its thread outlives them."""


@pytest.fixture(scope="module")
def convolution() -> Any:
    """Return the module: it compiles for seconds, which no process has to that only collects."""
    return import_module("plait.devices.compiled.convolution")


@pytest.fixture(autouse=True)
def _however_few_windows(convolution: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have small convolutions compiled too: they are what tests can afford."""
    monkeypatch.setattr(convolution, "LEAST_WINDOWS", 0)


def run(
    device: CompiledDevice,
    graph: Graph,
    inputs: Mapping[str, Array],
    onto: Mapping[str, str] | None = None,
) -> dict[str, Array]:
    with Bound(device, graph, onto=onto) as bound:
        for view in bound.views.values():
            view.arena.buffer.fill(POISON)
        return bound.run(inputs)


def check(device: CompiledDevice, case: Case) -> None:
    case = case.cast("float32")
    graph = single_node_graph("Conv", case.inputs, case.attributes, constant=(1, 2))
    found = run(device, graph, {"x0": case.x})["y0"]
    np.testing.assert_allclose(found, convolved(case), **TOLERANCE)


def case_of(
    x: tuple[int, ...], features: int, kernel: int, *, group: int = 1, stride: int = 1, pad: int = 0
) -> Case:
    random = np.random.default_rng(3)
    rank = len(x) - 2
    w = (features, x[1] // group, *[kernel] * rank)
    attributes = {
        "strides": (stride,) * rank,
        "dilations": (1,) * rank,
        "pads": (pad,) * 2 * rank,
        "group": group,
    }
    bias = random.standard_normal(features)
    return Case(random.standard_normal(x), random.standard_normal(w), bias, attributes)


@given(case=cases(ranks=st.integers(1, 2)))
@settings(max_examples=60)
def test_a_convolution_is_its_definition(device: CompiledDevice, case: Case) -> None:
    check(device, case)


@given(case=cases(ranks=st.integers(1, 2), depthwise=True, kernels=st.integers(1, 7)))
@settings(max_examples=30)
def test_a_depthwise_convolution_is_its_definition(device: CompiledDevice, case: Case) -> None:
    check(device, case)


@pytest.mark.parametrize("features", range(1, ROWS + 2))
def test_tiles_of_every_number_of_rows_are_right(device: CompiledDevice, features: int) -> None:
    check(device, case_of((1, 3, 5, 40), features, 3, pad=1))


@pytest.mark.parametrize("cells", [1, 2, LANES, 2 * LANES, 2 * LANES + 1, 8 * LANES + 3, 600, 1030])
def test_lines_of_every_length_are_right(device: CompiledDevice, cells: int) -> None:
    for features in (1, 2, 5, 14):
        check(device, case_of((2, 4, 1, cells), features, 1))


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("pad", [0, 2])
def test_images_of_many_bands_are_right(
    device: CompiledDevice,
    convolution: Any,
    stride: int,
    pad: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(convolution, "BAND", 1)
    monkeypatch.setattr(convolution, "LONE_BAND", 1)
    convolution.plan_convolution.cache_clear()
    check(device, case_of((1, 2, 23, 17), 3, 3, stride=stride, pad=pad))
    check(device, case_of((2, 4, 23, 17), 4, 5, group=4, stride=stride, pad=pad))
    convolution.plan_convolution.cache_clear()


@pytest.mark.parametrize("columns", [1, LANES - 1, LANES, LANES + 1, 2 * LANES + 1])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_depthwise_lines_of_every_length_are_right(
    device: CompiledDevice, columns: int, stride: int
) -> None:
    check(device, case_of((2, 3, 7, columns + 1), 3, 3, group=3, stride=stride, pad=1))
    check(device, case_of((1, 2, 5, columns + 3), 2, 4, group=2, stride=stride, pad=2))


def test_a_channel_of_many_lines_is_finished_in_parts(device: CompiledDevice) -> None:
    chunk = import_module("plait.devices.compiled.depthwise").CHUNK
    check(device, case_of((1, 1, chunk // 9 + 9, 9), 1, 3, pad=1))


def test_depthwise_convolutions_of_long_lines_are_framed() -> None:
    lengths = (2 * LANES, 20 * LANES)
    short, long = (case_of((1, 2, 8, length), 2, 3, group=2, pad=1) for length in lengths)
    assert not _scratch(short)
    assert _scratch(long)


def test_a_lone_output_cell_may_be_of_the_border(device: CompiledDevice) -> None:
    case = case_of((1, 2, 1), 3, 1, stride=2)
    check(device, replace(case, attributes={**case.attributes, "pads": (1, 0)}))


def _scratch(case: Case) -> tuple[pl.TensorSpec, ...]:
    graph = single_node_graph("Conv", case.cast("float32").inputs, case.attributes, constant=(1, 2))
    (node,) = graph.nodes
    return CompiledDevice().scratch(node, graph.call(node), graph.output_specs(node))


def _frame_cells(case: Case) -> int:
    (frame,) = _scratch(case)
    return frame.size


def test_an_image_is_framed_in_bands_that_fit_in_cache(convolution: Any) -> None:
    assert _frame_cells(case_of((1, 64, 300, 100), 8, 3, pad=1)) < 2 * convolution.BAND


def test_a_lone_channel_is_framed_in_bands_that_fit_in_the_innermost_cache(
    convolution: Any,
) -> None:
    case = case_of((1, 64, 300, 100), 64, 3, group=64, pad=1)
    assert _frame_cells(case) < 2 * convolution.LONE_BAND


@pytest.mark.parametrize("stride", [1, 2])
def test_what_one_channel_left_in_the_frame_is_not_seen_by_the_next(
    device: CompiledDevice, stride: int
) -> None:
    for group in (2, 6):
        check(device, case_of((3, 6, 9, 8), 6, 3, group=group, stride=stride, pad=2))


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_other_dtypes_are_left_to_numpy(device: CompiledDevice, dtype: str) -> None:
    case = case_of((1, 2, 6, 6), 3, 3).cast(dtype)
    graph = single_node_graph("Conv", case.inputs, case.attributes, constant=(1, 2))
    found = run(device, graph, {"x0": case.x})["y0"]
    np.testing.assert_allclose(found, convolved(case), 2e-2, 2e-2)


def test_weights_that_are_computed_are_left_to_numpy(device: CompiledDevice) -> None:
    case = case_of((1, 2, 6, 6), 3, 3).cast("float32")
    graph = single_node_graph("Conv", case.inputs, case.attributes)
    found = run(device, graph, dict(zip(("x0", "x1", "x2"), case.inputs, strict=True)))["y0"]
    np.testing.assert_allclose(found, convolved(case), **TOLERANCE)


def test_a_bias_that_is_computed_is_left_to_numpy(device: CompiledDevice) -> None:
    case = case_of((1, 2, 6, 6), 3, 3).cast("float32")
    graph = single_node_graph("Conv", case.inputs, case.attributes, constant=(1,))
    found = run(device, graph, {"x0": case.inputs[0], "x2": case.inputs[2]})["y0"]
    np.testing.assert_allclose(found, convolved(case), **TOLERANCE)


def test_three_axes_are_left_to_numpy(device: CompiledDevice) -> None:
    check(device, case_of((1, 2, 4, 4, 4), 3, 3))


def test_an_infinity_reaches_only_the_windows_that_see_it(device: CompiledDevice) -> None:
    case = case_of((1, 2, 8, 40), 3, 3, pad=1).cast("float32")
    case.x[0, 0, 4, 20] = np.inf
    graph = single_node_graph("Conv", case.inputs, case.attributes, constant=(1, 2))
    (found,) = run(device, graph, {"x0": case.x})["y0"]
    assert np.isinf(found[:, 3:6, 19:22]).all()
    found[:, 3:6, 19:22] = 0
    assert np.isfinite(found).all()


Behind = Callable[[pl.GraphBuilder, str, Array], tuple[str, Array]]
"""Adds a node behind a tensor, and returns its output and what that comes to."""


def _op(op: str, formula: Callable[[Array], Array], *more: Any, **attributes: Any) -> Behind:
    def add(b: pl.GraphBuilder, tensor: str, value: Array) -> tuple[str, Array]:
        return b.op(op, tensor, *(np.float32(x) for x in more), **attributes), formula(value)

    return add


def _residual(b: pl.GraphBuilder, tensor: str, value: Array) -> tuple[str, Array]:
    return b.op("Add", b.input("r", "float32", value.shape), tensor), value + _random(value.shape)


def _random(shape: tuple[int, ...]) -> Array:
    return np.random.default_rng(8).standard_normal(shape).astype(np.float32)


ACTIVATIONS: Mapping[str, Behind] = {
    "relu": _op("Relu", lambda x: np.maximum(x, 0)),
    "clip": _op("Clip", lambda x: np.clip(x, -0.5, 1), -0.5, 1),
    "hard swish": _op("HardSwish", lambda x: x * np.clip(x / 6 + 0.5, 0, 1)),
    "hard sigmoid": _op("HardSigmoid", lambda x: np.clip(0.2 * x + 0.5, 0, 1)),
    "leaky relu": _op("LeakyRelu", lambda x: np.where(x < 0, x * 0.25, x), alpha=0.25),
    "none": lambda b, tensor, value: (tensor, value),
}
BEHIND: Mapping[str, Behind] = {
    **ACTIVATIONS,
    "residual": _residual,
    "scale": _op("Mul", lambda x: x * 1.5, 1.5),
    "shift": _op("Add", lambda x: x - 2, -2),
    "exp": _op("Exp", np.exp),  # never fused
}
DEPTHWISE = case_of((1, 3, 9, 21), 3, 3, group=3, pad=1)
POINT = case_of((2, 5, 1, 1), 7, 1)
SHAPES = {"dense": case_of((2, 3, 7, 40), 14, 3, pad=1), "depthwise": DEPTHWISE, "point": POINT}


def chain(case: Case, names: tuple[str, ...]) -> tuple[Graph, dict[str, Array], Array]:
    """Return a convolution with nodes behind it, its inputs, and what it comes to."""
    b = pl.GraphBuilder("chain")
    x, w, bias = (array.astype(np.float32) for array in case.inputs)
    tensor = b.op("Conv", b.input("x", "float32", x.shape), w, bias, **case.attributes)
    value = convolved(case)
    for name in names:
        tensor, value = BEHIND[name](b, tensor, value)
    b.output("y", b.op("Identity", tensor) if not names else tensor)
    graph = b.build()
    inputs = {"x": x, "r": _random(value.shape)}
    return graph, {name: inputs[name] for name in graph.inputs}, value


@pytest.mark.parametrize("case", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_an_activation_behind_a_convolution_is_its_definition(
    device: CompiledDevice, case: Case, activation: str
) -> None:
    for names in ((activation,), ("residual", activation), (activation, "scale", "shift")):
        graph, inputs, wanted = chain(case, names)
        np.testing.assert_allclose(run(device, graph, inputs)["y"], wanted, **TOLERANCE)


@given(names=st.lists(st.sampled_from(sorted(BEHIND)), max_size=5, unique=True))
@settings(max_examples=60)
def test_any_nodes_behind_a_convolution_are_right(device: CompiledDevice, names: list[str]) -> None:
    graph, inputs, wanted = chain(DEPTHWISE, tuple(names))
    np.testing.assert_allclose(run(device, graph, inputs)["y"], wanted, rtol=1e-3, atol=1e-4)


def steps_of(device: CompiledDevice, graph: Graph, onto: Mapping[str, str] | None = None) -> int:
    """Return of how many steps a program consists."""
    with Bound(device, graph, onto=onto) as bound:
        program: Any = bound.program
        return len(program._steps)


@pytest.mark.parametrize(
    ("names", "steps"),
    [
        (("relu",), 1),
        (("residual", "hard swish", "scale", "shift"), 1),
        (("relu", "residual"), 2),
        (("relu", "clip"), 2),
        (("shift", "scale"), 2),
        (("exp", "relu"), 3),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else None,
)
def test_what_stands_in_the_order_of_an_epilogue_is_fused(
    device: CompiledDevice, names: tuple[str, ...], steps: int
) -> None:
    assert steps_of(device, chain(DEPTHWISE, names)[0]) == steps


def test_a_tensor_that_another_node_reads_is_written(device: CompiledDevice) -> None:
    b = pl.GraphBuilder("branch")
    x, w, _ = DEPTHWISE.cast("float32").inputs
    conv = b.op("Conv", b.input("x", "float32", x.shape), w, **DEPTHWISE.attributes)
    b.output("y", b.op("Add", b.op("Relu", conv), b.op("Neg", conv)))
    graph = b.build()
    wanted = convolved(Case(x, w, None, DEPTHWISE.attributes))
    found = run(device, graph, {"x": x})["y"]
    np.testing.assert_allclose(found, np.maximum(wanted, 0) - wanted, **TOLERANCE)


def test_a_tensor_that_is_fetched_is_written(device: CompiledDevice) -> None:
    b = pl.GraphBuilder("fetched")
    x, w, bias = DEPTHWISE.cast("float32").inputs
    conv = b.op("Conv", b.input("x", "float32", x.shape), w, bias, **DEPTHWISE.attributes)
    b.output("conv", conv)
    b.output("y", b.op("Relu", conv))
    found = run(device, b.build(), {"x": x})
    np.testing.assert_allclose(found["conv"], convolved(DEPTHWISE), **TOLERANCE)
    np.testing.assert_array_equal(found["y"], np.maximum(found["conv"], 0))


def test_nothing_is_fused_that_would_overwrite_what_the_convolution_reads(
    device: CompiledDevice,
) -> None:
    graph, inputs, wanted = chain(case_of((1, 6, 9, 21), 2, 3, pad=1), ("relu",))
    conv = graph.nodes[0]
    for free in ("x", scratch_name(conv, 0)):
        onto = {"y": free}
        assert steps_of(device, graph, onto) == 2
        np.testing.assert_allclose(run(device, graph, inputs, onto)["y"], wanted, **TOLERANCE)


@pytest.mark.parametrize(
    "case",
    [case_of((1, 6, 9, 21), 2, 3, pad=1), case_of((1, 3, 5, 41), 5, 1), DEPTHWISE],
    ids=["framed", "direct", "depthwise"],
)
def test_a_residual_may_be_overwritten(device: CompiledDevice, case: Case) -> None:
    graph, inputs, wanted = chain(case, ("residual", "relu"))
    assert steps_of(device, graph, {"y": "r"}) == 1
    found = run(device, graph, inputs, {"y": "r"})["y"]
    np.testing.assert_allclose(found, wanted, **TOLERANCE)


def test_not_a_number_passes_through_every_activation(device: CompiledDevice) -> None:
    for name in ACTIVATIONS:
        graph, inputs, _ = chain(DEPTHWISE, (name,))
        inputs["x"] = np.full_like(inputs["x"], np.nan)
        assert np.isnan(run(device, graph, inputs)["y"]).all(), name


@pytest.mark.parametrize(("length", "compiled"), [(LANES + 2, True), (LANES, False)])
def test_a_convolution_of_few_windows_is_left_to_numpy(
    convolution: Any, monkeypatch: pytest.MonkeyPatch, length: int, compiled: bool
) -> None:
    monkeypatch.setattr(convolution, "LEAST_WINDOWS", LANES)
    x, w = np.zeros((1, 2, length), np.float32), np.zeros((3, 2, 3), np.float32)
    graph = single_node_graph("Conv", [x, w], constant=[1])
    node = graph.nodes[0]
    found = convolution.find_convolution(graph.call(node), graph.output_specs(node))
    assert (found is not None) is compiled
