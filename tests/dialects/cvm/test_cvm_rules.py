from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import plait as pl
import pytest
from plait.graph.core.operator import find_operator, list_operators
from plait.graph.values.errors import GraphError, OperatorError, ShapeError

NAMES = """
    sum max broadcast_add broadcast_sub broadcast_mul broadcast_max broadcast_div broadcast_greater
    conv2d dense relu max_pool2d upsampling abs negative precision elemwise_add elemwise_sub clip
    cvm_clip right_shift left_shift repeat tile flatten concatenate expand_dims reshape squeeze
    transpose strided_slice slice_like take lut where get_valid_counts non_max_suppression
"""

Shape = Sequence[int | str]


def shapes(op: str, *inputs: Shape, outputs: int = 1, **attributes: Any) -> list[Any]:
    """Return the output shapes of an operator on int32 inputs."""
    b = pl.GraphBuilder()
    given = [b.input(f"x{i}", "int32", shape) for i, shape in enumerate(inputs)]
    made = b.op(f"cvm.{op}", *given, outputs=outputs, **attributes)
    specs = [b._tensors[name] for name in ([made] if outputs == 1 else made)]
    assert {spec.dtype for spec in specs} == {np.dtype(np.int32)}
    return [spec.shape for spec in specs]


def test_there_are_thirty_seven_operators() -> None:
    known = {name.removeprefix("cvm.") for name in list_operators() if name.startswith("cvm.")}
    assert known == set(NAMES.split())
    assert len(known) == 37


GIVEN: list[tuple[str, list[Shape], dict[str, Any], Shape]] = [
    ("sum", [(2, 3, 4)], {}, (1,)),
    ("sum", [(2, 3, 4)], {"keepdims": True}, (1, 1, 1)),
    ("sum", [(2, 3, 4)], {"exclude": True}, (1,)),
    ("sum", [(2, 3, 4)], {"axis": (0, -1)}, (3,)),
    ("sum", [(2, 3, 4)], {"axis": (1,), "exclude": True, "keepdims": True}, (1, 3, 1)),
    ("max", [(2, 3)], {"axis": (0, 1), "exclude": True}, (2, 3)),
    ("broadcast_add", [(3, 1), (2, 1, 4)], {}, (2, 3, 4)),
    (
        "conv2d",
        [(2, 3, 8, 9), (4, 3, 3, 2), (4,)],
        {"channels": 4, "kernel_size": (3, 2)},
        (2, 4, 6, 8),
    ),
    ("dense", [(2, 3), (4, 3), (4,)], {"units": 4}, (2, 4)),
    ("max_pool2d", [(1, 1, 5, 5)], {"pool_size": (2, 2), "strides": (2, 2)}, (1, 1, 2, 2)),
    (
        "max_pool2d",
        [(1, 1, 5, 5)],
        {"pool_size": (2, 2), "strides": (2, 2), "ceil_mode": True},
        (1, 1, 3, 3),
    ),
    ("max_pool2d", [(1, 1, 4, 5)], {"pool_size": (3, 3), "padding": (1,)}, (1, 1, 4, 5)),
    ("upsampling", [(1, 2, 3, 4)], {"scale": 2}, (1, 2, 6, 8)),
    ("repeat", [(2, 3)], {"repeats": 4}, (8, 3)),
    ("repeat", [(2, 3)], {"repeats": 4, "axis": -1}, (2, 12)),
    ("tile", [(2, 3)], {"reps": (2, 1, 2)}, (2, 2, 6)),
    ("flatten", [(2, 3, 4)], {}, (2, 12)),
    ("flatten", [(5,)], {}, (5, 1)),
    ("concatenate", [(2, 3), (2, 1)], {}, (2, 4)),
    ("expand_dims", [(2, 3)], {"axis": -1}, (2, 3, 1)),
    ("expand_dims", [(2, 3)], {"axis": -2}, (2, 1, 3)),
    ("expand_dims", [(2, 3)], {"axis": 2, "num_newaxis": 2}, (2, 3, 1, 1)),
    ("reshape", [(2, 3, 4)], {"shape": (4, 0, 2)}, (4, 3, 2)),
    ("reshape", [(2, 3, 4)], {"shape": (6, 1, -1)}, (6, 1, 4)),
    ("reshape", [(2, 3, 4)], {"shape": (-2, 1, 1)}, (2, 3, 4, 1, 1)),
    ("reshape", [(2, 3, 4)], {"shape": (-3, 4)}, (6, 4)),
    ("reshape", [(2, 3, 4)], {"shape": (0, -3)}, (2, 12)),
    ("reshape", [(2, 3, 4)], {"shape": (-4, 1, 2, -2)}, (1, 2, 3, 4)),
    ("reshape", [(2, 3, 4)], {"shape": (2, -4, -1, 3, -2)}, (2, 1, 3, 4)),
    ("reshape", [(2, 3, 4)], {"shape": (-4, 1, 2, -1, 0)}, (1, 2, 3, 4)),
    ("squeeze", [(1, 2, 1)], {}, (2,)),
    ("squeeze", [(1, 2, 1)], {"axis": (-1,)}, (1, 2)),
    ("squeeze", [(1, 1)], {}, (1,)),
    ("transpose", [(2, 3, 4)], {}, (4, 3, 2)),
    ("transpose", [(2, 3, 4)], {"axes": (1, -1, 0)}, (3, 4, 2)),
    ("strided_slice", [(4, 5)], {}, (1, 5)),
    ("strided_slice", [(4, 5)], {"begin": (3,), "end": (-5,), "stride": (-2,)}, (2, 5)),
    ("slice_like", [(4, 5), (2, 3)], {}, (2, 3)),
    ("slice_like", [(4, 5), (2,)], {"axis": (0,)}, (2, 5)),
    ("take", [(4, 5), (2, 3)], {}, (2, 3)),
    ("take", [(4, 5), (2, 3)], {"axis": -1}, (4, 2, 3)),
    ("lut", [(4, 5), (7,)], {"in_dim": 7}, (4, 5)),
    ("where", [(2,), (2, 3), (2, 3)], {}, (2, 3)),
    ("non_max_suppression", [(2, 3, 6), (2,)], {}, (2, 3, 6)),
]


