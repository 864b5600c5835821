"""Products of matrices: by tiles, or line by line if one of them is a vector.

Generators take a `call`, the specs of its `outputs` and an `epilogue`, and return the `Code`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from ...graph.core.operator import Call, Specs
from ...graph.values.tensor import TensorSpec
from .epilogue import Epilogue, generates_product
from .folds import choose_sum_type, make_sum
from .indexing import broadcast_strides, choose_index_type, declare_coordinates, write_offset
from .reduction import declare_input
from .registry import Code, Parameter
from .strips import Factor, Read
from .sweeps import LineFold, Lines, fold_lines
from .tiles import Product
from .types import load, load_factor, write_literal


class Stack(NamedTuple):
    """Matrices in memory: their batch shape, rows and columns, and order."""

    batch: tuple[int, ...]
    rows: int
    columns: int
    is_transposed: bool = False

    @property
    def size(self) -> int:
        return self.rows * self.columns

    def at(self, row: str, column: str) -> str:
        if self.is_transposed:
            return f"{column} * {self.rows} + {row}"
        return f"{row} * {self.columns} + {column}"


def to_left_stack(spec: TensorSpec) -> Stack:
    shape = spec.static_shape
    rows = shape[-2] if len(shape) > 1 else 1
    return Stack(shape[:-2], rows, shape[-1])


def to_right_stack(spec: TensorSpec) -> Stack:
    shape = spec.static_shape
    if len(shape) == 1:
        return Stack((), shape[0], 1)
    return Stack(shape[:-2], shape[-2], shape[-1])


@dataclass(frozen=True)
class Matrices:
    """A product of two stacks, with elements as C expressions of `a[...]` and `b[...]`."""

    left: Stack
    right: Stack
    batch: tuple[int, ...]
    """The batch shape of the product."""
    ctype: str
    """The type of products and sums."""
    a: Callable[[str, str], str]
    b: Callable[[str, str], str]
    """From an offset and a row or column of the product to an element. `a_start` and `b_start` are
    the offsets of the batch's factors."""
    finish: Callable[[str, str, str], list[str]]
    """From row, column and sum to the statements that write it; they may use `batch`."""
    parameters: tuple[Parameter, ...]

    @property
    def product_shape(self) -> tuple[int, int, int]:
        """The number of products, and their rows and columns."""
        return math.prod(self.batch), self.left.rows, self.right.columns

    @property
    def index(self) -> str:
        sizes = [math.prod(stack.batch) * stack.size for stack in (self.left, self.right)]
        # In tiles at the edge, indices count beyond the end before they are compared.
        margin = 1 << 16
        result = math.prod(self.batch) * self.left.rows * self.right.columns
        return choose_index_type(*(size + margin for size in (*sizes, result)))

    def code(self) -> Code:
        rows, columns = self.left.rows, self.right.columns
        # A product with a vector reads each element of the matrix once: a tile would reuse nothing,
        # and sums along lines keep more threads busy. That fails for a broadcast matrix, which is
        # read again for each batch.
        if columns == 1 and math.prod(self.left.batch) == math.prod(self.batch):
            return self._by_lines(self.left, self._times_column)
        if rows == 1 and math.prod(self.right.batch) == math.prod(self.batch):
            return self._by_lines(self.right, self._times_row)
        return self._product().code()

    def starts(self) -> tuple[str, ...]:
        """Return the statements that declare the offsets of a batch's factors."""
        c, statements = self.index, declare_coordinates("batch", self.batch, "n", self.index)
        for name, stack in (("a", self.left), ("b", self.right)):
            strides = [stride * stack.size for stride in broadcast_strides(stack.batch, self.batch)]
            statements.append(f"const {c} {name}_start = {write_offset(strides, 'n')};")
        return tuple(statements)

    def _product(self) -> Product:
        left, right, c = self.left, self.right, self.index

        def place(index: str, tag: str) -> list[str]:
            return [f"const {c} at{tag} = {index};"]

        def read_left(tag: str, depth: str) -> Read:
            return Read((), "", self.a(f"a_start + {left.at(f'at{tag}', depth)}", f"at{tag}"))

        def read_right(tag: str, depth: str) -> Read:
            return Read((), "", self.b(f"b_start + {right.at(depth, f'at{tag}')}", f"at{tag}"))

        return Product(
            "product",
            self.parameters,
            math.prod(self.batch),
            left.rows,
            right.columns,
            left.columns,
            Factor(not left.is_transposed, place, read_left),
            Factor(right.is_transposed, place, read_right),
            self.ctype,
            lambda column: [],
            self.finish,
            self.starts(),
            c,
        )

    def _by_lines(self, stack: Stack, element: Callable[[str], str]) -> Code:
        """Return code that folds each row (left factor) or column of `stack`, read by `element`."""
        is_left = stack is self.left
        count = stack.rows if is_left else stack.columns
        shape = (math.prod(self.batch), stack.rows, stack.columns)
        axis = 2 if is_left else 1
        if stack.is_transposed:
            # Lines follow the layout of elements, which is reversed in a transposed matrix.
            shape, axis = (shape[0], shape[2], shape[1]), 3 - axis
        lines = Lines(shape, (axis,))
        row, column = ("line % {0}", "0") if is_left else ("0", "line % {0}")
        prepare = (
            f"const {self.index} batch = line / {max(count, 1)};",
            f"const {self.index} row = {row.format(max(count, 1))};",
            f"const {self.index} column = {column.format(max(count, 1))};",
            *self.starts(),
        )
        # Sums start at -0, which changes no number; the empty sum must be 0.
        total = f"(total + {write_literal(0, self.ctype)})"
        line_fold = LineFold("total", make_sum(self.ctype), element)
        once = self.finish("row", "column", total)
        return fold_lines(
            "vector_product", lines, self.parameters, (line_fold,), prepare=prepare, once=once
        )

    def _times_column(self, at: str) -> str:
        depth = f"({at} - base)" + (f" / {self.left.rows}" if self.left.is_transposed else "")
        return self._times(self.a(at, "row"), self.b(f"b_start + {depth}", "column"))

    def _times_row(self, at: str) -> str:
        step = "" if self.right.is_transposed else f" / {self.right.columns}"
        return self._times(self.a(f"a_start + ({at} - base){step}", "row"), self.b(at, "column"))

    def _times(self, a: str, b: str) -> str:
        return f"({self.ctype})({a}) * ({self.ctype})({b})"


