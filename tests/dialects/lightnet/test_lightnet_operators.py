"""LightNet's operators against numpy, each written here from what LightNet says of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import plait as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lightnet_models import computed, create, model, op
from plait.dialects.lightnet.load import load_lightnet
from plait.graph.values.tensor import Array

RANDOM = np.random.default_rng(8)


def floats(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype(np.float32)


def close(got: Array, wanted: Any) -> None:
    wanted = np.asarray(wanted)
    assert got.shape == wanted.shape
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


def padded_windows(x: Array, size: Any, stride: Any, pads: Any, dilation: Any, fill: float) -> Any:
    """Yield the place of each window, and its cells as (batch, channel, ky, kx)."""
    top, left, bottom, right = pads
    wide = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=fill)
    reach = [(k - 1) * d + 1 for k, d in zip(size, dilation, strict=True)]
    for row in range((wide.shape[2] - reach[0]) // stride[0] + 1):
        for column in range((wide.shape[3] - reach[1]) // stride[1] + 1):
            y, x0 = row * stride[0], column * stride[1]
            yield (
                (row, column),
                wide[:, :, y : y + reach[0] : dilation[0], x0 : x0 + reach[1] : dilation[1]],
            )


def filled(windows: Any) -> Array:
    """Return what a value per window makes: (batch, channel, row, column)."""
    found = dict(windows)
    rows, columns = (max(place[i] for place in found) + 1 for i in (0, 1))
    values = [[found[row, column] for column in range(columns)] for row in range(rows)]
    return np.moveaxis(np.array(values), (0, 1), (2, 3))


@pytest.mark.parametrize(
    ("group", "stride", "dilation", "padding"),
    [(1, (1, 1), (1, 1), (0, 0, 0, 0)), (2, (2, 1), (1, 2), (1, 0, 2, 3))],
)
def test_conv2d(group: int, stride: Any, dilation: Any, padding: Any) -> None:
    src, weight, bias = floats(2, 4, 9, 8), floats(6, 4 // group, 3, 2), floats(6)
    parts = zip(np.split(src, group, 1), np.split(weight, group), strict=True)
    wanted = np.concatenate(
        [
            filled(
                (place, np.einsum("bcyx,ocyx->bo", cells, w))
                for place, cells in padded_windows(x, (3, 2), stride, padding, dilation, 0)
            )
            for x, w in parts
        ],
        axis=1,
    )
    (got,) = computed(
        "conv2d",
        {"src": src, "weight": weight, "bias": bias},
        group=group,
        size=[3, 2],
        stride=list(stride),
        dilation=list(dilation),
        padding=list(padding),
        autopad="NOTSET",
    )
    close(got, wanted + bias[:, None, None])


@pytest.mark.parametrize(
    ("auto", "length", "size", "padding"),
    [
        ("VALID", 8, 2, (0, 0, 0, 0)),
        ("SAME_UPPER", 8, 3, (0, 0, 1, 1)),
        ("SAME_LOWER", 8, 3, (1, 1, 0, 0)),
        ("SAME_UPPER", 9, 3, (1, 1, 1, 1)),
        ("SAME_LOWER", 9, 3, (1, 1, 1, 1)),
    ],
)
def test_autopad_follows_the_vectors_of_lightnets_own_tests(
    auto: str, length: int, size: int, padding: Any
) -> None:
    src = floats(1, 1, length, length)
    (got,) = computed(
        "maxpool2d",
        {"src": src},
        size=[size, size],
        stride=[2, 2],
        padding=[0, 0, 0, 0],
        autopad=auto,
    )
    cells = padded_windows(src, (size, size), (2, 2), padding, (1, 1), -np.inf)
    close(got, filled((place, one.max((2, 3))) for place, one in cells))


def test_avgpool2d_counts_no_padding() -> None:
    src = floats(1, 2, 5, 6)
    given: dict[str, Any] = {"size": [2, 3], "stride": [2, 1], "padding": [1, 1, 0, 1]}
    (got,) = computed("avgpool2d", {"src": src}, **given, autopad="NOTSET")
    cells = padded_windows(src, (2, 3), (2, 1), (1, 1, 0, 1), (1, 1), np.nan)
    close(got, filled((place, np.nanmean(one, (2, 3))) for place, one in cells))


def scattered(src: Array, weight: Array, stride: Any, pads: Any, extra: Any, dil: Any) -> Array:
    """Return a transposed convolution: each cell adds its weights to the output."""
    batch, _, rows, columns = src.shape
    _, channels, ky, kx = weight.shape
    height = (rows - 1) * stride[0] + (ky - 1) * dil[0] + 1 + extra[0]
    width = (columns - 1) * stride[1] + (kx - 1) * dil[1] + 1 + extra[1]
    out = np.zeros((batch, channels, height, width))
    for y in range(rows):
        for x in range(columns):
            for j in range(ky):
                for i in range(kx):
                    at = y * stride[0] + j * dil[0], x * stride[1] + i * dil[1]
                    out[:, :, at[0], at[1]] += src[:, :, y, x] @ weight[:, :, j, i]
    top, left, bottom, right = pads
    return out[:, :, top : height - bottom, left : width - right]


@pytest.mark.parametrize(
    ("auto", "dims", "pads"),
    [
        ("NOTSET", [0, 0, 0, 0], (1, 0, 0, 1)),
        ("VALID", [0, 0, 0, 0], (0, 0, 0, 0)),
        ("SAME_UPPER", [1, 2, 8, 6], (0, 0, 1, 0)),
        ("SAME_LOWER", [1, 2, 8, 6], (1, 0, 0, 0)),
    ],
)
def test_deconv2d(auto: str, dims: list[int], pads: Any) -> None:
    src, weight, bias = floats(1, 3, 4, 3), floats(3, 2, 3, 2), floats(2)
    (got,) = computed(
        "deconv2d",
        {"src": src, "weight": weight, "bias": bias},
        group=1,
        size=[3, 2],
        stride=[2, 2],
        output_dims=dims,
        padding=list(pads) if auto == "NOTSET" else [0, 0, 0, 0],
        output_padding=[0, 0],
        dilation=[1, 1],
        autopad=auto,
    )
    close(got, scattered(src, weight, (2, 2), pads, (0, 0), (1, 1)) + bias[:, None, None])


def test_batchnorm() -> None:
    src, scale, offset, mean, var = floats(2, 3, 2, 2), *(floats(3) for _ in range(4))
    var = var**2
    given = {"src": src, "scale": scale, "offset": offset, "mean": mean, "var": var}
    (got,) = computed("batchnorm", given, epsilon=1e-3)
    m, v, s, o = (one[:, None, None] for one in (mean, var, scale, offset))
    close(got, (src - m) * s / np.sqrt(v + 1e-3) + o)


def test_bn2scale_wts() -> None:
    mean, var, scale, offset = floats(3), floats(3) ** 2, floats(3), floats(3)
    names = ("src_mean", "src_var", "src_scale", "src_offset")
    given = dict(zip(names, (mean, var, scale, offset), strict=True))
    got = computed("bn2scale_wts_cpu", given, ("dst_scale", "dst_shift", "dst_power"), epsilon=0.5)
    close(got[0], scale / (var + 0.5))
    close(got[1], offset - mean * scale / (var + 0.5))
    close(got[2], np.ones(3))


ELEMENTWISE = {
    "TL_MUL": np.multiply,
    "TL_DIV": np.divide,
    "TL_SUM": np.add,
    "TL_SUB": np.subtract,
    "TL_MAX": np.maximum,
    "TL_MIN": np.minimum,
    "TL_POW": np.power,
}


@pytest.mark.parametrize("kind", ELEMENTWISE)
def test_elew(kind: str) -> None:
    first, second = abs(floats(2, 3)) + 0.5, floats(2, 3)
    (got,) = computed("elew", {"src1": first, "src2": second}, elew_op=kind)
    close(got, ELEMENTWISE[kind](first, second))


def test_elew_of_integers_divides_towards_zero() -> None:
    first, second = np.array([7, -7, 6], np.int32), np.array([2, 2, -4], np.int32)
    (got,) = computed("elew", {"src1": first, "src2": second}, elew_op="TL_DIV")
    assert got.tolist() == [3, -3, -1]


@pytest.mark.parametrize("suffix", ["", "_cpu", "_cuda"])
def test_concat(suffix: str) -> None:
    first, second = floats(2, 3, 2), floats(2, 1, 2)
    (got,) = computed(f"concat{suffix}", {"src1": first, "src2": second}, axis=1)
    close(got, np.concatenate([first, second], 1))


def test_dot_product() -> None:
    first, second = floats(2, 5), floats(2, 5)
    (got,) = computed("dot_product", {"src1": first, "src2": second})
    close(got, [np.vdot(first, second)])


UNARY: dict[str, tuple[dict[str, Any], Callable[[Array], Array]]] = {
    "relu": ({}, lambda x: np.maximum(x, 0)),
    "lrelu": ({"negslope": 0.1}, lambda x: np.where(x < 0, 0.1 * x, x)),
    "sigmoid": ({}, lambda x: 1 / (1 + np.exp(-x))),
    "softmax": ({"axis": 1}, lambda x: np.exp(x) / np.exp(x).sum(1, keepdims=True)),
    "maxreduce": ({"axis": 1}, lambda x: x.max(1, keepdims=True)),
    "slice": ({"axis": 2, "start": 1, "len": 3}, lambda x: x[:, :, 1:4]),
    "reshape": ({"dims": [4, 6]}, lambda x: x.reshape(4, 6)),
    "transpose": ({"axes": [2, 0, 1]}, lambda x: x.transpose(2, 0, 1)),
    "forward": ({}, lambda x: x),
}


@pytest.mark.parametrize("optype", UNARY)
def test_operators_of_one_input(optype: str) -> None:
    params, oracle = UNARY[optype]
    src = floats(2, 3, 4)
    (got,) = computed(optype, {"src": src}, **params)
    close(got, oracle(src))


def test_maxreduce_arg_tells_the_first_of_equal_ones() -> None:
    src = np.array([[1, 3, 3], [0.25, 0.5, 0.75]], np.float32)
    got = computed("maxreduce_arg", {"src": src}, ("dst", "arg"), axis=1)
    assert got[0].tolist() == [[3], [0.75]]
    assert got[1].tolist() == [[1], [2]]
    assert got[1].dtype == np.int32


def nearest(src: Array, lengths: tuple[int, ...]) -> Array:
    """Return TensorLight's resize: the cell at round((i + 0.5) scale - 0.5), halves up."""
    index = [
        [math.floor((i + 0.5) * before / after - 0.5 + 0.5) for i in range(after)]
        for before, after in zip(src.shape, lengths, strict=True)
    ]
    return src[np.ix_(*index)]


