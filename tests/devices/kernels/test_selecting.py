"""Operators that keep some of what they are given, as they run: in buffers of the largest size."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import arrays
import numpy as np
import pytest
from arrays import EVERY, AnyArray, random_array
from hypothesis import given, settings
from hypothesis import strategies as st
from plait.devices.errors import KernelError
from plait.graph.core.infer import infer_node
from plait.graph.core.operator import find_operator
from plait.graph.values.errors import ShapeError
from single_node import onnx_reference, run_node, single_node_graph, trim

DTYPES = st.sampled_from(EVERY)


def kept(
    op: str,
    inputs: Sequence[AnyArray | None],
    attributes: Mapping[str, Any] | None = None,
    n_outputs: int = 1,
    constant: Collection[int] = (),
) -> list[AnyArray]:
    """Return the true outputs, cut out of the buffers of the bounded operator."""
    written = run_node(f"Bounded.{op}", inputs, attributes, n_outputs + 1, constant)
    results = trim(written)
    for buffer, result in zip(written, results, strict=False):
        assert np.count_nonzero(buffer) == np.count_nonzero(result)
    check_unbounded_inference(op, inputs, attributes, results, constant)
    return results


def check_unbounded_inference(
    op: str,
    inputs: Sequence[AnyArray | None],
    attributes: Mapping[str, Any] | None,
    results: Sequence[AnyArray],
    constant: Collection[int],
) -> None:
    """Check that the operator itself is inferred to yield such results."""
    graph = single_node_graph(f"Bounded.{op}", inputs, attributes, len(results) + 1, constant)
    call, bounded = graph.call(graph.nodes[0]), find_operator(op)
    assert bounded.bounded == f"Bounded.{op}"
    for spec, result in zip(bounded.infer(call), results, strict=True):
        assert spec.dtype == result.dtype
        assert spec.shape is not None
        assert len(spec.shape) == result.ndim
        pairs = zip(spec.shape, result.shape, strict=True)
        assert all(dim in ("?", length) for dim, length in pairs)


@given(shape=arrays.shapes(), dtype=DTYPES, seed=arrays.SEEDS)
@settings(max_examples=80)
def test_non_zero_tells_the_places_in_row_major_order(
    shape: tuple[int, ...], dtype: str, seed: int
) -> None:
    x = random_array(dtype, shape, seed, -1, 1)

    (y,) = kept("NonZero", [x])

    (wanted,) = onnx_reference("NonZero", [x])
    np.testing.assert_array_equal(y, wanted, strict=True)


@given(shape=arrays.shapes(min_rank=1), dtype=DTYPES, seed=arrays.SEEDS, data=st.data())
@settings(max_examples=80)
def test_compress_keeps_what_is_chosen_along_an_axis(
    shape: tuple[int, ...], dtype: str, seed: int, data: st.DataObject
) -> None:
    x = random_array(dtype, shape, seed)
    axis = data.draw(st.none() | st.integers(-len(shape), len(shape) - 1))
    length = x.size if axis is None else shape[axis]
    condition = random_array("bool", (data.draw(st.integers(0, length)),), seed + 1)
    attributes = {} if axis is None else {"axis": axis}

    (y,) = kept("Compress", [x, condition], attributes)

    np.testing.assert_array_equal(y, np.compress(condition, x, axis), strict=True)


def test_compress_may_be_told_more_than_there_is_where_that_is_left_out() -> None:
    (y,) = kept("Compress", [np.arange(3), np.array([True, False, True, False])])

    assert y.tolist() == [0, 2]


def test_compress_refuses_to_keep_what_is_not_there() -> None:
    with pytest.raises(KernelError, match="condition 3 is true beyond the length 3"):
        kept("Compress", [np.arange(3), np.array([False, False, False, True])])


def uniques(x: AnyArray, axis: int | None, ascending: bool) -> list[AnyArray]:
    """Return Unique's outputs by its definition, with lists of Python numbers."""
    if axis is None:
        x, axis = x.reshape(-1), 0
    slices = [np.take(x, i, axis).reshape(-1).tolist() for i in range(x.shape[axis])]
    firsts = [i for i, one in enumerate(slices) if slices.index(one) == i]
    if ascending:
        firsts.sort(key=lambda i: [(v.real, v.imag) for v in slices[i]])
    inverse = [firsts.index(slices.index(one)) for one in slices]
    counts = [inverse.count(place) for place in range(len(firsts))]
    numbers = [np.array(listed, np.int64) for listed in (firsts, inverse, counts)]
    return [np.take(x, numbers[0], axis), *numbers]


