"""Shape rules on symbolic and unknown shapes, and what they refuse; kernels' tests do the rest."""

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

Dims = Sequence[Dim] | None


def infer(
    op: str,
    shapes: Sequence[Dims],
    values: Mapping[int, Sequence[int]] | None = None,
    attributes: Mapping[str, Any] | None = None,
    n_outputs: int = 1,
    dtypes: Sequence[str] = (),
) -> tuple[TensorSpec, ...]:
    """Infer a node; `values` are those of its constant inputs, which come after the shapes."""
    specs: list[TensorSpec | None] = [
        TensorSpec(dtypes[i] if dtypes else "float32", shape) for i, shape in enumerate(shapes)
    ]
    known: list[Any] = [None] * len(shapes)
    for index, value in (values or {}).items():
        while len(specs) < index:
            specs.append(None)
            known.append(None)
        known.append(np.array(value, "int64"))
        specs.append(TensorSpec("int64", known[-1].shape))
    names = tuple(f"x{i}" if spec else "" for i, spec in enumerate(specs))
    outputs = tuple(f"y{i}" for i in range(n_outputs))
    complete = find_operator(op).complete(attributes or {}, op)
    node = Node("node", op, names, outputs, complete)
    return infer_node(node, Call(tuple(specs), tuple(known), complete, n_outputs))


B, H = "batch", "h"

SYMBOLIC: list[tuple[str, list[Dims], dict[int, list[int]], dict[str, Any], Dims]] = [
    ("Add", [(B, 3), (1, 3)], {}, {}, (B, 3)),
    ("Add", [(B, H), (1, 3)], {}, {}, (B, 3)),
    ("Add", [(B, 3), None], {}, {}, None),
    ("Where", [(B, 1), (1, H), ()], {}, {}, (B, H)),
    ("Reshape", [(B, 3, 4)], {1: [0, -1]}, {}, (B, 12)),
    ("Reshape", [(B, 3, 4)], {1: [-1, 12]}, {}, (B, 12)),
    ("Reshape", [(B, 3, 4)], {1: [-1, 6]}, {}, ("2*batch", 6)),
    ("Reshape", [(B, H, 4)], {1: [0, -1, 2, 2]}, {}, (B, H, 2, 2)),
    ("Reshape", [(B, 3)], {1: [2, -1]}, {}, (2, "3*batch//2")),
    ("Reshape", [(0, 4, 6)], {1: [0, -1, 2, 3]}, {"allowzero": True}, (0, 4, 2, 3)),
    ("Reshape", [(0, 4, 6)], {1: [0, 0, -1, 3]}, {"allowzero": True}, (0, 0, 8, 3)),
    ("Reshape", [(0, 4, 6)], {1: [0, 5, 4, 6]}, {}, (0, 5, 4, 6)),
    ("Reshape", [None], {1: [2, 3]}, {}, (2, 3)),
    ("Reshape", [None], {1: [2, -1]}, {}, (2, "y0.shape[1]")),
    ("Flatten", [(B, 3, H)], {}, {}, (B, "3*h")),
    ("Squeeze", [(B, 1, 3)], {1: [1]}, {}, (B, 3)),
    ("Squeeze", [(B, 1, 3)], {}, {}, None),
    ("Unsqueeze", [(B, 3)], {1: [0, -1]}, {}, (1, B, 3, 1)),
    ("Shape", [(B, H, 3)], {}, {"start": 1}, (2,)),
    ("Shape", [None], {}, {}, None),
    ("Slice", [(B, H)], {1: [0], 2: [2**63 - 1], 3: [1]}, {}, (B, H)),
    ("Slice", [(B, H)], {1: [-1], 2: [-(2**63)], 3: [1], 4: [-1]}, {}, (B, H)),
    ("Slice", [(B, 9)], {1: [1], 2: [-1], 3: [1]}, {}, (B, 7)),
    ("Slice", [(B, 9)], {1: [1], 2: [-1], 3: [0]}, {}, ("slice(batch,1,-1,1)", 9)),
    (
        "Slice",
        [(B, 9)],
        {1: [1], 2: [2**31 - 1], 3: [0]},
        {},
        ("slice(batch,1,9223372036854775807,1)", 9),
    ),
    (
        "Slice",
        [(B, 9)],
        {1: [1], 2: [2**63 - 1], 3: [0]},
        {},
        ("slice(batch,1,9223372036854775807,1)", 9),
    ),
    ("Gather", [(B, 9), (2, H)], {}, {"axis": 1}, (B, 2, H)),
    ("Concat", [(B, 3), (B, H), (2, 4)], {}, {"axis": 1}, (2, "(h+7)")),
    ("Expand", [(B, 1)], {1: [2, 1, 5]}, {}, (2, B, 5)),
    ("Transpose", [(B, 3, H)], {}, {"perm": [0, 2, 1]}, (B, H, 3)),
    ("Tile", [(B, 3)], {1: [1, 2]}, {}, (B, 6)),
    ("Pad", [(B, H)], {1: [0, 1, 0, 2]}, {}, (B, "(h+3)")),
    ("ReduceSum", [(B, 3, H)], {1: [2]}, {}, (B, 3, 1)),
    ("ReduceSum", [(B, 3, H)], {1: [2]}, {"keepdims": False}, (B, 3)),
    ("ReduceSum", [None], {1: [2]}, {}, None),
    ("MatMul", [(B, H, 4), (4, 5)], {}, {}, (B, H, 5)),
    ("MatMul", [(B, H, 4), (B, "k", 5)], {}, {}, (B, H, 5)),
    ("Gemm", [(4, B), (4, 5)], {}, {"transA": True}, (B, 5)),
]


