from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from plait.graph.building.builder import GraphBuilder
from plait.graph.core.infer import get_cost, infer_node
from plait.graph.core.ir import Node
from plait.graph.core.operator import Call, find_operator
from plait.graph.values.errors import OperatorError, ShapeError
from plait.graph.values.tensor import Dim, TensorSpec

ONE_PLANE_OPS = ("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")


def infer(
    op: str, x: Sequence[Dim] | None, dtype: str = "float32", n_outputs: int = 1, **attributes: Any
) -> tuple[TensorSpec, ...]:
    complete = find_operator(op).complete(attributes, op)
    node = Node("node", op, ("x",), ("y", "indices")[:n_outputs], complete)
    return infer_node(node, Call((TensorSpec(dtype, x),), (None,), complete, n_outputs))


def test_pooling_keeps_batch_and_channels_and_counts_windows() -> None:
    (y,) = infer("AveragePool", ("n", 16, "h", 9), kernel_shape=(3, 3), strides=(2, 2))
    assert y == TensorSpec("float32", ("n", 16, "(h-1)//2", 4))


def test_pooling_with_ceil_mode_rounds_up_but_never_starts_behind_the_input() -> None:
    attributes: dict[str, Any] = {"kernel_shape": (2,), "strides": (2,), "ceil_mode": 1}
    assert infer("MaxPool", (1, 1, 5), **attributes)[0].shape == (1, 1, 3)
    assert infer("MaxPool", (1, 1, 5), pads=(1, 1), **attributes)[0].shape == (1, 1, 3)


def test_max_pool_of_bytes_keeps_the_dtype_and_counts_in_int64() -> None:
    y, indices = infer("MaxPool", (1, 2, 6), "uint8", 2, kernel_shape=(2,))
    assert (y, indices) == (TensorSpec("uint8", (1, 2, 5)), TensorSpec("int64", (1, 2, 5)))


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
def test_pooling_of_an_unknown_rank_has_an_unknown_rank(op: str) -> None:
    assert infer(op, None, kernel_shape=(2, 2))[0].shape is None


@pytest.mark.parametrize("op", ONE_PLANE_OPS)
def test_global_pooling_leaves_one_cell_of_each_plane(op: str) -> None:
    assert infer(op, ("n", "c", "h", 7))[0].shape == ("n", "c", 1, 1)
    assert infer(op, None)[0].shape is None


REFUSED: dict[str, tuple[str, Sequence[Dim], str, Mapping[str, Any], str]] = {
    "integers": ("AveragePool", (1, 1, 4), "int32", {"kernel_shape": (2,)}, "must be a float"),
    "booleans": ("MaxPool", (1, 1, 4), "bool", {"kernel_shape": (2,)}, "float or integer"),
    "no space": ("MaxPool", (1, 4), "float32", {"kernel_shape": ()}, "at least 3 dimensions"),
    "rank": ("MaxPool", (1, 1, 4, 4), "float32", {"kernel_shape": (2,)}, "2 spatial"),
    "size": ("MaxPool", (1, 1, 4), "float32", {"kernel_shape": (5,)}, "does not fit in 4 cells"),
    "empty": ("GlobalMaxPool", (1, 1, 0), "float32", {}, "planes without cells"),
}


@pytest.mark.parametrize(("op", "x", "dtype", "attributes", "what"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_pooled_is_refused_with_a_way_out(
    op: str, x: Sequence[Dim], dtype: str, attributes: Mapping[str, Any], what: str
) -> None:
    with pytest.raises(ShapeError, match=what) as caught:
        infer(op, x, dtype, **attributes)
    assert caught.value.fix
    assert op in str(caught.value.at)


def test_pooling_needs_a_kernel_shape() -> None:
    with pytest.raises(OperatorError, match="needs the attribute 'kernel_shape'"):
        infer("MaxPool", (1, 1, 4))


def unpool(
    x: Sequence[Dim] | None,
    indices: Sequence[Dim] | None,
    shape: Sequence[int] | None = None,
    dtype: str = "int64",
    **attributes: Any,
) -> TensorSpec:
    complete = find_operator("MaxUnpool").complete(attributes, "MaxUnpool")
    specs = [TensorSpec("float32", x), TensorSpec(dtype, indices)]
    values: list[Any] = [None, None]
    if shape is not None:
        specs.append(TensorSpec("int64", (len(shape),)))
        values.append(np.array(shape) if shape else None)
    node = Node("node", "MaxUnpool", ("x", "i", "s")[: len(specs)], ("y",), complete)
    return infer_node(node, Call(tuple(specs), tuple(values), complete))[0]


def test_max_unpool_reverses_the_shape_rule_of_max_pool() -> None:
    y = unpool((2, 3, "h", 4), (2, 3, "h", 4), kernel_shape=(3, 2), strides=(2, 2), pads=(1, 0) * 2)
    assert y.shape == (2, 3, "((h-1)*2+1)", 8)


def test_max_unpool_takes_a_constant_output_shape() -> None:
    x = (1, 1, 2, 2)
    assert unpool(x, x, [1, 1, 5, 4], kernel_shape=(2, 2)).shape == (1, 1, 5, 4)
    unknown = unpool(x, x, [], kernel_shape=(2, 2))  # one that is computed
    assert unknown.shape == tuple(f"y.shape[{axis}]" for axis in range(4))


@pytest.mark.parametrize(
    ("arguments", "attributes", "what"),
    [
        (((1, 1, 2), (1, 1, 3)), {"kernel_shape": (2,)}, "do not fit an input of shape"),
        (((1, 1, 2), (1, 1, 2), None, "int32"), {"kernel_shape": (2,)}, "must be int64"),
        (((1, 1, 2), (1, 1, 2)), {"kernel_shape": (2, 2)}, "do not describe 1 spatial"),
        (((1, 1, 2), (1, 1, 2), [1, 2, 4]), {"kernel_shape": (2,)}, r"\[1, 2, 4\]"),
    ],
)
def test_max_unpool_refuses_what_does_not_fit(
    arguments: Sequence[Any], attributes: Mapping[str, Any], what: str
) -> None:
    with pytest.raises(ShapeError, match=what) as caught:
        unpool(*arguments, **attributes)
    assert caught.value.fix


def test_pooling_costs_an_operation_per_cell_of_each_window() -> None:
    builder = GraphBuilder()
    x = builder.input("x", "float32", (1, 2, 8, 8))
    builder.output("y", builder.op("MaxPool", x, kernel_shape=(3, 2), strides=(2, 2)))
    graph = builder.build()
    assert get_cost(graph, graph.nodes[0]).flops == 6 * 2 * 3 * 4
