"""Weights in the order that a method wants: constant ones once for all programs that use them."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ...graph.tensor import Array
from .geometry import WeightPacking
from .registry import ArrayModule
from .steps import Step, in_order


class _Entry(NamedTuple):
    """Weights and what became of them, both for as long as somebody else holds them."""

    weights: weakref.ref[Any]
    packed: weakref.ref[Any]


_Key = tuple[int, WeightPacking]

_entries: dict[_Key, _Entry] = {}


def packed_weights(
    xp: ArrayModule, packing: WeightPacking, w: Array, buffers: Sequence[Array]
) -> tuple[Array, list[Step]]:
    """Return the reordered weights, and the steps that reorder them in each run.

    Without a buffer they are constant: they are reordered here, and there are no steps.
    """
    if buffers:
        return buffers[0], packing.steps(xp, w, buffers[0])
    if xp is not np or w.flags.writeable:
        return _packed(xp, packing, w), []
    return _shared(packing, w), []


def _packed(xp: ArrayModule, packing: WeightPacking, w: Array) -> Array:
    packed = xp.empty(packing.spec.static_shape, w.dtype)
    in_order(packing.steps(xp, w, packed))()
    return packed


def _shared(packing: WeightPacking, w: Array) -> Array:
    """Return what another program made of the same read-only array, if one still uses it.

    Two that come at once may both make it: that costs memory, and is right.
    """
    key = (id(w), packing)
    entry = _entries.get(key)
    if entry is not None:
        packed = entry.packed()
        if packed is not None and entry.weights() is w:
            return packed
    packed = _packed(np, packing, w)
    _entries[key] = _Entry(weakref.ref(w), weakref.ref(packed, partial(_forget, key)))
    return packed


def _forget(key: _Key, dead: weakref.ref[Any]) -> None:
    entry = _entries.get(key)
    if entry is not None and entry.packed is dead:
        del _entries[key]