@given(
    before=st.tuples(st.integers(1, 5), st.integers(1, 6)),
    after=st.tuples(st.integers(1, 9), st.integers(1, 9)),
)
@settings(max_examples=20, deadline=None)
def test_resize(before: tuple[int, int], after: tuple[int, int]) -> None:
    src = np.arange(math.prod(before), dtype=np.float32).reshape(before)
    (got,) = computed("resize", {"src": src}, mode="TL_NEAREST", dims=list(after))
    close(got, nearest(src, after))


def test_resize_between_centres() -> None:
    """The half-pixel centres of ONNX; LightNet has the mode, but no code for it."""
    src = floats(5)
    (got,) = computed("resize", {"src": src}, mode="TL_LINEAR", dims=[8])
    close(got, np.interp((np.arange(8) + 0.5) * 5 / 8 - 0.5, np.arange(5), src))


def test_upsample_rounds_lengths_down() -> None:
    src = floats(1, 2, 3, 5)
    (got,) = computed("upsample", {"src": src}, mode="TL_NEAREST", scales=[1, 1, 2, 1.5])
    close(got, nearest(src, (1, 2, 6, 7)))


def test_submean() -> None:
    src = RANDOM.integers(0, 256, (4, 5, 3)).astype(np.uint8)
    mean = [104.0, 117.25, 123.0]
    (got,) = computed("submean", {"src": src}, mean=mean, dtype="TL_FLOAT")
    close(got, (src - np.array(mean)).transpose(2, 0, 1))


