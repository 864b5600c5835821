"""Nodes with kernels for any array module that CuPy cannot run, with the reasons."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ...graph.core.infer import infer_node
from ...graph.core.ir import Node
from ...graph.core.operator import Call
from ...graph.values.dtypes import is_extension
from ..kernels.registry import ANY, find_kernel

MAX_ITEMSIZE = {"b": 1, "i": 8, "u": 8, "f": 8, "c": 16}
"""Bytes per element by kind of dtype: CUDA has no larger ones, and no other kinds, such as text."""


def _list_dtypes(node: Node, call: Call) -> Iterator[np.dtype[Any]]:
    specs = (*call.inputs, *infer_node(node, call))
    return (spec.dtype for spec in specs if spec is not None)


_NO_SCATTER = "CuPy cannot combine scattered updates in all ways and dtypes"

DENIED = {
    "MaxPoolGradient": _NO_SCATTER,
    "MaxUnpool": "cupy.unravel_index has the host check the indices on each run",
    "ScatterElements": _NO_SCATTER,
    "ScatterND": _NO_SCATTER,
}
"""Operators, unless their reduction is "none", that CuPy cannot run or that wait for the host."""


def explain_missing_dtype(node: Node, call: Call) -> str | None:
    for dtype in _list_dtypes(node, call):
        if not is_extension(dtype) and dtype.itemsize > MAX_ITEMSIZE.get(dtype.kind, 0):
            return f"CuPy has no dtype {dtype.name!r}"
    return None


def explain_refusal(node: Node, call: Call) -> str | None:
    """Return why `node` with inputs `call` does not run on CuPy, as far as known, or None."""
    reason = explain_missing_dtype(node, call)
    if reason is not None:
        return reason
    for dtype in filter(is_extension, _list_dtypes(node, call)):
        return f"CuPy does not compute with {dtype.name!r}"  # it only stores them
    kernel = find_kernel(node.op, "cuda")
    if kernel is None or kernel.device != ANY:
        return None
    if node.op in DENIED and call.attributes.get("reduction") != "none":
        return DENIED[node.op]
    return kernel.why_host(call)