@pytest.mark.parametrize(("op", "inputs", "attributes", "wanted"), GIVEN)
def test_shapes_are_inferred(
    op: str, inputs: list[Shape], attributes: dict[str, Any], wanted: Shape
) -> None:
    assert shapes(op, *inputs, **attributes) == [wanted]


def test_get_valid_counts_has_a_count_per_sample() -> None:
    assert shapes("get_valid_counts", (2, 3, 6), outputs=2) == [(2,), (2, 3, 6)]
    assert shapes("get_valid_counts", ("n", 3, 6), outputs=2) == [("n",), ("n", 3, 6)]


def test_elementwise_operators_keep_symbols() -> None:
    assert shapes("relu", ("n", 3)) == [("n", 3)]
    assert shapes("broadcast_add", ("n", 3), (3,)) == [("n", 3)]
    assert shapes("elemwise_add", ("n", 3), (2, 3)) == [(2, 3)]


BATCHED: list[tuple[str, list[Shape], dict[str, Any], Shape]] = [
    (
        "conv2d",
        [("n", 2, 5, 5), (4, 2, 3, 3), (4,)],
        {"channels": 4, "kernel_size": (3, 3)},
        ("n", 4, 3, 3),
    ),
    ("dense", [("n", 3), (4, 3), (4,)], {"units": 4}, ("n", 4)),
    ("max_pool2d", [("n", 2, 5, 5)], {"pool_size": (2, 2)}, ("n", 2, 4, 4)),
    ("upsampling", [("n", 2, 5, 5)], {"scale": 2}, ("n", 2, 10, 10)),
    ("flatten", [("n", 3, 4)], {}, ("n", 12)),
    ("sum", [("n", 3, 4)], {"axis": (0, 2), "exclude": True}, ("n", 4)),
    ("concatenate", [("n", 3), ("n", 4)], {}, ("n", 7)),
    ("concatenate", [("n", 3), (2, 4)], {}, (2, 7)),
    ("transpose", [("n", 3)], {}, (3, "n")),
    ("expand_dims", [("n", 3)], {"axis": 1}, ("n", 1, 3)),
]


