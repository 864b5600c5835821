"""Tensors of a builder: names to compute with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

import numpy as np
from numpy.typing import DTypeLike

from ..values.dims import normalize_axis
from ..values.dtypes import kind_of
from ..values.errors import OperatorError, ShapeError, suggest_names
from ..values.tensor import Shape, TensorSpec
from .operator_methods import list_methods, reduce, run_method

if TYPE_CHECKING:
    from .builder import GraphBuilder
    from .tensor_methods import Integers, OperatorMethods  # a stub: the operators of plait
else:
    from .arithmetic import Arithmetic as OperatorMethods


class Tensor(OperatorMethods, str):  # type: ignore[misc]  # comparisons yield tensors
    """A tensor of a `GraphBuilder`: its name, with operators and methods that add nodes.

    It is a string, and can be used wherever a name is expected: as a key, as an output, in an
    f-string. ``==`` and ``hash`` are those of the name; all other Python operators add a node and
    return its output, and so do indices and slices, as in numpy. Numbers take the tensor's dtype,
    arrays become constants. Every operator is a method, named ``log_softmax`` for ``LogSoftmax``;
    reductions are also methods as in numpy, ``x.sum(axis=1)``. A copy in another process, or in a
    file, is the plain name.

    Attributes
    ----------
    builder : GraphBuilder
        The builder of the tensor.

    Examples
    --------
    >>> import numpy as np
    >>> import plait as pl
    >>> b = pl.GraphBuilder("layer")
    >>> x = b.input("x", "float32", ("batch", 4))
    >>> w, bias = b.constant(np.ones((4, 3), "float32")), b.constant(np.ones(3, "float32"))
    >>> y = (x @ w + bias).relu()
    >>> y, y.shape, y[:, 1:].sum(axis=1).shape
    ('relu.2', ('batch', 3), ('batch',))
    """

    __slots__ = ("builder",)

    builder: GraphBuilder

    # numpy's arrays and numbers leave operators to the tensor.
    __array_ufunc__ = None

    def __new__(cls, name: str, builder: GraphBuilder) -> Tensor:
        made = super().__new__(cls, name)
        made.builder = builder
        return made

    @property
    def spec(self) -> TensorSpec:
        """Its dtype and shape, as far as known."""
        return self.builder.spec(self)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of its elements."""
        return self.spec.dtype

    @property
    def shape(self) -> Shape:
        """Its lengths: numbers, or the symbols that stand for them.

        Raises
        ------
        ShapeError
            If the number of dimensions is unknown.
        """
        shape = self.spec.shape
        if shape is None:
            raise ShapeError(
                f"how many dimensions {self!r} has is not known",
                at=self.builder.name,
                fix="declare the shapes of inputs, with symbols for unknown lengths",
            )
        return shape

    @property
    def ndim(self) -> int:
        """The number of dimensions; raises ShapeError if it is not known."""
        return len(self.shape)

    @property
    def T(self) -> Tensor:  # noqa: N802  # as numpy has it
        """The tensor with its axes in reverse order."""
        return self.transpose()

    def transpose(self, *axes: int | Sequence[int]) -> Tensor:
        """Return the tensor with its axes in the order `axes`, by default reversed."""
        order = _flatten(axes)
        if not order:
            return self._node("Transpose", self)
        rank = self.spec.rank
        listed = order if rank is None else [normalize_axis(axis, rank) for axis in order]
        return self._node("Transpose", self, perm=listed)

    def reshape(self, *shape: int | str | Sequence[int | str] | Tensor) -> Tensor:
        """Return its elements in another shape.

        Parameters
        ----------
        *shape : int or str, sequence of these, or Tensor
            One length may be -1, which is inferred. Symbols of its own shape may stand at their own
            positions, and one of them elsewhere. A tensor is a computed shape, of int64.

        Raises
        ------
        ShapeError
            If the number of elements differs, or symbols do not determine the shape.
        """
        if len(shape) == 1 and isinstance(shape[0], Tensor):
            return self._node("Reshape", self, shape[0])
        listed = _flatten(shape)
        known = not any(isinstance(one, str) for one in listed)
        lengths = np.asarray(listed if known else self._places(listed), np.int64)
        # Zero is a length, unless symbols are written as 0: "unchanged".
        return self._node("Reshape", self, lengths, allowzero=known and 0 in listed)

    def flatten(self, axis: int | None = None) -> Tensor:
        """Return a vector, or a matrix that joins the axes before `axis`, and those from it on."""
        if axis is None:
            return self.reshape(-1)
        return self._node("Flatten", self, axis=axis)

    def squeeze(self, axis: int | Sequence[int] | None = None) -> Tensor:
        """Return the tensor without axes of length 1: those in `axis`, or all."""
        return self._node("Squeeze", self, *([] if axis is None else [_flatten([axis])]))

    @overload
    def split(self, into: int | Integers, /, *, axis: int = 0) -> tuple[Tensor, ...]: ...
    @overload
    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]: ...
    def split(self, *into: Any, axis: int = 0, **given: Any) -> Any:
        """Return the parts along `axis`; `into` is their number, or a list of their lengths.

        Given a string, or no argument, it splits the name, like `str.split`.
        """
        if not into or into[0] is None or isinstance(into[0], str):
            return super().split(*into, **given)
        if isinstance(into[0], int):
            return self.builder.op("Split", self, outputs=into[0], axis=axis)
        sizes = np.asarray(into[0], np.int64)
        names = len(sizes)
        made = self.builder.op("Split", self, sizes, outputs=names, axis=axis)
        return made if names > 1 else (made,)

    def astype(self, dtype: DTypeLike) -> Tensor:
        """Return it as `dtype`; the tensor itself if the dtype is the same."""
        return self if self.dtype == TensorSpec(dtype).dtype else self._node("Cast", self, to=dtype)

    def argmax(self, axis: int | None = None, keepdims: bool = False) -> Tensor:
        """Return the index of the largest element along `axis`, or in the flattened tensor."""
        return self._place("ArgMax", axis, keepdims)

    def argmin(self, axis: int | None = None, keepdims: bool = False) -> Tensor:
        """Return the index of the smallest element along `axis`, or in the flattened tensor."""
        return self._place("ArgMin", axis, keepdims)

    def topk(self, k: Any, axis: int = -1, **given: Any) -> tuple[Tensor, Tensor]:
        """Return its `k` largest elements along `axis`, or smallest, and their indices."""
        count = np.atleast_1d(np.asarray(k, np.int64)) if not isinstance(k, str) else k
        values, places = self.builder.op("TopK", self, count, outputs=2, axis=axis, **given)
        return values, places

    def cumsum(self, axis: int) -> Tensor:
        """Return the cumulative sums along `axis`."""
        return self._node("CumSum", self, np.int64(axis))

    def assign(self, value: Any) -> Tensor:
        """Assign `value` to this variable, from the next item on; return the value's tensor."""
        return self.builder.assign(self, value)

    def _operator_method(self, name: str) -> Callable[..., Any]:
        # Only for names that the class lacks: operators named like methods of text are hidden.
        found = list_methods().get(name)
        if found is None:
            text = f"a tensor has no method or attribute {name!r}"
            if not name.startswith("_"):
                text += f": {suggest_names(name, dir(self), 'methods are called as operators are')}"
            raise AttributeError(text, name=name, obj=self)
        run = reduce if found.reduces else run_method

        def method(*operands: Any, **given: Any) -> Any:
            return run(self, found.op, *operands, **given)

        method.__name__ = method.__qualname__ = name
        method.__doc__ = found.describe()
        method.__signature__ = found.signature()  # type: ignore[attr-defined]
        return method

    if not TYPE_CHECKING:  # otherwise misspelled names would type-check
        __getattr__ = _operator_method

    def __dir__(self) -> list[str]:
        # Methods of str would hide those of the tensor in completions.
        return sorted({*super().__dir__()} - {*dir(str)} | {*vars(Tensor), *list_methods()})

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Print the tensor in IPython and notebooks; errors and `print` show only the name."""
        printer.text(f"{self}: {self.spec}")

    def __bool__(self) -> bool:
        raise OperatorError(
            f"whether {self!r} is true is not known while the graph is built",
            at=self.builder.name,
            fix="choose by b.op('Where', condition, x, y) or 'If'; compare names by ==, sort them "
            "by key=str",
        )

    def __len__(self) -> int:
        length = self.shape[0] if self.shape else None
        if not isinstance(length, int):
            raise TypeError(f"{self!r}, {self.spec}, has no known length")
        return length

    def __iter__(self) -> Iterator[Tensor]:
        return (self[index] for index in range(len(self)))

    def __getitem__(self, key: Any) -> Tensor:
        from .subscripts import index_tensor

        return index_tensor(self, key)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return str, (str(self),)

    def __copy__(self) -> Tensor:
        return self

    def __deepcopy__(self, memo: object) -> Tensor:
        return self

    def __rmod__(self, other: Any) -> Any:
        # "%s" % name is text: the subclass is asked first.
        return other % (str(self),) if isinstance(other, str) else super().__rmod__(other)

    def __truediv__(self, other: Any) -> Tensor:
        self._check_quotient()
        return super().__truediv__(other)

    def __rtruediv__(self, other: Any) -> Tensor:
        self._check_quotient()
        return super().__rtruediv__(other)

    def __floordiv__(self, other: Any) -> Tensor:
        return self._floor_divide(self, other)

    def __rfloordiv__(self, other: Any) -> Tensor:
        return self._floor_divide(other, self)

    def __round__(self, digits: int = 0) -> Tensor:
        if digits:
            raise TypeError(f"a tensor is rounded to whole numbers, not to {digits} digits")
        return self._node("Round", self)

    def __floor__(self) -> Tensor:
        return self._node("Floor", self)

    def __ceil__(self) -> Tensor:
        return self._node("Ceil", self)

    def _node(self, op: str, *operands: Any, **attributes: Any) -> Tensor:
        for operand in operands:
            if isinstance(operand, str) and not isinstance(operand, Tensor):
                raise OperatorError(
                    f"text, {operand!r}, is not an operand of {op}",
                    at=self.builder.name,
                    fix="pass b.tensor(name) for a tensor of that name; join names as text with "
                    "str(x) or an f-string",
                )
        made: Tensor = self.builder.op(op, *operands, **attributes)
        return made

    def _is_bool(self) -> bool:
        return kind_of(self.dtype) == "b"

    def _place(self, op: str, axis: int | None, keepdims: bool) -> Tensor:
        if axis is None:
            return self.flatten()._place(op, 0, keepdims)
        return self._node(op, self, axis=axis, keepdims=keepdims)

    def _check_quotient(self) -> None:
        if kind_of(self.dtype) in "biu":
            raise ShapeError(
                f"{self!r} is {self.spec}: / yields floats in numpy, and integers in a graph",
                at=self.builder.name,
                fix='write x // y, or x.astype("float32") / y',
            )

    def _floor_divide(self, a: Any, b: Any) -> Tensor:
        kind = kind_of(self.dtype)
        if kind not in "iu":
            raise ShapeError(
                f"{self!r} is {self.spec}: // is for integers",
                at=self.builder.name,
                fix="write (x / y).floor()",
            )
        quotient = self._node("Div", a, b)
        if kind == "u":
            return quotient
        # Div rounds towards zero, which is one too much if the remainders with the sign of b (Mod)
        # and of a (fmod) differ.
        exact = self._node("Mod", a, b).equal(self._node("Mod", a, b, fmod=True))
        return quotient - (~exact).astype(self.dtype)

    def _places(self, shape: Sequence[int | str]) -> list[int]:
        """Return `shape` in the form of Reshape: a symbol is 0 if unchanged, else -1, inferred."""
        own = self.shape
        found = [
            (0 if own[place : place + 1] == (one,) else -1) if isinstance(one, str) else one
            for place, one in enumerate(shape)
        ]
        strange = [one for one in shape if isinstance(one, str) and one not in own]
        if strange or found.count(-1) > 1 or 0 in own or 0 in shape:
            raise ShapeError(
                f"{self!r} is {self.spec}: how it becomes {tuple(shape)} is not known",
                at=self.builder.name,
                fix="use symbols of its own shape, at most one of them in another place, or -1",
            )
        return found


def _flatten(given: Sequence[Any]) -> list[Any]:
    if len(given) == 1 and not isinstance(given[0], int | str | np.integer):
        return list(given[0])
    return list(given)
