"""Softmax and its kin: each line of values along an axis becomes a distribution, or picks one."""

from __future__ import annotations

from ..attribute import Attribute, Kind
from ..operator import define
from .inputs import FLOATS
from .rules import FIRST, per_element, same_along_axis

_AXIS = {"axis": Attribute(Kind.INT, -1)}
_PASSES = per_element(5)
"""Maximum, difference, exponential, sum and quotient."""

define("Softmax", inputs="x", attributes=_AXIS, cost=_PASSES, inplace=FIRST)(
    same_along_axis(FLOATS)
)
define("LogSoftmax", inputs="x", attributes=_AXIS, cost=_PASSES)(same_along_axis(FLOATS))
define("Hardmax", inputs="x", attributes=_AXIS)(same_along_axis(FLOATS))
