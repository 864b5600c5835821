"""Files of LightNet's, for tests: operators by their arguments, and what comes of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plait as pl
from plait.dialects.lightnet.load import load_lightnet
from plait.graph.values.tensor import Array

DTYPES = {
    "float64": "TL_DOUBLE",
    "float32": "TL_FLOAT",
    "int32": "TL_INT32",
    "int16": "TL_INT16",
    "int8": "TL_INT8",
    "uint32": "TL_UINT32",
    "uint16": "TL_UINT16",
    "uint8": "TL_UINT8",
    "bool": "TL_BOOL",
}


def op(
    optype: str,
    inputs: Mapping[str, str],
    outputs: Mapping[str, str],
    name: str | None = None,
    **params: Any,
) -> dict[str, Any]:
    """Return an operator as the JSON has it; of parameters a last underscore is dropped."""
    return {
        "name": name or f"{optype}_{'_'.join(outputs.values())}",
        "optype": optype,
        "tensors_in": [{"arg_name": key, "name": tensor} for key, tensor in inputs.items()],
        "tensors_out": [{"arg_name": key, "name": tensor} for key, tensor in outputs.items()],
        "params": [{"arg_name": k.rstrip("_"), "value": value} for k, value in params.items()],
    }


def create(name: str, array: Array) -> dict[str, Any]:
    """Return what creates a tensor that is to be read from a file."""
    given: dict[str, Any] = {"ran": [0, 0], "data": [0], "from_file": True}
    dtype = DTYPES[array.dtype.name]
    return op("create", {}, {"dst": name}, dtype=dtype, dims=list(array.shape), **given)


def model(*ops: Mapping[str, Any]) -> bytes:
    """Return a file of some operators."""
    return json.dumps({"ops": ops}).encode()


def computed(
    optype: str,
    inputs: Mapping[str, Array],
    outputs: Sequence[str] = ("dst",),
    **params: Any,
) -> list[Array]:
    """Return what an operator makes of inputs that are fed, in the order of its outputs."""
    creates = [create(name, array) for name, array in inputs.items()]
    body = op(optype, {n: n for n in inputs}, {n: n for n in outputs}, **params)
    graph = load_lightnet(model(*creates, body))
    results = pl.run(graph, dict(inputs))
    return [np.asarray(results[name]) for name in outputs]
