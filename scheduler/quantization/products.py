"""Nodes that can multiply integers, and their inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np

from ...graph.core.ir import Graph, Node
from ...graph.core.printing import list_some
from ..errors import PlanError

FEATURES = {"Conv": 0, "ConvTranspose": 1, "MatMul": 1}
"""The axis of weights with the features."""


@dataclass(frozen=True, slots=True)
class QuantizedProduct:
    """A node that multiplies, and its inputs that become integers."""

    node: Node
    activations: tuple[int, ...]
    """Inputs that are computed at run time."""
    weights: int | None
    """The input that is constant."""
    axis: int | None = None
    """The axis along which weights have their own scales; None for one scale."""
    bias: int | None = None
    """The input that is a constant bias."""


def find_products(
    graph: Graph, exclude: Sequence[str], per_channel: bool
) -> tuple[dict[str, QuantizedProduct], dict[str, str]]:
    """Return the products of `graph` that become integer ones, and for others, by name, why not.

    Nodes that match `exclude` stay in floats; PlanError if a pattern matches none. With
    `per_channel` the weights of each output channel have their own scale.
    """
    found: dict[str, QuantizedProduct] = {}
    left: dict[str, str] = {}
    unused = set(exclude)
    for node in graph.nodes:
        matching = {p for p in exclude if p == node.op or fnmatchcase(node.name, p)}
        unused -= matching
        if node.op not in (*FEATURES, "Gemm"):
            continue
        made = "excluded" if matching else _match_product(graph, node, per_channel)
        if isinstance(made, str):
            left[node.name] = made
        else:
            found[node.name] = made
    if unused:
        raise PlanError(
            f"{', '.join(map(repr, sorted(unused)))} fits no node of {graph.name!r}",
            fix="give names, patterns or operators; it has "
            + (list_some([*found, *left], 5) or "no product"),
        )
    return found, left


def _match_product(graph: Graph, node: Node, per_channel: bool) -> QuantizedProduct | str:
    """Return the integer form of `node` in `graph`, or why it stays in floats.

    `per_channel` is as in `find_products`.
    """
    if node.op == "Gemm":
        return "its weights are computed, or its left factor is turned"
    if any(graph.tensors[name].dtype != np.float32 for name in node.inputs if name):
        return "it is not float32"
    constant = [name in graph.constants for name in node.inputs]
    if any(not np.isfinite(graph.constants[n]).all() for n in node.inputs if n in graph.constants):
        return "a constant of it is not finite"
    if node.op == "MatMul":
        return _match_matmul(graph, node, constant, per_channel)
    if constant[0] or not constant[1]:
        return "its weights are computed"
    bias = 2 if len(node.inputs) > 2 and node.inputs[2] else None
    if (
        node.op == "ConvTranspose"
    ):  # it has no integer form: only its weights are stored as integers
        whole = node.attributes["group"] == 1 and per_channel
        return QuantizedProduct(node, (), 1, FEATURES[node.op] if whole else None)
    if bias is not None and not constant[bias]:
        return "its bias is computed"
    return QuantizedProduct(node, (0,), 1, FEATURES[node.op] if per_channel else None, bias)


def _match_matmul(
    graph: Graph, node: Node, constant: Sequence[bool], per_channel: bool
) -> QuantizedProduct | str:
    if all(constant):
        return "it is constant"
    if any(constant):
        weights = constant.index(True)
        columns = weights == 1 and graph.tensors[node.inputs[1]].rank == 2 and per_channel
        return QuantizedProduct(
            node, (1 - weights,), weights, FEATURES[node.op] if columns else None
        )
    return QuantizedProduct(node, (0, 1), None)


def list_activations(products: Mapping[str, QuantizedProduct]) -> list[str]:
    """Return the tensors for which `products` need ranges, each once."""
    names = (p.node.inputs[index] for p in products.values() for index in p.activations)
    return list(dict.fromkeys(names))