def merge_batch(left: Stack, right: Stack, batch: tuple[int, ...]) -> tuple[Stack, tuple[int, ...]]:
    # The rows of all matrices together fill tiles that the rows of each would not.
    if math.prod(right.batch) == 1 and math.prod(left.batch) == math.prod(batch) != 1:
        return Stack((), math.prod(batch) * left.rows, left.columns), ()
    return left, batch


def broadcast_batches(left: Stack, right: Stack) -> tuple[int, ...]:
    rank = max(len(left.batch), len(right.batch))
    padded = [(1,) * (rank - len(stack.batch)) + stack.batch for stack in (left, right)]
    return tuple(b if a == 1 else a for a, b in zip(*padded, strict=True))


@generates_product("MatMul")
def matmul(call: Call, outputs: Specs, epilogue: Epilogue) -> Code:
    a, b = call.spec(0), call.spec(1)
    left, right = to_left_stack(a), to_right_stack(b)
    left, batch = merge_batch(left, right, broadcast_batches(left, right))
    size = left.rows * right.columns

    def finish(row: str, column: str, total: str) -> list[str]:
        at = f"batch * {size} + {row} * {right.columns} + {column}"
        return epilogue.write(at, total)

    return Matrices(
        left,
        right,
        batch,
        choose_sum_type(a.dtype),
        lambda at, row: load_factor(a.dtype, "a", at),
        lambda at, column: load_factor(b.dtype, "b", at),
        finish,
        (declare_input(a, "a"), declare_input(b, "b", 1), *epilogue.parameters),
    ).code()


def _refuse_fraction(call: Call) -> str | None:
    factors = (call.attributes["alpha"], call.attributes["beta"])
    if call.spec(0).dtype.kind in "iu" and not all(map(float.is_integer, map(float, factors))):
        return "integers are multiplied by a fraction"
    return None


@generates_product("Gemm", unless=_refuse_fraction)
def gemm(call: Call, outputs: Specs, epilogue: Epilogue) -> Code:
    a, b, y, attributes = call.spec(0), call.spec(1), outputs[0], call.attributes
    c = choose_sum_type(a.dtype)
    left, right = (
        _to_stack(spec, attributes[turned]) for spec, turned in ((a, "transA"), (b, "transB"))
    )
    alpha, beta = (_write_factor(attributes[name], c) for name in ("alpha", "beta"))
    parameters = [declare_input(a, "a"), declare_input(b, "b", 1), *epilogue.parameters]
    added = call.spec(2) if call.has(2) and attributes["beta"] != 0 else None
    if added is not None:
        parameters.append(declare_input(added, "c", 2))

    def finish(row: str, column: str, total: str) -> list[str]:
        value = total if attributes["alpha"] == 1 else f"{alpha} * {total}"
        if added is not None:
            strides = broadcast_strides(added.static_shape, y.static_shape)
            terms = [f"{n} * {s}" for n, s in zip((row, column), strides, strict=True) if s]
            term = load(added.dtype, "c", " + ".join(terms) or "0")
            value += f" + {term}" if attributes["beta"] == 1 else f" + {beta} * {term}"
        return epilogue.write(f"{row} * {right.columns} + {column}", value)

    return Matrices(
        left,
        right,
        (),
        c,
        lambda at, row: load_factor(a.dtype, "a", at),
        lambda at, column: load_factor(b.dtype, "b", at),
        finish,
        tuple(parameters),
    ).code()


def _to_stack(spec: TensorSpec, is_transposed: bool) -> Stack:
    rows, columns = spec.static_shape
    return Stack((), columns, rows, True) if is_transposed else Stack((), rows, columns)


def _write_factor(number: float, c: str) -> str:
    if c in ("u32", "u64"):
        return write_literal(int(number) % (1 << (64 if c == "u64" else 32)), c)
    return write_literal(number, c)
