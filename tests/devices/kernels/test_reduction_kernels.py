from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import arrays
import numpy as np
import pytest
from arrays import FLOATS, NUMBERS, AnyArray, random_array
from hypothesis import given, settings
from hypothesis import strategies as st
from single_node import onnx_reference, run_node

WIDE = (*FLOATS, "int32", "int64", "uint32", "uint64")
EXTREMA = (*WIDE, "int8", "uint8", "bool")

Elements = list[Any]


def mean(v: Elements) -> float:
    return sum(v) / len(v) if v else math.nan


def log_sum(v: Elements) -> float:
    total = math.fsum(v)
    return math.log(total) if total > 0 else -math.inf if total == 0 else math.nan


def log_sum_exp(v: Elements) -> float:
    peak = max(v, default=-math.inf)
    return peak + math.log(sum(math.exp(x - peak) for x in v)) if v else peak


SUMS: dict[str, tuple[Callable[[Elements], float], Sequence[str]]] = {
    "ReduceSum": (sum, WIDE),
    "ReduceMean": (mean, WIDE),
    "ReduceProd": (math.prod, WIDE),
    "ReduceL1": (lambda v: sum(map(abs, v)), WIDE),
    "ReduceL2": (lambda v: math.sqrt(sum(x * x for x in v)), WIDE),
    "ReduceSumSquare": (lambda v: sum(x * x for x in v), WIDE),
    "ReduceLogSum": (log_sum, FLOATS),
    "ReduceLogSumExp": (log_sum_exp, FLOATS),
}
TOLERANCE = {"float16": 2e-3, "float32": 2e-6, "float64": 1e-13}


def reduced(
    formula: Callable[[Elements], Any], x: AnyArray, axes: Sequence[int], keepdims: bool
) -> AnyArray:
    """Reduce with a formula over Python lists, element by element of the output."""
    axes = [axis % x.ndim for axis in axes]
    kept = [range(1) if i in axes else range(n) for i, n in enumerate(x.shape)]
    shape = [len(places) for places in kept]
    values = []
    for place in itertools.product(*kept):
        part = x[tuple(slice(None) if i in axes else p for i, p in enumerate(place))]
        values.append(formula(part.reshape(-1).tolist()))
    result = np.array(values, dtype=object).reshape(shape)
    return result if keepdims else result.reshape([n for i, n in enumerate(shape) if i not in axes])


@st.composite
def reductions(draw: st.DrawFn, max_length: int = 4) -> tuple[tuple[int, ...], list[int], bool]:
    """Draw a shape, some of its axes, and keepdims."""
    shape = draw(arrays.shapes(max_rank=4, max_length=max_length))
    chosen = draw(st.sets(st.integers(0, len(shape) - 1))) if shape else set()
    return shape, [axis - len(shape) * draw(st.booleans()) for axis in chosen], draw(st.booleans())


def run_reduction(
    op: str, x: AnyArray, axes: Sequence[int], attributes: dict[str, Any]
) -> AnyArray:
    (y,) = run_node(op, [x, np.array(axes, "int64")], attributes, constant={1})
    return y


@pytest.mark.parametrize("op", SUMS)
@given(case=reductions(), data=st.data(), seed=arrays.SEEDS)
@settings(max_examples=40)
def test_reductions_follow_their_formulas(
    op: str, case: tuple[tuple[int, ...], list[int], bool], data: st.DataObject, seed: int
) -> None:
    formula, dtypes = SUMS[op]
    shape, axes, keepdims = case
    dtype = data.draw(st.sampled_from(dtypes))
    x = random_array(dtype, shape, seed, 0 if op == "ReduceLogSum" else -2, 2)

    y = run_reduction(op, x, axes, {"keepdims": keepdims, "noop_with_empty_axes": True})

    wanted = reduced(formula, x, axes, keepdims)
    if np.dtype(dtype).kind == "f":
        tolerance = 4 * TOLERANCE[dtype]
        np.testing.assert_allclose(y, wanted.astype("float64"), rtol=tolerance, atol=tolerance)
    elif x.size or op != "ReduceMean":  # the mean of no integers is undefined
        bits = np.dtype(dtype).itemsize * 8
        whole = np.vectorize(lambda v: int(v) % 2**bits, otypes=[object])(wanted)
        wrapped = np.asarray(whole).astype(f"uint{bits}").astype(dtype)
        np.testing.assert_array_equal(y, wrapped.reshape(wanted.shape), strict=True)


