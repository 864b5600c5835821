from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from plait.graph.core.infer import infer_node
from plait.graph.core.ir import Node
from plait.graph.core.operator import Call, find_operator
from plait.graph.values.errors import ShapeError
from plait.graph.values.tensor import Dim, TensorSpec

HEADS = {"q_num_heads": 4, "kv_num_heads": 2}
Q, K, V = ("n", "t", 12), ("n", "t", 6), ("n", "t", 8)
STATE = ("n", 2, 3, 4)


def infer(*inputs: TensorSpec | Sequence[Dim] | None, **given: Any) -> tuple[TensorSpec, ...]:
    attributes = find_operator("LinearAttention").complete(HEADS | given, "LinearAttention")
    specs = tuple(
        x if x is None or isinstance(x, TensorSpec) else TensorSpec("float32", x) for x in inputs
    )
    names = tuple("" if x is None else f"x{i}" for i, x in enumerate(specs))
    node = Node("node", "LinearAttention", names, ("y", "state"), attributes)
    return infer_node(node, Call(specs, (None,) * len(specs), attributes, 2))


def test_heads_of_queries_share_the_values_of_theirs() -> None:
    y, state = infer(Q, K, V, update_rule="linear")
    assert (y.shape, state.shape) == (("n", "t", 16), STATE)


def test_the_state_keeps_its_dtype() -> None:
    half = [TensorSpec("float16", shape) for shape in (Q, K, V)]
    y, state = infer(*half, TensorSpec("float32", None), update_rule="linear")
    assert y.dtype == "float16"
    assert state.dtype == "float32"
    assert infer(*half, update_rule="linear")[1].dtype == "float16"


@pytest.mark.parametrize("decays", [2, 6])
@pytest.mark.parametrize("betas", [1, 2])
def test_gates_are_per_head_or_finer_or_common(decays: int, betas: int) -> None:
    y, _ = infer(Q, K, V, STATE, ("n", "t", decays), ("n", "t", betas))
    assert y.shape == ("n", "t", 16)


def test_unknown_ranks_are_allowed() -> None:
    unknown = TensorSpec("float32", None)
    assert infer(*[unknown] * 3, update_rule="linear")[0].shape is None


GATE = ("n", "t", 2)
REFUSED: dict[str, tuple[list[Any], dict[str, Any], str]] = {
    "heads": ([Q, K, V], {"q_num_heads": 3}, "3 heads of queries cannot share 2"),
    "rank": ([(4, 12), K, V], {"update_rule": "linear"}, "query must have the shape"),
    "query": ([("n", "t", 13), K, V], {"update_rule": "linear"}, "13 elements of query"),
    "key": ([Q, ("n", "t", 5), V], {"update_rule": "linear"}, "key must have the shape"),
    "past": ([Q, K, V, (1, 2, 4, 3)], {"update_rule": "linear"}, "past_state must have the shape"),
    "no decay": ([Q, K, V, None, None, GATE], {}, "needs the input 'decay'"),
    "no beta": ([Q, K, V, None, GATE], {}, "needs the input 'beta'"),
    "a decay": ([Q, K, V, None, GATE, GATE], {"update_rule": "delta"}, "takes no input 'decay'"),
    "a beta": ([Q, K, V, None, GATE, GATE], {"update_rule": "gated"}, "takes no input 'beta'"),
    "decay": ([Q, K, V, None, V, GATE], {}, "decay has 8 numbers in each step, not 2 or 6"),
    "beta": ([Q, K, V, None, GATE, V], {}, "beta has 8 numbers in each step, not 2 or 1"),
}


@pytest.mark.parametrize(("inputs", "given", "message"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_is_refused(
    inputs: list[Any], given: dict[str, Any], message: str
) -> None:
    with pytest.raises(ShapeError, match=message):
        infer(*inputs, **given)
