"""Numbers in 32-bit code: others become the nearest representable number.

A parameter keeps three views of a number: a double, a 32-bit float and a 32-bit integer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from ..values.errors import OperatorError

INT_MIN, INT_MAX = -(2**31), 2**31 - 1
FLT_MAX = float(np.finfo(np.float32).max)

Scalar: TypeAlias = "bool | str | Number | None"
Value: TypeAlias = "Scalar | tuple[bool, ...] | tuple[str, ...] | tuple[Number, ...]"


def to_int32(value: float) -> int:
    """Return `value` without its fraction, within 32 bits; a NaN becomes 0.

    >>> to_int32(-2.9), to_int32(3e9), to_int32(float("-inf"))
    (-2, 2147483647, -2147483648)
    """
    if math.isnan(value):
        return 0
    return INT_MAX if value >= INT_MAX else INT_MIN if value <= INT_MIN else int(value)


def to_float32(value: float) -> float:
    """Return the finite 32-bit float nearest to `value`; a NaN stays one.

    >>> to_float32(1e300), to_float32(-1e300) == -FLT_MAX, to_float32(-0.5)
    (3.4028234663852886e+38, True, -0.5)
    """
    if value >= FLT_MAX:
        return FLT_MAX
    return -FLT_MAX if value <= -FLT_MAX else float(np.float32(value))


@dataclass(frozen=True, slots=True)
class Number:
    """A number in three views."""

    double: float
    float32: float
    int32: int

    @classmethod
    def of(cls, value: float | np.number[Any]) -> Number:
        """Return the views of `value`: of a 32-bit float or integer, all of them are exact.

        Raises OperatorError if it is an integer that no double is near.
        """
        try:
            double = float(value)
        except OverflowError:
            raise OperatorError("an integer is too large for a double", fix="pass one") from None
        exact = isinstance(value, int | np.integer) and INT_MIN <= int(value) <= INT_MAX
        return cls(double, to_float32(double), int(value) if exact else to_int32(double))


@dataclass(frozen=True, slots=True)
class Parameter:
    """A named constant of an operator."""

    name: str
    value: Value

    @property
    def kind(self) -> str:
        """Its kind: ``"null"``, ``"number"``, ``"array of strings"``, ..."""
        value = self.value
        if isinstance(value, tuple):
            return f"array of {_KINDS[type(value[0])]}s"
        return _KINDS[type(value)]


_KINDS: dict[type, str] = {type(None): "null", bool: "bool", str: "string", Number: "number"}


class Parameters(Mapping[str, Parameter]):
    """Parameters by name, in order.

    Examples
    --------
    >>> found = Parameters.of({"scale": 0.5, "pad_left": 3e9})
    >>> found["scale"].value.int32, found.joined("pad", "left").value.int32
    (0, 2147483647)
    """

    def __init__(self, parameters: Iterable[Parameter] = ()) -> None:
        self._by_name = {each.name: each for each in parameters}

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Parameters:
        """Convert plain `values` to parameters.

        Raises
        ------
        OperatorError
            If a value is not null, a string, number or bool, or a non-empty array of one of these.
        """
        return cls(Parameter(name, _convert(name, value)) for name, value in values.items())

    def joined(self, first: str, second: str) -> Parameter:
        return self[f"{first}_{second}"]

    def __getitem__(self, name: str) -> Parameter:
        return self._by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    def __repr__(self) -> str:
        return f"Parameters({list(self._by_name.values())})"


def _convert(name: str, value: Any) -> Value:
    if isinstance(value, Sequence | np.ndarray) and not isinstance(value, str):
        made = [_convert_scalar(name, each) for each in value]
        if not made or made[0] is None or len(set(map(type, made))) > 1:
            raise _unfit_error(name, value, "an array of one kind, not empty")
        return tuple(made)  # type: ignore[return-value]  # all are of one type, as was just seen
    return _convert_scalar(name, value)


def _convert_scalar(name: str, value: Any) -> Scalar:
    for kinds, convert in _SCALARS:
        if isinstance(value, kinds):
            made: Scalar = convert(value)
            return made
    raise _unfit_error(name, value, "null, a string, a number or a bool")


_SCALARS: tuple[tuple[tuple[type, ...], Callable[[Any], Scalar]], ...] = (
    ((type(None),), lambda _: None),
    ((bool, np.bool_), bool),
    ((str,), str),
    ((int, float, np.integer, np.floating), Number.of),
)


def _unfit_error(name: str, value: Any, wanted: str) -> OperatorError:
    return OperatorError(f"parameter {name!r} must be {wanted}, got {value!r}", fix="pass one")
