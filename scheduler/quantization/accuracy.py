"""The distance between the outputs of two graphs that compute the same."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ...graph.values.tensor import Array

_SUMS_TO_ONE = 1e-3


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The error of an output, over some items.

    Attributes
    ----------
    max_error, mean_error : float
        Of absolute differences.
    sqnr_db : float
        Signal to noise, in decibels: the ratio of the squares of the expected values to those of
        the differences. Infinite without differences.
    same_class : float or None
        The share of rows along the last axis with the same largest element; None if rows are not
        probabilities.
    """

    max_error: float
    mean_error: float
    sqnr_db: float
    same_class: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, which has no infinity."""
        made = asdict(self)
        return {**made, "sqnr_db": self.sqnr_db if math.isfinite(self.sqnr_db) else None}


def compare(
    pairs: Iterable[tuple[Mapping[str, Array], Mapping[str, Array]]],
) -> dict[str, Accuracy]:
    """Return the accuracy of every output, given `pairs` of expected and actual outputs."""
    sums: dict[str, _Sums] = {}
    for expected, actual in pairs:
        for name, array in expected.items():
            sums.setdefault(name, _Sums()).add(array, actual[name])
    return {name: one.accuracy() for name, one in sums.items()}


class _Sums:
    def __init__(self) -> None:
        self._largest = self._total = self._noise = self._signal = 0.0
        self._count = 0
        self._rows = self._same = 0
        self._probabilities = True

    def add(self, expected: Array, actual: Array) -> None:
        if not expected.size:
            return
        wide = expected.astype(np.float64)
        error = np.abs(wide - actual)
        self._largest = max(self._largest, float(error.max()))
        self._total += float(error.sum())
        self._noise += float(np.square(error).sum())
        self._signal += float(np.square(wide).sum())
        self._count += error.size
        self._compare_rows(wide, actual)

    def accuracy(self) -> Accuracy:
        noise, signal = self._noise, self._signal
        sqnr = math.inf if noise == 0 else -math.inf
        if noise and signal:
            sqnr = 10 * math.log10(signal / noise)
        known = self._probabilities and self._rows
        return Accuracy(
            self._largest,
            self._total / max(self._count, 1),
            sqnr,
            self._same / self._rows if known else None,
        )

    def _compare_rows(self, expected: Array, actual: Array) -> None:
        if expected.ndim < 2 or expected.shape[-1] < 2 or not self._probabilities:
            self._probabilities = False
            return
        self._probabilities = bool(np.allclose(expected.sum(-1), 1, atol=_SUMS_TO_ONE))
        self._rows += expected[..., 0].size
        self._same += int((expected.argmax(-1) == actual.argmax(-1)).sum())
