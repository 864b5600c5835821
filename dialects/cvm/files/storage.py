"""The storage that a cvm model gives its entries, and a check that none is overwritten too early.

Nodes run one after the other. A node's output may be kept where an input of it was, if the operator
reads each element before it writes it; nothing else that is still to be read may be overwritten.
No two variables share a place; parameters keep theirs, as they are loaded once, before all runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ..gas import storage_bytes
from .symbol import wrong

ELEMENT_BYTES = 4

IN_PLACE = frozenset(
    f"cvm.{name}"
    for name in (
        *("flatten", "relu", "expand_dims", "reshape", "squeeze", "abs", "negative", "precision"),
        *("elemwise_add", "elemwise_sub", "clip", "cvm_clip", "right_shift", "left_shift"),
    )
)
"""The operators that may write where they read."""


def check_storage(
    ids: Sequence[int],
    parameters: Sequence[int],
    inputs: Sequence[int],
    steps: Sequence[tuple[str, Sequence[int], Sequence[int]]],
    heads: Sequence[int],
    at: str,
) -> None:
    """Raise LogicError where an entry is overwritten before its last reader.

    Parameters
    ----------
    ids : sequence of int
        The place of each entry.
    parameters, inputs : sequence of int
        The entries that are there before the first run, and those set anew before each.
    steps : sequence of (str, entries, entries)
        What runs, in order: the operator, what it reads and what it writes.
    heads : sequence of int
        The entries read at the end.
    """
    if min(ids, default=0) < 0:
        wrong(f"storage id {min(ids)} is negative", at)
    holds: dict[int, int] = {}
    for entry in (*parameters, *inputs):
        if ids[entry] in holds:
            wrong(f"variables {holds[ids[entry]]} and {entry} share storage {ids[entry]}", at)
        holds[ids[entry]] = entry
    owned = {ids[entry]: entry for entry in parameters}
    for op, reads, writes in steps:
        _check_present(reads, ids, holds, op, at)
        if len({ids[entry] for entry in writes}) != len(writes):
            wrong(f"the outputs {list(writes)} of {op} share storage", at)
        for entry in writes:
            if ids[entry] in owned:
                wrong(f"{op} writes entry {entry} over parameter {owned[ids[entry]]}", at)
            shared = [other for other in reads if ids[other] == ids[entry]]
            if shared and op not in IN_PLACE:
                wrong(f"{op} writes entry {entry} over its own input {shared[0]}", at)
            holds[ids[entry]] = entry
    _check_present(heads, ids, holds, "the end", at)


def _check_present(
    reads: Sequence[int], ids: Sequence[int], holds: Mapping[int, int], reader: str, at: str
) -> None:
    for entry in reads:
        held = holds.get(ids[entry])
        if held != entry:
            wrong(f"{reader} reads entry {entry}, whose storage holds entry {held} by then", at)


def pool_bytes(ids: Sequence[int], shapes: Sequence[Sequence[int]]) -> int:
    """Return how much all places take together, each as large as the largest entry in it.

    Raises
    ------
    LogicError
        If it is over the cap.
    """
    sizes: dict[int, int] = {}
    for place, shape in zip(ids, shapes, strict=True):
        sizes[place] = max(sizes.get(place, 0), ELEMENT_BYTES * math.prod(shape))
    return storage_bytes(sizes.values())
