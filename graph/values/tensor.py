"""The dtype and shape of a tensor before it exists; dimensions may be symbolic."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np
from numpy.typing import DTypeLike

from .dtypes import OBJECT, TEXT, dtype_of, has_objects, kind_of, name_of, to_text
from .errors import OperatorError, ShapeError

Array: TypeAlias = Any
"""An n-dimensional array of some array module (numpy, cupy)."""

Dim: TypeAlias = int | str
"""A dimension: its length, or a symbol or expression that stands for one."""

D = TypeVar("D", int, Dim)

Shape: TypeAlias = tuple[Dim, ...]

MOST_DIMS = 64
"""Dimensions that numpy gives an array at most."""

LONGEST = 2**63 - 1
"""The largest length that ONNX, and any library of arrays, can write down."""


_NUMBER = frozenset({int})
"""The type of static dimensions."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """The dtype and shape of a tensor.

    Parameters
    ----------
    dtype : DTypeLike
        Any numeric or boolean numpy dtype, the name of a small float of `ml_dtypes`, such as
        ``"bfloat16"``; ``"str"`` for text; or ``"object"`` for any Python values, which Python
        functions hand on by reference.
    shape : sequence of int or str, or None
        One entry per dimension; a string is a symbolic dimension, such as ``"batch"`` or
        ``"(h+1)//2"``; None means that not even the rank is known.

    Raises
    ------
    ShapeError
        If the dtype is neither numeric, text nor object, the shape is no sequence, a dimension is
        not a length or symbol, or there are more than 64.

    Examples
    --------
    >>> import plait as pl
    >>> spec = pl.TensorSpec("float32", ("batch", 3))
    >>> print(spec, spec.rank, spec.is_static)
    float32[batch, 3] 2 False
    >>> pl.TensorSpec("float32", (2, 3)).nbytes
    24
    """

    dtype: np.dtype[Any]
    shape: Shape | None

    def __init__(self, dtype: DTypeLike, shape: Sequence[Dim] | None = None) -> None:
        if isinstance(shape, str | int):
            raise ShapeError(f"the shape is {shape!r}", fix=f"write a tuple: ({shape!r},)")
        object.__setattr__(self, "dtype", _check_dtype(dtype))
        object.__setattr__(self, "shape", None if shape is None else tuple(map(_check_dim, shape)))
        check_dims(len(self.shape or ()))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TensorSpec):
            return NotImplemented
        return self.shape == other.shape and is_same_dtype(self, other)

    def __hash__(self) -> int:
        return hash((self.dtype, self.shape))

    @property
    def rank(self) -> int | None:
        """Number of dimensions, or None if it is unknown."""
        return None if self.shape is None else len(self.shape)

    @property
    def is_static(self) -> bool:
        """True when every dimension is a number."""
        return self.shape is not None and _NUMBER.issuperset(map(type, self.shape))

    @property
    def static_shape(self) -> tuple[int, ...]:
        """The shape as integers.

        Raises
        ------
        ShapeError
            If a dimension is symbolic.
        """
        shape = self.shape
        if shape is None or str in map(type, shape):
            raise ShapeError(
                f"{self} has no fixed shape yet",
                fix="plan for given shapes: plan(graph, shapes={'input': (1, 3, 224, 224)})",
            )
        return cast("tuple[int, ...]", shape)

    @property
    def size(self) -> int:
        """Number of elements (static specs only)."""
        return math.prod(self.static_shape)

    @property
    def nbytes(self) -> int:
        """Number of bytes (static specs only); of text and objects, those of references."""
        return math.prod(self.static_shape) * self.dtype.itemsize

    def __str__(self) -> str:
        dims = "*" if self.shape is None else ", ".join(map(str, self.shape))
        return f"{name_of(self.dtype)}[{dims}]"


def spec_of(array: Array) -> TensorSpec:
    return TensorSpec(array.dtype, array.shape)


def name_type(value: Any) -> str:
    """Return the dtype and shape of `value` if it is an array, else the name of its type."""
    if isinstance(value, np.ndarray):  # of any dtype: not all are those of tensors
        named = value.dtype.name if to_text(value) is None else "str"
        return f"{named}{list(value.shape)}"
    if value is None:
        return "None"
    kind = type(value)
    is_known = kind.__module__ in ("builtins", "__main__")
    return kind.__qualname__ if is_known else f"{kind.__module__}.{kind.__qualname__}"


def is_bytes(spec: TensorSpec) -> bool:
    """Return whether `spec` is that of a file's bytes: uint8 in one dimension."""
    return spec.dtype == np.uint8 and spec.rank == 1


def shorten_array(array: Array, shape: Sequence[int]) -> Array:
    """Return the first elements of a contiguous `array` in `shape`, which has no more elements."""
    if array.shape == shape:
        return array
    return array.reshape(-1)[: math.prod(shape)].reshape(shape)


def copy_read_only(array: Array) -> Array:
    copy = np.array(array, order="C")
    copy.flags.writeable = False
    return copy


def _check_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    try:
        known = dtype_of(dtype)
    except TypeError as error:
        raise ShapeError(f"{dtype!r} is not a dtype", fix="use a numpy dtype: 'float32'") from error
    if known == TEXT:
        return OBJECT if has_objects(known) else TEXT
    if kind_of(known) not in "biufce" or known.names is not None:
        raise ShapeError(
            f"dtype {known.name!r} cannot live in an arena",
            fix="use a boolean or numeric dtype, 'str' for text, or 'object'",
        )
    # The one object that numpy has for it: ufuncs in place copy where dtypes are equal but two.
    return np.dtype(known.type)


def check_dims(rank: int) -> None:
    if rank > MOST_DIMS:
        raise ShapeError(
            f"a tensor cannot have {rank} dimensions", fix=f"use at most {MOST_DIMS}, as numpy does"
        )


def _check_dim(dim: Dim) -> Dim:
    if type(dim) is int and 0 <= dim <= LONGEST:
        return dim
    if isinstance(dim, str) and dim:
        return str(dim)  # no subclass: types are compared
    is_whole = isinstance(dim, int | np.integer) and not isinstance(dim, bool)
    if is_whole and 0 <= int(dim) <= LONGEST:
        return int(dim)
    raise ShapeError(
        f"{dim!r} is not a dimension",
        fix="use a length ≥ 0 that an int64 holds, or a name: 'batch'",
    )


def read_only(array: Array) -> Array:
    """Return a read-only view of `array`; arrays on GPUs cannot be protected."""
    view = array.view()
    if isinstance(view, np.ndarray):
        view.flags.writeable = False
    return view


def list_symbols(specs: Iterable[TensorSpec]) -> dict[str, None]:
    return {dim: None for spec in specs for dim in spec.shape or () if isinstance(dim, str)}


def is_same_dtype(one: TensorSpec, other: TensorSpec) -> bool:
    """Return whether `one` and `other` have one dtype; text and objects differ."""
    return one.dtype == other.dtype and has_objects(one.dtype) == has_objects(other.dtype)


def to_exact(value: float, dtype: np.dtype[Any], at: str) -> Array:
    """Convert `value` to an array of `dtype`, integers exactly, or raise OperatorError."""
    try:
        array = np.asarray(value, dtype)
        fits = dtype.kind not in "biu" or value == array.item()
    except (OverflowError, ValueError):
        fits = False
    if not fits:
        raise OperatorError(
            f"the number {value!r} is not a value of {dtype.name}, the dtype of the first tensor",
            at=at,
            fix="pass an array of the dtype you mean, or insert a Cast",
        )
    return array
