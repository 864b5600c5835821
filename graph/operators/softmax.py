"""Softmax and its kin: each line of values along one axis becomes a distribution, or picks one."""

from __future__ import annotations

from collections.abc import Sequence

from ..attribute import Attribute, Kind
from ..dims import normalise_axis
from ..dtypes import FLOATS, check_dtype
from ..operator import Call, Specs, define
from ..tensor import TensorSpec

_AXIS = {"axis": Attribute(Kind.INT, -1)}


def _along_axis(call: Call) -> Sequence[TensorSpec]:
    """Infer: like the input, which must be floating and have the axis."""
    spec = call.spec(0)
    check_dtype(spec, FLOATS)
    if spec.rank is not None:
        normalise_axis(call.attributes["axis"], spec.rank)
    return (spec,)


def _passes(call: Call, outputs: Specs) -> int:
    """Cost: maximum, difference, exponential, sum and quotient."""
    return 5 * outputs[0].size


define("Softmax", inputs="x", attributes=_AXIS, cost=_passes, inplace=((0, 0),))(_along_axis)
define("LogSoftmax", inputs="x", attributes=_AXIS, cost=_passes)(_along_axis)
define("Hardmax", inputs="x", attributes=_AXIS)(_along_axis)
