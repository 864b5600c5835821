"""Constants that are the same: in dtype, shape and every bit (0 and 0.0 are two, so is -0.0)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np

from ..tensor import Array

SAMPLED = 16
"""About how many elements are looked at before all of them are."""

_Key: TypeAlias = tuple[str, tuple[int, ...], int | None, bytes]


class ConstantPool:
    """Constants by what they hold.

    Large ones are compared element by element only with those that look alike: each costs its
    bytes once for every other of the same dtype, shape and sample.

    Parameters
    ----------
    constants : Mapping of str to Array
    precisions : Mapping of str to int
        Those that are declared to hold different bits are different.
    """

    def __init__(self, constants: Mapping[str, Array], precisions: Mapping[str, int]) -> None:
        self._precisions = precisions
        self._alike: dict[_Key, list[tuple[str, Array]]] = {}
        for name, value in constants.items():
            self.add(name, value)

    def find(self, value: Array, precision: int | None = None) -> str | None:
        """Return the name of the first constant that is the same."""
        for name, other in self._alike.get(_key(value, precision), ()):
            if other is value or (value.size <= SAMPLED) or _same_bits(other, value):
                return name
        return None

    def add(self, name: str, value: Array) -> str:
        """Add a constant, unless one is the same; return the name of that one, or its own."""
        precision = self._precisions.get(name)
        known = self.find(value, precision)
        if known is not None:
            return known
        self._alike.setdefault(_key(value, precision), []).append((name, value))
        return name


def _key(value: Array, precision: int | None) -> _Key:
    sample = value.flat[:: max(1, value.size // SAMPLED)]
    return value.dtype.name, value.shape, precision, sample.tobytes()


def _same_bits(a: Array, b: Array) -> bool:
    left, right = (np.ascontiguousarray(one).reshape(-1).view(np.uint8) for one in (a, b))
    return bool(np.array_equal(left, right))