@pytest.mark.parametrize(("op", "inputs", "attributes", "wanted"), BATCHED)
def test_layers_of_networks_keep_the_batch(
    op: str, inputs: list[Shape], attributes: dict[str, Any], wanted: Shape
) -> None:
    assert shapes(op, *inputs, **attributes) == [wanted]


def test_other_operators_wait_for_fixed_shapes() -> None:
    assert shapes("reshape", ("n", 3), shape=(-1,)) == [None]
    assert shapes("flatten", ("n", "m")) == [None]


CONV = {"channels": 4, "kernel_size": (3, 3)}
IMAGE, WEIGHTS, BIAS = (1, 2, 5, 5), (4, 2, 3, 3), (4,)

WRONG_SHAPES: list[tuple[str, list[Shape], dict[str, Any], str]] = [
    ("relu", [()], {}, "has 0 dimensions"),
    ("relu", [(1,) * 7], {}, "has 7 dimensions"),
    ("relu", [(2, 0)], {}, "empty or too large"),
    ("relu", [(2**24 + 1,)], {}, "empty or too large"),
    ("relu", [(2**15, 2**15, 2)], {}, "empty or too large"),
    ("repeat", [(2**24,)], {"repeats": 2}, "the output .* is empty or too large"),
    ("expand_dims", [(2, 3)], {"axis": 0, "num_newaxis": 5}, "has 7 dimensions"),
    ("expand_dims", [(2, 3)], {"axis": 3}, "outside"),
    ("broadcast_add", [(2,), (3,)], {}, "do not broadcast"),
    ("elemwise_add", [(2,), (1,)], {}, "differ in shape"),
    ("sum", [(2, 3)], {"axis": (2,)}, "outside"),
    ("sum", [(2, 3)], {"axis": (1, -1)}, "twice"),
    ("conv2d", [(2, 5, 5), WEIGHTS, BIAS], CONV, "must have 4 dimensions"),
    ("conv2d", [IMAGE, (4, 3, 3, 3), BIAS], CONV, r"the weights must be int32\[4, 2, 3, 3\]"),
    ("conv2d", [IMAGE, (4, 2, 2, 3), BIAS], CONV, "the weights must be"),
    ("conv2d", [IMAGE, WEIGHTS, (3,)], CONV, "the bias must be"),
    ("conv2d", [IMAGE, WEIGHTS, BIAS], {**CONV, "groups": 3}, "cannot be split into 3 groups"),
    ("conv2d", [IMAGE, WEIGHTS, BIAS], {**CONV, "dilation": (1, 3)}, "does not fit in 5 cells"),
    ("dense", [(2, 3), (4, 2), (4,)], {"units": 4}, "the weights must be"),
    ("dense", [(3,), (4, 3), (4,)], {"units": 4}, "must have 2 dimensions"),
    ("max_pool2d", [IMAGE], {"pool_size": (6, 2)}, "does not go with 5 cells"),
    ("max_pool2d", [IMAGE], {"pool_size": (2, 2), "padding": (2, 0)}, "padded by 2"),
    ("max_pool2d", [IMAGE], {"pool_size": (0, 2)}, "does not go with"),
    (
        "max_pool2d",
        [(1, 1, 2, 2)],
        {"pool_size": (2, 2), "strides": (3, 3), "padding": (1,), "ceil_mode": True},
        "starts behind",
    ),
    ("where", [(3,), (2, 3), (2, 3)], {}, "fits neither elements nor rows"),
    ("where", [(2,), (2, 3), (3,)], {}, "differ in shape"),
    ("concatenate", [(2, 3), (3, 3)], {}, "cannot be joined"),
    ("concatenate", [(2,), (3,)], {}, "outside"),
    ("reshape", [(2, 3)], {"shape": ()}, "cannot be reshaped"),
    ("reshape", [(2, 3)], {"shape": (7,)}, "cannot be reshaped"),
    ("reshape", [(2, 3)], {"shape": (-1, -1)}, "cannot be reshaped"),
    ("reshape", [(2, 3)], {"shape": (4, -1)}, "cannot be reshaped"),
    ("reshape", [(2, 3)], {"shape": (0, 0, 0)}, "cannot be reshaped"),
    ("reshape", [(2, 3)], {"shape": (0, -3)}, "cannot be reshaped"),
    ("reshape", [(2, 3)], {"shape": (-4, 2)}, "cannot be reshaped"),
    ("reshape", [(2, 3)], {"shape": (-4, -1, -1, 3)}, "cannot be reshaped"),
    ("reshape", [(2, 3)], {"shape": (-4, -2, -1, 3)}, "cannot be reshaped"),
    ("squeeze", [(1, 2)], {"axis": (1,)}, "is not of length 1"),
    ("transpose", [(2, 3)], {"axes": (0, 0)}, "twice"),
    ("transpose", [(2, 3)], {"axes": (0,)}, "do not order 2 axes"),
    ("strided_slice", [(4,)], {"begin": (2,), "end": (2,)}, "takes nothing"),
    ("strided_slice", [(4,)], {"begin": (3,), "end": (-1,), "stride": (-1,)}, "takes nothing"),
    ("strided_slice", [(4,)], {"stride": (0,)}, "takes nothing"),
    ("strided_slice", [(4,)], {"begin": (0, 0)}, "more axes"),
    ("slice_like", [(4, 5), (2,)], {}, "different ranks"),
    ("slice_like", [(4, 5), (5, 5)], {}, "cannot be cut"),
    ("slice_like", [(4, 5), (2,)], {"axis": (1,)}, "cannot be cut"),
    ("take", [(4, 5), (2,)], {"axis": 2}, "outside"),
    ("lut", [(4,), (7,)], {"in_dim": 6}, "has 7 elements"),
    ("non_max_suppression", [(2, 3, 5), (2,)], {}, "has 5 numbers"),
    ("non_max_suppression", [(2, 3, 6), (3,)], {}, "the counts must be"),
]


