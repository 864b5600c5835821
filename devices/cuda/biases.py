"""Biases and activations that cuBLAS computes with a product.

A separate kernel reads and writes the result once more, which takes longer than many products.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from ...graph.core.ir import Graph, Node
from ..memory import View
from .products import Product

DTYPES = ("float16", "bfloat16", "float32")
"""Dtypes of biases in cuBLAS."""


class Biased(NamedTuple):
    """A product with the following nodes that cuBLAS computes along with it."""

    product: Product
    nodes: tuple[Node, ...]
    """Starting with the product's."""
    bias: str
    y: str
    """The bias row, and the last node's output."""


def match_bias(
    graph: Graph, node: Node, product: Product, following: Sequence[Node]
) -> Biased | None:
    """Match `product` of `node` with a bias row and nodes that cuBLAS can compute with it, or None.

    `following` are all nodes of `graph` that are computed together after it.
    """
    if product.dtype not in DTYPES or product.batch > 1:
        return None
    nodes = (node, *following)
    bias = _find_own_row(node, product)
    last = nodes[1:]
    if bias is None and product.added is None and following and following[0].op == "Add":
        bias, last = _find_other_row(graph, node, following[0], product), nodes[2:]
    if bias is None or [each.op for each in last] not in ([], ["Relu"]):
        return None
    if not all(_is_passed_on(graph, *pair) for pair in pairwise(nodes)):
        return None
    found = product.biased(is_rectified=bool(last))
    return Biased(found, nodes, bias, nodes[-1].outputs[0])


def overlaps(y: str, names: Iterable[str], views: Mapping[str, View]) -> bool:
    """Return whether tensor `y` shares bytes in `views` with `names`; constants share none."""
    own = views[y]
    end = own.offset + own.spec.nbytes
    others = (views[name] for name in names if name in views)
    same = (each for each in others if each.arena is own.arena)
    return any(e.offset < end and own.offset < e.offset + e.spec.nbytes for e in same)


def _find_own_row(node: Node, product: Product) -> str | None:
    if product.added is None or product.beta != 1 or not _is_row(product.added, product):
        return None
    return node.inputs[2]


def _find_other_row(graph: Graph, node: Node, add: Node, product: Product) -> str | None:
    made = node.outputs[0]
    others = [name for name in add.inputs if name != made]
    if len(others) != 1 or graph.tensors[add.outputs[0]].shape != graph.tensors[made].shape:
        return None
    shape = graph.tensors[others[0]].static_shape
    return others[0] if _is_row(shape, product) else None


def _is_row(shape: tuple[int, ...], product: Product) -> bool:
    return bool(shape) and shape[-1] == product.n == math.prod(shape)


def _is_passed_on(graph: Graph, node: Node, follower: Node) -> bool:
    name = node.outputs[0]
    return name not in graph.fetched and list(graph.consumers.get(name, ())) == [follower]
