"""Softmax and its kin: each line of values along an axis becomes a distribution, or picks one."""

from __future__ import annotations

from ..core.attribute import Attribute, Kind
from ..core.operator import define
from ..core.traits import FLAT, IN_POWERS, IN_STEPS, NEVER_NEGATIVE, PRIMITIVE
from .inputs import FLOATS
from .rules import FIRST, per_element, same_along_axis

_AXIS = {"axis": Attribute(Kind.INT, -1)}
_PASSES = per_element(5)
"""Maximum, difference, exponential, sum and quotient."""

define(
    "Softmax",
    inputs="x",
    attributes=_AXIS,
    cost=_PASSES,
    inplace=FIRST,
    traits=NEVER_NEGATIVE,
    float16=IN_POWERS,
)(same_along_axis(FLOATS))
define("LogSoftmax", inputs="x", attributes=_AXIS, cost=_PASSES, float16=IN_POWERS)(
    same_along_axis(FLOATS)
)
define(
    "Hardmax",
    inputs="x",
    attributes=_AXIS,
    traits=NEVER_NEGATIVE | FLAT,
    float16=IN_STEPS,
    lacks=PRIMITIVE,
)(same_along_axis(FLOATS))
