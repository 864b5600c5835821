"""Parts of a subgraph, with the work that is queued for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from ...graph.core.ir import Node
from ..codegen.pieces import Launch, Transfer
from .cudnn_graphs import Computable
from .products import Product

HELD_AT_MOST = 512
"""Kernels and marks on a held stream: CUDA takes 1024 before it blocks the queue."""
MOST_KERNELS = 6
"""Limit for a library's call: cuDNN converts three tensors, and may sum partial sums."""


class Multiply(NamedTuple):
    """A product with its tensors, workspace and bias, by name.

    `starts` are offsets in bytes in `a`, `b` and `y`.
    """

    product: Product
    a: str
    b: str
    y: str
    workspace: str
    bias: str = ""
    starts: tuple[int, int, int] = (0, 0, 0)


class Execute(NamedTuple):
    """A computation for cuDNN, the index of its engine, its tensors and workspace by name."""

    work: Computable
    engine: int
    tensors: tuple[str, ...]
    workspace: str


Queued: TypeAlias = Transfer | Launch | Multiply | Execute


class Part(NamedTuple):
    """Nodes that are computed together.

    Errors and times refer to the last of `nodes`. The work `queued` for a stream can be captured:
    None for CuPy's kernels.
    """

    nodes: tuple[Node, ...]
    queued: tuple[Queued, ...] | None

    @property
    def node(self) -> Node:
        return self.nodes[-1]

    @property
    def of_libraries(self) -> Part | None:
        """The part without generated kernels; None if that is empty."""
        if self.queued is None:
            return self
        calls = tuple(item for item in self.queued if isinstance(item, Multiply | Execute))
        return Part(self.nodes, calls) if calls else None


def fits_in_queue(parts: Sequence[Part]) -> bool:
    """Return whether all `parts`, with marks, can be queued before the first begins."""
    queued = [part.queued for part in parts]
    if None in queued:  # CuPy's kernels may wait for the GPU
        return False
    items = [item for each in queued for item in each or ()]
    calls = sum(isinstance(item, Multiply | Execute) for item in items)
    return len(parts) + len(items) + calls * (MOST_KERNELS - 1) <= HELD_AT_MOST
