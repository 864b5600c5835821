"""Checks for authors of operators; errors name operator, argument, wanted and got.

Checks run when a graph is built, and again whenever more of its shapes is known. So an unknown
length passes, and so does an absent optional input. The caller adds the node to the error.
"""

from __future__ import annotations

import operator as comparisons
from collections.abc import Callable
from typing import Any, Self

from numpy.typing import DTypeLike

from ..values.dims import may_agree
from ..values.dtypes import dtype_of
from ..values.errors import OperatorError
from ..values.tensor import TensorSpec
from .operator import Call, find_operator
from .parameters import Number, Parameter, Parameters


class Checks:
    """Checks of one call of an operator.

    Parameters
    ----------
    op : str
        The operator's name.

    Examples
    --------
    >>> import plait as pl
    >>> from plait.operators import Call
    >>> call = Call((pl.TensorSpec("int8", (2, 3)),), (None,), {"alpha": 0.5})
    >>> check = Checks(call, "LeakyRelu")
    >>> _ = check.input("x").rank(2)
    >>> try:
    ...     check.attribute("alpha").at_least(0).below(0.5)
    ... except pl.OperatorError as error:
    ...     print(error.what)
    attribute 'alpha' of LeakyRelu must be < 0.5, got 0.5
    """

    def __init__(self, call: Call, op: str) -> None:
        self.call = call
        self.op = op
        self._formals = [name.rstrip("?*+") for name in find_operator(op).inputs.split()]

    def that(self, holds: bool, argument: str, wanted: str, got: object) -> None:
        if not holds:
            raise OperatorError(
                f"{argument} of {self.op} must be {wanted}, got {got}", fix=f"make it {wanted}"
            )

    @property
    def inputs(self) -> Amount:
        return Amount(self, "number of inputs", len(self.call.inputs))

    @property
    def outputs(self) -> Amount:
        return Amount(self, "number of outputs", self.call.n_outputs)

    @property
    def attributes(self) -> Amount:
        return Amount(self, "number of attributes", len(self.call.attributes))

    def input(self, name: str, index: int = 0) -> Input:
        return Input(self, name, self._formals.index(name) + index)

    def attribute(self, name: str) -> CheckedAttribute:
        return CheckedAttribute(self, name)


class Amount:
    """A number, or all numbers of a sequence, to compare with another one.

    Every method returns the amount, or raises OperatorError.
    """

    def __init__(self, check: Checks, argument: str, value: Any) -> None:
        self._check = check
        self._argument = argument
        self._value = value

    def equals(self, number: float) -> Self:
        return self._compare(comparisons.eq, "", number)

    def differs(self, number: float) -> Self:
        return self._compare(comparisons.ne, "≠ ", number)

    def above(self, number: float) -> Self:
        return self._compare(comparisons.gt, "> ", number)

    def at_least(self, number: float) -> Self:
        return self._compare(comparisons.ge, "≥ ", number)

    def below(self, number: float) -> Self:
        return self._compare(comparisons.lt, "< ", number)

    def at_most(self, number: float) -> Self:
        return self._compare(comparisons.le, "≤ ", number)

    def _compare(self, holds: Callable[[Any, Any], bool], sign: str, number: float) -> Self:
        # Absent and unknown values pass: they are checked again when known.
        if isinstance(self._value, tuple):
            for index, each in enumerate(self._value):
                element = f"{self._argument.removesuffix(',')}, element {index},"
                self._check.that(holds(each, number), element, f"{sign}{number}", each)
        elif self._value is not None:
            got = self._value
            self._check.that(holds(got, number), self._argument, f"{sign}{number}", got)
        return self


class CheckedAttribute(Amount):
    """An attribute; comparisons of absent ones pass, and those of sequences check each element."""

    def __init__(self, check: Checks, name: str) -> None:
        super().__init__(check, f"attribute {name!r}", check.call.attributes.get(name))
        self._name = name

    def given(self) -> Self:
        self._check.that(self._value is not None, self._argument, "given", "nothing")
        return self

    def kind(self, wanted: str) -> Self:
        """Check that the kind is `wanted`, such as ``"array of strings"``; see `Parameter.kind`."""
        got = self._parameter().kind
        self._check.that(got == wanted, self._argument, f"of kind {wanted!r}", f"{got!r}")
        return self

    @property
    def length(self) -> Amount:
        self._check.that(isinstance(self._value, tuple), self._argument, "a sequence", self._value)
        return Amount(self._check, f"length of {self._argument}", len(self._value))

    @property
    def int32(self) -> Amount:
        """The attribute as a 32-bit integer that saturates."""
        return self._view("32-bit integer", lambda number: number.int32)

    @property
    def float32(self) -> Amount:
        """The attribute as a finite 32-bit float."""
        return self._view("32-bit float", lambda number: number.float32)

    def _parameter(self) -> Parameter:
        return Parameters.of({self._name: self._value})[self._name]

    def _view(self, words: str, take: Callable[[Number], float]) -> Amount:
        value = self._parameter().value
        if isinstance(value, tuple):
            seen: Any = tuple(take(each) for each in value if isinstance(each, Number))
        else:
            seen = take(value) if isinstance(value, Number) else None
        return Amount(self._check, f"{self._argument}, as a {words},", seen)


class Input:
    """An input. Every method returns it, or raises OperatorError."""

    def __init__(self, check: Checks, name: str, index: int) -> None:
        self._check = check
        self._argument = f"input {name!r}"
        self._index = index
        self.spec: TensorSpec | None = check.call.inputs[index] if check.call.has(index) else None

    def given(self) -> Self:
        self._check.that(self.spec is not None, self._argument, "given", "nothing")
        return self

    def absent(self) -> Self:
        self._check.that(self.spec is None, self._argument, "left out", self.spec)
        return self

    def dtype(self, *wanted: DTypeLike) -> Self:
        if self.spec is not None:
            names = [dtype_of(each).name for each in wanted]
            got = self.spec.dtype.name
            self._check.that(got in names, f"dtype of {self._argument}", " or ".join(names), got)
        return self

    def rank(self, *wanted: int) -> Self:
        """Check that its number of dimensions, if known, is one of these."""
        if self.spec is not None and self.spec.rank is not None:
            words = " or ".join(map(str, wanted))
            got = self.spec.rank
            self._check.that(got in wanted, f"rank of {self._argument}", words, f"{got}")
        return self

    @property
    def size(self) -> Amount:
        known = self.spec is not None and self.spec.is_static
        size = self.spec.size if known and self.spec is not None else None
        return Amount(self._check, f"size of {self._argument}", size)

    def dtype_of(self, other: Input) -> Self:
        if self.spec is not None and other.spec is not None:
            got, wanted = self.spec.dtype.name, other.spec.dtype.name
            words = f"that of {other._argument}, {wanted}"
            self._check.that(got == wanted, f"dtype of {self._argument}", words, got)
        return self

    def shape_of(self, other: Input) -> Self:
        if self.spec is not None and other.spec is not None:
            words = f"that of {other._argument}, {other.spec}"
            holds = may_agree(self.spec.shape, other.spec.shape)
            self._check.that(holds, f"shape of {self._argument}", words, self.spec)
        return self

    def constant(self) -> Self:
        """Check that it is known before a run."""
        known = self.spec is None or self._check.call.value(self._index) is not None
        self._check.that(known, self._argument, "a constant", "what is computed or fed")
        return self

    def computed(self) -> Self:
        known = self._check.call.value(self._index) is not None
        self._check.that(not known, self._argument, "computed or fed", "a constant")
        return self
