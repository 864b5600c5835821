"""Attention as products that cuBLAS computes on tensor cores, and how heads lie for it.

Scores are written to memory, for as many heads at a time as there is room for, and a generated
kernel makes weights of them. That takes less time than one kernel without tensor cores, which never
writes scores, where there is much to multiply.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from ...graph.dtypes import dtype_of
from ...graph.ir import Node
from ...graph.operator import Call, Specs
from ...graph.operators.attention import MASK, AttentionWindow, scale_of, window_of
from ...graph.tensor import TensorSpec
from ..codegen.attention_weights import MOST_KEYS
from ..codegen.dot_attention import BY_HEADS, AttentionShape, attention_shape
from ..codegen.indexing import INDEX_LIMIT
from ..codegen.registry import why_not
from .products import ALIGNMENT, Factor, Product, Result

LEAST = 10_000_000
"""Operations from which libraries are considered: below, launches take longer than the work.

16 heads of 64 over 197 keys, 159 million operations, took 46 µs by the generated kernel and 7.4 by
flash attention in PyTorch (H200, float16, 2026-11-28).
"""
MOST_NBYTES = 128 << 20
"""Of scores and weights at a time."""
MOST_PRODUCTS = 64
"""Of scores: where heads lie apart, each takes one, and each of these is a launch."""
SCORE_NBYTES = 4
"""They are float32: rounded to less, those that are large would make weights that are wrong."""
QUANTUM = 8
"""Rows of scores are filled up to a multiple of that many, which tensor cores read fastest."""


class HeadBlock(NamedTuple):
    """Some heads that are multiplied at once.

    Attributes
    ----------
    head : int
        The first, counted through all samples.
    q, k, v, y, scores, weights : int
        Bytes from the beginning of each tensor to where theirs are.
    """

    head: int
    q: int
    k: int
    v: int
    y: int
    scores: int
    weights: int


class StaticAttention(NamedTuple):
    """An attention of static shapes, for tensor cores.

    Attributes
    ----------
    dtype : str
        Of queries, keys and values.
    shape : AttentionShape
    window : AttentionWindow
    mask : TensorSpec or None
    scale : float
    softcap : float
        Which scores stay below; 0 for none.
    is_stacked : bool
        Whether heads are an axis of their own, so that all of them are one stack of matrices; else
        they lie side by side in each row, and those of one sample are a stack.
    """

    dtype: str
    shape: AttentionShape
    window: AttentionWindow
    mask: TensorSpec | None
    scale: float
    softcap: float
    is_stacked: bool

    @property
    def operations(self) -> int:
        """How many products and sums there are."""
        s = self.shape
        return 2 * s.batch * s.heads * s.queries * s.keys * (s.depth + s.width)

    @property
    def workspace_nbytes(self) -> int:
        """How much memory libraries are given to work with, besides scores and weights."""
        return max(each.workspace_nbytes for each in (self.scores, self.values))

    @property
    def on_tensor_cores(self) -> bool:
        """Whether tensor cores may multiply, as for a convolution: that is what this is for."""
        return True

    @property
    def row(self) -> int:
        """Elements from one query's scores to the next one's."""
        return -(-self.shape.keys // QUANTUM) * QUANTUM

    @property
    def scratch(self) -> tuple[TensorSpec, ...]:
        """The workspace, scores, and weights if they are of another dtype."""
        room = (self.at_once * self.shape.queries, self.row)
        scores = TensorSpec("uint8", (self.workspace_nbytes,)), TensorSpec("float32", room)
        return scores if self.dtype == "float32" else (*scores, TensorSpec(self.dtype, room))

    @property
    def products(self) -> frozenset[Product]:
        """What cuBLAS may refuse."""
        return frozenset({self.scores, self.values})

    @property
    def at_once(self) -> int:
        """Heads whose scores there is room for."""
        stack = self._per_product
        if stack < self._stack:
            return stack * self._merged
        stacks = self.shape.batch * self.shape.heads // (stack * self._merged)
        return stack * self._merged * _most(stacks, stack * self._merged * self._nbytes)

    @property
    def scores(self) -> Product:
        """Queries by keys."""
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
        """Weights by values."""
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
        """Yield what is multiplied, in order."""
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
        """Whether its scores fit into memory and registers, by not too many products."""
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
        """Heads of queries that share keys, and lie behind one another: one matrix."""
        return self.shape.group if self.is_stacked else 1

    @property
    def _stack(self) -> int:
        """Matrices that are equally far apart."""
        s = self.shape
        if self.is_stacked:
            return s.batch * s.heads // s.group
        return s.heads if s.group == 1 else s.group

    @property
    def _per_product(self) -> int:
        return _most(self._stack, self._merged * self._nbytes)

    @property
    def _nbytes(self) -> int:
        """How much memory scores and weights of one head take."""
        of_weights = 0 if self.dtype == "float32" else dtype_of(self.dtype).itemsize
        return self.shape.queries * self.row * (SCORE_NBYTES + of_weights)

    def _shared_stride(self, strides: tuple[int, int, int]) -> int:
        return strides[1] if self.is_stacked or self.shape.group == 1 else 0


def attention_of(node: Node, call: Call, outputs: Specs, *, tf32: bool) -> StaticAttention | None:
    """Return a node of static shapes as an attention for tensor cores, None if it is none.

    With `tf32`, tensor cores may multiply float32.
    """
    dtypes = ("float16", "bfloat16", *(["float32"] if tf32 else []))
    if node.op != "Attention" or call.spec(0).dtype.name not in dtypes:
        return None
    if why_not(node, call) is not None:  # what cuBLAS refuses is generated
        return None
    shape, mask = attention_shape(call), call.spec(MASK) if call.has(MASK) else None
    found = StaticAttention(
        *(call.spec(0).dtype.name, shape, window_of(call.attributes), mask),
        *(scale_of(call.attributes, shape.depth), call.attributes["softcap"]),
        is_stacked=call.spec(0).rank == BY_HEADS,
    )
    return found if found.fits else None


def _most(count: int, nbytes: int) -> int:
    """Return the greatest divisor of a count of which so many bytes each have room together."""
    return next(n for n in range(count, 0, -1) if count % n == 0 and n * nbytes <= MOST_NBYTES)