@pytest.mark.parametrize(("op", "inputs", "attributes", "message"), WRONG_SHAPES)
def test_shapes_that_do_not_fit_are_refused(
    op: str, inputs: list[Shape], attributes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ShapeError, match=message) as caught:
        shapes(op, *inputs, **attributes)
    assert f"cvm.{op}" in str(caught.value.at)
    assert caught.value.fix
    assert caught.value.code == 1


@pytest.mark.parametrize("numbers", [1, 32])
def test_get_valid_counts_takes_boxes_of_two_to_thirty_one_numbers(numbers: int) -> None:
    with pytest.raises(ShapeError, match=f"a box has {numbers} numbers"):
        shapes("get_valid_counts", (2, 3, numbers), outputs=2)


X: list[Shape] = [(1, 2, 5, 5)]
POOL = {"pool_size": (2, 2)}
SHIFT = {"precision": 8, "shift_bit": 1}
NMS: list[Shape] = [(2, 3, 6), (2,)]

WRONG_ATTRIBUTES: list[tuple[str, list[Shape], dict[str, Any], str]] = [
    ("conv2d", [*X, WEIGHTS, BIAS], {**CONV, "padding": (4097, 0)}, r"in \[0, 4096\]"),
    ("conv2d", [*X, WEIGHTS, BIAS], {**CONV, "padding": (-1, 0)}, "'padding'"),
    ("conv2d", [*X, WEIGHTS, BIAS], {**CONV, "strides": (0, 1)}, "'strides'"),
    ("conv2d", [*X, WEIGHTS, BIAS], {**CONV, "strides": (4097, 1)}, "'strides'"),
    ("conv2d", [*X, WEIGHTS, BIAS], {**CONV, "dilation": (1, 0)}, "'dilation'"),
    ("conv2d", [*X, WEIGHTS, BIAS], {**CONV, "strides": (1,)}, "has 1 numbers, 2 are needed"),
    ("conv2d", [*X, WEIGHTS, BIAS], {**CONV, "kernel_size": (3, 3, 3)}, "has 3 numbers"),
    ("conv2d", [*X, WEIGHTS, BIAS], {**CONV, "groups": 0}, "'groups'"),
    ("conv2d", [*X, WEIGHTS, BIAS], {**CONV, "layout": "NHWC"}, "'layout'"),
    ("conv2d", [*X, WEIGHTS, BIAS], {**CONV, "use_bias": False}, "the bias is given"),
    ("conv2d", [*X, WEIGHTS], CONV, "the bias is absent"),
    ("conv2d", [*X, WEIGHTS], {"kernel_size": (3, 3)}, "needs the attribute 'channels'"),
    ("dense", [(2, 3), (4, 3)], {"units": 0}, "'units'"),
    ("max_pool2d", X, {**POOL, "strides": (0, 1)}, "'strides'"),
    ("max_pool2d", X, {**POOL, "padding": (0, 0, 0)}, "neither 1 nor 2"),
    ("max_pool2d", X, {"pool_size": (2,)}, "has 1 numbers"),
    ("upsampling", X, {"scale": 0}, "'scale'"),
    ("upsampling", X, {"scale": 4097}, "'scale'"),
    ("upsampling", X, {"scale": 2, "method": "BILINEAR"}, "'method'"),
    ("clip", X, {"a_min": 3, "a_max": 3}, "not below"),
    ("clip", X, {"a_min": -(2**31), "a_max": 3}, "'a_min'"),
    ("cvm_clip", X, {"precision": 0}, "'precision'"),
    ("cvm_clip", X, {"precision": 33}, "'precision'"),
    ("right_shift", X, {**SHIFT, "shift_bit": 0}, "'shift_bit'"),
    ("left_shift", X, {**SHIFT, "shift_bit": 33}, "'shift_bit'"),
    ("repeat", X, {"repeats": 0}, "'repeats'"),
    ("tile", X, {"reps": (0,)}, "'reps'"),
    ("tile", X, {"reps": (4097,)}, "'reps'"),
    ("tile", X, {}, "needs the attribute 'reps'"),
    ("expand_dims", X, {"axis": 0, "num_newaxis": 0}, "'num_newaxis'"),
    ("reshape", X, {"shape": (-5, 10)}, "'shape'"),
    ("lut", [(2,), (3,)], {"in_dim": 0}, "'in_dim'"),
    ("non_max_suppression", NMS, {"iou_threshold": 0}, "'iou_threshold'"),
    ("non_max_suppression", NMS, {"coord_start": 1}, "'coord_start'"),
    ("non_max_suppression", NMS, {"return_indices": True}, "'return_indices'"),
    ("relu", X, {"alpha": 1}, "has no attribute 'alpha'"),
]