@pytest.mark.parametrize(("op", "formula"), [("ReduceMax", max), ("ReduceMin", min)])
@given(case=reductions(), dtype=st.sampled_from(EXTREMA), seed=arrays.SEEDS)
@settings(max_examples=60)
def test_extrema_of_nothing_are_the_limits_of_the_dtype(
    op: str,
    formula: Callable[..., Any],
    case: tuple[tuple[int, ...], list[int], bool],
    dtype: str,
    seed: int,
) -> None:
    shape, axes, keepdims = case
    x = random_array(dtype, shape, seed)

    y = run_reduction(op, x, axes, {"keepdims": keepdims, "noop_with_empty_axes": True})

    kind = np.dtype(dtype).kind
    limits: tuple[Any, Any] = (-math.inf, math.inf)
    if kind != "f":
        limits = (False, True) if kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    neutral = limits[op == "ReduceMin"]
    wanted = reduced(lambda v: formula(v, default=neutral), x, axes, keepdims)
    np.testing.assert_array_equal(y, wanted.astype(dtype), strict=True)


@pytest.mark.parametrize("op", [*SUMS, "ReduceMax", "ReduceMin"])
@pytest.mark.parametrize("noop", [False, True])
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("empty", [False, True])
def test_without_axes_all_or_nothing_is_reduced(
    op: str, noop: bool, keepdims: bool, empty: bool
) -> None:
    x = random_array("float32", (2, 3), 1, 1, 4)
    inputs = [x, np.zeros(0, "int64")] if empty else [x]
    attributes = {"keepdims": keepdims, "noop_with_empty_axes": noop}

    (y,) = run_node(op, inputs, attributes, constant={1})

    wanted = onnx_reference(op, [x], {name: int(value) for name, value in attributes.items()})[0]
    np.testing.assert_allclose(y, wanted, rtol=1e-5, strict=True)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32"])
@pytest.mark.parametrize(
    ("shape", "axes"),
    [((400, 4), [1]), ((50, 7, 9), [1, 2]), ((3, 5000), [1]), ((2, 9000), [-1]), ((40, 300), [0])],
)
@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL2"])
def test_long_and_narrow_rows_reduce_alike(
    op: str, shape: tuple[int, ...], axes: list[int], dtype: str
) -> None:
    x = random_array(dtype, shape, 3)

    y = run_reduction(op, x, axes, {"keepdims": False})

    extrema: dict[str, Callable[[Elements], Any]] = {"ReduceMax": max, "ReduceMin": min}
    formula = extrema[op] if op in extrema else SUMS[op][0]
    wanted = reduced(formula, x, axes, keepdims=False).astype("float64")
    tolerance = 10 * TOLERANCE.get(dtype, 0)
    wanted = wanted if tolerance else np.trunc(wanted)
    np.testing.assert_allclose(y, wanted, rtol=tolerance, atol=100 * tolerance)


@pytest.mark.parametrize("op", ["ReduceMax", "ReduceMin"])
def test_extrema_of_narrow_rows_hand_nan_on(op: str) -> None:
    x = random_array("float32", (400, 4), 3)
    x[7, 2] = np.nan

    y = run_reduction(op, x, [1], {"keepdims": False})

    assert np.flatnonzero(np.isnan(y)).tolist() == [7]


def test_half_precision_is_accumulated_in_single() -> None:
    x = np.full(5000, 20, "float16")

    assert run_reduction("ReduceMean", x, [0], {})[0] == 20
    assert run_reduction("ReduceLogSum", x, [0], {})[0] == np.float16(math.log(100_000))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32"])
def test_means_of_integers_do_not_wrap(dtype: str) -> None:
    most = np.iinfo(dtype).max

    assert run_reduction("ReduceMean", np.full((3, 5), most, dtype), [1], {})[0] == most


