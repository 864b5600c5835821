"""Constants that are the same: in dtype, shape and every bit (0 and 0.0 are two, so is -0.0)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from ..values.tensor import Array

SAMPLED = 16
"""About the number of elements that are compared before all of them are."""

_Kind: TypeAlias = tuple[np.dtype[Any], tuple[int, ...], int | None]


class ConstantPool:
    """Constants by value.

    Large ones are compared element by element only with those of equal samples: each costs its
    bytes once for every other of the same dtype, shape and sample. Constants with different
    declared bits, as in `precisions`, are different.
    """

    def __init__(self, constants: Mapping[str, Array], precisions: Mapping[str, int]) -> None:
        self._precisions = precisions
        self._first: dict[_Kind, tuple[str, Array]] = {}
        self._alike: dict[_Kind, dict[bytes, list[tuple[str, Array]]]] = {}
        for name, value in constants.items():
            self.add(name, value)

    def find(self, value: Array, precision: int | None = None) -> str | None:
        kind = value.dtype, value.shape, precision
        if kind not in self._first:
            return None
        for name, other in self._sampled(kind).get(_take_sample(value), ()):
            if other is value or value.size <= SAMPLED or _has_same_bits(other, value):
                return name
        return None

    def add(self, name: str, value: Array) -> str:
        """Add `value` as constant `name` unless an equal one exists; return the name to use."""
        precision = self._precisions.get(name)
        known = self.find(value, precision)
        if known is not None:
            return known
        kind = value.dtype, value.shape, precision
        if kind in self._first:
            self._sampled(kind).setdefault(_take_sample(value), []).append((name, value))
        else:
            self._first[kind] = name, value
        return name

    def _sampled(self, kind: _Kind) -> dict[bytes, list[tuple[str, Array]]]:
        """Return the constants of `kind` by sample; sampling starts with the second one."""
        if kind not in self._alike:
            first = self._first[kind]
            self._alike[kind] = {_take_sample(first[1]): [first]}
        return self._alike[kind]


def _take_sample(value: Array) -> bytes:
    return bytes(value.flat[:: max(1, value.size // SAMPLED)].tobytes())


def _has_same_bits(a: Array, b: Array) -> bool:
    left, right = (np.ascontiguousarray(one).reshape(-1).view(np.uint8) for one in (a, b))
    return bool(np.array_equal(left, right))
