"""The storage that a cvm model assigns to its entries, and a check for early overwriting.

Nodes run in sequence. A node's output may overwrite one of its inputs, if the operator reads each
element before writing it, but no other entry before its last reader. Variables must not share a
place; parameters keep theirs, since they are loaded once, before all runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ..gas import sum_storage
from .symbol import reject

ELEMENT_BYTES = 4

IN_PLACE = frozenset(
    f"cvm.{name}"
    for name in (
        *("flatten", "relu", "expand_dims", "reshape", "squeeze", "abs", "negative", "precision"),
        *("elemwise_add", "elemwise_sub", "clip", "cvm_clip", "right_shift", "left_shift"),
    )
)
"""Operators that may overwrite their input."""


def check_storage(
    ids: Sequence[int],
    parameters: Sequence[int],
    inputs: Sequence[int],
    steps: Sequence[tuple[str, Sequence[int], Sequence[int]]],
    heads: Sequence[int],
    at: str,
) -> None:
    """Raise LogicError, about the graph `at`, if an entry is overwritten before its last reader.

    `ids` are the places of the entries. `parameters` are set once before the first run, `inputs`
    before each run, and `heads` are read at its end. Each of `steps` is a node in order: its
    operator, the entries it reads, and those it writes.
    """
    if min(ids, default=0) < 0:
        reject(f"storage id {min(ids)} is negative", at)
    holds: dict[int, int] = {}
    for entry in (*parameters, *inputs):
        if ids[entry] in holds:
            reject(f"variables {holds[ids[entry]]} and {entry} share storage {ids[entry]}", at)
        holds[ids[entry]] = entry
    owned = {ids[entry]: entry for entry in parameters}
    for op, reads, writes in steps:
        _check_present(reads, ids, holds, op, at)
        if len({ids[entry] for entry in writes}) != len(writes):
            reject(f"the outputs {list(writes)} of {op} share storage", at)
        for entry in writes:
            if ids[entry] in owned:
                reject(f"{op} writes entry {entry} over parameter {owned[ids[entry]]}", at)
            shared = [other for other in reads if ids[other] == ids[entry]]
            if shared and op not in IN_PLACE:
                reject(f"{op} writes entry {entry} over its own input {shared[0]}", at)
            holds[ids[entry]] = entry
    _check_present(heads, ids, holds, "the end", at)


def _check_present(
    reads: Sequence[int], ids: Sequence[int], holds: Mapping[int, int], reader: str, at: str
) -> None:
    for entry in reads:
        held = holds.get(ids[entry])
        if held != entry:
            reject(f"{reader} reads entry {entry}, whose storage holds entry {held} by then", at)


def sum_pools(ids: Sequence[int], shapes: Sequence[Sequence[int]]) -> int:
    """Return the bytes of all places in `ids`, each as large as the largest of its `shapes`."""
    sizes: dict[int, int] = {}
    for place, shape in zip(ids, shapes, strict=True):
        sizes[place] = max(sizes.get(place, 0), ELEMENT_BYTES * math.prod(shape))
    return sum_storage(sizes.values())
