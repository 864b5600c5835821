from __future__ import annotations

import tracemalloc
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from convolutions import Case, cases, convolved
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from plait.devices.device import scratch_name
from plait.devices.kernels import dense, depthwise, toeplitz, winograd
from plait.devices.kernels.convolution import ConvolutionMethod, choose, make_geometry
from plait.devices.kernels.dense import Columns, Pointwise, Shifted
from plait.devices.kernels.depthwise import Taps
from plait.devices.kernels.geometry import Geometry, Operands
from plait.devices.kernels.registry import find_kernel, run_in_order
from plait.devices.kernels.toeplitz import Toeplitz, choose_tiling
from plait.devices.kernels.winograd import Winograd
from plait.devices.memory import host_arena, host_view
from plait.devices.program import BoundProgram, bind
from plait.graph.core.operator import find_operator
from plait.graph.operators.windows import resolve_window
from single_node import onnx_reference, run_node, single_node_graph

TOLERANCE: Mapping[str, Any] = {"rtol": 1e-4, "atol": 1e-5}

one = st.just(1)
CASES: dict[type[ConvolutionMethod], Any] = {
    Pointwise: cases(strides=one, kernels=one, pads=st.just(0)),
    Columns: cases(),
    Shifted: cases(strides=one, group=one),
    Winograd: cases(ranks=st.just(2), strides=one, dilations=one, kernels=st.just(3), group=one),
    Taps: cases(strides=one, depthwise=True),
    Toeplitz: cases(depthwise=True),
}


@given(cases(), st.booleans())
@settings(max_examples=60)
def test_conv_is_its_definition(case: Case, constant: bool) -> None:
    case = case.cast("float32")
    weights = (1, 2) if constant else ()
    (y,) = run_node("Conv", case.inputs, case.attributes, constant=weights)
    np.testing.assert_allclose(y, convolved(case), **TOLERANCE)


@pytest.mark.parametrize("method", CASES, ids=lambda m: m.__name__)
@given(data=st.data())
@settings(max_examples=40)
def test_each_method_is_the_definition(
    method: type[ConvolutionMethod], data: st.DataObject
) -> None:
    case = data.draw(CASES[method]).cast("float32")
    np.testing.assert_allclose(computed(method, case), convolved(case), **TOLERANCE)


@pytest.mark.parametrize("method", CASES, ids=lambda m: m.__name__)
@given(data=st.data())
@settings(max_examples=25)
def test_each_method_runs_on_another_array_module(
    method: type[ConvolutionMethod], data: st.DataObject
) -> None:
    case = data.draw(CASES[method]).cast("float32")
    other = SimpleNamespace(**vars(np))
    np.testing.assert_allclose(computed(method, case, other), convolved(case), **TOLERANCE)


@pytest.mark.parametrize(
    "method", [Columns, Shifted, Winograd, Taps, Toeplitz], ids=lambda m: m.__name__
)
@given(data=st.data())
@settings(max_examples=25)
def test_each_method_works_in_blocks(method: type[ConvolutionMethod], data: st.DataObject) -> None:
    limit = data.draw(st.sampled_from([1, 50, 400]))
    case = data.draw(CASES[method]).cast("float32")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dense, "BLOCK", limit)
        patch.setattr(dense, "SUMS", limit)
        patch.setattr(depthwise, "BLOCK", limit)
        patch.setattr(toeplitz, "BLOCK", limit)
        patch.setattr(winograd, "BLOCK", limit)
        result = computed(method, case)
    np.testing.assert_allclose(result, convolved(case), **TOLERANCE)


