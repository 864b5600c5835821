"""Formulas over the tensors of a builder: each operation in them adds a node."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike

from ..building.arithmetic import Arithmetic
from ..building.builder import GraphBuilder
from ..building.named_tensor import Tensor
from ..values.errors import GraphError
from ..values.names import Names
from ..values.tensor import Array, TensorSpec

Number: TypeAlias = int | float

_ON_LENGTHS = {"Add": np.add, "Div": np.floor_divide, "Mul": np.multiply, "Sub": np.subtract}
"""Arithmetic on lengths that is computed at once if these are numbers."""


class Formula:
    """A builder, and the prefix of the new nodes' names.

    Numbers and shapes that several terms need are made once. The `prefix` is that of tensors, too,
    and may be changed at any time.
    """

    def __init__(self, builder: GraphBuilder, prefix: str = "") -> None:
        self.builder = builder
        self.prefix = prefix
        self._names = Names()
        self._constants: dict[tuple[object, ...], Term] = {}

    def term(self, name: str) -> Term:
        return Term(self, name)

    def op(self, op: str, *inputs: Term | None, **attributes: Any) -> Term:
        return self.term(self._add(op, inputs, 1, attributes))

    def split(self, op: str, *inputs: Term | None, outputs: int, **attributes: Any) -> list[Term]:
        made = self._add(op, inputs, outputs, attributes)
        return [self.term(made)] if isinstance(made, str) else list(map(self.term, made))

    def constant(self, value: Array | Sequence[int] | Number, dtype: DTypeLike = "int64") -> Term:
        array = np.asarray(value, np.dtype(dtype))
        # By bytes: -0 and 0 are equal, and not the same constant.
        key = ("constant", array.dtype.name, array.shape, array.tobytes())
        if key not in self._constants:
            self._constants[key] = self.term(self.builder.constant(array))
        return self._constants[key]

    def shape_of(self, x: Term, start: int = 0, end: int | None = None) -> Term:
        """Return the lengths of axes `start` to `end` of `x`, by default of all, as a vector."""
        shape = x.spec.shape
        if shape is not None:
            dims = shape[start:end]
            lengths = [dim for dim in dims if isinstance(dim, int)]
            if len(lengths) == len(dims):
                return self.constant(lengths)
        # Of the original: a recomputed tensor has the same shape, and needs no recomputation for
        # it.
        key = ("shape", x.original, start, end)
        if key not in self._constants:
            self._constants[key] = self.op("Shape", self.term(x.original), start=start, end=end)
        return self._constants[key]

    def size_of(self, x: Term, start: int = 0, end: int | None = None) -> Term:
        """Return the number of elements of the axes `start` to `end` of `x`, as a vector of one."""
        lengths = self.shape_of(x, start, end)
        if lengths.value is not None:
            return self.constant([math.prod(lengths.value.tolist())])
        return lengths.op("ReduceProd", keepdims=True)

    def filled(self, shape: Term, value: Number, dtype: np.dtype[Any]) -> Term:
        return self.op("ConstantOfShape", shape, value=float(value), dtype=dtype)

    def like(self, x: Term, value: Number) -> Term:
        """Return a tensor of the shape and dtype of `x` filled with `value`."""
        return self.filled(self.shape_of(x), value, x.dtype)

    def joined(self, *parts: Term) -> Term:
        """Return the vectors `parts`, joined; a constant if all of them are."""
        values = [part.value for part in parts]
        known = [value for value in values if value is not None]
        # Shapes are joined often, and mostly numbers: as a constant they need no node.
        if len(known) == len(values):
            return self.constant(np.concatenate(known), parts[0].dtype)
        return self.op("Concat", *parts, axis=0)

    def _add(
        self, op: str, inputs: Sequence[Term | None], outputs: int, attributes: dict[str, Any]
    ) -> Any:
        names = [None if term is None else term.name for term in inputs]
        # Absent inputs at the end are left out, as operators count inputs.
        while names and names[-1] is None:
            names.pop()
        name = self._names.take(stem := f"{self.prefix}{op.lower()}")
        # The builder has nodes from other sources.
        while self.builder.has_node(name):
            name = self._names.take(stem)
        return self.builder.op(op, *names, name=name, outputs=outputs, **attributes)


class Term(Arithmetic):
    """A tensor of a formula; arithmetic on it adds nodes.

    Numbers get the dtype of the other operand.
    """

    __slots__ = ("formula", "original")

    def __init__(self, formula: Formula, name: str) -> None:
        self.formula = formula
        self.original = str(name)

    @property
    def name(self) -> str:
        """The tensor's name; `original` is an existing tensor of the same spec."""
        return self.original

    @property
    def tensor(self) -> Tensor:
        return self.formula.builder.tensor(self.name)

    @property
    def spec(self) -> TensorSpec:
        return self.formula.builder.spec(self.name)

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.spec.dtype

    @property
    def value(self) -> Array | None:
        return self.formula.builder.value(self.name)

    @property
    def rank(self) -> int:
        """Its number of dimensions; raises GraphError if that is unknown."""
        rank = self.spec.rank
        if rank is None:
            raise GraphError(
                f"no gradient can be built: how many dimensions {self.name!r} has is not known",
                at=self.formula.builder.name,
                fix="declare the shapes of inputs, with symbols for unknown lengths",
            )
        return rank

    def op(self, op: str, *others: Term | None, **attributes: Any) -> Term:
        return self.formula.op(op, self, *others, **attributes)

    def cast(self, dtype: DTypeLike) -> Term:
        return self if self.dtype == np.dtype(dtype) else self.op("Cast", to=dtype)

    def reshaped(self, shape: Term) -> Term:
        """Return the term in `shape`, in which 0 is a length."""
        value, own = shape.value, self.spec.shape
        if value is not None and own == tuple(value.tolist()):
            return self
        return self.op("Reshape", shape, allowzero=value is None or -1 not in value)

    def transposed(self, order: Sequence[int]) -> Term:
        if list(order) == sorted(order):
            return self
        return self.op("Transpose", perm=order)

    def expanded(self, shape: Term) -> Term:
        value, own = shape.value, self.spec.shape
        if value is not None and own == tuple(value.tolist()):
            return self
        return self.op("Expand", shape)

    def reduced(self, how: str, axes: Sequence[int], keepdims: bool = True) -> Term:
        """Return the term reduced over `axes` by the operator Reduce`how`.

        With `keepdims` they stay, with length 1.
        """
        if not axes:
            return self
        return self.op(f"Reduce{how}", self.formula.constant(list(axes)), keepdims=keepdims)

    def sum(self, axes: Sequence[int], keepdims: bool = True) -> Term:
        return self.reduced("Sum", axes, keepdims)

    def mean(self, axes: Sequence[int]) -> Term:
        """Return the mean over `axes`, which stay with length 1."""
        return self.reduced("Mean", axes)

    def where(self, condition: Term, other: Term | Number = 0) -> Term:
        """Return this term where `condition` holds, `other` elsewhere, by default 0."""
        return condition.op("Where", self, self._term(other))

    def equals(self, other: Term | Number) -> Term:
        return self._node("Equal", self, other)

    def __mul__(self, other: Term | Number) -> Term:
        return self if _is_one(other) else super().__mul__(other)

    def __truediv__(self, other: Term | Number) -> Term:
        return self if _is_one(other) else super().__truediv__(other)

    def __rtruediv__(self, other: Number) -> Term:
        return self.op("Reciprocal") if _is_one(other) else super().__rtruediv__(other)

    def _node(self, op: str, *operands: Term | Number, **attributes: Any) -> Term:
        terms = [self._term(operand) for operand in operands]
        known = _compute_lengths(op, *(term.value for term in terms))
        if known is not None:
            return self.formula.constant(known, self.dtype)
        return self.formula.op(op, *terms, **attributes)

    def _is_bool(self) -> bool:
        return self.dtype == np.bool_

    def _term(self, value: Term | Number) -> Term:
        return value if isinstance(value, Term) else self.formula.constant(value, self.dtype)


def _is_one(value: Term | Number) -> bool:
    return not isinstance(value, Term) and value == 1


def _compute_lengths(op: str, *values: Array | None) -> Array | None:
    """Return the result of `op` on the known lengths `values`, or None to leave it to a node."""
    known = [value for value in values if value is not None and value.dtype.kind == "i"]
    if op not in _ON_LENGTHS or len(known) < len(values):
        return None
    made: Array = _ON_LENGTHS[op](*known)
    # A length below zero follows from impossible shapes: left to a node, it fails where it is used.
    return made if made.min(initial=0) >= 0 else None
