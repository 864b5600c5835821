"""Rows that are added to products, and what is cut off below zero, where cuBLAS does both itself.

A kernel that does so afterwards reads and writes the result once more, which takes longer than
many a product.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from ...graph.ir import Graph, Node
from ..memory import View
from .products import Product

DTYPES = ("float16", "bfloat16", "float32")
"""What cuBLAS adds rows of."""


class Biased(NamedTuple):
    """A product, and the nodes behind it that cuBLAS computes along with it.

    Attributes
    ----------
    product : Product
    nodes : tuple of Node
        The product's comes first.
    bias, y : str
        The row, and where the last node's results belong.
    """

    product: Product
    nodes: tuple[Node, ...]
    bias: str
    y: str


def biased(graph: Graph, node: Node, product: Product, behind: Sequence[Node]) -> Biased | None:
    """Return a product with its row and the nodes behind it; None unless cuBLAS adds it.

    Parameters
    ----------
    graph : Graph
    node : Node
        The product's.
    product : Product
    behind : sequence of Node
        All of those that are computed together right behind it, if there are any.
    """
    if product.dtype not in DTYPES or product.batch > 1:
        return None
    nodes = (node, *behind)
    bias = _own_row(node, product)
    last = nodes[1:]
    if bias is None and product.added is None and behind and behind[0].op == "Add":
        bias, last = _other_row(graph, node, behind[0], product), nodes[2:]
    if bias is None or [each.op for each in last] not in ([], ["Relu"]):
        return None
    if not all(_is_passed_on(graph, *pair) for pair in pairwise(nodes)):
        return None
    found = product.biased(is_rectified=bool(last))
    return Biased(found, nodes, bias, nodes[-1].outputs[0])


def meets(y: str, names: Iterable[str], views: Mapping[str, View]) -> bool:
    """Say whether a tensor shares bytes with others; constants share none."""
    first = views[y]
    for view in (views[name] for name in names if name in views):
        begin, end = first.offset, first.offset + first.spec.nbytes
        if (
            view.arena is first.arena
            and view.offset < end
            and (begin < view.offset + view.spec.nbytes)
        ):
            return True
    return False


def _own_row(node: Node, product: Product) -> str | None:
    """Return the row that a node adds to its product itself."""
    if product.added is None or product.beta != 1 or not _is_row(product.added, product):
        return None
    return node.inputs[2]


def _other_row(graph: Graph, node: Node, add: Node, product: Product) -> str | None:
    """Return the row that another node adds to a product."""
    made = node.outputs[0]
    others = [name for name in add.inputs if name != made]
    if len(others) != 1 or graph.tensors[add.outputs[0]].shape != graph.tensors[made].shape:
        return None
    shape = graph.tensors[others[0]].static_shape
    return others[0] if _is_row(shape, product) else None


def _is_row(shape: tuple[int, ...], product: Product) -> bool:
    return bool(shape) and shape[-1] == product.n == math.prod(shape)


def _is_passed_on(graph: Graph, node: Node, follower: Node) -> bool:
    """Say whether nobody but the next node reads the result of one."""
    name = node.outputs[0]
    return name not in graph.fetched and list(graph.consumers.get(name, ())) == [follower]
