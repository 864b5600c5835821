"""Gradients of operators that move, repeat, join and reshape: elements return to their sources."""

from __future__ import annotations

from functools import partial

import numpy as np

from ..values.dims import normalize_axis
from .elementwise import Gradients
from .formula import Term
from .registry import Adjoint, gradient, sum_of_repeats


def _reshape_back(at: Adjoint) -> Gradients:
    yield 0, at.dy.reshaped(at.formula.shape_of(at.input(0)))


for _op in ("Flatten", "Reshape", "Squeeze", "Unsqueeze"):
    gradient(_op)(_reshape_back)


@gradient("After")
def after(at: Adjoint) -> Gradients:
    yield 0, at.dy


@gradient("Assign")
def assign(at: Adjoint) -> Gradients:
    # The variable's old value gets no gradient.
    yield 1, at.dy


@gradient("Transpose")
def transpose(at: Adjoint) -> Gradients:
    order = at["perm"] or range(at.input(0).rank)[::-1]
    yield 0, at.dy.transposed([int(place) for place in np.argsort(order)])


@gradient("Expand")
def expand(at: Adjoint) -> Gradients:
    yield 0, at.summed(at.dy, at.input(0))


@gradient("Tile")
def tile(at: Adjoint) -> Gradients:
    x = at.input(0)
    repeats = at.input(1).cast("int64")
    total = sum_of_repeats(at.dy, repeats, at.formula.shape_of(x), x.rank)
    yield 0, total.reshaped(at.formula.shape_of(x))


@gradient("Range")
def range_(at: Adjoint) -> Gradients:
    # y[i] = start + i·delta; the limit has no gradient.
    yield 0, at.summed(at.dy, at.input(0))
    if at.wants(2):
        places = make_range(at.formula.shape_of(at.output())).cast(at.dy.dtype)
        yield 2, at.summed(at.dy * places, at.input(2))


@gradient("Concat")
def concat(at: Adjoint) -> Gradients:
    parts = [at.input(index) for index in range(len(at.inputs))]
    if len(parts) == 1:
        yield 0, at.dy
        return
    axis = normalize_axis(at["axis"], parts[0].rank)
    lengths = at.formula.joined(*(at.formula.shape_of(x, axis, axis + 1) for x in parts))
    yield from enumerate(at.formula.split("Split", at.dy, lengths, outputs=len(parts), axis=axis))


@gradient("Split")
def split(at: Adjoint) -> Gradients:
    parts = [at.gradient(index) for index in range(len(at.node.outputs))]
    yield 0, at.dy if len(parts) == 1 else at.formula.op("Concat", *parts, axis=at["axis"])


@gradient("Pad")
def pad(at: Adjoint) -> Gradients:
    x, pads, axes = at.input(0), at.input(1), at.optional(3)
    if at["mode"] != "constant":
        yield 0, _sum_copies(at, x, pads, axes)
        return
    inner = at.dy.op("Pad", -pads, None, axes)
    if at.wants(0):
        yield 0, inner
    if at.wants(2):
        filled = at.optional(2)
        assert filled is not None
        rest = at.dy.op("ReduceSum", keepdims=False) - inner.op("ReduceSum", keepdims=False)
        yield 2, rest.reshaped(at.formula.shape_of(filled))


def _sum_copies(at: Adjoint, x: Term, pads: Term, axes: Term | None) -> Term:
    """Return the gradient of `x`, padded by `pads` along `axes`, or all, with copied cells."""
    value = None if axes is None else axes.value
    if axes is not None and value is None:
        raise at.refused_error("its axes are computed", "pass them as a constant")
    listed = range(x.rank) if value is None else [int(axis) % x.rank for axis in value.reshape(-1)]
    made, formula = at.dy, at.formula
    for place, axis in enumerate(listed):
        own = [place, place + len(listed)]
        both = pads.op("Gather", formula.constant(own))
        cells = make_range(formula.shape_of(x, axis, axis + 1)).op("Pad", both, mode=at["mode"])
        made = add_along(made, cells, formula.shape_of(x, axis, axis + 1), axis)
    return made


def make_range(length: Term) -> Term:
    formula = length.formula
    known = length.value
    if known is not None:
        scalar = formula.constant(known.item())
    else:
        scalar = length.op("Reshape", formula.constant([], "int64"))
    return formula.op("Range", formula.constant(0), scalar, formula.constant(1))


def add_along(updates: Term, places: Term, length: Term, axis: int) -> Term:
    """Return zeros of `length` along `axis`, with slices of `updates` added at `places`."""
    formula, rank = updates.formula, updates.rank
    order = [axis, *(i for i in range(rank) if i != axis)]
    moved = updates.transposed(order)
    shape = formula.joined(length, formula.shape_of(moved, 1))
    rows = places.op("Unsqueeze", formula.constant([-1]))
    zeros = formula.filled(shape, 0, updates.dtype)
    total = zeros.op("ScatterND", rows, moved, reduction="add")
    return total.transposed([int(place) for place in np.argsort(order)])


@gradient("Trilu")
def trilu(at: Adjoint) -> Gradients:
    yield 0, at.dy.op("Trilu", at.optional(1), upper=at["upper"])


def _invert_blocks(inverse: str, at: Adjoint) -> Gradients:
    yield 0, at.dy.op(inverse, blocksize=at["blocksize"], mode=at["mode"])


gradient("DepthToSpace")(partial(_invert_blocks, "SpaceToDepth"))
gradient("SpaceToDepth")(partial(_invert_blocks, "DepthToSpace"))


@gradient("ReverseSequence")
def reverse_sequence(at: Adjoint) -> Gradients:
    axes = {name: at[name] for name in ("batch_axis", "time_axis")}
    yield 0, at.dy.op("ReverseSequence", at.input(1), **axes)
