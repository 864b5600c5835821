"""TopK for small k: one fold for each of the chosen elements."""

from __future__ import annotations

import math

from ...graph.core.operator import Call, Specs
from .folds import define_before, make_next_place
from .reduction import declare_input, declare_output
from .registry import Code, generates
from .sweeps import At, LineFold, Lines, fold_lines
from .types import load, store

FEW = 16


def _refuse(call: Call) -> str | None:
    k = call.value(1)
    if k is None:
        return "k is computed"
    return f"k is over {FEW}" if int(k.reshape(-1)[0]) > FEW else None


@generates("TopK", unless=_refuse)
def top_k(call: Call, outputs: Specs) -> Code:
    x, values, shape = call.spec(0), outputs[0], call.spec(0).static_shape
    axis, largest = call.attributes["axis"] % len(shape), call.attributes["largest"]
    k, inner = values.static_shape[axis], math.prod(shape[axis + 1 :])
    lines = Lines(shape, (axis,))
    name = "max" if largest else "min"
    function, before = define_before(x.dtype, name, nan_first=largest)
    folds = [
        LineFold(f"best{rank}", make_next_place(lines.index, before), _filter_chosen(rank, before))
        for rank in range(k)
    ]
    once = [
        f"const {lines.index} at = line / {max(inner, 1)} * {k * inner} + line % {max(inner, 1)};"
    ]
    for rank in range(k):
        place = f"at + {rank * inner}"
        once.append(store(x.dtype, "y", place, load(x.dtype, "x", f"best{rank}")))
        once.append(f"places[{place}] = (best{rank} - base) / {max(inner, 1)};")
    parameters = [declare_input(x), declare_output(values), declare_output(outputs[1], "places", 1)]
    if not k:
        return Code(())
    return fold_lines("top_k", lines, parameters, folds, once=once, functions=(function,))


def _filter_chosen(rank: int, before: str) -> At:
    """Return C for the index of an element that comes after the best `rank` ones, else -1.

    `before` is the name of a C function that compares two elements.
    """
    if rank == 0:
        return lambda at: at
    return lambda at: f"({before}(x, best{rank - 1}, {at}) ? {at} : -1)"