@pytest.mark.parametrize(("op", "shapes", "values", "attributes", "wanted"), SYMBOLIC)
def test_symbolic_shapes_stay_as_exact_as_they_can(
    op: str,
    shapes: list[Dims],
    values: dict[int, list[int]],
    attributes: dict[str, Any],
    wanted: Dims,
) -> None:
    dtypes = ["bool", "float32", "float32"] if op == "Where" else []
    if op == "Gather":
        dtypes = ["float32", "int64"]

    (y,) = infer(op, shapes, values, attributes, dtypes=dtypes)

    assert y.shape == (None if wanted is None else tuple(wanted))


@pytest.mark.parametrize(
    ("op", "rest", "wanted"),
    [
        ("Reshape", ["int64"], ("y0.shape[0]", "y0.shape[1]")),
        ("Squeeze", ["int64"], None),
        ("Unsqueeze", ["int64"], tuple(f"y0.shape[{axis}]" for axis in range(4))),
        ("Expand", ["int64"], (2, 3)),
        ("Tile", ["int64"], ("y0.shape[0]", "y0.shape[1]")),
        ("Pad", ["int64"], ("y0.shape[0]", "y0.shape[1]")),
        ("Slice", ["int64", "int64"], ("y0.shape[0]", "y0.shape[1]")),
        ("ReduceSum", ["int64"], None),
        ("Split", ["int64"], ("y0.shape[0]", 3)),
    ],
)
def test_of_a_shape_that_depends_on_computed_values_the_rest_is_known(
    op: str, rest: list[str], wanted: Dims
) -> None:
    shapes: list[Dims] = [(2, 3), *([(2,)] * len(rest))]

    (y,) = infer(op, shapes, dtypes=["float32", *rest])

    assert y.shape == wanted


def test_a_shape_made_from_computed_lengths_has_a_known_rank() -> None:
    (y,) = infer("ConstantOfShape", [(2,)], dtypes=["int64"])
    (steps,) = infer("Range", [(), (), ()], dtypes=["int64"] * 3)

    assert (y.rank, steps.rank) == (2, 1)


REFUSED: list[tuple[str, list[Dims], dict[int, list[int]], dict[str, Any], str]] = [
    ("Add", [(2, 3), (2, 4)], {}, {}, "do not broadcast"),
    ("BitwiseAnd", [(2,), (2,)], {}, {}, "must be an integer"),
    ("And", [(2,), (2,)], {}, {}, "must be bool"),
    ("Clip", [(2,), (2,)], {}, {}, "must be a scalar"),
    ("PRelu", [(2, 3), (4,)], {}, {}, "broadcast"),
    ("PRelu", [(3,), (2, 3)], {}, {}, "cannot be repeated"),
    ("Reshape", [(2, 3)], {1: [4]}, {}, "element counts differ"),
    ("Reshape", [(2, 3)], {1: [4, -1]}, {}, "element counts differ"),
    ("Reshape", [(2, 3)], {1: [-1, -1]}, {}, "is not a shape"),
    ("Reshape", [(2, 3)], {1: [-2, 3]}, {}, "is not a shape"),
    ("Reshape", [(2, 3)], {1: [2, 3, 0]}, {}, "keeps dimension 2"),
    ("Reshape", [(2, 3)], {1: [0, -1]}, {"allowzero": True}, "ambiguous"),
    ("Reshape", [(0, 3)], {1: [0, -1, 2]}, {"allowzero": True}, "element counts differ"),
    ("Reshape", [(0, 3)], {1: [0, -1, 2]}, {}, "element counts differ"),
    ("Flatten", [(2, 3)], {}, {"axis": 3}, "outside"),
    ("Squeeze", [(2, 3)], {1: [0]}, {}, "not of length 1"),
    ("Unsqueeze", [(2, 3)], {1: [3, 3]}, {}, "twice"),
    ("Slice", [(2, 3)], {1: [0], 2: [1, 2]}, {}, "differ in length"),
    ("Slice", [(2, 3)], {1: [0], 2: [1], 3: [0], 4: [0]}, {}, "step is 0"),
    ("Slice", [(2, 3)], {1: [0], 2: [1], 3: [2]}, {}, "outside"),
    ("Split", [(5,)], {1: [2]}, {}, "add up"),
    ("Split", [(5,)], {1: [2, 3]}, {}, "1 outputs"),
    ("Split", [(5,)], {}, {"num_outputs": 2}, "num_outputs is 2"),
    ("Concat", [(2, 3), (2, 3, 4)], {}, {"axis": 0}, "differ in rank"),
    ("Concat", [(2, 3), (2, 4)], {}, {"axis": 0}, "differ along axis 1"),
    ("Concat", [(), ()], {}, {"axis": 0}, "outside a tensor of rank 0"),
    ("Expand", [(2, 3)], {1: [2]}, {}, "broadcast"),
    ("Transpose", [(2, 3)], {}, {"perm": [0, 0]}, "does not order"),
    ("Tile", [(2, 3)], {1: [2]}, {}, "count for each axis"),
    ("Pad", [(2, 3)], {1: [1, 1]}, {}, "begin and an end"),
    ("Pad", [(2, 3)], {1: [-2, 0, -1, 0]}, {}, "cut more"),
    ("Pad", [(0, 3)], {1: [1, 0, 0, 0]}, {"mode": "edge"}, "nothing to edge"),
    ("Trilu", [(3,)], {}, {}, "at least 2 dimensions"),
    ("ReduceSum", [(2, 3)], {1: [2]}, {}, "outside"),
    ("ReduceSum", [(2, 3)], {1: [1, -1]}, {}, "twice"),
    ("ArgMax", [(0, 3)], {}, {}, "no elements"),
    ("CumSum", [(2, 3)], {1: [0, 1]}, {}, "one number"),
    ("CumSum", [(2, 3)], {1: [2]}, {}, "outside"),
    ("MatMul", [(2, 3), (4, 2)], {}, {}, "inner lengths 3 and 4"),
    ("MatMul", [(), (4, 2)], {}, {}, "scalar"),
    ("MatMul", [(2, 5, 3), (3, 3, 4)], {}, {}, "broadcast"),
    ("Gemm", [(2, 3), (4, 2)], {}, {}, "inner lengths 3 and 4"),
    ("Gemm", [(2, 3, 1), (1, 2)], {}, {}, "not a matrix"),
    ("Gemm", [(2, 3), (3, 4), (5, 2, 4)], {}, {}, "cannot be repeated"),
]


