from __future__ import annotations

import arrays
import numpy as np
import pytest
from arrays import EVERY, random_array
from hypothesis import given, settings
from hypothesis import strategies as st
from plait.devices.kernels.registry import find_kernel
from single_node import run_node, single_node_graph

DTYPES = st.sampled_from(EVERY)


@given(shape=arrays.shapes(), dtype=DTYPES, data=st.data())
@settings(max_examples=80)
def test_reshape_keeps_the_order_of_elements(
    shape: tuple[int, ...], dtype: str, data: st.DataObject
) -> None:
    x = random_array(dtype, shape, 1)
    target = list(data.draw(st.permutations(shape)))
    allowzero = 0 in target
    if target and not allowzero:
        free = data.draw(st.integers(0, len(target) - 1))
        target[free] = -1

    (y,) = run_node(
        "Reshape", [x, np.array(target, "int64")], {"allowzero": allowzero}, constant={1}
    )

    np.testing.assert_array_equal(y, x.reshape(target), strict=True)


@pytest.mark.parametrize(
    ("shape", "target", "wanted"),
    [
        ((2, 3, 4), (0, -1), (2, 12)),
        ((2, 3, 4), (0, 0, 2, 2), (2, 3, 2, 2)),
        ((0, 3), (0, -1), (0, 3)),
        ((0, 3), (0, 0), (0, 3)),
        ((2, 0), (-1,), (0,)),
        ((0, 4), (0, 3, 4), (0, 3, 4)),
        ((1,), (), ()),
        ((), (1, 1), (1, 1)),
    ],
)
def test_zero_keeps_a_length_and_minus_one_takes_the_rest(
    shape: tuple[int, ...], target: tuple[int, ...], wanted: tuple[int, ...]
) -> None:
    (y,) = run_node("Reshape", [np.ones(shape), np.array(target, "int64")], constant={1})

    assert y.shape == wanted


@given(shape=arrays.shapes(), data=st.data())
@settings(max_examples=40)
def test_flatten_makes_a_matrix(shape: tuple[int, ...], data: st.DataObject) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape)))
    x = random_array("float32", shape, 1)

    (y,) = run_node("Flatten", [x], {"axis": axis})

    split = axis if axis >= 0 else axis + len(shape)
    rows, columns = (int(np.prod(part, dtype=int)) for part in (shape[:split], shape[split:]))
    np.testing.assert_array_equal(y, x.reshape(rows, columns), strict=True)


@given(shape=arrays.shapes(), dtype=DTYPES, data=st.data())
@settings(max_examples=60)
def test_unsqueeze_and_squeeze_are_inverse(
    shape: tuple[int, ...], dtype: str, data: st.DataObject
) -> None:
    rank = len(shape) + data.draw(st.integers(0, 3))
    axes = data.draw(st.permutations(range(rank)))[: rank - len(shape)]
    signed = np.array([axis - rank * data.draw(st.booleans()) for axis in axes], "int64")
    x = random_array(dtype, shape, 1)

    (wide,) = run_node("Unsqueeze", [x, signed], constant={1})
    (back,) = run_node("Squeeze", [wide, signed], constant={1})

    np.testing.assert_array_equal(wide, np.expand_dims(x, tuple(axes)), strict=True)
    np.testing.assert_array_equal(back, x, strict=True)


def test_squeeze_without_axes_drops_all_of_length_one() -> None:
    (y,) = run_node("Squeeze", [np.ones((1, 3, 1, 2))])

    assert y.shape == (3, 2)


@given(
    shape=arrays.shapes(),
    start=st.integers(-6, 6),
    end=st.none() | st.integers(-6, 6),
)
@settings(max_examples=60)
def test_shape_tells_the_lengths_between_two_axes(
    shape: tuple[int, ...], start: int, end: int | None
) -> None:
    attributes = {"start": start} if end is None else {"start": start, "end": end}

    (y,) = run_node("Shape", [np.empty(shape, "float32")], attributes)

    assert y.dtype == np.int64
    assert y.tolist() == list(shape[start:end])


@given(shape=arrays.shapes())
@settings(max_examples=20)
def test_size_counts_elements(shape: tuple[int, ...]) -> None:
    (y,) = run_node("Size", [np.zeros(shape, "bool")])

    np.testing.assert_array_equal(y, np.array(np.zeros(shape).size, "int64"), strict=True)


@pytest.mark.parametrize("op", ["Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"])
def test_a_kernel_stands_by_where_no_view_can_be_made(op: str) -> None:
    shape = {"Reshape": [np.array([6])], "Unsqueeze": [np.array([0])]}.get(op, [])
    x = np.ones((2, 1, 3), "float32")

    graph = single_node_graph(op, [x, *shape], constant={1})

    assert graph.nodes[0].operator.views == ((0, 0),)
    assert find_kernel(op, "cpu") is not None
