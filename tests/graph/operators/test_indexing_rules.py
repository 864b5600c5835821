"""Shape rules of indexing and rearranging operators on symbols, and what they refuse."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from plait.graph.core.infer import infer_node
from plait.graph.core.ir import Node
from plait.graph.core.operator import Call, find_operator
from plait.graph.values.errors import ShapeError
from plait.graph.values.tensor import Dim, TensorSpec

Given = tuple[str, Sequence[Dim] | None]
F, I = "float32", "int64"  # noqa: E741


def infer(
    op: str,
    inputs: Sequence[Given],
    values: Mapping[int, Any] | None = None,
    attributes: Mapping[str, Any] | None = None,
) -> tuple[TensorSpec, ...]:
    operator = find_operator(op)
    outputs = tuple(operator.outputs.split())
    complete = operator.complete(attributes or {}, op)
    names = tuple(f"x{index}" for index in range(len(inputs)))
    known = tuple(
        np.array(values[index]) if values and index in values else None
        for index in range(len(inputs))
    )
    specs = tuple(TensorSpec(dtype, shape) for dtype, shape in inputs)
    return infer_node(Node("n", op, names, outputs, complete), Call(specs, known, complete))


SYMBOLIC: list[tuple[str, list[Given], dict[int, Any], dict[str, Any], Sequence[Dim] | None]] = [
    ("GatherND", [(F, ("b", 3, "h")), (I, ("n", 2))], {}, {}, ("n", "h")),
    ("GatherND", [(F, ("b", 3, 4)), (I, ("b", 1))], {}, {"batch_dims": 1}, ("b", 4)),
    ("GatherND", [(F, ("b", 3)), (I, ("n", "depth"))], {}, {}, None),
    ("ScatterND", [(F, ("b", 3)), (I, ("n", 1)), (F, ("n", 3))], {}, {}, ("b", 3)),
    ("ScatterElements", [(F, ("b", 3)), (I, ("n", 3)), (F, ("m", 3))], {}, {}, ("b", 3)),
    ("TensorScatter", [(F, ("b", 9, 4)), (F, ("b", "s", 4)), (I, ("b",))], {}, {}, ("b", 9, 4)),
    ("OneHot", [(I, ("b", "h")), (I, ()), (F, (2,))], {1: 5}, {"axis": 1}, ("b", 5, "h")),
    ("OneHot", [(I, ("b",)), (I, ()), (F, (2,))], {}, {}, ("b", "output.shape[1]")),
    ("TopK", [(F, ("b", "h")), (I, (1,))], {1: [3]}, {}, ("b", 3)),
    ("TopK", [(F, ("b", "h")), (I, (1,))], {}, {"axis": 0}, ("values.shape[0]", "h")),
    ("TopK", [(F, None), (I, (1,))], {1: [3]}, {}, None),
    ("DepthToSpace", [(F, ("b", 8, "h", 5))], {}, {"blocksize": 2}, ("b", 2, "2*h", 10)),
    ("SpaceToDepth", [(F, ("b", "c", "h", 6))], {}, {"blocksize": 2}, ("b", "4*c", "h//2", 3)),
    ("EyeLike", [(F, ("h", "w"))], {}, {}, ("h", "w")),
    ("ReverseSequence", [(F, ("t", "b", 4)), (I, ("b",))], {}, {}, ("t", "b", 4)),
]


@pytest.mark.parametrize(("op", "inputs", "values", "attributes", "wanted"), SYMBOLIC)
def test_shapes_are_inferred_on_symbols(
    op: str,
    inputs: list[Given],
    values: dict[int, Any],
    attributes: dict[str, Any],
    wanted: Sequence[Dim] | None,
) -> None:
    found = infer(op, inputs, values, attributes)[0]

    if wanted is not None and any(".shape[" in str(dim) for dim in wanted):
        name = find_operator(op).outputs.split()[0]
        wanted = [str(dim).replace("output", name) if "." in str(dim) else dim for dim in wanted]
    assert found.shape == (None if wanted is None else tuple(wanted))


X: Given = (F, (2, 3))
REFUSED: list[tuple[str, list[Given], dict[int, Any], dict[str, Any], str]] = [
    ("GatherND", [X, (F, (1, 2))], {}, {}, "indices"),
    ("GatherND", [X, (I, (1, 3))], {}, {}, "do not name a place"),
    ("GatherND", [X, (I, (1, 0))], {}, {}, "do not name a place"),
    ("GatherND", [X, (I, (5, 1))], {}, {"batch_dims": 1}, "batch dimensions"),
    ("GatherND", [X, (I, (2,))], {}, {"batch_dims": 1}, "at least 2 dimensions"),
    ("ScatterND", [X, (I, (1, 1)), (F, (1, 2))], {}, {}, "not of shape"),
    ("ScatterND", [X, (I, (1, 1)), (I, (1, 3))], {}, {}, "different dtypes"),
    ("ScatterElements", [X, (I, (1, 4)), (F, (1, 4))], {}, {"axis": 0}, "do not fit"),
    ("ScatterElements", [X, (I, (1, 2)), (F, (1, 3))], {}, {}, "not of shape"),
    ("ScatterElements", [X, (I, (1, 2)), (F, (1, 2))], {}, {"axis": 2}, "outside"),
    ("TensorScatter", [X, (F, (2, 3))], {}, {}, "batch"),
    ("TensorScatter", [X, (F, (2, 4))], {}, {"axis": 1}, "does not fit"),
    ("TensorScatter", [X, (F, (1, 2))], {}, {"axis": 1}, "not of shape"),
    ("TensorScatter", [X, X, (I, (3,))], {}, {"axis": 1}, "write_indices"),
    ("OneHot", [(I, (2,)), (I, ()), (F, (3,))], {1: 4}, {}, "not of shape"),
    ("OneHot", [(I, (2,)), (I, ()), (F, (2,))], {1: -1}, {}, "one number"),
    ("TopK", [X, (I, (1,))], {1: [4]}, {}, "no 4 elements"),
    ("TopK", [X, (I, (2,))], {1: [1, 2]}, {}, "one number"),
    ("TopK", [X, (F, (1,))], {}, {}, "must be an integer"),
    ("DepthToSpace", [X], {}, {"blocksize": 2}, "4 dimensions"),
    ("DepthToSpace", [(F, (1, 6, 2, 2))], {}, {"blocksize": 2}, "not a multiple of 4"),
    ("SpaceToDepth", [(F, (1, 1, 2, 3))], {}, {"blocksize": 2}, "not a multiple of 2"),
    ("EyeLike", [(F, (3,))], {}, {}, "must be a matrix"),
    ("EyeLike", [X], {}, {"dtype": "complex64"}, "the output"),
    ("ReverseSequence", [X, (I, (2,))], {}, {}, "length 3"),
    ("ReverseSequence", [X, (I, (3,))], {}, {"time_axis": 1}, "both 1"),
]


@pytest.mark.parametrize(("op", "inputs", "values", "attributes", "message"), REFUSED)
def test_inputs_that_do_not_fit_are_refused(
    op: str, inputs: list[Given], values: dict[int, Any], attributes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ShapeError, match=message):
        infer(op, inputs, values, attributes)


@pytest.mark.parametrize("how", ["max", "min"])
def test_complex_numbers_are_not_compared(how: str) -> None:
    complex_x: Given = ("complex64", (2,))

    with pytest.raises(ShapeError, match="must be a float"):
        infer("ScatterND", [complex_x, (I, (2, 1)), complex_x], {}, {"reduction": how})


def test_eye_like_takes_the_dtype_given() -> None:
    (y,) = infer("EyeLike", [X], {}, {"dtype": "int32"})

    assert y == TensorSpec("int32", (2, 3))
