"""Attributes: the compile-time constants of a node, with their types, defaults and ranges."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

import numpy as np

from ..values.dtypes import dtype_of, name_of, to_text
from ..values.errors import OperatorError

Attributes: TypeAlias = Mapping[str, Any]

LENGTHS = "lengths"
"""The attribute of calls of Python functions with the names of the lengths that they decide."""

RESERVED = ("name", "outputs", LENGTHS)
"""Names that attributes may not have: methods that add nodes use these keywords."""

LONGEST_SHOWN = 500
"""Characters of a value in an error."""


class Kind(Enum):
    """The type of an attribute's value.

    Examples
    --------
    >>> from plait.operators import Kind
    >>> Kind.INTS.value
    'a sequence of integers'
    """

    INT = "an integer"
    FLOAT = "a number"
    BOOL = "a boolean"
    STRING = "a string"
    BOOLS = "a sequence of booleans"
    INTS = "a sequence of integers"
    FLOATS = "a sequence of numbers"
    STRINGS = "a sequence of strings"
    DTYPE = "a dtype"
    NUMBER = "a number, kept integer or boolean where it is"
    GRAPH = "a graph"
    TENSOR = "an array of numbers or text"


LONG = 4096
"""Lists of more elements become a `LongTuple`."""


class LongTuple(tuple[Any, ...]):
    """A long list, such as the nodes of a tree model: checked once, and hashed once.

    Attributes
    ----------
    plain : type
        That of all elements.
    """

    plain: type
    _hash: int | None = None

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = super().__hash__()
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple, (tuple(self),)  # hashes of text differ between processes


class _Required:
    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED: Any = _Required()
"""The default of a required attribute."""


@dataclass(frozen=True, slots=True)
class Attribute:
    """One attribute of an operator.

    Attributes
    ----------
    default : object
        REQUIRED, or the value if a node gives none; None means "absent".
    minimum, maximum : float, optional
        Inclusive range, for each element of a sequence.
    choices : tuple, optional
        The only values allowed.

    Examples
    --------
    >>> from plait.operators import Attribute, Kind
    >>> axis = Attribute(Kind.INT, 0, minimum=0)
    >>> axis.default, axis.kind.value
    (0, 'an integer')
    """

    kind: Kind
    default: Any = REQUIRED
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[Any, ...] | None = None

    def complete(self, op: str, name: str, given: Any, at: object) -> Any:
        """Convert `given` to stored form, or return the default; errors name `op`, `name`, `at`."""
        if given is None:
            if self.default is REQUIRED:
                raise OperatorError(
                    f"{op} needs the attribute {name!r}",
                    at=str(at),
                    fix=f"pass {name}={self.wanted}",
                )
            return self.default
        try:
            value = _CONVERTERS[self.kind](given)
            elements = value if isinstance(value, tuple) else (value,)
            unfit = self._is_limited and not all(map(self._allows, elements))
        except Exception as error:  # objects of any class may come here
            raise self._refused_value_error(op, name, given, at) from error
        if unfit:
            raise self._refused_value_error(op, name, given, at)
        return value

    def _refused_value_error(self, op: str, name: str, given: Any, at: object) -> OperatorError:
        return OperatorError(
            f"{op}'s attribute {name!r} must be {self.wanted}, got {_shorten(given)}",
            at=str(at),
            fix=f"pass {self.wanted}",
        )

    @property
    def wanted(self) -> str:
        """A description of valid values."""
        words = self.kind.value
        if self.choices is not None:
            words += f" among {', '.join(map(repr, self.choices))}"
        if self.minimum is not None and self.maximum is not None:
            words += f" in [{self.minimum:.10g}, {self.maximum:.10g}]"
        elif self.minimum is not None:
            words += f" ≥ {self.minimum:.10g}"
        elif self.maximum is not None:
            words += f" ≤ {self.maximum:.10g}"
        return words

    @property
    def _is_limited(self) -> bool:
        return not (self.choices is None and self.minimum is None and self.maximum is None)

    def _allows(self, element: Any) -> bool:
        if self.choices is not None and element not in self.choices:
            return False
        # Not `element < minimum`: NaN is neither, and has to be refused.
        if self.minimum is not None and not element >= self.minimum:
            return False
        return self.maximum is None or element <= self.maximum


def _shorten(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:
        return f"a {type(value).__name__}"
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."


_NAN = math.nan
"""A single object: NaNs are not equal, and neither would be nodes with different ones."""


def _to_int(value: Any) -> int:
    if isinstance(value, bool | np.bool_):
        return int(value)
    if isinstance(value, int | np.integer):
        return int(value)
    raise TypeError(value)


def _to_float(value: Any) -> float:
    if isinstance(value, int | float | np.integer | np.floating):
        return _NAN if value != value else float(value)
    raise TypeError(value)


def _number(value: Any) -> bool | int | float:
    if isinstance(value, bool | np.bool_):
        return bool(value)
    return int(value) if isinstance(value, int | np.integer) else _to_float(value)


def _to_bool(value: Any) -> bool:
    # ONNX has no booleans among its attributes: models say 0 or 1.
    if isinstance(value, bool | np.bool_) or value in (0, 1):
        return bool(value)
    raise TypeError(value)


def _to_string(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, str):
        return str(value)  # no subclass
    raise TypeError(value)


_NUMBERS = "biuf"


def _to_tensor(value: Any) -> tuple[Any, ...]:
    """Return the array `value` as plain values in a row: attributes are compared, hashed, saved."""
    array = _check_storable(value) if isinstance(value, np.ndarray) else array_in(value)
    elements = (_NAN if element != element else element for element in array.ravel().tolist())
    name = array.dtype.name if array.dtype.kind in _NUMBERS else "str"
    return (name, array.ndim, *array.shape, *elements)


def array_in(value: tuple[Any, ...]) -> np.ndarray[Any, np.dtype[Any]]:
    """Return the array that `value` stores: its dtype, its rank, its lengths, its elements."""
    name, rank, *rest = value
    dtype = dtype_of(name)
    if rank < 0 or (dtype.kind not in _NUMBERS and name != "str"):
        raise ValueError(name, rank)
    # Numpy would make text of numbers, and of text an element may be of any length.
    array = np.empty(len(rest) - rank, dtype)
    array[:] = rest[rank:]
    return _check_storable(array).reshape(rest[:rank])


def _check_storable(array: np.ndarray[Any, np.dtype[Any]]) -> np.ndarray[Any, np.dtype[Any]]:
    """Return `array`, of numbers or of text as objects; raise TypeError for others."""
    found = array if array.dtype.kind in _NUMBERS else to_text(array)
    if found is None:
        raise TypeError(array.dtype)
    return found


def _to_graph(value: Any) -> Any:
    from .ir import Graph  # which holds attributes

    if isinstance(value, Graph):
        return value
    raise TypeError(value)


def _to_sequence(convert: Any, plain: type) -> Any:
    def convert_all(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, Sequence | np.ndarray) or isinstance(value, str | bytes):
            raise TypeError(value)
        if type(value) is LongTuple and value.plain is plain:
            return value
        # Long lists of plain values, as in tree models, need no conversion element by element.
        is_plain = type(value) in (tuple, list) and {plain}.issuperset(map(type, value))
        is_as_stored = is_plain and not (plain is float and math.isnan(sum(value)))
        elements = value if is_as_stored else [convert(element) for element in value]
        if len(elements) <= LONG:
            return tuple(elements)
        found = LongTuple(elements)
        found.plain = plain
        return found

    return convert_all


_CONVERTERS: dict[Kind, Any] = {
    Kind.INT: _to_int,
    Kind.FLOAT: _to_float,
    Kind.BOOL: _to_bool,
    Kind.STRING: _to_string,
    Kind.BOOLS: _to_sequence(_to_bool, bool),
    Kind.INTS: _to_sequence(_to_int, int),
    Kind.FLOATS: _to_sequence(_to_float, float),
    Kind.STRINGS: _to_sequence(_to_string, str),
    Kind.DTYPE: lambda value: name_of(dtype_of(value)),
    Kind.NUMBER: _number,
    Kind.GRAPH: _to_graph,
    Kind.TENSOR: _to_tensor,
}