def test_submean_to_bytes_saturates() -> None:
    src = np.array([[[0, 255, 10]]], np.uint8)
    (got,) = computed("submean", {"src": src}, mean=[0.5, -9, 2.5], dtype="TL_UINT8")
    assert got.reshape(-1).tolist() == [0, 255, 7]


@pytest.mark.parametrize(
    ("direction", "wanted"),
    [("TL_SORT_DIR_ASCENDING", [-1, 0.5, 0.75, 2]), ("TL_SORT_DIR_DESCENDING", [2, 0.75, 0.5, -1])],
)
def test_sort1d(direction: str, wanted: list[float]) -> None:
    keys = np.array([0.75, -1, 2, 0.5], np.float32)
    (got,) = computed("sort1d", {"src_key": keys}, ("dst_key",), dir=direction)
    assert got.tolist() == wanted


def test_sort1d_by_key_keeps_equal_keys_in_order() -> None:
    given = {
        "src_key": np.array([2, 1, 2, 0], np.float32),
        "src_val": np.array([7, 8, 9, 10], np.int32),
    }
    outputs = ("dst_key", "dst_val")
    keys, values = computed("sort1d_by_key", given, outputs, dir="TL_SORT_DIR_DESCENDING")
    assert keys.tolist() == [2, 2, 1, 0]
    assert values.tolist() == [7, 9, 8, 10]


