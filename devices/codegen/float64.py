"""Nodes that take arithmetic in double precision, which some devices lack."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ...graph.infer import infer_node
from ...graph.ir import Node
from ...graph.operator import Call
from ...graph.operators.randomness import NORMAL
from .arithmetic import SHORT_POWERS


def computes_float64(node: Node, call: Call) -> bool:
    """Return True where a node's code has float64, in its tensors or on the way."""
    specs = (*call.inputs, *infer_node(node, call))
    if any(spec is not None and spec.dtype == np.float64 for spec in specs):
        return True
    on_the_way = _ON_THE_WAY.get(node.op)
    return on_the_way is not None and on_the_way(call)


def _is_integer(call: Call) -> bool:
    return call.spec(0).dtype.kind != "f"


def _is_float(call: Call) -> bool:
    return not _is_integer(call)


def _has_wide_sums(call: Call) -> bool:
    has_sums = call.attributes["mode"] != "nearest"
    return has_sums and _is_integer(call) and call.spec(0).dtype.itemsize > 2


def _is_wide_power(call: Call) -> bool:
    base, exponent = (call.spec(index).dtype for index in range(2))
    if base.kind != "f":
        return exponent.kind == "f"
    value = call.value(1)
    if value is not None and value.size == 1 and value.item() in SHORT_POWERS:
        return False
    return base != np.float32 or np.result_type(exponent, np.float32) != np.float32


def _has_wide_quotients(call: Call) -> bool:
    return call.spec(1).dtype.kind != "f" or call.attributes["precision"] == "float64"


def _is_normal(call: Call) -> bool:
    return bool(call.attributes["distribution"] == NORMAL)


_ON_THE_WAY: Mapping[str, Callable[[Call], bool]] = {
    "Philox": _is_normal,
    "Pow": _is_wide_power,
    "QuantizeLinear": _has_wide_quotients,
    "Range": _is_float,
    "ReduceL2": _is_integer,
    "Resize": _has_wide_sums,
    "Shrink": _is_integer,
}
