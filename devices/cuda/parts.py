"""Parts of a subgraph, and what a stream is given for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from ...graph.ir import Node
from ..codegen.pieces import Launch, Transfer
from .cudnn_graphs import Computable
from .products import Product

HELD_AT_MOST = 512
"""Kernels and marks in a stream that is held up: CUDA takes 1024 before it blocks the queue."""
MOST_KERNELS = 6
"""Of a call of a library: cuDNN turns three tensors, and may add up parts of sums."""


class Multiply(NamedTuple):
    """A product, and the tensors, the workspace and the bias it is given, by name.

    `starts` are the bytes before what it reads in `a` and `b`, and writes in `y`.
    """

    product: Product
    a: str
    b: str
    y: str
    workspace: str
    bias: str = ""
    starts: tuple[int, int, int] = (0, 0, 0)


class Execute(NamedTuple):
    """What cuDNN computes, the number of its engine, and its tensors and workspace, by name."""

    work: Computable
    engine: int
    tensors: tuple[str, ...]
    workspace: str


Queued: TypeAlias = Transfer | Launch | Multiply | Execute


class Part(NamedTuple):
    """Nodes that are computed together.

    Attributes
    ----------
    nodes : tuple of Node
        The last one is the one that errors and times name.
    queued : tuple of Transfer, Launch, Multiply or Execute, or None
        What a stream is given, which can be captured; None where CuPy runs a kernel of its own.
    """

    nodes: tuple[Node, ...]
    queued: tuple[Queued, ...] | None

    @property
    def node(self) -> Node:
        """The last node."""
        return self.nodes[-1]

    @property
    def of_libraries(self) -> Part | None:
        """What is not queued by our own kernels, but by CuPy's or libraries; None without any."""
        if self.queued is None:
            return self
        calls = tuple(item for item in self.queued if isinstance(item, Multiply | Execute))
        return Part(self.nodes, calls) if calls else None


def fits_in_queue(parts: Sequence[Part]) -> bool:
    """Say whether all of these parts, and a mark behind each, can be queued before any begins."""
    queued = [part.queued for part in parts]
    if None in queued:  # what CuPy computes may wait for the GPU meanwhile
        return False
    items = [item for each in queued for item in each or ()]
    calls = sum(isinstance(item, Multiply | Execute) for item in items)
    return len(parts) + len(items) + calls * (MOST_KERNELS - 1) <= HELD_AT_MOST
