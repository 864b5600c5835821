"""Generators of borders and triangles: what lies outside of x is made up."""

from __future__ import annotations

from ...graph.operator import Call, Specs
from ...graph.operators.inputs import integers
from ...graph.operators.movement import pads_by_axis
from .cells import cells, moved, typed
from .indexing import contiguous, offset
from .kernel import Code
from .registry import generates


@generates("Pad")
def pad(call: Call, outputs: Specs) -> Code:
    """Write x with a border, or without one where pads are negative."""
    x, y = call.spec(0), outputs[0]
    pads = pads_by_axis(len(y.static_shape), integers(call, 1, "pads") or (), integers(call, 3, ""))
    parameters = [moved("x", x, "input")]
    if call.has(2):
        parameters.append(moved("value", x, "input", 2))
    constant = call.attributes["mode"] == "constant"
    statements, inside = [], []
    for axis, (length, both) in enumerate(zip(x.static_shape, pads, strict=True)):
        statements += _source(call.attributes["mode"], axis, length, *both)
        if constant and (both[0] > 0 or both[1] > 0):
            inside.append(f"s{axis} >= 0 && s{axis} < {length}")
    found = f"x[{offset(contiguous(x.static_shape), 's')}]"
    if inside:
        found = f"{' && '.join(inside)} ? {found} : {'value[0]' if call.has(2) else '0'}"
    statements.append(f"y[i] = {found};")
    parameters.append(moved("y", y, "output"))
    return Code((cells("pad", y.static_shape, parameters, statements, [x.size]),))


def _source(mode: str, axis: int, length: int, before: int, after: int) -> list[str]:
    """Return the statements that declare where along an axis of x an element comes from.

    What is repeated is the part that negative pads leave.
    """
    name, cut = f"s{axis}", max(-before, 0)
    count = length - cut + min(after, 0)
    shifted = f"k{axis} - ({before})"
    if mode == "constant" or (before <= 0 and after <= 0):
        return [f"index {name} = {shifted};"]
    position = f"p{axis}"
    statements = [f"const index {position} = {shifted} - {cut};"]
    if mode == "edge" or count == 1:
        value = f"{position} < 0 ? 0 : {position} < {count} ? {position} : {count - 1}"
    elif mode == "wrap":
        value = f"({position} % {count} + {count}) % {count}"
    else:
        period = 2 * (count - 1)
        statements.append(f"const index m{axis} = ({position} % {period} + {period}) % {period};")
        value = f"m{axis} < {count} ? m{axis} : {period} - m{axis}"
    return [*statements, f"index {name} = {cut} + ({value});"]


@generates("Trilu")
def triangle(call: Call, outputs: Specs) -> Code:
    """Write x above or below the k-th diagonal, 0 elsewhere."""
    x = call.spec(0)
    rank, given = len(x.static_shape), call.value(1)
    parameters = [moved("x", x, "input")]
    k = "0"
    if given is not None:  # as a buffer it could not be beyond an index
        k = str(min(max(int(given.reshape(-1)[0]), -(2**31)), 2**31 - 1))
    elif call.has(1):
        parameters.append(typed("k", call.spec(1), "input", 1))
        k = "k[0]"
    kept = ">=" if call.attributes["upper"] else "<="
    distance = f"(i64)k{rank - 1} - k{rank - 2}"
    statement = f"y[i] = {distance} {kept} {k} ? x[i] : 0;"
    parameters.append(moved("y", x, "output"))
    return Code((cells("trilu", x.static_shape, parameters, [statement]),))
