"""Nodes that reduce over axes, scan along one, or make a distribution of each line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from single_node import AnyArray

from .drawing import (
    FINITE,
    FLOATS,
    NUMBERS,
    REALS,
    WITH_SPECIAL,
    Draw,
    NodeCase,
    Palette,
    Strategy,
    an_axis,
    choose,
    few,
    flag,
    i64,
    index_dtype,
    masked,
    ordinary,
    shape,
    size_of,
    some_axes,
    tensor,
)


def summed(x: AnyArray, axes: AnyArray | None, attributes: dict[str, Any], power: int = 1) -> Any:
    """Return the sums of absolute values that a reduction adds up."""
    listed = tuple(axes.tolist()) if axes is not None and axes.size else None
    sizes = np.where(np.isfinite(x), np.abs(x.astype(np.float64)) ** power, 0)
    if listed is None and attributes["noop_with_empty_axes"]:
        return sizes
    with np.errstate(all="ignore"):
        return sizes.sum(listed, keepdims=attributes["keepdims"])


def reduction(
    dtypes: Sequence[str],
    palettes: Sequence[Palette] = FINITE,
    *,
    ulps: float = 0,
    power: int = 0,
    empty: bool = True,
    wraps: bool = True,
) -> Strategy:
    """Return the strategy of a reduction that adds up powers, or none.

    Unless it `wraps`, sums of integers of 64 bits stay in the range.
    """

    def strategy(draw: Draw) -> NodeCase:
        dtype = choose(draw, dtypes)
        drawn_from = palettes if wraps or not dtype.endswith("int64") else SUMS
        x = tensor(draw, dtype, shape(draw, least=0 if empty else 1), drawn_from)
        attributes = {name: flag(draw) for name in ("keepdims", "noop_with_empty_axes")}
        axes = i64(some_axes(draw, x.ndim)) if flag(draw) else None
        terms = summed(x, axes, attributes, power) if power else 0.0
        return NodeCase([x, axes], attributes, constant={1}, ulps=ulps, terms=terms)

    return strategy


def arg_extremum(draw: Draw) -> NodeCase:
    x = tensor(draw, choose(draw, REALS), shape(draw, least=1), (*FINITE, masked))
    axis = an_axis(draw, max(x.ndim, 1))
    return NodeCase([x], {"axis": axis, "keepdims": flag(draw), "select_last_index": flag(draw)})


def scan(product: bool) -> Strategy:
    def strategy(draw: Draw) -> NodeCase:
        palettes = (few,) if product else WITH_SPECIAL
        x = tensor(draw, choose(draw, NUMBERS), shape(draw, 1), palettes)
        axis = np.array(an_axis(draw, x.ndim), index_dtype(draw))
        with np.errstate(all="ignore"):
            sums = np.abs(x.astype(np.float64)).sum(int(axis), keepdims=True)
            terms = 0.0 if product else np.broadcast_to(sums, x.shape)
        return NodeCase(
            [x, axis.reshape(1) if flag(draw) else axis],
            {"exclusive": flag(draw), "reverse": flag(draw)},
            constant={1} if flag(draw) else (),
            ulps=4,
            terms=terms,
        )

    return strategy


def along_axis(ulps: float, palettes: Sequence[Palette] = (*FINITE, masked)) -> Strategy:
    def strategy(draw: Draw) -> NodeCase:
        x = tensor(draw, choose(draw, FLOATS), shape(draw, 1), palettes)
        terms = np.abs(x.astype(np.float64)).max(initial=0, where=np.isfinite(x))
        return NodeCase([x], {"axis": an_axis(draw, x.ndim)}, ulps=ulps, terms=terms)

    return strategy


def softmax(draw: Draw) -> NodeCase:
    """What is rounded before exp is taken makes the more of a difference the larger it is."""
    case = along_axis(16, (*WITH_SPECIAL, masked))(draw)
    return NodeCase(case.inputs, case.attributes, ulps=8 + 2 * size_of(*case.inputs))


SUMS = (few, ordinary)

STRATEGIES: dict[str, Strategy] = {
    "ReduceSum": reduction(NUMBERS, WITH_SPECIAL, ulps=4, power=1),
    "ReduceL1": reduction(NUMBERS, ulps=4, power=1),
    "ReduceMean": reduction(NUMBERS, ulps=4, power=1, empty=False, wraps=False),
    "ReduceSumSquare": reduction(NUMBERS, SUMS, ulps=8, power=2),
    "ReduceL2": reduction(NUMBERS, SUMS, ulps=8),
    "ReduceProd": reduction(NUMBERS, (few,), ulps=64),
    "ReduceMax": reduction(REALS, WITH_SPECIAL),
    "ReduceMin": reduction(REALS, WITH_SPECIAL),
    "ReduceLogSum": reduction(FLOATS, SUMS, ulps=32, power=1),
    "ReduceLogSumExp": reduction(FLOATS, (*SUMS, masked), ulps=16, power=1),
    **dict.fromkeys(("ArgMax", "ArgMin"), arg_extremum),
    "CumSum": scan(product=False),
    "CumProd": scan(product=True),
    "Softmax": softmax,
    "LogSoftmax": along_axis(16, (*WITH_SPECIAL, masked)),
    "Hardmax": along_axis(0),
}
