"""TopK of few: one fold for each of the elements that are chosen."""

from __future__ import annotations

import math

from ...graph.operator import Call, Specs
from .folds import comes_before, next_place_of
from .kernel import Code
from .lines import Lines
from .reduction import input_of, output_of
from .registry import generates
from .sweeps import At, LineFold, line_code
from .types import load, store

FEW = 16


def _unless(call: Call) -> str | None:
    k = call.value(1)
    if k is None:
        return "k is computed"
    return f"k is over {FEW}" if int(k.reshape(-1)[0]) > FEW else None


@generates("TopK", unless=_unless)
def top_k(call: Call, outputs: Specs) -> Code:
    """The k first of a stable sort along an axis; NaN counts as largest."""
    x, values, shape = call.spec(0), outputs[0], call.spec(0).static_shape
    axis, largest = call.attributes["axis"] % len(shape), call.attributes["largest"]
    k, inner = values.static_shape[axis], math.prod(shape[axis + 1 :])
    lines = Lines(shape, (axis,))
    name = "max" if largest else "min"
    function, before = comes_before(x.dtype, name, nan_first=largest)
    folds = [
        LineFold(f"best{rank}", next_place_of(lines.index, before), _behind(rank, before))
        for rank in range(k)
    ]
    once = [
        f"const {lines.index} at = line / {max(inner, 1)} * {k * inner} + line % {max(inner, 1)};"
    ]
    for rank in range(k):
        place = f"at + {rank * inner}"
        once.append(store(x.dtype, "y", place, load(x.dtype, "x", f"best{rank}")))
        once.append(f"places[{place}] = (best{rank} - base) / {max(inner, 1)};")
    parameters = [input_of(x), output_of(values), output_of(outputs[1], "places", 1)]
    if not k:
        return Code(())
    return line_code("top_k", lines, parameters, folds, once=once, functions=(function,))


def _behind(rank: int, before: str) -> At:
    """Return the expression: an element's index if it comes behind those that were chosen."""
    if rank == 0:
        return lambda at: at
    return lambda at: f"({before}(x, best{rank - 1}, {at}) ? {at} : -1)"
