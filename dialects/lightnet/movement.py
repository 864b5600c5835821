"""LightNet's operators that move: shapes, slices, samples, sorting, printing.

Sources: LightNet's operator descriptions (protos/op) and TensorLight's reference kernels, 2020-11.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from ...graph.core.parameters import to_float32
from .entries import fail
from .statement import Statement, register_rule

MODES: Mapping[str, str] = {"TL_NEAREST": "nearest", "TL_LINEAR": "linear"}
_DIRECTIONS = {"TL_SORT_DIR_ASCENDING": False, "TL_SORT_DIR_DESCENDING": True}


@register_rule("concat", "src1 src2", "axis")
def concat(op: Statement) -> None:
    op.last("Concat", op.input("src1"), op.input("src2"), axis=op.axis(op.input("src1")))


@register_rule("slice", "src", "axis start len")
def slice_(op: Statement) -> None:
    src, axis = op.input("src"), op.axis(op.input("src"))
    start, length = op.integer("start", 0), op.integer("len", 1)
    if start + length > op.spec(src).static_shape[axis]:
        fail(f"{start} + {length} is beyond the end of {op.spec(src)}", op.at)
    op.last("Slice", src, np.array([start]), np.array([start + length]), np.array([axis]))


@register_rule("reshape", "src", "dims")
def reshape(op: Statement) -> None:
    src, dims = op.input("src"), op.integers("dims", least=1)
    op.last("Reshape", src, np.array(dims))
    op.reading.share(src, op.output())


@register_rule("transpose", "src", "axes")
def transpose(op: Statement) -> None:
    op.last("Transpose", op.input("src"), perm=op.integers("axes"))


@register_rule("resize", "src", "mode dims")
def resize(op: Statement) -> None:
    """Write `op` as a Resize that samples at the centres of the new cells; halves round up."""
    src = op.input("src")
    _resize(op, src, op.integers("dims", op.spec(src).rank, 1))


@register_rule("upsample", "src", "mode scales")
def upsample(op: Statement) -> None:
    """Write `op` as a resize to the floor of scale times length, both as 32-bit floats."""
    src = op.input("src")
    shape = op.spec(src).static_shape
    scales = np.array([to_float32(one) for one in op.numbers("scales", len(shape))], np.float32)
    lengths = [math.floor(to_float32(a * float(b))) for a, b in zip(shape, scales, strict=True)]
    if min(lengths, default=1) < 1:
        fail("parameter 'scales' must leave something along each axis", op.at)
    _resize(op, src, tuple(lengths))


@register_rule("sort1d", "src_key", "dir", outputs="dst_key")
def sort1d(op: Statement) -> None:
    """Write `op`, a sort that overwrites its source."""
    keys, _ = _sort(op)
    op.last("Identity", keys, output="dst_key")
    op.reading.overwrite(op.input("src_key"), op.entry)


@register_rule("sort1d_by_key", "src_key src_val", "dir", outputs="dst_key dst_val")
def sort1d_by_key(op: Statement) -> None:
    """Write `op`, a sort of keys, and of values by the keys, that overwrites both sources."""
    values = op.input("src_val")
    if op.spec(values, 1).shape != op.spec(op.input("src_key")).shape:
        fail("keys and values are not as many", op.at)
    keys, places = _sort(op)
    op.last("Identity", keys, output="dst_key")
    op.last("Gather", values, places, output="dst_val")
    for argument in ("src_key", "src_val"):
        op.reading.overwrite(op.entry.inputs[argument], op.entry)


@register_rule("pick1d", "src src_index", "len stride")
def pick1d(op: Statement) -> None:
    """Write `op`, dst[i] = src[index[i]] for groups of stride elements."""
    src, index, stride = op.input("src"), op.input("src_index"), op.integer("stride", 1)
    length, size = op.integer("len", 1), op.spec(src, 1).size
    if length > op.spec(index, 1).size or stride > size:
        fail("'len' or 'stride' is more than there is", op.at)
    if size % stride:
        src = op.write("Slice", src, np.array([0]), np.array([size - size % stride]))
    chosen = op.write("Slice", index, np.array([0]), np.array([length]))
    groups = op.write("Gather", op.write("Reshape", src, np.array([-1, stride])), chosen)
    op.last("Reshape", groups, np.array([length * stride]))


@register_rule("forward", "src")
def forward(op: Statement) -> None:
    src = op.input("src")
    op.last("Identity", src)
    op.reading.share(src, op.output())


@register_rule("gather", "src*")
@register_rule("gather_nocopy", "src*")
def gather(op: Statement) -> None:
    """Write `op`, which stacks its sources along a new first axis."""
    sources = op.inputs("src")
    if len({op.spec(one) for one in sources}) != 1:
        fail("the sources are none, or differ", op.at)
    layers = [op.write("Unsqueeze", one, np.array([0])) for one in sources]
    op.last("Concat", *layers, axis=0)
    if "nocopy" in op.entry.optype:
        for one in sources:
            op.reading.share(one, op.output())


@register_rule("scatter", "src", outputs="dst*")
@register_rule("scatter_nocopy", "src", outputs="dst*")
def scatter(op: Statement) -> None:
    """Write `op`, which takes its source apart along the first axis."""
    src, outputs = op.input("src"), list(op.entry.outputs)
    shape = op.spec(src).static_shape
    if len(shape) < 2 or shape[0] != len(outputs):
        fail(f"{op.spec(src)} is not taken apart into {len(outputs)}", op.at)
    layers = op.several("Split", len(outputs), src, num_outputs=len(outputs))
    for argument, layer in zip(outputs, layers, strict=True):
        op.last("Squeeze", layer, np.array([0]), output=argument)
        if "nocopy" in op.entry.optype:
            op.reading.share(src, op.output(argument))


@register_rule("print", "src", "msg", outputs="")
@register_rule("fprint", "src", "msg file", outputs="")
def print_(op: Statement) -> None:
    """Make the tensor that `op` prints an output."""
    op.reading.printed.append(op.input("src"))


def _resize(op: Statement, src: str, lengths: tuple[int, ...]) -> None:
    op.last(
        "Resize",
        *(src, "", "", np.array(lengths)),
        mode=op.choice("mode", MODES),
        nearest_mode="round_prefer_ceil",
    )


def _sort(op: Statement) -> tuple[str, str]:
    """Return the sorted keys of `op`, and the place of each before; the sort is stable."""
    keys = op.input("src_key")
    count = np.array([op.spec(keys, 1).size])
    largest = op.choice("dir", _DIRECTIONS)
    sorted_, places = op.several("TopK", 2, keys, count, largest=largest)
    return sorted_, places