@given(
    shape=arrays.shapes(min_rank=1, max_rank=3),
    dtype=DTYPES,
    seed=arrays.SEEDS,
    ascending=st.booleans(),
    data=st.data(),
)
@settings(max_examples=120)
def test_unique_tells_what_is_there_where_first_and_how_often(
    shape: tuple[int, ...], dtype: str, seed: int, ascending: bool, data: st.DataObject
) -> None:
    x = np.rint(random_array(dtype, shape, seed, -1, 1).astype("complex128")) + 0
    x = x.astype(dtype) if np.dtype(dtype).kind == "c" else x.real.astype(dtype)
    axis = data.draw(st.none() | st.integers(-len(shape), len(shape) - 1))
    attributes = {"sorted": ascending} if axis is None else {"sorted": ascending, "axis": axis}

    results = kept("Unique", [x], attributes, 4)

    for found, wanted in zip(results, uniques(x, axis, ascending), strict=True):
        np.testing.assert_array_equal(found, wanted, strict=True)


def boxes_and_scores(
    seed: int, images: int, count: int, classes: int, by_centre: bool
) -> tuple[AnyArray, AnyArray]:
    """Return boxes on a coarse grid, so that some touch and some scores are equal."""
    rng = np.random.default_rng(seed)
    boxes = rng.integers(0, 8, (images, count, 4)).astype(np.float32)
    if by_centre:
        boxes[..., 2:] = rng.integers(0, 5, (images, count, 2))
    scores = rng.integers(0, 6, (images, classes, count)).astype(np.float32) / 4
    return boxes, scores


@given(
    seed=arrays.SEEDS,
    images=st.integers(0, 2),
    count=st.integers(0, 12),
    classes=st.integers(0, 3),
    by_centre=st.booleans(),
    limit=st.integers(0, 6),
    overlap=st.sampled_from([0.0, 0.25, 1 / 3, 0.5, 0.9]),
    least=st.sampled_from([None, 0.0, 0.5, 2.0]),
    constant=st.sampled_from([(), (2,)]),
)
@settings(max_examples=120)
def test_suppression_keeps_the_best_boxes_that_do_not_overlap_much(
    seed: int,
    images: int,
    count: int,
    classes: int,
    by_centre: bool,
    limit: int,
    overlap: float,
    least: float | None,
    constant: tuple[int, ...],
) -> None:
    inputs: list[AnyArray | None] = [
        *boxes_and_scores(seed, images, count, classes, by_centre),
        np.array([limit]),
        np.array([overlap], np.float32),
    ]
    if least is not None:
        inputs.append(np.array([least], np.float32))
    attributes = {"center_point_box": int(by_centre)}

    (y,) = kept("NonMaxSuppression", inputs, attributes, constant=constant)

    filled = [*inputs, np.zeros(0, np.float32)][:5]
    (wanted,) = onnx_reference("NonMaxSuppression", filled, attributes)
    np.testing.assert_array_equal(y, wanted, strict=True)


@pytest.mark.parametrize("limit", [[], [np.array([-3])], [np.array(0)]])
def test_suppression_keeps_nothing_unless_it_is_told_how_many(limit: list[AnyArray]) -> None:
    boxes, scores = boxes_and_scores(1, 1, 5, 1, by_centre=False)

    (y,) = kept("NonMaxSuppression", [boxes, scores, *limit])

    assert y.shape == (0, 3)


def test_a_constant_limit_bounds_what_suppression_may_keep() -> None:
    inputs = [*boxes_and_scores(1, 2, 50, 3, by_centre=False), np.array([4])]

    graph = single_node_graph("Bounded.NonMaxSuppression", inputs, None, 2, constant=(2,))

    assert graph.tensors["y0"].shape == (2 * 3 * 4, 3)


def test_boxes_and_scores_that_do_not_fit_are_refused() -> None:
    boxes, scores = np.zeros((1, 5, 4), np.float32), np.zeros((1, 2, 6), np.float32)

    with pytest.raises(ShapeError, match="do not fit together"):
        kept("NonMaxSuppression", [boxes, scores])


@pytest.mark.parametrize(
    ("op", "inputs", "named"),
    [
        ("NonZero", [np.ones((2, 3))], ["2", "y0.shape[1]"]),
        ("Compress", [np.ones((2, 3)), np.ones(3, bool)], ["y0.shape[0]"]),
        ("Unique", [np.ones((2, 3))], ["y0.shape[0]"]),
    ],
)
def test_lengths_that_depend_on_values_have_names(
    op: str, inputs: list[AnyArray], named: list[str]
) -> None:
    graph = single_node_graph(
        f"Bounded.{op}", inputs, None, len(find_operator(op).outputs.split()) + 1
    )
    node = graph.nodes[0]
    call = graph.call(node)

    specs = infer_node(type(node)("n", op, node.inputs, ("y0",), node.attributes), call)

    assert specs[0].shape is not None
    assert [str(dim) for dim in specs[0].shape] == named
