"""Tolerances between what a device makes of a drawn node and what the definition says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from single_node import AnyArray

from .drawing import NodeCase


def tolerance(case: NodeCase, found: AnyArray, wanted: AnyArray, index: int) -> Any:
    """Return how far each element may be off.

    That is so many units in the last place of the element or, for the first output, of what is
    added up to make it: the unit of the coarsest float among inputs and outputs.
    """
    arrays = [*(x for x in case.inputs if x is not None), wanted]
    epsilon = max(float(np.finfo(a.dtype).eps) for a in arrays if a.dtype.kind in "fc")
    terms = np.asarray(case.terms, np.float64)
    terms = terms if index == 0 or terms.ndim == 0 else terms.max(initial=0)
    size = np.nan_to_num(np.abs(wanted), posinf=0) + np.nan_to_num(terms, posinf=0)
    return case.ulps * (epsilon * size + float(np.finfo(wanted.dtype).tiny))


def check(case: NodeCase, results: Sequence[AnyArray], definition: Sequence[AnyArray]) -> None:
    """Compare what a device gives with what the definition says."""
    for index, (found, wanted) in enumerate(zip(results, definition, strict=True)):
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        if wanted.dtype.kind not in "fc" or not case.ulps:
            np.testing.assert_array_equal(found, wanted)
            continue
        finite = np.isfinite(wanted)
        np.testing.assert_array_equal(found[~finite], wanted[~finite])
        with np.errstate(all="ignore"):
            wide = np.result_type(wanted.dtype, np.float64)
            off = np.abs(found.astype(wide) - wanted.astype(wide))
            allowed = np.broadcast_to(tolerance(case, found, wanted, index), wanted.shape)
        np.testing.assert_array_less(off[finite], np.nextafter(allowed, np.inf)[finite])