@pytest.mark.parametrize(("op", "inputs", "attributes", "message"), WRONG_ATTRIBUTES)
def test_attributes_out_of_range_are_refused(
    op: str, inputs: list[Shape], attributes: dict[str, Any], message: str
) -> None:
    with pytest.raises(OperatorError, match=message) as caught:
        shapes(op, *inputs, **attributes)
    assert f"cvm.{op}" in str(caught.value.at)
    assert caught.value.fix


@pytest.mark.parametrize(
    ("op", "inputs", "attributes"),
    [
        ("max_pool2d", X, {**POOL, "strides": (4096, 4096)}),
        ("upsampling", [(1, 1, 1, 1)], {"scale": 4096}),
        ("tile", [(1,)], {"reps": (4096,)}),
        ("clip", X, {"a_min": 1 - 2**31, "a_max": 2**31 - 1}),
        ("cvm_clip", X, {"precision": 32}),
        ("left_shift", X, {"precision": 1, "shift_bit": 32}),
    ],
)
def test_both_ends_of_a_range_are_allowed(
    op: str, inputs: list[Shape], attributes: dict[str, Any]
) -> None:
    assert shapes(op, *inputs, **attributes)


@pytest.mark.parametrize("dtype", ["int8", "int64", "float32"])
def test_exact_operators_take_int32_alone(dtype: str) -> None:
    b = pl.GraphBuilder()
    with pytest.raises(GraphError, match="is not int32"):
        b.op("cvm.relu", b.input("x", dtype, (3,)))


def test_views_and_writing_in_place_are_declared() -> None:
    assert find_operator("cvm.reshape").views == ((0, 0),)
    assert find_operator("cvm.negative").inplace == ((0, 0),)
