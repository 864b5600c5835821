"""Small cases of all generated kernels, to compile for GPUs and to check on Oclgrind.

Oclgrind interprets one instruction at a time: a case has at most some thousand elements. Cases of
an operator family are in a module of their own, named in `MODULES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module

import numpy as np
import plait as pl
from onnx_suite import suite
from plait.devices.codegen.fusing import fuse
from plait.devices.codegen.pieces import Piece
from plait.devices.codegen.registry import find_refusal
from plait.graph.core.ir import Graph
from plait.graph.values.dtypes import dtype_of
from plait.graph.values.tensor import Array

Feeds = Mapping[str, Array]
Case = Callable[[], tuple[Graph, Feeds]]

MOST_ELEMENTS = 3000

MODULES: tuple[str, ...] = (
    "generated_elementwise_cases",
    "generated_epilogue_cases",
    "generated_exact_cases",
    "generated_movement_cases",
    "generated_network_cases",
)
"""Modules under tests/ that register cases when they are imported."""

CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    """Register a case under the function's name."""
    assert function.__name__ not in CASES, function.__name__
    CASES[function.__name__] = function
    return function


def all_cases() -> dict[str, Case]:
    """Return the cases of all modules."""
    for module in MODULES:
        import_module(module)
    return CASES


def onnx_cases() -> dict[str, tuple[Graph, Feeds]]:
    """Return a case of ONNX's own for each operator that has a generator, the last small one."""
    found = {}
    for cases in suite().nodes.values():
        for known in reversed(cases):
            if _is_small(known.graph) and _is_generated(known.graph):
                found[known.name] = known.graph, known.inputs
                break
    return found


def fused_pieces(graph: Graph, *, epilogues: bool = True) -> tuple[Piece, ...]:
    """Return a graph's pieces, fused in all ways; all nodes have generated kernels."""
    found = fuse(graph, {}, epilogues=lambda node: epilogues)
    refused = [each for each in found if not isinstance(each, Piece)]
    assert not refused, f"not generated: {refused}"
    return tuple(each for each in found if isinstance(each, Piece))


def _is_small(graph: Graph) -> bool:
    return all(spec.size <= MOST_ELEMENTS for spec in graph.tensors.values())


def _is_generated(graph: Graph) -> bool:
    return all(find_refusal(node, graph.call(node)) is None for node in graph.nodes)


def numbers(*shape: int, dtype: str = "float32", seed: int = 1) -> Array:
    """Return numbers around zero, the same ones each time."""
    drawn = np.random.default_rng(seed).standard_normal(shape) * 3
    return drawn.astype(dtype_of(dtype))


@case
def add_broadcast() -> tuple[Graph, Feeds]:
    b = pl.GraphBuilder("add_broadcast")
    x, row = b.input("x", "float32", (7, 33)), b.input("row", "float32", (33,))
    b.output("y", b.op("Add", x, row))
    return b.build(), {"x": numbers(7, 33), "row": numbers(33, seed=2)}


@case
def product() -> tuple[Graph, Feeds]:
    b = pl.GraphBuilder("product")
    a, c = b.input("a", "float32", (9, 21)), b.input("c", "float32", (21, 13))
    b.output("y", b.op("MatMul", a, c))
    return b.build(), {"a": numbers(9, 21), "c": numbers(21, 13, seed=2)}
