"""Attention as the fake cuDNN knows it: by the form of a graph of operations, which numpy executes.

The form is what cuDNN 9.19 plans for Ampere, Hopper and Blackwell; others it refuses.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_float
from typing import Any, TypeAlias

import numpy as np
from plait.devices.cuda.descriptors import DescriptorKind, Name
from plait.graph.values.dtypes import dtype_of

DTYPES = {0: "float32", 2: "float16", 4: "int32", 9: "bfloat16", 11: "bool"}
QUANTUM = 8

Tensor: TypeAlias = dict[int, list[Any]]
Memory: TypeAlias = Callable[[Tensor], Any]


def _step(operation: Any) -> str:
    """Return what an operation does."""
    if operation.kind == DescriptorKind.OPERATION_MATMUL:
        return "product"
    if operation.kind == DescriptorKind.OPERATION_REDUCTION:
        (how,) = operation.attributes[Name.OPERATION_REDUCTION_DESC]
        return {0: "total", 3: "peak"}[how.attributes[Name.REDUCTION_OPERATOR][0]]
    (how,) = operation.attributes[Name.OPERATION_POINTWISE_PW_DESCRIPTOR]
    return POINTWISE[how.attributes[Name.POINTWISE_MODE][0]]


POINTWISE = {0: "+", 1: "*", 6: "/", 9: "-", 13: "exp", 15: "log", 303: ">=", 501: "index"}
POINTWISE |= {601: "select"}
MASKED, CAUSAL = ["+"], ["index", "index", ">=", "select"]
SOFTMAX = ["peak", "-", "exp", "total", "log", "+", "/", "product"]
FORMS = [
    ["product", "*", *masked, *causal, *SOFTMAX]
    for masked in ([], MASKED)
    for causal in ([], CAUSAL)
]


def is_supported(operations: list[Any]) -> bool:
    """Say whether an engine takes a graph."""
    if list(map(_step, operations)) not in FORMS:
        return False
    tensors = [_tensor(operations[0], "OPERATION_MATMUL_ADESC")]
    tensors += [_tensor(operations[-1], f"OPERATION_MATMUL_{each}DESC") for each in "BC"]
    return all(_lengths(tensor)[-1] % QUANTUM == 0 for tensor in tensors)


def values_of(operations: list[Any], at: dict[int, int]) -> dict[int, float]:
    """Return numbers that are given by value, from where the host has them."""
    given = [
        _tensor(operation, "OPERATION_POINTWISE_BDESC")
        for operation in operations
        if Name.OPERATION_POINTWISE_BDESC in operation.attributes
    ]
    by_value = [tensor for tensor in given if tensor.get(Name.TENSOR_IS_BY_VALUE) == [True]]
    assert all(tensor[Name.TENSOR_DATA_TYPE] == [0] for tensor in by_value)
    numbers = [tensor[Name.TENSOR_UNIQUE_ID][0] for tensor in by_value]
    return {number: c_float.from_address(at[number]).value for number in numbers}


def compute(
    operations: list[Any], values: dict[int, float], memory: Memory, mistake: Callable[[Any], Any]
) -> None:
    """Execute operations in order; `memory` returns tensors as they lie on the GPU."""
    known: dict[int, Any] = dict(values)

    def read(tensor: Tensor) -> Any:
        (number,) = tensor[Name.TENSOR_UNIQUE_ID]
        if number in known:
            return known[number]
        assert Name.TENSOR_IS_VIRTUAL not in tensor, "nothing has written it"
        return memory(tensor)

    with np.errstate(invalid="ignore", divide="ignore"):
        for operation in operations:
            result, made = _result(operation, read)
            if Name.TENSOR_IS_VIRTUAL not in result:
                memory(result)[...] = mistake(made)
                continue
            assert list(made.shape) == _lengths(result)
            dtype = dtype_of(DTYPES[result[Name.TENSOR_DATA_TYPE][0]])
            known[result[Name.TENSOR_UNIQUE_ID][0]] = made.astype(dtype)


def _result(operation: Any, read: Callable[[Tensor], Any]) -> tuple[Tensor, Any]:
    """Return what an operation writes, and what it makes of what it reads."""
    step = _step(operation)
    if step == "product":
        a, b = (read(_tensor(operation, f"OPERATION_MATMUL_{each}DESC")) for each in "AB")
        assert a.shape[1] % b.shape[1] == 0
        b = b.repeat(a.shape[1] // b.shape[1], axis=1)  # heads that share keys
        wide = a.astype(np.float32) @ b.astype(np.float32)
        return _tensor(operation, "OPERATION_MATMUL_CDESC"), wide
    if step in ("peak", "total"):
        x = read(_tensor(operation, "OPERATION_REDUCTION_XDESC"))
        reduced = x.max(-1, keepdims=True) if step == "peak" else x.sum(-1, keepdims=True)
        return _tensor(operation, "OPERATION_REDUCTION_YDESC"), reduced
    result = _tensor(operation, "OPERATION_POINTWISE_YDESC")
    if step == "index":  # the tensor says how many there are, and nothing else
        (how,) = operation.attributes[Name.OPERATION_POINTWISE_PW_DESCRIPTOR]
        (axis,) = how.attributes[Name.POINTWISE_AXIS]
        return result, np.indices(_lengths(result))[axis]
    given = [_tensor(operation, "OPERATION_POINTWISE_XDESC")]
    if Name.OPERATION_POINTWISE_BDESC in operation.attributes:
        given.append(_tensor(operation, "OPERATION_POINTWISE_BDESC"))
    x, *other = (
        each.astype(np.float32) if hasattr(each, "astype") else each for each in map(read, given)
    )
    if step == "select":
        seen = read(_tensor(operation, "OPERATION_POINTWISE_TDESC"))
        return result, np.where(seen, x, *other)
    return result, ARITHMETIC[step](x, *other)


ARITHMETIC: dict[str, Callable[..., Any]] = {
    "+": np.add,
    "*": np.multiply,
    "/": np.divide,
    "-": np.subtract,
    "exp": np.exp,
    "log": np.log,
    ">=": np.greater_equal,
}


def _tensor(operation: Any, name: str) -> Tensor:
    attributes: Tensor = operation.attributes[Name[name]][0].attributes
    return attributes


def _lengths(tensor: Tensor) -> list[int]:
    return tensor[Name.TENSOR_DIMENSIONS]
