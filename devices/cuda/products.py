"""Products of matrices in the form of cuBLAS.

Matrices are row-major. Generated kernels compute all other products.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from ...graph.core.ir import Graph, Node
from ...graph.core.operator import Call, Specs
from ...graph.operators.windows import resolve_window
from ...graph.values.tensor import TensorSpec
from ..codegen.indexing import (
    INDEX_LIMIT,
    broadcast_strides,
    choose_index_type,
    declare_coordinates,
    write_offset,
)
from ..codegen.registry import THREADS, Kernel, Parameter, count_groups
from ..memory import View

FLOATS = ("float16", "bfloat16", "float32", "float64")
CELLS = {2: "u16", 4: "u32", 8: "u64"}
"""The type as which elements of this size are copied."""
ALIGNMENT = 256
"""Alignment in bytes that cuBLAS assumes unless a product states another."""

_KIB, _MIB = 1 << 10, 1 << 20
WORKSPACES = ((1 << 20, 64 * _KIB), (1 << 24, 4 * _MIB), (math.inf, 32 * _MIB))
"""Bytes of workspace by the number of multiplications. 32 MiB are enough for full speed (cuBLAS,
cublasSetWorkspace): 512 x 1024 x 1024 of float32 took 35 µs on an H200, and 52 with half of that.
8 x 1024 x 1024 took 9 with 1 MiB or more, and 21 with 64 KiB."""


class Factor(NamedTuple):
    operand: int
    """Index of the node's input."""
    transposed: bool = False
    stride: int = 0
    """Elements between matrices; 0 if all products share one."""
    row: int = 0
    """Elements between rows as stored; 0 without gaps."""


class Result(NamedTuple):
    dtype: str
    stride: int
    row: int
    """See `Factor`."""


class Product(NamedTuple):
    """`batch` products y = alpha · a · b + beta · y, of (m, k) and (k, n) matrices."""

    dtype: str
    """Dtype of the factors."""
    a: Factor
    b: Factor
    m: int
    n: int
    k: int
    batch: int = 1
    alpha: float = 1.0
    beta: float = 0.0
    added: tuple[int, ...] | None = None
    """The shape from which input 2 is broadcast to the output, scaled by `beta`."""
    fill: Kernel | None = None
    """Writes input 2 into the output."""
    is_biased: bool = False
    is_rectified: bool = False
    """Whether cuBLAS adds a row to each row, and whether it applies Relu."""
    result: Result | None = None
    """None for matrices without gaps, of the usual dtype of sums."""
    alignment: int = ALIGNMENT
    """Alignment of all addresses in bytes."""

    @property
    def bare(self) -> Product:
        return self._replace(beta=0.0, added=None, fill=None, is_biased=False, is_rectified=False)

    def biased(self, *, is_rectified: bool) -> Product:
        """Return the product with cuBLAS's epilogue: a bias, then Relu if `is_rectified`."""
        return self.bare._replace(is_biased=True, is_rectified=is_rectified)

    @property
    def scratch(self) -> tuple[TensorSpec, ...]:
        return (TensorSpec("uint8", (self.workspace_nbytes,)),)

    @property
    def workspace_nbytes(self) -> int:
        work = self.m * self.n * self.k * self.batch
        return next(nbytes for most, nbytes in WORKSPACES if work <= most)


def match_product(node: Node, call: Call, outputs: Specs) -> Product | None:
    rule = _RULES.get(node.op)
    product = None if rule is None else rule(call, outputs[0])
    if product is None or product.dtype not in FLOATS or not fits(product):
        return None
    return product


def fits(product: Product) -> bool:
    """Return whether cuBLAS supports matrices of the sizes of `product`."""
    sizes = (product.m, product.n, product.k, product.batch)
    return min(sizes) >= 1 and max(sizes) < INDEX_LIMIT


def _match_matmul(call: Call, output: TensorSpec) -> Product | None:
    """Match `call` if its stacks broadcast only as a whole, or return None.

    A stack times one matrix is one tall product, written to `output`.
    """
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


def _match_gemm(call: Call, output: TensorSpec) -> Product | None:
    given = call.attributes
    (m, n), a = output.static_shape, call.spec(0).static_shape
    left, right = Factor(0, given["transA"]), Factor(1, given["transB"])
    product = Product(call.spec(0).dtype.name, left, right, m, n, a[0] if left.transposed else a[1])
    beta = given["beta"] if call.has(2) else 0.0
    if beta:
        product = _add_input(product, beta, call.spec(2).static_shape, output)
    return product._replace(alpha=given["alpha"])


def _match_pointwise(call: Call, output: TensorSpec) -> Product | None:
    """Match `call` if it is a convolution with windows of one cell, or return None.

    It multiplies the weights by each image, and writes `output`.
    """
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
        product = _add_input(product, 1.0, (features, *(1 for _ in x[2:])), output)
    return product


def _add_input(
    product: Product, beta: float, shape: tuple[int, ...], output: TensorSpec
) -> Product:
    fill = _fill(output, broadcast_strides(shape, output.static_shape))
    return product._replace(beta=beta, added=shape, fill=fill)


def _fill(output: TensorSpec, strides: Sequence[int]) -> Kernel:
    size, cell = output.size, CELLS[output.dtype.itemsize]
    c = choose_index_type(size + THREADS)
    lines = [
        f"const {c} i = ({c})GROUP * {THREADS} + THREAD;",
        f"if (i >= {size}) return;",
        *declare_coordinates("i", output.static_shape, "at", c),
        f"y[i] = c[{write_offset(strides, 'at')}];",
    ]
    parameters = Parameter("c", cell, "input", 2), Parameter("y", cell, "output", 0)
    return Kernel("spread", parameters, "\n".join(lines), count_groups(size))


_RULES: dict[str, Callable[[Call, TensorSpec], Product | None]] = {
    "Conv": _match_pointwise,
    "Gemm": _match_gemm,
    "MatMul": _match_matmul,
}


BIAS_DTYPES = ("float16", "bfloat16", "float32")
"""Dtypes of biases in cuBLAS."""


class Biased(NamedTuple):
    """A product with the following nodes that cuBLAS computes along with it.

    A separate kernel reads and writes the result once more, which takes longer than many products.
    """

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
    if product.dtype not in BIAS_DTYPES or product.batch > 1:
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
