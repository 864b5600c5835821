"""Losses: the distance between computed and wanted values, as one number.

Each adds its nodes to `builder`, and returns a `reduction`, by default the mean.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np

from ..building.builder import GraphBuilder
from ..building.named_tensor import Tensor
from ..gradients.formula import Formula, Term
from ..gradients.movement import make_range
from ..values.dims import may_agree, normalize_axis
from ..values.dtypes import kind_of
from ..values.errors import GraphError, ShapeError
from .parameters import check_above

Reduction: TypeAlias = Literal["mean", "sum", "none"]
"""The result of the losses of all elements or samples: their mean, sum, or all of them."""


def mean_squared_error(
    builder: GraphBuilder, computed: str, wanted: str, reduction: Reduction = "mean"
) -> Tensor:
    """Add (`computed` - `wanted`)² to `builder` and return its mean, or another `reduction`.

    Raises
    ------
    ShapeError
        If the shapes differ: they are not broadcast.
    """
    error = _subtract(builder, "mean_squared_error", computed, wanted)
    return _reduce(error * error, reduction)


def mean_absolute_error(
    builder: GraphBuilder, computed: str, wanted: str, reduction: Reduction = "mean"
) -> Tensor:
    """Add abs(`computed` - `wanted`) to `builder`, and return its mean or another `reduction`.

    The gradient at 0 is 0.

    Raises
    ------
    ShapeError
        If the shapes differ: they are not broadcast.
    """
    error = _subtract(builder, "mean_absolute_error", computed, wanted)
    return _reduce(error.op("Abs"), reduction)


def huber(
    builder: GraphBuilder,
    computed: str,
    wanted: str,
    delta: float = 1.0,
    reduction: Reduction = "mean",
) -> Tensor:
    """Add the Huber loss to `builder`, and return its mean or another `reduction`.

    For an error e between `computed` and `wanted` it is e²/2 up to `delta`, and beyond
    delta · (abs(e) - delta/2). Source: Huber (1964).

    Raises
    ------
    ShapeError
        If the shapes differ: they are not broadcast.
    GraphError
        If `delta` is not above 0.
    """
    check_above("delta", delta)
    error = _subtract(builder, "huber", computed, wanted).op("Abs")
    # min(e, delta) · (e - min(e, delta) / 2): e²/2 up to delta, and a line from there on.
    near = error.op("Min", error.formula.constant(delta, error.dtype))
    return _reduce(near * (error - near * 0.5), reduction)


def binary_cross_entropy(
    builder: GraphBuilder, logits: str, wanted: str, reduction: Reduction = "mean"
) -> Tensor:
    """Add -`wanted` · log p - (1 - wanted) · log(1 - p) to `builder`, with p = Sigmoid(`logits`).

    Both logarithms are computed from the logits, so p never rounds to 0 or 1. Returns the mean, or
    another `reduction`.

    Raises
    ------
    ShapeError
        If the shapes differ: they are not broadcast.
    """
    x, t = _pair(builder, "binary_cross_entropy", logits, wanted)
    # -log σ(x) is softplus(-x), and -log(1 - σ(x)) is softplus(x).
    return _reduce(t * (-x).op("Softplus") + (1 - t) * x.op("Softplus"), reduction)


def softmax_cross_entropy(
    builder: GraphBuilder, logits: str, wanted: str, axis: int = -1, reduction: Reduction = "mean"
) -> Tensor:
    """Add -Σ `wanted` · log Softmax(`logits`) over classes along `axis` to `builder`.

    `wanted` are probabilities of the same shape. Returns the mean over all samples, or another
    `reduction`.

    Raises
    ------
    ShapeError
        If the shapes differ: they are not broadcast.
    """
    x, t = _pair(builder, "softmax_cross_entropy", logits, wanted)
    # Not Log of Softmax: that is -inf where the share rounds to 0.
    losses = (t * x.op("LogSoftmax", axis=axis)).sum([axis], keepdims=False)
    return _reduce(-losses, reduction)


def sparse_softmax_cross_entropy(
    builder: GraphBuilder,
    logits: str,
    labels: str,
    axis: int = -1,
    reduction: Reduction = "mean",
    *,
    ignore_index: int | None = None,
) -> Tensor:
    """Add -log Softmax(`logits`) at the wanted classes, along `axis`, to `builder`.

    Returns the mean, or another `reduction`. `labels` are integers from 0 on, of the shape of
    `logits` without that axis. A label that is not a class fails the item, even if only the
    gradient is computed; negative labels do not count from the end. Samples with the label
    `ignore_index`, any integer, have the loss 0 and no gradient, and the mean is over all others: 0
    if there are none.

    Raises
    ------
    ShapeError
        If the labels are not integers, or not one for each sample; or the axis does not exist.
    GraphError
        If the labels' dtype cannot hold `ignore_index`.
    """
    x, given = _make_terms(builder, "sparse_softmax_cross_entropy", logits, labels)
    _check_labels(x, given, axis)
    index, counted = given if given.dtype == np.int32 else given.cast("int64"), None
    if ignore_index is not None:
        counted = _mark_counted(index, ignore_index)
        # 0 in place of the label that is ignored, which may be no class.
        index = index.where(counted)
    logs = x.op("LogSoftmax", axis=axis)
    along = x.formula.constant([axis])
    chosen = logs.op(
        "GatherElements", _read_classes(x, index, axis).op("Unsqueeze", along), axis=axis
    )
    losses = -chosen.op("Squeeze", along)
    if counted is None:
        return _reduce(losses, reduction)
    if reduction == "mean":
        return _average(losses, counted).tensor
    return _reduce(losses.where(counted), reduction)


def accuracy(
    builder: GraphBuilder,
    scores: str,
    labels: str,
    axis: int = -1,
    *,
    ignore_index: int | None = None,
) -> Tensor:
    """Add to `builder` the share of samples with the highest of `scores` along `axis` at the label.

    `labels` are integers, of the shape of `scores` without that axis; of equal scores the first
    counts. Samples with the label `ignore_index` are left out; without other samples the accuracy
    is 0. Returns a float32 of shape ().

    Raises
    ------
    ShapeError
        If the labels are not integers, or not one for each sample; or the axis does not exist.
    """
    x, index = _make_terms(builder, "accuracy", scores, labels)
    _check_labels(x, index, axis)
    found = x.op("ArgMax", axis=axis, keepdims=False)
    right = found.equals(index.cast("int64")).cast("float32")
    if ignore_index is None:
        return right.op("ReduceMean", keepdims=False).tensor
    return _average(right, _mark_counted(index, ignore_index)).tensor


def _subtract(builder: GraphBuilder, name: str, computed: str, wanted: str) -> Term:
    x, t = _pair(builder, name, computed, wanted)
    return x - t


def _pair(builder: GraphBuilder, name: str, computed: str, wanted: str) -> tuple[Term, Term]:
    x, t = _make_terms(builder, name, computed, wanted)
    if x.dtype != t.dtype or not may_agree(x.spec.shape, t.spec.shape):
        raise ShapeError(
            f"{computed!r} is {x.spec}, but {wanted!r} is {t.spec}",
            at=f"{name} in {builder.name}",
            fix="pass tensors of one dtype and shape: insert a Cast, Reshape or Expand",
        )
    return x, t


def _make_terms(builder: GraphBuilder, name: str, computed: str, wanted: str) -> tuple[Term, Term]:
    formula = Formula(builder, f"{name}/")
    x = formula.term(computed)
    if kind_of(x.dtype) != "f":
        raise ShapeError(
            f"{computed!r} is {x.spec}", at=f"{name} in {builder.name}", fix="pass floats"
        )
    return x, formula.term(wanted)


def _check_labels(x: Term, labels: Term, axis: int) -> None:
    name = labels.formula.prefix.rstrip("/")
    shape = x.spec.shape
    if shape:
        axis = normalize_axis(axis, len(shape))
        shape = shape[:axis] + shape[axis + 1 :]
    if kind_of(labels.dtype) not in "iu" or not may_agree(shape, labels.spec.shape):
        raise ShapeError(
            f"{labels.name!r} is {labels.spec}, but {x.name!r} is {x.spec}",
            at=f"{name} in {labels.formula.builder.name}",
            fix="pass integers, one for each sample",
        )


def _read_classes(x: Term, labels: Term, axis: int) -> Term:
    """Return `labels`, which have to be classes along `axis` of `x`; others fail in the run.

    They are looked up. Negative indices would count from the end, so they are moved out of range.
    """
    rank = x.rank
    length = x.formula.shape_of(x, axis % rank, axis % rank + 1)
    scalar = length.op("Squeeze") if length.value is None else x.formula.constant(length.value[0])
    # A negative label less the number of classes is out of the list even when counted from the end.
    inside = labels.where((labels < 0).op("Not"), labels - scalar.cast(labels.dtype))
    x.formula.prefix += "class/"
    return make_range(length).op("Gather", inside)


def _average(values: Term, counted: Term) -> Term:
    # Counted in integers: floats of 16 bits end at 65504.
    count = counted.cast("int64").op("ReduceSum", keepdims=False)
    # At least 1: with nothing to count, the sum is 0 as well.
    count = count.op("Max", count.formula.constant(1)).cast(values.dtype)
    return values.where(counted).op("ReduceSum", keepdims=False) / count


def _mark_counted(labels: Term, ignored: int) -> Term:
    """Return which `labels` count: all but `ignored`, which their dtype has to hold."""
    bounds = np.iinfo(labels.dtype)
    if not isinstance(ignored, int | np.integer) or not bounds.min <= ignored <= bounds.max:
        raise GraphError(
            f"ignore_index is {ignored!r}, which is not a value of {labels.dtype.name}",
            fix="pass an integer that labels may be",
        )
    return labels.equals(labels.formula.constant(ignored, labels.dtype)).op("Not")


def _reduce(losses: Term, reduction: Reduction) -> Tensor:
    if reduction == "none":
        return losses.tensor
    if reduction not in ("mean", "sum"):
        raise GraphError(
            f"the reduction {reduction!r} is unknown", fix="pass 'mean', 'sum' or 'none'"
        )
    return losses.op(f"Reduce{reduction.capitalize()}", keepdims=False).tensor
