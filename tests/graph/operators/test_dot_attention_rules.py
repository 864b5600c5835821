from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from plait.graph.core.infer import get_cost, infer_node
from plait.graph.core.ir import Node
from plait.graph.core.operator import Call, find_operator
from plait.graph.values.errors import ShapeError
from plait.graph.values.tensor import Dim, TensorSpec
from single_node import single_node_graph

Q, K, V = ("n", 4, "t", 8), ("n", 2, "s", 8), ("n", 2, "s", 5)
FLAT = (("n", "t", 32), ("n", "s", 16), ("n", "s", 10))
HEADS = {"q_num_heads": 4, "kv_num_heads": 2}


def infer(*inputs: TensorSpec | Sequence[Dim] | None, **given: Any) -> list[Any]:
    attributes = find_operator("Attention").complete(given, "Attention")
    specs = tuple(
        x if x is None or isinstance(x, TensorSpec) else TensorSpec("float32", x) for x in inputs
    )
    names = tuple("" if x is None else f"x{i}" for i, x in enumerate(specs))
    node = Node("node", "Attention", names, ("y", "key", "value", "scores"), attributes)
    return [s.shape for s in infer_node(node, Call(specs, (None,) * len(specs), attributes, 4))]


def test_heads_may_share_keys_and_values_have_a_length_of_their_own() -> None:
    shapes = infer(Q, K, V)
    assert shapes == [("n", 4, "t", 5), K, V, ("n", 4, "t", "s")]


def test_heads_may_be_next_to_each_other() -> None:
    y, key, value, scores = infer(*FLAT, **HEADS)
    assert y == ("n", "t", 20)
    assert [key, value, scores] == [K, V, ("n", 4, "t", "s")]


def test_what_is_past_comes_before_the_keys() -> None:
    shapes = infer(Q, K, V, None, ("n", 2, 3, 8), ("n", 2, 3, 5))
    assert shapes[1] == ("n", 2, "(s+3)", 8)
    assert shapes[3] == ("n", 4, "t", "(s+3)")


def test_unknown_ranks_are_allowed() -> None:
    unknown = TensorSpec("float32", None)
    assert infer(unknown, unknown, unknown) == [None] * 4
    assert infer(Q, K, V, None, unknown, unknown)[0] == ("n", 4, "t", 5)


@pytest.mark.parametrize("mask", [("s",), (4, "t", "s"), ("n", 1, 1, "s"), (1, 4, "t", 3)])
def test_masks_are_repeated_and_may_lack_the_last_keys(mask: tuple[Dim, ...]) -> None:
    assert infer(Q, K, V, TensorSpec("bool", mask))[0] == ("n", 4, "t", 5)


def test_it_costs_two_products_at_least() -> None:
    q, k, v = (np.zeros(s, np.float32) for s in ((2, 4, 3, 8), (2, 2, 6, 8), (2, 2, 6, 5)))
    graph = single_node_graph("Attention", [q, k, v])
    products = 2 * 4 * 3 * 6 * 2 * (8 + 5)
    assert products < get_cost(graph, graph.nodes[0]).flops < 3 * products


PAST = ("n", 2, 3, 8)
REFUSED: dict[str, tuple[list[Any], dict[str, Any], str]] = {
    "ranks": ([Q, FLAT[1], V], {}, "must all have 3 axes, or all 4"),
    "no heads": (list(FLAT), {}, "do not tell how many heads"),
    "uneven": (list(FLAT), HEADS | {"kv_num_heads": 3}, "do not divide into 3 heads"),
    "sharing": ([Q, ("n", 3, "s", 8), ("n", 3, "s", 5)], {}, "4 heads of queries cannot share 3"),
    "depth": ([Q, ("n", 2, "s", 7), V], {}, "k must have the shape"),
    "values": ([Q, ("n", 2, 6, 8), ("n", 2, 5, 5)], {}, "k must have the shape"),
    "half a past": ([Q, K, V, None, PAST], {}, "past keys and values come together"),
    "past": ([Q, K, V, None, PAST, PAST], {}, "past_value must have the shape"),
    "dtypes": ([Q, TensorSpec("float16", K), V], {}, "different dtypes"),
    "mask": ([Q, K, V, (3, "t", "s")], {}, r"attn_mask must have the shape \[4, t, any\]"),
    "mask of many axes": ([Q, K, V, (1, 1, 4, "t", "s")], {}, "attn_mask must have the shape"),
    "long mask": ([Q, ("n", 2, 6, 8), ("n", 2, 6, 5), (7,)], {}, "for 7 keys, and there are 6"),
    "scalar mask": ([Q, K, V, ()], {}, "no axis of keys"),
    "used": (
        [Q, K, V, None, PAST, ("n", 2, 3, 5), TensorSpec("int64", ("n",))],
        {},
        "either appended to past ones, or in place",
    ),
}


@pytest.mark.parametrize(("inputs", "given", "message"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_is_refused(
    inputs: list[Any], given: dict[str, Any], message: str
) -> None:
    with pytest.raises(ShapeError, match=message):
        infer(*inputs, **given)
