"""cvm's operators by their definitions, against results worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from plait.devices.formal.registry import find_definition, list_definitions
from plait.dialects.cvm.reference import (
    detection,
    elementwise,
    movement,
    neural,
    reduction,
)

FAMILIES = (
    elementwise,
    detection,
    movement,
    neural,
    reduction,
)
INT32_MAX, INT32_MIN = 2**31 - 1, -(2**31)


def call(op: str, *inputs: Any, **attributes: Any) -> Any:
    """Return what a definition yields for int32 inputs, as nested lists."""
    found = find_definition(f"cvm.{op}")
    assert found is not None
    arrays = [None if value is None else np.array(value, np.int32) for value in inputs]
    result = found.function(*arrays, **attributes)
    if isinstance(result, tuple):
        return [np.asarray(one).tolist() for one in result]
    return np.asarray(result).tolist()


def counted(*shape: int) -> Any:
    return np.arange(np.prod(shape)).reshape(shape)


def test_all_37_operators_are_defined() -> None:
    assert len(FAMILIES) == 5
    assert len([name for name in list_definitions() if name.startswith("cvm.")]) == 37


def test_division_drops_the_fraction_and_yields_0_for_a_divisor_of_0() -> None:
    assert call("broadcast_div", [7, -7, 7, -7, 5, 0], [2, 2, -2, -2, 0, 0]) == [3, -3, -3, 3, 0, 0]


@pytest.mark.parametrize(
    ("op", "wanted"),
    [
        ("broadcast_add", [[11, 12], [21, 22]]),
        ("broadcast_sub", [[9, 8], [19, 18]]),
        ("broadcast_mul", [[10, 20], [20, 40]]),
        ("broadcast_max", [[10, 10], [20, 20]]),
        ("broadcast_greater", [[1, 1], [1, 1]]),
    ],
)
def test_operands_are_broadcast_as_numpy_does(op: str, wanted: list[list[int]]) -> None:
    assert call(op, [[10], [20]], [1, 2]) == wanted


def test_greater_is_strict() -> None:
    assert call("broadcast_greater", [1, 2, 3], [2, 2, 2]) == [0, 0, 1]


def test_sums_are_exact_before_the_device_reduces_them() -> None:
    assert call("elemwise_add", [INT32_MAX], [1]) == [2**31]
    assert call("elemwise_sub", [INT32_MIN], [1]) == [INT32_MIN - 1]


def test_signs() -> None:
    assert call("relu", [-3, 0, 5]) == [0, 0, 5]
    assert call("abs", [-3, 0, 5]) == [3, 0, 5]
    assert call("negative", [-3, 0, 5]) == [3, 0, -5]


def test_precision_counts_binary_digits_and_0_has_one() -> None:
    assert call("precision", [0, 1, -1, 2, 3, 4, 255, -256]) == [1, 1, 1, 2, 2, 3, 8, 9]
    assert call("precision", [INT32_MAX, INT32_MIN]) == [31, 32]


def test_clip_keeps_both_ends() -> None:
    assert call("clip", [-9, -2, 0, 7, 9], a_min=-2, a_max=7) == [-2, -2, 0, 7, 7]


def test_clipping_to_a_precision_is_symmetric_and_one_bit_holds_nothing() -> None:
    values = [-200, -128, -127, 127, 128]
    wanted = [-127, -127, -127, 127, 127]
    assert call("cvm_clip", values, precision=8, is_sign=True) == wanted
    assert call("cvm_clip", values, precision=8, is_sign=False) == wanted
    assert call("cvm_clip", [-1, 0, 1], precision=1, is_sign=True) == [0, 0, 0]


def test_right_shift_rounds_halves_upwards() -> None:
    values = [-5, -4, -3, -2, -1, 0, 1, 2, 3, 5]
    wanted = [-2, -2, -1, -1, 0, 0, 1, 1, 2, 3]
    assert call("right_shift", values, precision=8, shift_bit=1, is_sign=True) == wanted


def test_right_shift_neither_overflows_nor_forgets_to_clip() -> None:
    assert call("right_shift", [INT32_MAX], precision=32, shift_bit=1) == [2**30]
    assert call("right_shift", [-1], precision=8, shift_bit=31) == [0]
    assert call("right_shift", [-1652060256], precision=2, shift_bit=30) == [-1]
    assert call("right_shift", [INT32_MIN, INT32_MAX], precision=8, shift_bit=32) == [0, 0]


def test_left_shift_clips() -> None:
    assert call("left_shift", [-9, -1, 1, 9], precision=5, shift_bit=2) == [-15, -4, 4, 15]


def test_sum_over_axes() -> None:
    x = counted(2, 3)
    assert call("sum", x, axis=(1,), keepdims=False, exclude=False) == [3, 12]
    assert call("sum", x, axis=(-1,), keepdims=True, exclude=False) == [[3], [12]]
    assert call("sum", x, axis=(1,), keepdims=False, exclude=True) == [3, 5, 7]


def test_no_axes_reduce_everything_whatever_exclude_says() -> None:
    x = counted(2, 3)
    assert call("sum", x, axis=(), keepdims=False, exclude=True) == [15]
    assert call("sum", x, axis=(), keepdims=True, exclude=False) == [[15]]


def test_excluding_all_axes_reduces_nothing() -> None:
    x = counted(2, 3)
    assert call("max", x, axis=(0, 1), keepdims=False, exclude=True) == x.tolist()


def test_the_maximum_of_negative_numbers_is_negative() -> None:
    x = [[-4, -2], [-3, -9]]
    assert call("max", x, axis=(), keepdims=False, exclude=False) == [-2]
    assert call("max", x, axis=(0,), keepdims=False, exclude=False) == [-3, -2]


def test_a_kept_axis_of_length_1_between_others_is_indexed_right() -> None:
    summed = call("sum", counted(4, 3, 1, 5), axis=(3,), keepdims=False, exclude=False)
    assert summed == [
        [[sum(range(5 * i, 5 * i + 5))] for i in range(3 * n, 3 * n + 3)] for n in range(4)
    ]


CONV = {"strides": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1, "layout": "NCHW"}


def test_convolution_by_hand() -> None:
    x, w = counted(1, 1, 3, 3), [[[[1, 2], [3, 4]]]]
    assert call("conv2d", x, w, **CONV) == [[[[27, 37], [57, 67]]]]
    assert call("conv2d", x, w, [100], **CONV) == [[[[127, 137], [157, 167]]]]


def test_convolution_pads_with_zeros_strides_and_dilates() -> None:
    x, w = counted(1, 1, 3, 3), [[[[1, 2], [3, 4]]]]
    spread = {**CONV, "padding": (1, 1), "dilation": (2, 2), "strides": (2, 2)}
    # The corners of a 3 × 3 window around (0, 0): only its last element lies inside, on x[1, 1].
    assert call("conv2d", x, w, **spread) == [[[[16, 12], [8, 4]]]]


def test_grouped_convolution_reads_the_channels_of_its_group() -> None:
    x = [[[[1]], [[10]], [[100]], [[1000]]]]
    w = [[[[1]], [[2]]], [[[3]], [[4]]]]
    assert call("conv2d", x, w, **{**CONV, "groups": 2}) == [[[[21]], [[4300]]]]


def test_dense_multiplies_by_the_transposed_weight() -> None:
    x, w = [[1, 2, 3]], [[1, 0, 0], [1, 1, 1]]
    assert call("dense", x, w, units=2, use_bias=False) == [[1, 6]]
    assert call("dense", x, w, [10, -10], units=2, use_bias=True) == [[11, -4]]


POOL = {"pool_size": (2, 2), "strides": (2, 2), "padding": (0, 0), "ceil_mode": False}


def test_pooling_takes_the_largest_and_padding_never_wins() -> None:
    assert call("max_pool2d", counted(1, 1, 4, 4), **POOL) == [[[[5, 7], [13, 15]]]]
    padded = {**POOL, "padding": (1,)}
    assert call("max_pool2d", [[[[-5, -6], [-7, -8]]]], **padded) == [[[[-5, -6], [-7, -8]]]]


def test_pooling_with_ceil_mode_takes_the_window_that_sticks_out() -> None:
    x = counted(1, 1, 3, 3)
    assert call("max_pool2d", x, **POOL) == [[[[4]]]]
    assert call("max_pool2d", x, **{**POOL, "ceil_mode": True}) == [[[[4, 5], [7, 8]]]]


def test_upsampling_repeats_pixels() -> None:
    assert call("upsampling", [[[[1, 2]]]], scale=2) == [[[[1, 1, 2, 2], [1, 1, 2, 2]]]]


def test_repeat_and_tile() -> None:
    assert call("repeat", [[1, 2]], repeats=2, axis=-1) == [[1, 1, 2, 2]]
    assert call("repeat", [[1, 2]], repeats=2, axis=0) == [[1, 2], [1, 2]]
    assert call("tile", [1, 2], reps=(2, 2)) == [[1, 2, 1, 2], [1, 2, 1, 2]]
    assert call("tile", [[1], [2]], reps=(3,)) == [[1, 1, 1], [2, 2, 2]]


def test_flatten_keeps_the_first_axis() -> None:
    assert call("flatten", counted(2, 2, 2)) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert call("flatten", [1, 2, 3]) == [[1], [2], [3]]


def test_concatenate_counts_a_negative_axis_from_the_back() -> None:
    assert call("concatenate", [[1], [2]], [[3, 4], [5, 6]], axis=-1) == [[1, 3, 4], [2, 5, 6]]
    assert call("concatenate", [[1]], [[2], [3]], axis=0) == [[1], [2], [3]]


@pytest.mark.parametrize(
    ("axis", "count", "shape"),
    [(0, 1, (1, 2, 3)), (-1, 1, (2, 3, 1)), (-3, 2, (1, 1, 2, 3)), (1, 2, (2, 1, 1, 3))],
)
def test_a_negative_axis_of_expand_dims_counts_from_behind_the_last(
    axis: int, count: int, shape: tuple[int, ...]
) -> None:
    made = call("expand_dims", counted(2, 3), axis=axis, num_newaxis=count)
    assert made == counted(*shape).tolist()


@pytest.mark.parametrize(
    ("shape", "wanted"),
    [
        ((6, 4), (6, 4)),
        ((0, -1), (2, 12)),
        ((-2,), (2, 3, 4)),
        ((0, -3), (2, 12)),
        ((-4, 1, 2, -2), (1, 2, 3, 4)),
        ((-4, -1, 2, 0, 0), (1, 2, 3, 4)),
        ((0, 0, -4, 2, -1), (2, 3, 2, 2)),
        ((-3, -1), (6, 4)),
    ],
)
def test_the_special_numbers_of_reshape(shape: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    assert call("reshape", counted(2, 3, 4), shape=shape) == counted(*wanted).tolist()


def test_squeeze_of_all_axes_leaves_one() -> None:
    assert call("squeeze", [[[7]]], axis=()) == [7]
    assert call("squeeze", [[[7, 8]]], axis=(-3,)) == [[7, 8]]


def test_transpose() -> None:
    x = counted(2, 3, 4)
    assert call("transpose", x, axes=()) == x.transpose().tolist()
    assert call("transpose", x, axes=(1, -1, 0)) == x.transpose(1, 2, 0).tolist()


@pytest.mark.parametrize(
    ("begin", "end", "stride", "wanted"),
    [
        ((1,), (3,), (), [1, 2]),
        ((0,), (4,), (), [0, 1, 2, 3]),
        ((-1,), (9,), (), [3]),
        ((0,), (4,), (3,), [0, 3]),
        ((3,), (-5,), (-1,), [3, 2, 1, 0]),
        ((9,), (0,), (-2,), [3, 1]),
        ((), (), (), [0, 1, 2, 3]),
    ],
)
def test_slices_clip_their_ends(
    begin: tuple[int, ...], end: tuple[int, ...], stride: tuple[int, ...], wanted: list[int]
) -> None:
    assert call("strided_slice", counted(4), begin=begin, end=end, stride=stride) == wanted


def test_an_axis_of_length_1_can_be_sliced() -> None:
    assert call("strided_slice", [[5]], begin=(0,), end=(1,), stride=()) == [[5]]


def test_slice_like_takes_the_leading_part() -> None:
    x = counted(3, 3)
    assert call("slice_like", x, counted(2, 1), axis=()) == [[0], [3]]
    assert call("slice_like", x, counted(2, 1), axis=(-1,)) == [[0], [3], [6]]
    assert call("slice_like", x, counted(2), axis=(0,)) == [[0, 1, 2], [3, 4, 5]]


def test_take_brings_indices_inside_and_never_counts_from_the_back() -> None:
    assert call("take", [10, 20, 30], [[-5, 0], [2, 9]], axis=None) == [[10, 10], [30, 30]]
    assert call("take", [[1, 2], [3, 4]], [-1, 1], axis=0) == [[1, 2], [3, 4]]
    assert call("take", [[1, 2], [3, 4]], [[1], [0]], axis=-1) == [[[2], [1]], [[4], [3]]]


def test_a_lookup_table_is_the_second_input() -> None:
    assert call("lut", [0, 2, -1, 7], [10, 20, 30], in_dim=3) == [10, 30, 10, 30]


def test_where_chooses_elements_or_whole_rows() -> None:
    x, y = [[1, 2], [3, 4]], [[5, 6], [7, 8]]
    assert call("where", [[0, 1], [-1, 0]], x, y) == [[5, 2], [3, 8]]
    assert call("where", [0, 2], x, y) == [[5, 6], [3, 4]]


def test_valid_rows_score_above_the_threshold_and_keep_their_order() -> None:
    x = [[[0, 9], [1, 5], [2, 6]], [[0, 1], [1, 1], [2, 1]]]
    counts, rows = call("get_valid_counts", x, score_threshold=5)
    assert counts == [2, 0]
    assert rows == [[[0, 9], [2, 6], [-1, -1]], [[-1, -1]] * 3]


NMS = {"iou_threshold": 50, "max_output_size": -1, "top_k": -1, "force_suppress": False}
GONE = [-1] * 6
LOW, HIGH = [0, 10, 0, 0, 10, 10], [0, 20, 0, 0, 10, 10]
OTHER = [1, 15, 0, 0, 10, 10]
FAR = [0, 5, 50, 50, 60, 60]


def suppressed(boxes: list[list[int]], count: int, **changed: Any) -> list[list[int]]:
    attributes = {**NMS, **changed}
    return list(call("non_max_suppression", [boxes], [count], **attributes)[0])


def test_a_box_is_dropped_for_a_kept_one_of_its_class() -> None:
    assert suppressed([LOW, HIGH, OTHER, FAR], 4) == [HIGH, OTHER, FAR, GONE]


def test_forced_suppression_ignores_classes() -> None:
    assert suppressed([LOW, HIGH, OTHER, FAR], 4, force_suppress=True) == [HIGH, FAR, GONE, GONE]


def test_boxes_of_one_score_keep_their_order() -> None:
    first, second = [0, 7, 0, 0, 1, 1], [0, 7, 5, 5, 6, 6]
    assert suppressed([first, second], 2) == [first, second]
    assert suppressed([second, first], 2) == [second, first]


def test_only_as_many_boxes_as_are_valid_are_read_and_too_many_are_all() -> None:
    assert suppressed([LOW, HIGH], 1) == [LOW, GONE]
    assert suppressed([LOW, HIGH], 9) == [HIGH, GONE]
    assert suppressed([LOW, HIGH], -3) == [GONE, GONE]


def test_a_missing_box_uses_up_a_position_but_suppresses_nobody() -> None:
    missing = [-1, 99, 0, 0, 10, 10]
    assert suppressed([LOW, missing], 2, force_suppress=True) == [LOW, GONE]
    assert suppressed([LOW, missing], 2, top_k=1) == [GONE, GONE]


def test_a_limit_of_0_keeps_nothing_and_a_negative_one_limits_nothing() -> None:
    assert suppressed([HIGH, FAR], 2, max_output_size=0) == [GONE, GONE]
    assert suppressed([HIGH, FAR], 2, top_k=0) == [GONE, GONE]
    assert suppressed([HIGH, FAR], 2, max_output_size=1) == [HIGH, GONE]
    assert suppressed([HIGH, FAR], 2, max_output_size=-7, top_k=-7) == [HIGH, FAR]


def test_one_batch_without_boxes_leaves_the_others_alone() -> None:
    x = [[HIGH], [FAR]]
    assert call("non_max_suppression", x, [0, 1], **NMS) == [[GONE], [FAR]]


def test_the_threshold_itself_suppresses() -> None:
    half = [0, 1, 0, 0, 10, 5]
    whole = [0, 2, 0, 0, 10, 10]
    assert suppressed([whole, half], 2, iou_threshold=50) == [whole, GONE]
    assert suppressed([whole, half], 2, iou_threshold=51) == [whole, half]
    assert suppressed([LOW, HIGH], 2, iou_threshold=101) == [HIGH, LOW]


def box(left: int, top: int, right: int, bottom: int) -> list[int]:
    return [0, 0, left, top, right, bottom]


def test_overlap_is_in_percent_without_its_fraction() -> None:
    assert detection.compute_overlap_percent(box(0, 0, 3, 1), box(2, 0, 5, 1)) == 20
    assert detection.compute_overlap_percent(box(0, 0, 2, 1), box(1, 0, 3, 1)) == 33
    assert detection.compute_overlap_percent(box(0, 0, 1, 1), box(1, 1, 2, 2)) == 0


def test_boxes_without_area_overlap_nothing() -> None:
    assert detection.compute_overlap_percent(box(0, 0, 0, 0), box(0, 0, 0, 0)) == 0
    assert detection.compute_overlap_percent(box(4, 0, 0, 4), box(0, 0, 4, 4)) == 0


def test_the_overlap_of_giants_divides_the_union_instead() -> None:
    side = 2**29
    assert detection.compute_overlap_percent(box(0, 0, side, side), box(0, 0, side, side)) == 100
    assert (
        detection.compute_overlap_percent(box(0, 0, side, side), box(0, 0, side, side // 2 + 1))
        == 50
    )