@pytest.mark.parametrize(("op", "shapes", "values", "attributes", "message"), REFUSED)
def test_inputs_that_do_not_fit_are_refused_with_the_node_named(
    op: str,
    shapes: list[Dims],
    values: dict[int, list[int]],
    attributes: dict[str, Any],
    message: str,
) -> None:
    with pytest.raises(ShapeError, match=message) as caught:
        infer(op, shapes, values, attributes)

    assert caught.value.at is not None
    assert f"{op}(" in caught.value.at
    assert caught.value.fix


@pytest.mark.parametrize(
    ("op", "dtype"),
    [*((op, "uint8") for op in ("Exp", "Gelu", "Neg", "Not", "Relu")), ("ArgMax", "complex64")],
)
def test_a_dtype_the_operator_does_not_take_is_refused(op: str, dtype: str) -> None:
    with pytest.raises(ShapeError, match=r"must be .* here"):
        infer(op, [(2,)], dtypes=[dtype])


def test_mixed_dtypes_are_refused() -> None:
    with pytest.raises(ShapeError, match="different dtypes"):
        infer("Add", [(2,), (2,)], dtypes=["float32", "float64"])


@pytest.mark.parametrize(("start", "limit", "delta"), [(0, 1, 0), (0, 0, 0)])
def test_a_range_in_steps_of_zero_is_refused(start: int, limit: int, delta: int) -> None:
    with pytest.raises(ShapeError, match="steps of 0"):
        infer("Range", [], {0: [start], 1: [limit], 2: [delta]})


def test_indices_that_reach_beyond_the_data_are_refused() -> None:
    with pytest.raises(ShapeError, match="do not fit into"):
        infer("GatherElements", [(2, 3), (3, 3)], {}, {"axis": 1}, dtypes=["float32", "int64"])


@pytest.mark.parametrize(
    ("op", "shapes", "attributes", "flops"),
    [
        ("MatMul", [(7, 2, 3), (3, 5)], {}, 2 * 7 * 2 * 3 * 5),
        ("MatMul", [(3,), (3,)], {}, 6),
        ("Gemm", [(3, 2), (3, 5)], {"transA": True}, 2 * 2 * 3 * 5),
        ("Add", [(2, 1), (1, 3)], {}, 6),
        ("Sum", [(2, 3), (2, 3), (2, 3)], {}, 18),
        ("ReduceSum", [(4, 5)], {}, 20),
        ("Transpose", [(4, 5)], {}, 0),
    ],
)
def test_cost_counts_operations(
    op: str, shapes: list[Dims], attributes: dict[str, Any], flops: int
) -> None:
    outputs = infer(op, shapes, {}, attributes)
    operator = find_operator(op)
    specs = tuple(TensorSpec("float32", shape) for shape in shapes)
    call = Call(specs, (None,) * len(specs), operator.complete(attributes, op))

    assert operator.cost(call, outputs) == flops