def test_pick1d_takes_groups() -> None:
    src, index = floats(11), np.array([3, 0, 2, 1], np.int32)
    (got,) = computed("pick1d", {"src": src, "src_index": index}, len=3, stride=2)
    close(got, src[:10].reshape(5, 2)[[3, 0, 2]].reshape(-1))


@pytest.mark.parametrize("optype", ["gather_cuda", "gather_nocopy"])
def test_gather_stacks(optype: str) -> None:
    first, second = floats(2, 3), floats(2, 3)
    (got,) = computed(optype, {"src1": first, "src2": second})
    close(got, np.stack([first, second]))


@pytest.mark.parametrize("optype", ["scatter_cuda", "scatter_nocopy"])
def test_scatter_takes_apart(optype: str) -> None:
    src = floats(2, 3, 2)
    got = computed(optype, {"src": src}, ("dst1", "dst2"))
    close(np.stack(got), src)


def test_zeros_and_arange() -> None:
    made = [
        op("zeros", {}, {"dst": "z"}, dtype="TL_INT16", dims=[2, 2]),
        op("arange", {}, {"dst": "a"}, dtype="TL_UINT8", start=250, stop=258.5, step=2.5),
        *(op("forward", {"src": name}, {"dst": f"{name}2"}) for name in "za"),
    ]
    found = pl.run(load_lightnet(model(*made)), {})
    assert found["z2"].tolist() == [[0, 0], [0, 0]]
    assert found["a2"].tolist() == [250, 252, 255, 255]


def test_steps_are_those_of_doubles_however_many() -> None:
    step = op("arange", {}, {"dst": "a"}, dtype="TL_FLOAT", start=-3, stop=30_000.05, step=0.1)
    a = load_lightnet(model(step, op("relu", {"src": "a"}, {"dst": "y"}))).constants["a"]
    np.testing.assert_array_equal(a, (-3 + 0.1 * np.arange(300_031)).astype(np.float32))


LONG: dict[str, Any] = {"start": 0, "stop": 1_500_000, "step": 1}
ZEROS: dict[str, Any] = {"dims": [2**24], "ran": [0, 0], "data": [0], "from_file": False}
BOXES = {name: name for name in ("box_centers", "box_sizes", "boxes", "confs", "probs")}
SEEN = {"feature": "f", "anchors": "o"}


@pytest.mark.parametrize(
    "more",
    [
        op("arange", {}, {"dst": "b"}, dtype="TL_FLOAT", **LONG),
        op("rearange", {"src": "x"}, {"dst": "b"}, **LONG),
        op("zeros", {}, {"dst": "b"}, dtype="TL_DOUBLE", dims=[2**24]),
        op("create", {}, {"dst": "b"}, dtype="TL_DOUBLE", **ZEROS),
        op("detect_yolov3", SEEN, BOXES, img_width=1, img_height=1),
        op("arange", {}, {"dst": "b"}, dtype="TL_INT8", start=-1e308, stop=1e308, step=1e-308),
    ],
    ids=lambda one: one["optype"],
)
def test_what_a_file_has_made_is_bounded_in_all(more: dict[str, Any]) -> None:
    fed: dict[str, Any] = {"ran": [0, 0], "data": [0], "from_file": True, "dtype": "TL_FLOAT"}
    before = [
        op("create", {}, {"dst": "f"}, dims=[1, 6, 1000, 1000], **fed),
        op("create", {}, {"dst": "o"}, dims=[1, 2], **fed),
        op("create", {}, {"dst": "x"}, dims=[1_500_000], **fed),
        op("arange", {}, {"dst": "a"}, dtype="TL_FLOAT", **LONG),
    ]
    with pytest.raises(pl.ParseError, match=r"constants of more than .* made of nothing") as caught:
        load_lightnet(model(*before, more))
    assert f"({more['optype']})" in str(caught.value.at)
    assert load_lightnet(model(*before, op("relu", {"src": "a"}, {"dst": "y"}))).outputs


