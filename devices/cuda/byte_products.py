"""Products of bytes with zero points of any kind, in the form of cuBLAS.

Tensor cores multiply signed bytes in rows and columns of a length that is a multiple of four, in
the layout "TN" (cuBLAS, cublasLtMatmul; its matrices are column-major). Other factors are packed
first, and the kernel that processes the sums subtracts the contribution of zero points. Constants
are packed once.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ...graph.core.ir import Node
from ...graph.core.operator import Call, Specs
from ...graph.values.tensor import Array, TensorSpec
from ..codegen.byte_factors import (
    PACKED,
    PARTS,
    SUMS,
    finish_product,
    pack,
    pack_windows,
    sum_up,
    sum_up_packed,
)
from ..codegen.composition import Chain
from ..codegen.epilogue import Epilogue, generate_with, store_results
from ..codegen.integer_products import LOWERED, NodeScales, find_factors, find_windows, to_matrices
from ..codegen.pieces import Launch, make_launches
from ..codegen.registry import Code, find_refusal
from ..codegen.windows import Sliding
from ..device import scratch_name
from .parts import Multiply, Queued
from .products import Factor, Product, fits

LEAST = 100_000_000
"""Fewest operations, an estimate: less work takes the time of three launches. Not measured yet."""
MOST_DEPTH = (1 << 31) // (128 * 128) - 1
"""Greatest depth at which sums of products of signed bytes fit into 32 bits, without overflow."""
MOST_NBYTES = 128 << 20
"""Limit of the cells of windows, each written as often as windows contain it."""
ROWS, DEPTH = 4, 16
"""Padding of the rows of b and of the depth: cuBLAS requires rows of results and of bytes to be a
multiple of four long, and is faster if they are aligned to 16 bytes."""


class ByteFactor(NamedTuple):
    side: str
    """Left or right; columns of the right one become rows."""
    operand: int
    """Index of the node's input."""
    stack: int
    rows: int
    depth: int
    """Count of matrices, rows of each, and length of the rows."""
    is_unsigned: bool
    is_constant: bool
    is_summed: bool
    """Whether its rows are summed, because the other factor's zero point may not be 0."""
    sliding: Sliding | None = None
    """The windows that are its rows, unless those are an image's."""
    zero: int | None = None
    """Index of the input with the value of cells outside of an image."""

    @property
    def room(self) -> tuple[int, int]:
        """Rows and depth of a matrix for cuBLAS."""
        rows = self.rows if self.side == "a" else -(-self.rows // ROWS) * ROWS
        return rows, -(-self.depth // DEPTH) * DEPTH

    @property
    def is_packed(self) -> bool:
        return self.side == "b" or self.is_unsigned or self.depth % DEPTH != 0

    @property
    def stride(self) -> int:
        """Elements between matrices; 0 if all products share one."""
        return math.prod(self.room) if self.stack > 1 else 0

    @property
    def sums(self) -> str:
        return f"{SUMS}_{self.side}"

    @property
    def made(self) -> tuple[str, ...]:
        """Names of its derived arrays: packed matrices, and sums of rows."""
        return ((self.side,) if self.is_packed else ()) + ((self.sums,) if self.is_summed else ())

    @property
    def codes(self) -> dict[str, tuple[TensorSpec, Code]]:
        """Derived arrays of each item by name, with their specs and code."""
        if self.is_constant:
            return {}
        shape, turns = (self.stack, self.rows, self.depth), self.side == "b"
        packed = TensorSpec("int8", (self.stack, *self.room))
        sums = TensorSpec("int32", (self.stack * self.room[0],))
        lowered = LOWERED if self.is_unsigned else 0
        if self.sliding is None:
            codes = (
                pack(self.operand, shape, self.room, turns, lowered),
                sum_up(self.operand, shape, self.room[0], turns, lowered),
            )
        else:
            images = self.operand, self.zero, self.stack, self.sliding
            codes = (
                pack_windows(*images, self.depth, self.room, lowered),
                sum_up_packed(self.stack, self.room),
            )
        found = {self.side: (packed, codes[0]), self.sums: (sums, codes[1])}
        return {name: found[name] for name in self.made}

    def prepared(self, array: Array) -> dict[str, Array]:
        rows = array.reshape(self.stack, self.rows, self.depth)
        if self.side == "b":
            rows = array.reshape(self.stack, self.depth, self.rows).swapaxes(1, 2)
        signed = (rows ^ LOWERED).view(np.int8) if self.is_unsigned else rows
        packed = np.zeros((self.stack, *self.room), np.int8)
        packed[:, : self.rows, : self.depth] = signed
        found = {self.side: packed, self.sums: packed.sum(2, dtype=np.int32).reshape(-1)}
        return {name: found[name] for name in self.made}


class ByteProduct(NamedTuple):
    """A node of static shapes that multiplies bytes."""

    op: str
    a: ByteFactor
    b: ByteFactor
    batch: int
    is_final: bool
    """Whether the sums are the node's results in place."""

    @property
    def operations(self) -> int:
        return 2 * self.batch * self.a.rows * self.b.rows * self.a.depth

    @property
    def product(self) -> Product:
        (m, k), (n, _) = self.a.room, self.b.room
        left = Factor(self.a.operand, stride=self.a.stride)
        right = Factor(self.b.operand, transposed=True, stride=self.b.stride)
        return Product("int8", left, right, m, n, k, self.batch)

    @property
    def products(self) -> frozenset[Product]:
        return frozenset({self.product})

    @property
    def scratch(self) -> tuple[TensorSpec, ...]:
        """The workspace, derived arrays of factors, and the sums."""
        return tuple(self._buffers.values())

    @property
    def _buffers(self) -> dict[str, TensorSpec]:
        found = {"workspace": TensorSpec("uint8", (self.product.workspace_nbytes,))}
        for name, (spec, code) in self._codes.items():
            parts = {f"{name}/{PARTS}": each for each in code.scratch}
            found |= {name: spec, **parts}
        if not self.is_final:
            found[SUMS] = TensorSpec("int32", (self.batch * self.a.rows, self.b.room[0]))
        return found

    def multiply(self, node: Node, first: int) -> Iterator[Queued]:
        """Yield the work of `node` up to the sums; scratch buffers begin with number `first`."""
        names = self._names(node, first)
        for name, (_, code) in self._codes.items():
            parts = names.get(f"{name}/{PARTS}", "")
            named = {"y": names[name], PACKED: names["b"], PARTS: parts}
            yield from make_launches(node, code, named)
        y = node.outputs[0] if self.is_final else names[SUMS]
        yield Multiply(self.product, names["a"], names["b"], y, names["workspace"])

    def finish(
        self, node: Node, call: Call, outputs: Specs, first: int, chain: Chain | None = None
    ) -> tuple[Launch, ...]:
        """Return the epilogue of `node`, which turns sums to outputs and applies a `chain`, if any.

        `call` and `outputs` are those of the node; its scratch buffers begin with number `first`.
        """
        if self.is_final:
            return ()

        def generate(call: Call, outputs: Specs, epilogue: Epilogue) -> Code:
            return finish_product(self.op, call, outputs, epilogue, self.b.room[0])

        names = self._names(node, first)
        if chain is None:
            return make_launches(node, generate(call, outputs, store_results(outputs[0])), names)
        code = generate_with(node, call, outputs, chain.epilogue, chain.title, generate)
        return make_launches(node, code, {**names, **chain.tensors})

    def constants(self, node: Node) -> Iterator[tuple[str, ByteFactor]]:
        """Yield the names and factors of the constants of `node` with derived arrays."""
        for factor in (self.a, self.b):
            if factor.is_constant and factor.made:
                yield node.inputs[factor.operand], factor

    @property
    def _codes(self) -> dict[str, tuple[TensorSpec, Code]]:
        return self.a.codes | self.b.codes

    def _names(self, node: Node, first: int) -> dict[str, str]:
        """Return tensors of `node`, scratch from number `first`, and derived constants by role."""
        names = {each.side: node.inputs[each.operand] for each in (self.a, self.b)}
        for name, factor in self.constants(node):
            names |= {what: name_derived(name, what) for what in factor.made}
        buffers = enumerate(self._buffers, first)
        return names | {name: scratch_name(node, number) for number, name in buffers}


class PreparedConstants:
    """Derived arrays of constants, kept while in use."""

    def __init__(self) -> None:
        self._made: weakref.WeakValueDictionary[tuple[int, ByteFactor, str], Array] = (
            weakref.WeakValueDictionary()
        )

    def of(self, name: str, array: Array, factor: ByteFactor) -> dict[str, Array]:
        keys = {what: (id(array), factor, what) for what in factor.made}
        found = {what: self._made.get(key) for what, key in keys.items()}
        made = {what: one for what, one in found.items() if one is not None}
        if len(made) < len(keys):
            made = factor.prepared(array)
            for what, key in keys.items():
                self._made[key] = made[what]
                # A later array may get the same id.
                weakref.finalize(array, self._made.pop, key, None).atexit = False
        return {name_derived(name, what): one for what, one in made.items()}


def name_derived(name: str, what: str) -> str:
    return f"{name}\0{what}"


def match_byte_product(node: Node, call: Call, outputs: Specs) -> ByteProduct | None:
    factors = find_factors(node.op)
    if (
        factors is None or find_refusal(node, call) is not None
    ):  # generated kernels replace refused ones
        return None
    m = to_matrices(node.op, call, outputs, store_results(outputs[0]))
    if m is None or m.ctype != "u32" or not 0 < m.left.columns <= MOST_DEPTH:
        return None
    of_a, of_b, batch = (math.prod(each) for each in (m.left.batch, m.right.batch, m.batch))
    rows, columns, stacks = m.left.rows, m.right.columns, (of_a, of_b)
    if of_b == 1:  # one tall product
        rows, batch, stacks = batch * rows, 1, (1, 1)
    elif of_a not in (1, batch) or of_b != batch:
        return None
    scales = NodeScales(node.op, call)
    around = {side: scales.is_around_zero(side) for side in "ab"}
    operands, lines = dict(zip("ab", factors, strict=True)), (rows, columns)
    a, b = (
        ByteFactor(
            *(side, operand, stack, length, m.left.columns),
            is_unsigned=scales.lowered_by(side) > 0,
            is_constant=call.value(operand) is not None,
            is_summed=not around[other],
        )
        for (side, operand), other, stack, length in zip(
            operands.items(), "ba", stacks, lines, strict=True
        )
    )
    sliding = find_windows(node.op, call, outputs[0])
    if sliding is not None:
        if math.prod(b.room) * b.stack > MOST_NBYTES:
            return None
        zero = scales.number("b_zero")
        b = b._replace(is_constant=False, sliding=sliding, zero=zero)
    is_final = all(around.values()) and outputs[0].dtype == np.int32 and not columns % ROWS
    found = ByteProduct(node.op, a, b, batch, is_final)
    is_alone = is_final and all(each.is_constant or not each.made for each in (a, b))
    if not fits(found.product) or (found.operations < LEAST and not is_alone):
        return None
    return found
