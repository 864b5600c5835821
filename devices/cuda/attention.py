"""Attention as products that cuBLAS computes on tensor cores, with the layout of heads for it.

Scores of as many heads as fit are written to memory, and a generated kernel converts them to
weights. For large products that takes less time than one kernel that never writes scores but has
no tensor cores.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from ...graph.core.ir import Node
from ...graph.core.operator import Call, Specs
from ...graph.operators.attention import MASK, AttentionWindow, get_scale, get_window
from ...graph.values.dtypes import dtype_of
from ...graph.values.tensor import TensorSpec
from ..codegen.attention_weights import MOST_KEYS
from ..codegen.dot_attention import BY_HEADS, AttentionShape, infer_attention_shape
from ..codegen.indexing import INDEX_LIMIT
from ..codegen.registry import find_refusal
from .products import ALIGNMENT, Factor, Product, Result

LEAST = 10_000_000
"""Fewest operations for libraries: below, launches take longer than the work.

16 heads of 64 over 197 keys, 159 million operations, took 46 µs with the generated kernel and 7.4
with flash attention in PyTorch (H200, float16, 2026-11-28).
"""
MOST_NBYTES = 128 << 20
"""Limit of scores and weights at a time."""
MOST_PRODUCTS = 64
"""Limit of products of scores: each is a launch, and separated heads need one each."""
SCORE_NBYTES = 4
"""Float32: rounding large scores would make weights wrong."""
QUANTUM = 8
"""Rows of scores are padded to a multiple of this, which tensor cores read fastest."""


class HeadBlock(NamedTuple):
    """Heads that are multiplied at once."""

    head: int
    """The first head, counted over all samples."""
    q: int
    k: int
    v: int
    y: int
    scores: int
    weights: int
    """Offsets in bytes of their parts in each tensor."""


class StaticAttention(NamedTuple):
    dtype: str
    """Dtype of queries, keys and values."""
    shape: AttentionShape
    window: AttentionWindow
    mask: TensorSpec | None
    scale: float
    softcap: float
    """Limit of scores; 0 for none."""
    is_stacked: bool
    """Whether heads are an axis, so that all are one stack of matrices. Otherwise they are adjacent
    in each row, and each sample is a stack."""

    @property
    def operations(self) -> int:
        s = self.shape
        return 2 * s.batch * s.heads * s.queries * s.keys * (s.depth + s.width)

    @property
    def workspace_nbytes(self) -> int:
        """Size of the libraries' workspace, without scores and weights."""
        return max(each.workspace_nbytes for each in (self.scores, self.values))

    @property
    def on_tensor_cores(self) -> bool:
        """Whether tensor cores may multiply, as for a convolution; always true here."""
        return True

    @property
    def row(self) -> int:
        """Elements between the scores of consecutive queries."""
        return -(-self.shape.keys // QUANTUM) * QUANTUM

    @property
    def scratch(self) -> tuple[TensorSpec, ...]:
        """The workspace, the scores, and weights of another dtype."""
        room = (self.at_once * self.shape.queries, self.row)
        scores = TensorSpec("uint8", (self.workspace_nbytes,)), TensorSpec("float32", room)
        return scores if self.dtype == "float32" else (*scores, TensorSpec(self.dtype, room))

    @property
    def products(self) -> frozenset[Product]:
        return frozenset({self.scores, self.values})

    @property
    def at_once(self) -> int:
        """Count of heads with scores in memory at once."""
        stack = self._per_product
        if stack < self._stack:
            return stack * self._merged
        stacks = self.shape.batch * self.shape.heads // (stack * self._merged)
        return stack * self._merged * _find_divisor(stacks, stack * self._merged * self._nbytes)

    @property
    def scores(self) -> Product:
        s = self.shape
        rows = self._merged * s.queries
        q = Factor(0, stride=self._merged * s.q[1], row=s.q[2])
        k = Factor(1, transposed=True, stride=self._shared_stride(s.k), row=s.k[2])
        made = Result("float32", rows * self.row, self.row)
        sizes = rows, s.keys, s.depth, self._per_product
        starts = (start for block in self.blocks() for start in (block.q, block.k, block.scores))
        alignment = math.gcd(ALIGNMENT, *starts)
        return Product(self.dtype, q, k, *sizes, alpha=self.scale, result=made, alignment=alignment)

    @property
    def values(self) -> Product:
        s = self.shape
        rows = self._merged * s.queries
        weights = Factor(0, stride=rows * self.row, row=self.row)
        v = Factor(2, stride=self._shared_stride(s.v), row=s.v[2])
        made = Result(self.dtype, self._merged * s.y[1], s.y[2])
        sizes = rows, s.width, s.keys, self._per_product
        starts = (start for block in self.blocks() for start in (block.weights, block.v, block.y))
        alignment = math.gcd(ALIGNMENT, *starts)
        return Product(self.dtype, weights, v, *sizes, result=made, alignment=alignment)

    def blocks(self) -> Iterator[HeadBlock]:
        s, room, size = self.shape, self.at_once, dtype_of(self.dtype).itemsize
        for head in range(0, s.batch * s.heads, self._per_product * self._merged):
            sample, own = divmod(head, s.heads)
            q, y = (size * (sample * each[0] + own * each[1]) for each in (s.q, s.y))
            shared = own // s.group
            k, v = (size * (sample * each[0] + shared * each[1]) for each in (s.k, s.v))
            score = head % room * s.queries * self.row
            yield HeadBlock(head, q, k, v, y, SCORE_NBYTES * score, size * score)

    @property
    def fits(self) -> bool:
        """Whether its scores fit into memory and registers, with a limited number of products."""
        s = self.shape
        lengths = s.batch, s.heads, s.queries, s.keys, s.depth, s.width
        tensors = (s.batch * each[0] for each in (s.q, s.k, s.v, s.y))
        if min(lengths) < 1 or s.keys > MOST_KEYS or max(tensors) >= INDEX_LIMIT:
            return False
        if self._merged * self._nbytes > MOST_NBYTES or self.operations < LEAST:
            return False
        return s.batch * s.heads <= MOST_PRODUCTS * self._per_product * self._merged

    @property
    def _merged(self) -> int:
        return self.shape.group if self.is_stacked else 1

    @property
    def _stack(self) -> int:
        """Count of matrices with a constant stride."""
        s = self.shape
        if self.is_stacked:
            return s.batch * s.heads // s.group
        return s.heads if s.group == 1 else s.group

    @property
    def _per_product(self) -> int:
        return _find_divisor(self._stack, self._merged * self._nbytes)

    @property
    def _nbytes(self) -> int:
        """Size of scores and weights of one head."""
        of_weights = 0 if self.dtype == "float32" else dtype_of(self.dtype).itemsize
        return self.shape.queries * self.row * (SCORE_NBYTES + of_weights)

    def _shared_stride(self, strides: tuple[int, int, int]) -> int:
        return strides[1] if self.is_stacked or self.shape.group == 1 else 0


def match_attention(
    node: Node, call: Call, outputs: Specs, *, tf32: bool
) -> StaticAttention | None:
    """Match `node`, with static `call` and `outputs`, to attention on tensor cores, or return None.

    `tf32` allows them to multiply float32.
    """
    dtypes = ("float16", "bfloat16", *(["float32"] if tf32 else []))
    if node.op != "Attention" or call.spec(0).dtype.name not in dtypes:
        return None
    if find_refusal(node, call) is not None:  # generated kernels replace refused products
        return None
    shape, mask = infer_attention_shape(call), call.spec(MASK) if call.has(MASK) else None
    found = StaticAttention(
        *(call.spec(0).dtype.name, shape, get_window(call.attributes), mask),
        *(get_scale(call.attributes, shape.depth), call.attributes["softcap"]),
        is_stacked=call.spec(0).rank == BY_HEADS,
    )
    return found if found.fits else None


def _find_divisor(count: int, nbytes: int) -> int:
    return next(n for n in range(count, 0, -1) if count % n == 0 and n * nbytes <= MOST_NBYTES)