@given(cases(depthwise=True), st.data())
@settings(max_examples=50)
def test_every_tiling_gives_the_same(case: Case, data: st.DataObject) -> None:
    case = case.cast("float32")
    conv = geometry_of(case)
    axes = tuple(
        data.draw(st.sampled_from(list(toeplitz._iterate_options(conv, axis))))
        for axis in range(len(conv.spatial))
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(toeplitz, "choose_tiling", lambda conv: toeplitz.ToeplitzTiling(conv, axes))
        result = computed(Toeplitz, case)
    np.testing.assert_allclose(result, convolved(case), **TOLERANCE)


@given(
    cases(pads=st.just(0)),
    st.sampled_from(["SAME_UPPER", "SAME_LOWER", "VALID"]),
)
@settings(max_examples=40)
def test_auto_pad_is_that_of_onnx(case: Case, auto_pad: str) -> None:
    attributes = {k: v for k, v in case.attributes.items() if k != "pads"}
    attributes["auto_pad"] = auto_pad
    # The reference pads SAME_* without regard to dilation.
    attributes["dilations"] = (1,) * (case.x.ndim - 2)
    kernel = case.w.shape[2:]
    assume(all(size <= cells for size, cells in zip(kernel, case.x.shape[2:], strict=True)))
    (wanted,) = onnx_reference("Conv", case.inputs, {**attributes, "kernel_shape": kernel})
    (y,) = run_node("Conv", case.inputs, attributes)
    np.testing.assert_allclose(y, wanted, **TOLERANCE)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float16", 5e-3), ("float32", 1e-5), ("float64", 1e-12)]
)
@given(case=cases(), constant=st.booleans())
@settings(max_examples=20)
def test_conv_keeps_the_dtype(dtype: str, tolerance: float, case: Case, constant: bool) -> None:
    case = case.cast(dtype)
    weights = (1, 2) if constant else ()
    (y,) = run_node("Conv", case.inputs, case.attributes, constant=weights)
    assert y.dtype == dtype
    np.testing.assert_allclose(y, convolved(case), rtol=tolerance, atol=10 * tolerance)


def test_float16_sums_do_not_overflow_on_the_way() -> None:
    x = np.array([[[60000.0, 60000.0, -60000.0]]], np.float16)
    (y,) = run_node("Conv", [x, np.ones((1, 1, 3), np.float16)])
    assert y.item() == np.float16(60000.0)


@pytest.mark.parametrize("shape", [(0, 3, 8, 8), (2, 0, 8, 8)])
def test_conv_of_nothing_is_the_bias(shape: tuple[int, ...]) -> None:
    inputs = [np.zeros(shape, "f"), np.zeros((4, shape[1], 3, 3), "f"), np.arange(4, dtype="f")]
    (y,) = run_node("Conv", inputs)
    wanted = np.broadcast_to(np.arange(4)[:, None, None], (shape[0], 4, 6, 6))
    np.testing.assert_array_equal(y, wanted)


NAMED: dict[
    str, tuple[type[ConvolutionMethod], tuple[int, ...], tuple[int, ...], Mapping[str, Any]]
] = {
    "a kernel of one cell": (Pointwise, (1, 16, 40, 40), (32, 16, 1, 1), {}),
    "a grouped kernel of one cell": (Pointwise, (1, 16, 9, 9), (32, 4, 1, 1), {"group": 4}),
    "a strided kernel of one cell": (Columns, (1, 16, 9, 9), (32, 16, 1, 1), {"strides": (2, 2)}),
    "a stem": (Columns, (1, 3, 32, 32), (16, 3, 3, 3), {"strides": (2, 2)}),
    "a layer that adds channels": (Columns, (1, 8, 16, 16), (24, 8, 3, 3), {}),
    "a layer that drops channels": (Shifted, (1, 48, 20, 20), (24, 48, 3, 3), {}),
    "a layer of many channels": (Winograd, (1, 64, 17, 16), (64, 64, 3, 3), {}),
    "many channels of few cells": (Columns, (1, 64, 8, 8), (64, 64, 3, 3), {}),
    "many channels, strided": (Columns, (1, 64, 8, 8), (64, 64, 3, 3), {"strides": (2, 2)}),
    "a grouped layer": (Columns, (1, 8, 16, 16), (8, 4, 3, 3), {"group": 2}),
    "depthwise, many cells": (Taps, (1, 8, 160, 160), (8, 1, 3, 3), {"group": 8}),
    "depthwise, few cells": (Toeplitz, (1, 96, 10, 10), (96, 1, 5, 5), {"group": 96}),
    "depthwise, strided": (
        Toeplitz,
        (1, 8, 80, 80),
        (8, 1, 3, 3),
        {"group": 8, "strides": (2, 2)},
    ),
    "depthwise with a huge kernel": (
        Columns,
        (1, 2, 200, 200),
        (2, 1, 130, 130),
        {"group": 2, "strides": (40, 40)},
    ),
    "depthwise, two features a channel": (Columns, (1, 8, 9, 9), (16, 1, 3, 3), {"group": 8}),
}


@pytest.mark.parametrize("name", NAMED)
def test_the_method_is_chosen_by_shape(name: str) -> None:
    method, x, w, attributes = NAMED[name]
    given_attributes = find_operator("Conv").complete(attributes, "test")
    case = Case(np.zeros(x, "f"), np.zeros(w, "f"), None, given_attributes)
    assert type(choose(geometry_of(case))) is method


def test_no_tiling_is_made_whose_matrix_is_too_large() -> None:
    _, x, w, attributes = NAMED["depthwise with a huge kernel"]
    complete = find_operator("Conv").complete(attributes, "test")
    assert choose_tiling(geometry_of(Case(np.zeros(x), np.zeros(w), None, complete))) is None


