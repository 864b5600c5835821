"""Nodes that have a kernel for any array module which CuPy cannot run, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ...graph.dtypes import is_extension
from ...graph.infer import infer_node
from ...graph.ir import Node
from ...graph.operator import Call
from ..kernels import ANY, find_kernel

Question = Callable[[Call], bool]

MAX_ITEMSIZE = {"b": 1, "i": 8, "u": 8, "f": 8, "c": 16}
"""Bytes per element by kind of dtype: CUDA has no wider ones, and no other kinds, such as text."""


def _dtypes(node: Node, call: Call) -> Iterator[np.dtype[Any]]:
    """Return those of a node's tensors."""
    specs = (*call.inputs, *infer_node(node, call))
    return (spec.dtype for spec in specs if spec is not None)


def _always(_: Call) -> bool:
    return True


def _never(_: Call) -> bool:
    return False


def _reduces(call: Call) -> bool:
    return bool(call.attributes["reduction"] != "none")


_NO_SCATTER = "CuPy cannot combine scattered updates in all ways and dtypes"

DENIED: dict[str, tuple[Question, str]] = {
    "MaxPoolGradient": (_always, _NO_SCATTER),
    "MaxUnpool": (_always, "cupy.unravel_index has the host check the indices on each run"),
    "ScatterElements": (_reduces, _NO_SCATTER),
    "ScatterND": (_reduces, _NO_SCATTER),
}
"""When CuPy cannot run a kernel for any array module, or has the host wait for the GPU."""


def why_no_array(node: Node, call: Call) -> str | None:
    """Return which dtype of a node CuPy has no arrays of; None when it has all."""
    for dtype in _dtypes(node, call):
        if not is_extension(dtype) and dtype.itemsize > MAX_ITEMSIZE.get(dtype.kind, 0):
            return f"CuPy has no dtype {dtype.name!r}"
    return None


def why_not(node: Node, call: Call) -> str | None:
    """Return why a node does not run on CuPy; None when it does, as far as is known."""
    reason = why_no_array(node, call)
    if reason is not None:
        return reason
    for dtype in filter(is_extension, _dtypes(node, call)):
        return f"CuPy does not compute with {dtype.name!r}"  # it has arrays of them
    kernel = find_kernel(node.op, "cuda")
    if kernel is None or kernel.device != ANY:
        return None
    applies, reason = DENIED.get(node.op, (_never, ""))
    return reason if applies(call) else kernel.why_host(call)
