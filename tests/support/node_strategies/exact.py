"""Nodes of exact operators: int32s of all magnitudes, with the ends of the range."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.extra.numpy as hnp
import numpy as np
import plait as pl
from hypothesis import reject
from hypothesis import strategies as st
from plait.graph.core.operator import find_operator
from single_node import AnyArray, single_node_graph

from .drawing import Draw, NodeCase, Strategy

Case = tuple[list[AnyArray], dict[str, Any]]

INT32 = np.dtype(np.int32)
ELEMENTS = (
    st.integers(-4, 9)
    | st.integers(-127, 127)
    | st.sampled_from([0, 2**30, 2**31 - 1, -(2**31 - 1), -(2**31)])
    | st.integers(-(2**31), 2**31 - 1)
)
SMALL = st.integers(-127, 127)
SHAPES = hnp.array_shapes(min_dims=1, max_dims=4, max_side=4)
STEPS, PADS = st.integers(1, 3), st.integers(0, 2)
AXES = st.lists(st.integers(-4, 3), max_size=4, unique=True).map(tuple)


def tensor(draw: Draw, shape: tuple[int, ...] | None = None, elements: Any = ELEMENTS) -> AnyArray:
    array: AnyArray = draw(hnp.arrays(INT32, shape or draw(SHAPES), elements=elements))
    return array


def pair(draw: Draw, strategy: Any) -> tuple[int, int]:
    return draw(strategy), draw(strategy)


def unary(**attributes: Any) -> Callable[[Draw], Case]:
    return lambda draw: ([tensor(draw)], {name: draw(one) for name, one in attributes.items()})


def broadcast(draw: Draw) -> Case:
    shapes = draw(
        hnp.mutually_broadcastable_shapes(num_shapes=2, min_dims=1, max_dims=3, max_side=3)
    )
    return [tensor(draw, shape) for shape in shapes.input_shapes], {}


def alike(draw: Draw) -> Case:
    shape = draw(SHAPES)
    return [tensor(draw, shape), tensor(draw, shape)], {}


def where(draw: Draw) -> Case:
    inputs, _ = alike(draw)
    shape = inputs[0].shape
    condition = tensor(draw, draw(st.sampled_from([shape, shape[:1]])), st.integers(-1, 1))
    return [condition, *inputs], {}


def reduction(draw: Draw) -> Case:
    flags = {name: draw(st.booleans()) for name in ("keepdims", "exclude")}
    return [tensor(draw)], {"axis": draw(AXES), **flags}


def convolution(draw: Draw) -> Case:
    groups, per_group, features = draw(STEPS), draw(st.integers(1, 2)), draw(st.integers(1, 2))
    kernel, spatial = pair(draw, STEPS), pair(draw, st.integers(1, 6))
    elements = draw(st.sampled_from([SMALL, ELEMENTS]))
    inputs = [
        tensor(draw, (draw(st.integers(1, 2)), groups * per_group, *spatial), elements),
        tensor(draw, (groups * features, per_group, *kernel), elements),
    ]
    if use_bias := draw(st.booleans()):
        inputs.append(tensor(draw, (groups * features,)))
    return inputs, {
        "channels": groups * features,
        "kernel_size": kernel,
        "strides": pair(draw, STEPS),
        "padding": pair(draw, PADS),
        "dilation": pair(draw, STEPS),
        "groups": groups,
        "use_bias": use_bias,
    }


def dense(draw: Draw) -> Case:
    rows, depth, units = (draw(st.integers(1, 5)) for _ in range(3))
    elements = draw(st.sampled_from([SMALL, ELEMENTS]))
    inputs = [tensor(draw, (rows, depth), elements), tensor(draw, (units, depth), elements)]
    if use_bias := draw(st.booleans()):
        inputs.append(tensor(draw, (units,)))
    return inputs, {"units": units, "use_bias": use_bias}


def pooling(draw: Draw) -> Case:
    x = tensor(draw, (1, draw(st.integers(1, 2)), *pair(draw, st.integers(1, 7))))
    return [x], {
        "pool_size": pair(draw, STEPS),
        "strides": pair(draw, STEPS),
        "padding": draw(st.lists(PADS, min_size=1, max_size=2)),
        "ceil_mode": draw(st.booleans()),
    }


def upsampling(draw: Draw) -> Case:
    return [tensor(draw, (1, 2, *pair(draw, STEPS)))], {"scale": draw(STEPS)}


def concatenate(draw: Draw) -> Case:
    shape = list(draw(SHAPES))
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    inputs = []
    for _ in range(draw(STEPS)):
        shape[axis] = draw(STEPS)
        inputs.append(tensor(draw, tuple(shape)))
    return inputs, {"axis": axis}


def reshape(draw: Draw) -> Case:
    target = st.lists(st.sampled_from([0, -1, -2, -3, -4, 1, 2, 3, 4]), min_size=1, max_size=5)
    return [tensor(draw)], {"shape": draw(target)}


def strided_slice(draw: Draw) -> Case:
    x = tensor(draw)
    begin, end, stride = [], [], []
    for length in x.shape[: draw(st.integers(0, x.ndim))]:
        step = draw(st.sampled_from([-2, -1, 1, 2]))
        first = draw(st.integers(0, length - 1))
        behind = first + step * draw(STEPS)
        begin.append(draw(st.sampled_from([first, first - length])))
        end.append(behind if behind >= 0 else behind - length)  # below -length: before the first
        stride.append(step)
    return [x], {"begin": begin, "end": end, "stride": stride}


def slice_like(draw: Draw) -> Case:
    x = tensor(draw)
    like = tuple(draw(st.integers(1, length)) for length in x.shape)
    axes = draw(st.lists(st.integers(-x.ndim, x.ndim - 1), max_size=3))
    return [x, tensor(draw, like)], {"axis": axes}


def squeeze(draw: Draw) -> Case:
    shape = draw(st.lists(st.integers(1, 2), min_size=1, max_size=4).map(tuple))
    ones = [axis for axis, length in enumerate(shape) if length == 1]
    chosen = draw(st.lists(st.sampled_from(ones), unique=True)) if ones else []
    rank = len(shape)
    return [tensor(draw, shape)], {"axis": [d - rank * draw(st.integers(0, 1)) for d in chosen]}


def transpose(draw: Draw) -> Case:
    x = tensor(draw)
    axes = draw(st.permutations(range(x.ndim)) | st.just([]))
    return [x], {"axes": [d - x.ndim * draw(st.integers(0, 1)) for d in axes]}


def take(draw: Draw) -> Case:
    places = tensor(draw, draw(hnp.array_shapes(max_dims=2, max_side=3)))
    return [tensor(draw), places], {"axis": draw(st.none() | st.integers(-4, 3))}


def lut(draw: Draw) -> Case:
    table = tensor(draw, (draw(st.integers(1, 9)),))
    return [tensor(draw), table], {"in_dim": table.size}


def valid_counts(draw: Draw) -> Case:
    boxes = tensor(draw, (*pair(draw, STEPS), draw(st.integers(2, 7))), st.integers(-3, 3))
    return [boxes], {"score_threshold": draw(st.integers(-3, 3))}


def suppression(draw: Draw) -> Case:
    batches, rows = draw(STEPS), draw(st.integers(1, 6))
    near, far = st.integers(-2, 6), st.integers(-(2**29), 2**29)
    elements = draw(st.sampled_from([near, far, ELEMENTS]))
    boxes = tensor(draw, (batches, rows, 6), elements)
    boxes[..., :2] = tensor(draw, (batches, rows, 2), st.integers(-1, 2))
    if draw(st.booleans()):  # sides that run forwards
        boxes[..., 2:4], boxes[..., 4:] = (
            pick(boxes[..., 2:4], boxes[..., 4:]) for pick in (np.minimum, np.maximum)
        )
    limits = st.integers(-1, 4)
    return [boxes, tensor(draw, (batches,), st.integers(-2, 8))], {
        "iou_threshold": draw(st.integers(1, 110)),
        "max_output_size": draw(limits),
        "top_k": draw(limits),
        "force_suppress": draw(st.booleans()),
    }


BITS = st.integers(1, 32)
AXIS = st.integers(-4, 3)
_DRAWN: dict[str, Callable[[Draw], Case]] = {
    **dict.fromkeys(
        (f"broadcast_{name}" for name in ("add", "sub", "mul", "div", "max", "greater")), broadcast
    ),
    **dict.fromkeys(("elemwise_add", "elemwise_sub"), alike),
    **dict.fromkeys(("relu", "abs", "negative", "precision", "flatten"), unary()),
    **dict.fromkeys(("sum", "max"), reduction),
    "clip": unary(a_min=st.integers(-300, 0), a_max=st.integers(1, 300)),
    "cvm_clip": unary(precision=BITS),
    "right_shift": unary(precision=BITS, shift_bit=BITS),
    "left_shift": unary(precision=BITS, shift_bit=BITS),
    "where": where,
    "conv2d": convolution,
    "dense": dense,
    "max_pool2d": pooling,
    "upsampling": upsampling,
    "repeat": unary(repeats=STEPS, axis=AXIS),
    "tile": unary(reps=st.lists(STEPS, min_size=1, max_size=4)),
    "concatenate": concatenate,
    "expand_dims": unary(axis=st.integers(-5, 4), num_newaxis=st.integers(1, 2)),
    "reshape": reshape,
    "squeeze": squeeze,
    "transpose": transpose,
    "strided_slice": strided_slice,
    "slice_like": slice_like,
    "take": take,
    "lut": lut,
    "get_valid_counts": valid_counts,
    "non_max_suppression": suppression,
}


def _valid(op: str, drawn: Callable[[Draw], Case]) -> Strategy:
    """Return the strategy that leaves out what is refused as a node."""
    n_outputs = len(find_operator(op).outputs.split())

    def strategy(draw: Draw) -> NodeCase:
        inputs, attributes = drawn(draw)
        try:
            single_node_graph(op, inputs, attributes, n_outputs)
        except pl.GraphError:
            reject()
        return NodeCase(inputs, attributes, n_outputs)

    return strategy


STRATEGIES: dict[str, Strategy] = {
    op: _valid(op, drawn) for op, drawn in ((f"cvm.{name}", d) for name, d in _DRAWN.items())
}