@pytest.mark.parametrize(
    ("name", "padding"), [(name, pad) for name in NAMED if "huge" not in name for pad in (0, 1)]
)
def test_real_sizes_agree_with_the_reference(name: str, padding: int) -> None:
    _, x, w, attributes = NAMED[name]
    random = np.random.default_rng(0)
    inputs = [random.standard_normal(shape, np.float32) for shape in (x, w, w[:1])]
    padded = {**attributes, "pads": (padding,) * 4}
    (y,) = run_node("Conv", inputs, padded, constant=(1, 2))
    wide = [array.astype(np.float64) for array in inputs]
    (wanted,) = onnx_reference("Conv", wide, {**padded, "kernel_shape": w[2:]})
    # Terms cancel: what counts is the error against the terms' own size.
    np.testing.assert_allclose(y, wanted, rtol=1e-4, atol=2e-6 * np.abs(wanted).max())


LARGE: Mapping[
    type[ConvolutionMethod], tuple[tuple[int, ...], tuple[int, ...], Mapping[str, Any]]
] = {
    Pointwise: ((1, 8, 80, 80), (16, 8, 1, 1), {}),
    Columns: ((1, 3, 160, 160), (16, 3, 3, 3), {"strides": (2, 2)}),
    Shifted: ((1, 32, 80, 80), (16, 32, 3, 3), {}),
    Winograd: ((1, 64, 40, 40), (64, 64, 3, 3), {}),
    Taps: ((1, 8, 160, 160), (8, 1, 3, 3), {"group": 8}),
    Toeplitz: ((1, 16, 160, 160), (16, 1, 3, 3), {"group": 16, "strides": (2, 2)}),
}


@pytest.mark.parametrize("method", LARGE, ids=lambda m: m.__name__)
def test_a_run_allocates_no_tensor(method: type[ConvolutionMethod]) -> None:
    x, w, attributes = LARGE[method]
    inputs = [np.ones(shape, np.float32) for shape in (x, w, w[:1])]
    program, y = bound(inputs, {**attributes, "pads": (w[2] // 2,) * 4})
    assert y.nbytes >= 400_000
    program()
    tracemalloc.start()
    program()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # numpy's own iteration buffers, of a fixed size, are all there is.
    assert peak < 100_000


def bound(
    inputs: list[np.ndarray[Any, Any]], attributes: Mapping[str, Any]
) -> tuple[BoundProgram, np.ndarray[Any, Any]]:
    """Return a program of one Conv with constant weights, and its output's array."""
    graph = single_node_graph("Conv", inputs, attributes, constant=(1, 2))
    node = graph.nodes[0]
    found = find_kernel("Conv", "cpu")
    assert found is not None
    assert found.scratch is not None
    scratch = found.scratch(graph.call(node), graph.output_specs(node))
    specs = {"x0": graph.tensors["x0"], "y0": graph.tensors["y0"]}
    specs |= {scratch_name(node, i): spec for i, spec in enumerate(scratch)}
    views = {name: host_view(host_arena(spec.nbytes), 0, spec) for name, spec in specs.items()}
    return bind(np, "cpu", graph, views, graph.constants), views["y0"].array


def geometry_of(case: Case) -> Geometry:
    attributes = find_operator("Conv").complete(case.attributes, "test")
    _, outputs = resolve_window(case.x.shape[2:], attributes, case.w.shape[2:])
    shape = (len(case.x), len(case.w), *map(int, outputs))
    return make_geometry(case.x.shape, case.w.shape, shape, attributes, case.x.dtype)


def computed(method: type[Any], case: Case, xp: Any = np) -> np.ndarray[Any, Any]:
    """Return what one method computes, twice over poisoned buffers."""
    conv = geometry_of(case)
    chosen: ConvolutionMethod = method(conv)
    y = np.empty((conv.batch, conv.features, *conv.outputs), case.x.dtype)
    scratch = [np.empty(spec.static_shape, spec.dtype) for spec in chosen.scratch]
    w = case.w
    if chosen.packing is not None:
        w = np.full(chosen.packing.spec.static_shape, np.nan, case.w.dtype)
        run_in_order(chosen.packing.steps(xp, case.w, w))()
    run = run_in_order(chosen.bind(xp, Operands(case.x, w, case.b, y, scratch)))
    for _ in range(2):
        for buffer in (y, *scratch):
            buffer.fill(np.nan)
        with np.errstate(all="raise"):
            run()
    return y
