"""Products of matrices that cuBLAS computes, and how they look to it.

Matrices lie row by row. Everything else that multiplies is left to generated kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ...graph.ir import Node
from ...graph.operator import Call, Specs
from ...graph.tensor import TensorSpec
from ...graph.windows import resolve_window
from ..codegen.indexing import INDEX_LIMIT, broadcast, coordinates, index_type, offset
from ..codegen.kernel import THREADS, Kernel, Parameter, groups_of

FLOATS = ("float16", "bfloat16", "float32", "float64")
CELLS = {2: "u16", 4: "u32", 8: "u64"}
"""What elements of that many bytes are copied as."""
ALIGNMENT = 256
"""Bytes that addresses are multiples of, unless a product says else: what cuBLAS assumes."""

_KIB, _MIB = 1 << 10, 1 << 20
WORKSPACES = ((1 << 20, 64 * _KIB), (1 << 24, 4 * _MIB), (math.inf, 32 * _MIB))
"""Bytes of workspace for products of up to so many multiplications. With 32 MiB cuBLAS is as fast
as it gets (cuBLAS, cublasSetWorkspace): 512 x 1024 x 1024 of float32 took 35 µs on an H200, and 52
with half of that. 8 x 1024 x 1024 took 9 with 1 MiB or more, and 21 with 64 KiB."""


class Factor(NamedTuple):
    """A matrix of a stack of them.

    Attributes
    ----------
    operand : int
        Which input of the node it is.
    transposed : bool
    stride : int
        Elements from one matrix to the next; 0 when all products share it.
    row : int
        Elements from one row, as it is stored, to the next; 0 where there is nothing in between.
    """

    operand: int
    transposed: bool = False
    stride: int = 0
    row: int = 0


class Result(NamedTuple):
    """Where the matrices of a result lie, if there is something in between, and of which dtype.

    Attributes
    ----------
    dtype : str
    stride, row : int
        As those of a factor.
    """

    dtype: str
    stride: int
    row: int


class Product(NamedTuple):
    """`batch` products y = alpha · a · b + beta · y, of (m, k) and (k, n) matrices.

    Attributes
    ----------
    dtype : str
        Of the factors.
    a, b : Factor
    m, n, k, batch : int
    alpha, beta : float
    added : tuple of int or None
        From which shape input 2 is broadcast to the output, where it is added, times `beta`.
    fill : Kernel or None
        Writes that into the output.
    is_biased, is_rectified : bool
        Whether cuBLAS adds a row to each row, and whether it then cuts off what is below zero.
    result : Result or None
        None for matrices without anything in between, of the dtype that sums usually have.
    alignment : int
        Bytes that all addresses are multiples of.
    """

    dtype: str
    a: Factor
    b: Factor
    m: int
    n: int
    k: int
    batch: int = 1
    alpha: float = 1.0
    beta: float = 0.0
    added: tuple[int, ...] | None = None
    fill: Kernel | None = None
    is_biased: bool = False
    is_rectified: bool = False
    result: Result | None = None
    alignment: int = ALIGNMENT

    @property
    def bare(self) -> Product:
        """The product alone, with nothing added."""
        return self._replace(beta=0.0, added=None, fill=None, is_biased=False, is_rectified=False)

    def biased(self, *, is_rectified: bool) -> Product:
        """Return the product with what cuBLAS itself does with the result."""
        return self.bare._replace(is_biased=True, is_rectified=is_rectified)

    @property
    def scratch(self) -> tuple[TensorSpec, ...]:
        """The workspace."""
        return (TensorSpec("uint8", (self.workspace_nbytes,)),)

    @property
    def workspace_nbytes(self) -> int:
        """How much memory cuBLAS is given to work with."""
        work = self.m * self.n * self.k * self.batch
        return next(nbytes for most, nbytes in WORKSPACES if work <= most)


def product_of(node: Node, call: Call, outputs: Specs) -> Product | None:
    """Return a node of static shapes as cuBLAS sees it, None if it is nothing for cuBLAS."""
    rule = _RULES.get(node.op)
    product = None if rule is None else rule(call, outputs[0])
    if product is None or product.dtype not in FLOATS or not fits(product):
        return None
    return product


def fits(product: Product) -> bool:
    """Say whether cuBLAS takes matrices of such sizes."""
    sizes = (product.m, product.n, product.k, product.batch)
    return min(sizes) >= 1 and max(sizes) < INDEX_LIMIT


def _matmul(call: Call, output: TensorSpec) -> Product | None:
    """Stacks that broadcast only as a whole; a stack times one matrix is one tall product."""
    a, b = call.spec(0).static_shape, call.spec(1).static_shape
    m, n = a[-2] if len(a) > 1 else 1, b[-1] if len(b) > 1 else 1
    k, dtype = a[-1], call.spec(0).dtype.name
    of_a, of_b = math.prod(a[:-2]), math.prod(b[:-2])
    if of_b == 1:
        return Product(dtype, Factor(0), Factor(1), of_a * m, n, k)
    batch = math.prod(output.static_shape) // max(m * n, 1)
    if of_a not in (1, batch) or of_b != batch:
        return None
    left, right = Factor(0, stride=0 if of_a == 1 else m * k), Factor(1, stride=k * n)
    return Product(dtype, left, right, m, n, k, batch)


def _gemm(call: Call, output: TensorSpec) -> Product | None:
    given = call.attributes
    (m, n), a = output.static_shape, call.spec(0).static_shape
    left, right = Factor(0, given["transA"]), Factor(1, given["transB"])
    product = Product(call.spec(0).dtype.name, left, right, m, n, a[0] if left.transposed else a[1])
    beta = given["beta"] if call.has(2) else 0.0
    if beta:
        product = _plus(product, beta, call.spec(2).static_shape, output)
    return product._replace(alpha=given["alpha"])


def _pointwise(call: Call, output: TensorSpec) -> Product | None:
    """Convolutions whose windows are single cells: a product of all weights and each image."""
    x, w = call.spec(0).static_shape, call.spec(1).static_shape
    window, _ = resolve_window(x[2:], call.attributes, w[2:])
    assert window is not None, "static shapes"
    moves = (*window.kernel, *window.strides)
    pads = (*window.pads_begin, *window.pads_end)
    if call.attributes["group"] != 1 or any(n != 1 for n in moves) or any(pads):
        return None
    features, k, cells = w[0], w[1], math.prod(x[2:])
    dtype, images = call.spec(0).dtype.name, Factor(0, stride=k * cells)
    product = Product(dtype, Factor(1), images, features, cells, k, batch=x[0])
    if call.has(2):
        product = _plus(product, 1.0, (features, *(1 for _ in x[2:])), output)
    return product


def _plus(product: Product, beta: float, shape: tuple[int, ...], output: TensorSpec) -> Product:
    """Add input 2, broadcast from a shape of as many elements."""
    fill = _fill(output, broadcast(shape, output.static_shape))
    return product._replace(beta=beta, added=shape, fill=fill)


def _fill(output: TensorSpec, strides: Sequence[int]) -> Kernel:
    """Return the kernel that spreads input 2 over the output."""
    size, cell = output.size, CELLS[output.dtype.itemsize]
    c = index_type(size + THREADS)
    lines = [
        f"const {c} i = ({c})GROUP * {THREADS} + THREAD;",
        f"if (i >= {size}) return;",
        *coordinates("i", output.static_shape, "at", c),
        f"y[i] = c[{offset(strides, 'at')}];",
    ]
    parameters = Parameter("c", cell, "input", 2), Parameter("y", cell, "output", 0)
    return Kernel("spread", parameters, "\n".join(lines), groups_of(size))


_RULES: dict[str, Callable[[Call, TensorSpec], Product | None]] = {
    "Conv": _pointwise,
    "Gemm": _gemm,
    "MatMul": _matmul,
}