def test_log_sum_exp_neither_overflows_nor_loses_small_numbers() -> None:
    x = np.array([[1000, 1000], [-1000, -1000], [-np.inf, -np.inf], [np.inf, 0]], "float32")

    y = run_reduction("ReduceLogSumExp", x, [1], {"keepdims": False})

    np.testing.assert_allclose(
        y, [1000 + math.log(2), -1000 + math.log(2), -np.inf, np.inf], rtol=1e-6
    )


def test_extrema_hand_nan_on() -> None:
    assert np.isnan(run_reduction("ReduceMax", np.array([1, np.nan], "float32"), [0], {}))


@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
@given(
    shape=arrays.shapes(min_rank=1, max_rank=3),
    dtype=st.sampled_from(NUMBERS),
    data=st.data(),
    seed=arrays.SEEDS,
)
@settings(max_examples=60)
def test_the_place_of_an_extremum_is_the_first_or_last(
    op: str, shape: tuple[int, ...], dtype: str, data: st.DataObject, seed: int
) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    keepdims, last = data.draw(st.booleans()), data.draw(st.booleans())
    shape = tuple(max(n, 1) if i == axis % len(shape) else n for i, n in enumerate(shape))
    x = random_array(dtype, shape, seed, 0, 3)
    attributes = {"axis": axis, "keepdims": keepdims, "select_last_index": last}

    (y,) = run_node(op, [x], attributes)

    def place(values: Elements) -> int:
        best = max(values) if op == "ArgMax" else min(values)
        return len(values) - 1 - values[::-1].index(best) if last else values.index(best)

    wanted = reduced(place, x, [axis], keepdims).astype("int64")
    np.testing.assert_array_equal(y, wanted, strict=True)


def test_the_place_of_an_extremum_in_a_scalar_is_zero() -> None:
    assert run_node("ArgMax", [np.array(3, "float32")])[0] == 0


@pytest.mark.parametrize("op", ["CumSum", "CumProd"])
@given(
    shape=arrays.shapes(min_rank=1, max_rank=3),
    dtype=st.sampled_from(("float32", "float64", "int32", "int64", "uint32", "uint64")),
    data=st.data(),
    seed=arrays.SEEDS,
)
@settings(max_examples=60)
def test_scans_accumulate_from_either_end(
    op: str, shape: tuple[int, ...], dtype: str, data: st.DataObject, seed: int
) -> None:
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    exclusive, backward = data.draw(st.booleans()), data.draw(st.booleans())
    x = random_array(dtype, shape, seed, -3, 3)
    constant = {1} if data.draw(st.booleans()) else set()

    (y,) = run_node(
        op, [x, np.array(axis)], {"exclusive": exclusive, "reverse": backward}, constant=constant
    )

    add_up = sum if op == "CumSum" else math.prod
    wanted = np.empty(shape, object)
    for place in np.ndindex(shape):
        here, line = place[axis], list(place)
        line[axis] = slice(None)
        values = x[tuple(line)].tolist()
        if backward:
            values, here = values[::-1], len(values) - 1 - here
        wanted[place] = add_up(values[: here if exclusive else here + 1])
    bits = np.dtype(dtype).itemsize * 8
    if np.dtype(dtype).kind == "f":
        np.testing.assert_allclose(y, wanted.astype(dtype), rtol=1e-5, atol=1e-5)
    else:
        low_bits = np.asarray([int(v) % 2**bits for v in wanted.flat], f"uint{bits}")
        np.testing.assert_array_equal(y.reshape(-1), low_bits.astype(dtype), strict=True)


@pytest.mark.parametrize("op", ["CumSum", "CumProd"])
@pytest.mark.parametrize("shape", [(9, 40), (2, 9, 40), (1, 0, 40)])
@pytest.mark.parametrize("exclusive", [False, True])
def test_scans_across_wide_slices_accumulate_alike(
    op: str, shape: tuple[int, ...], exclusive: bool
) -> None:
    x = random_array("int64", shape, 1, -3, 3)

    (y,) = run_node(op, [x, np.array(-2)], {"exclusive": exclusive})

    wanted = (np.cumsum if op == "CumSum" else np.cumprod)(x, -2)
    if exclusive:
        wanted = np.roll(wanted, 1, -2)
        wanted[..., :1, :] = op == "CumProd"
    np.testing.assert_array_equal(y, wanted, strict=True)
