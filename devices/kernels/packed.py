"""Weights in the order of a method; constant ones are reordered once for all programs."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ...graph.values.tensor import Array
from .geometry import WeightPacking
from .registry import ArrayModule, Step, run_in_order


class _Entry(NamedTuple):
    """Weights and their reordered form, both referred to weakly."""

    weights: weakref.ref[Any]
    packed: weakref.ref[Any]


_Key = tuple[int, WeightPacking]

_entries: dict[_Key, _Entry] = {}


def pack_weights(
    xp: ArrayModule, packing: WeightPacking, w: Array, buffers: Sequence[Array]
) -> tuple[Array, list[Step]]:
    """Return weights `w` reordered by `packing`, and the steps in `xp` that reorder them.

    Without any of `buffers` the weights are constant: they are reordered here, without steps.
    """
    if buffers:
        return buffers[0], packing.steps(xp, w, buffers[0])
    if xp is not np or w.flags.writeable:
        return _pack(xp, packing, w), []
    return _share(packing, w), []


def _pack(xp: ArrayModule, packing: WeightPacking, w: Array) -> Array:
    packed = xp.empty(packing.spec.static_shape, w.dtype)
    run_in_order(packing.steps(xp, w, packed))()
    return packed


def _share(packing: WeightPacking, w: Array) -> Array:
    """Return another program's `packing` of read-only `w` if one is in use, or else a new one.

    Two simultaneous calls may both reorder it: that costs memory, and is correct.
    """
    key = (id(w), packing)
    entry = _entries.get(key)
    if entry is not None:
        packed = entry.packed()
        if packed is not None and entry.weights() is w:
            return packed
    packed = _pack(np, packing, w)
    _entries[key] = _Entry(weakref.ref(w), weakref.ref(packed, partial(_forget, key)))
    return packed


def _forget(key: _Key, dead: weakref.ref[Any]) -> None:
    entry = _entries.get(key)
    if entry is not None and entry.packed is dead:
        del _entries[key]
