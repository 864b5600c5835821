"""Small cvm models: made by plait's writer, or by hand."""

from __future__ import annotations

import json
from copy import deepcopy
from functools import cache
from typing import Any

import numpy as np
import plait as pl
from plait.dialects.cvm.files.params import write_params
from plait.dialects.cvm.files.writer import dump_cvm

MISSING = object()


def dense_graph() -> pl.Graph:
    """Return a graph of three nodes: scores = right_shift(relu(dense(data, w)))."""
    b = pl.GraphBuilder("cvm")
    x = b.input("data", "int32", (2, 4), precision=8)
    w = b.constant(np.arange(-6, 6, dtype=np.int32).reshape(3, 4), name="w", precision=8)
    y = b.op("cvm.dense", x, w, units=3, use_bias=False, name="fc")
    y = b.op("cvm.relu", y, name="act")
    b.output("scores", b.op("cvm.right_shift", y, precision=8, shift_bit=2, name="scores"))
    return b.build()


def convolution_graph() -> pl.Graph:
    """Return a convolutional network on 8 × 8 pixels of int8."""
    rng = np.random.default_rng(7)

    def weights(*shape: int) -> Any:
        return rng.integers(-127, 128, shape).astype(np.int32)

    b = pl.GraphBuilder("cvm")
    x = b.input("data", "int32", (1, 3, 8, 8), precision=8)
    w = b.constant(weights(4, 3, 3, 3), name="w", precision=8)
    bias = b.constant(weights(4) * 50, name="bias", precision=14)
    y = b.op("cvm.conv2d", x, w, bias, channels=4, kernel_size=(3, 3), padding=(1, 1))
    y = b.op("cvm.right_shift", b.op("cvm.relu", y), precision=8, shift_bit=9)
    depthwise = b.constant(weights(4, 1, 2, 2), name="depthwise", precision=8)
    grouped: dict[str, Any] = {
        "channels": 4,
        "kernel_size": (2, 2),
        "dilation": (2, 2),
        "groups": 4,
    }
    z = b.op("cvm.conv2d", y, depthwise, padding=(1, 1), use_bias=False, **grouped)
    y = b.op("cvm.elemwise_add", y, b.op("cvm.right_shift", z, precision=8, shift_bit=8))
    y = b.op("cvm.max_pool2d", y, pool_size=(3, 3), strides=(2, 2), padding=(1,))
    y = b.op("cvm.cvm_clip", b.op("cvm.flatten", y), precision=8)
    v = b.constant(weights(10, 64), name="v", precision=8)
    y = b.op("cvm.dense", y, v, units=10, use_bias=False)
    b.output("scores", b.op("cvm.right_shift", y, precision=8, shift_bit=8))
    return b.build()


@cache
def _dense_model() -> tuple[bytes, bytes]:
    return dump_cvm(dense_graph())


def dense_symbol() -> dict[str, Any]:
    """Return the symbol of `dense_graph`: nodes data, w, fc, act, scores, an entry each."""
    return dict(json.loads(_dense_model()[0]))


def dense_params() -> bytes:
    """Return the parameters of `dense_graph`."""
    return _dense_model()[1]


def changed(symbol: dict[str, Any], *changes: tuple[str, Any]) -> bytes:
    """Return a symbol as JSON, changed at paths such as ``nodes.2.name``; MISSING removes."""
    root = deepcopy(symbol)
    for path, value in changes:
        *outer, last = [int(step) if step.isdecimal() else step for step in path.split(".")]
        place: Any = root
        for step in outer:
            place = place[step]
        if value is MISSING:
            del place[last]
        else:
            place[last] = value
    return json.dumps(root).encode()


def handmade(
    nodes: list[tuple[str, str | None, list[list[int]]]],
    entries: list[tuple[list[int], int]],
    heads: list[list[int]],
    op_attributes: dict[int, dict[str, str]] | None = None,
    **root: Any,
) -> dict[str, Any]:
    """Return a symbol of version 1.1.0 that no writer made.

    A node is a name, a function (None for a variable) and inputs; an entry a shape and a precision.
    """
    attributes = op_attributes or {}
    return {
        "nodes": [
            {"op": "null", "name": name, "inputs": []}
            if function is None
            else {"op": "cvm_op", "name": name, "inputs": inputs, "attrs": {"func_name": function}}
            for name, function, inputs in nodes
        ],
        "heads": heads,
        "attrs": {
            "shape": ["list_shape", [shape for shape, _ in entries]],
            "precision": ["list_int", [precision for _, precision in entries]],
            "storage_id": ["list_int", list(range(len(entries)))],
            "op_attrs": [
                "list_str",
                [json.dumps(attributes.get(i, {})) for i in range(len(nodes))],
            ],
        },
        "version": "cvm_1.1.0",
        **root,
    }


def no_params() -> bytes:
    """Return a parameter file without arrays."""
    return write_params({})
