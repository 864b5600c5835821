"""Replace operators by cheaper ones that compute the same bits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..core.ir import Node
from ..values.dims import normalize_axis
from ..values.tensor import Array
from .matching import Constant, Match, Pattern, Rule, apply
from .pipeline import make_pass
from .rewriting import Rewriter


@make_pass("Div", "Gather", "Pow", "Sum")
def reduce_strength(rewriter: Rewriter) -> None:
    """Replace Sum(a, b) by a + b, x / 2ⁿ by x · 2⁻ⁿ, x² by x · x, Gather of even steps by Slice.

    x is a float of 32 or 64 bits, and the exponent 2 a single number.
    """
    apply(rewriter, _RULES)


def _is_power_of_two(value: Array) -> bool:
    if value.dtype not in (np.float32, np.float64) or not value.size:
        return False
    mantissa, exponent = np.frexp(value)
    return bool(np.all((np.abs(mantissa) == 0.5) & (np.abs(exponent) < 100)))


def _is_two(value: Array) -> bool:
    return bool(value.size == 1 and value.dtype.kind in "iuf" and value.item() == 2)


def _multiply(rewriter: Rewriter, match: Match) -> Sequence[Node]:
    last, name = match.last, match.tensors["divisor"]
    factor = rewriter.constant(1 / rewriter.constants[name], f"{last.name}.factor")
    return [rewriter.make("Mul", (match.tensors["x"], factor), last.outputs, name=last.name)]


def _replace_square(rewriter: Rewriter, match: Match) -> Sequence[Node] | None:
    last, x = match.last, match.tensors["x"]
    if rewriter.tensors[x] != rewriter.tensors[last.outputs[0]]:
        return None  # the exponent has more axes
    if rewriter.tensors[x].dtype not in (np.float32, np.float64):
        return None
    return [rewriter.make("Mul", (x, x), last.outputs, name=last.name)]


def _add(rewriter: Rewriter, match: Match) -> Sequence[Node] | None:
    last = match.last
    if rewriter.tensors[last.outputs[0]].dtype not in (np.float32, np.float64):
        return None
    return [rewriter.make("Add", last.inputs, last.outputs, name=last.name)]


def _are_even_steps(value: Array) -> bool:
    if value.ndim != 1 or value.size < 2 or value.dtype.kind not in "iu":
        return False
    steps = np.diff(value.astype(np.int64))
    return bool(steps[0] and np.all(steps == steps[0]))


def _slice(rewriter: Rewriter, match: Match) -> Sequence[Node] | None:
    """Return a Slice for the Gather in `match`; beyond bounds Slice clips and Gather raises."""
    last, x = match.last, match.tensors["x"]
    indices = rewriter.constants[match.tensors["indices"]].astype(np.int64)
    shape = rewriter.tensors[x].shape
    if shape is None:
        return None
    axis = normalize_axis(last.attributes["axis"], len(shape))
    length = shape[axis]
    if not isinstance(length, int) or indices.min() < 0 or indices.max() >= length:
        return None
    first, step = int(indices[0]), int(indices[1] - indices[0])
    end = int(indices[-1]) + (1 if step > 0 else -1)
    bounds = first, end if end >= 0 else -length - 1, axis, step
    operands = [
        rewriter.constant(np.array([number], np.int64), f"{last.name}.{what}")
        for what, number in zip(("start", "end", "axis", "step"), bounds, strict=True)
    ]
    return [rewriter.make("Slice", (x, *operands), last.outputs, name=last.name)]


_RULES = (
    Rule("x / 2ⁿ", Pattern("Div", ("x", Constant("divisor", _is_power_of_two))), _multiply),
    Rule("x²", Pattern("Pow", ("x", Constant("exponent", _is_two))), _replace_square),
    Rule("a + b", Pattern("Sum", ("a", "b")), _add),
    Rule("x[a:b:c]", Pattern("Gather", ("x", Constant("indices", _are_even_steps))), _slice),
)