@pytest.mark.parametrize(
    ("start", "stop", "step"), [(0, 0, 1), (1, 0, 1), (0, 1, 0), (0, 1, 1e999)]
)
def test_steps_that_lead_nowhere_are_refused(start: float, stop: float, step: float) -> None:
    none = op("arange", {}, {"dst": "a"}, dtype="TL_FLOAT", start=start, stop=stop, step="step")
    text = model(none).replace(b'"step"}', b"1e999}" if step > 1 else b"%d}" % step)
    with pytest.raises(pl.ParseError, match="no steps of"):
        load_lightnet(text)


def test_rearange_fills_with_steps() -> None:
    (got,) = computed("rearange", {"src": floats(3)}, start=1, stop=2.5, step=0.5)
    assert got.tolist() == [1, 1.5, 2]


def test_transform_bbox() -> None:
    delta, anchor = floats(1, 2, 3, 2, 4), abs(floats(1, 2, 3, 2, 4)) * 20
    delta[0, 0, 0, 0] = [0.1, 0.2, 90, 1]
    sizes: dict[str, Any] = {"width": 30, "height": 20, "img_width": 60, "img_height": 50}
    (got,) = computed(
        "transform_bboxSQD",
        {"src_delta": delta, "src_anchor": anchor},
        **sizes,
        x_shift=-2,
        y_shift=1,
    )
    wanted = np.empty_like(delta)
    for at in np.ndindex(*delta.shape[:-1]):
        d, a = delta[at].astype(float), anchor[at].astype(float)
        for axis, (scale, shift, length) in enumerate([(2, -2, 60), (2.5, 1, 50)]):
            centre = (a[axis] + d[axis] * a[2 + axis]) * scale + shift
            grown = math.exp(d[2 + axis]) if d[2 + axis] < 1 else d[2 + axis] * 2.718281828
            size = a[2 + axis] * grown * scale
            wanted[at][axis] = min(max(centre - size / 2, 0), length - 1)
            wanted[at][2 + axis] = max(min(centre + size / 2, length - 1), 0)
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-3)


def test_detect_yolov3() -> None:
    anchors, classes, rows, columns = floats(2, 2) ** 2 * 10, 3, 2, 4
    feature = floats(1, 2 * (5 + classes), rows, columns)
    feature[0, 2, 0, 0] = 99
    outputs = ("box_centers", "box_sizes", "boxes", "confs", "probs")
    got = computed(
        "detect_yolov3",
        {"feature": feature, "anchors": anchors},
        outputs,
        img_width=80,
        img_height=30,
    )
    for a, y, x in np.ndindex(2, rows, columns):
        cell = feature[0].reshape(2, 8, rows, columns)[a, :, y, x].astype(float)
        sure = 1 / (1 + np.exp(-cell))
        centre = np.array([(sure[0] + x) * 80 / columns, (sure[1] + y) * 30 / rows])
        size = anchors[a] * np.clip(np.exp(cell[2:4]), 1e-9, 50)
        boxes = [*(centre - size / 2), *(centre + size / 2)]
        for array, wanted in zip(got, (centre, size, boxes, sure[4:5], sure[5:]), strict=True):
            np.testing.assert_allclose(array[0, a, :, y, x], wanted, rtol=1e-4, atol=1e-4)


def test_a_tensor_that_was_sorted_in_place_cannot_be_read() -> None:
    keys = np.array([2, 1], np.float32)
    ops = [
        create("k", keys),
        op("reshape", {"src": "k"}, {"dst": "view"}, dims=[2]),
        op("sort1d", {"src_key": "view"}, {"dst_key": "s"}, dir="TL_SORT_DIR_ASCENDING"),
        op("relu", {"src": "k"}, {"dst": "y"}),
    ]
    with pytest.raises(pl.ParseError, match=r"'sort1d_s'.* has overwritten tensor 'k' in place"):
        load_lightnet(model(*ops))
    ops[-1] = op("relu", {"src": "s"}, {"dst": "y"})
    assert pl.run(load_lightnet(model(*ops)), {"k": keys})["y"].tolist() == [1, 2]
