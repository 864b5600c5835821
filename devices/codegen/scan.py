"""Generators of scans: each element combined with all before it along an axis.

Lines that lie side by side are scanned by a thread each. A line along the last axis is scanned by a
group, block by block: sums are added in the same order each time, but not from first to last.
"""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import numpy as np

from ...graph.dims import normalize_axis
from ...graph.operator import Call, Specs
from .cells import typed
from .functions import word
from .indexing import index_type
from .kernel import THREADS, TRAP, Code, Kernel, groups_of
from .registry import generates
from .types import computed_type, load, store


@generates("CumSum")
def running_sum(call: Call, outputs: Specs) -> Code:
    """Write sums of all elements up to each, or before it."""
    return _scanned("cum_sum", call, "+", 0)


@generates("CumProd")
def running_product(call: Call, outputs: Specs) -> Code:
    """Write products of all elements up to each, or before it."""
    return _scanned("cum_prod", call, "*", 1)


def _scanned(title: str, call: Call, operation: str, neutral: int) -> Code:
    x, value = call.spec(0), call.value(1)
    if not x.size:
        return Code(())
    shape, t = x.static_shape, computed_type(x.dtype)
    w = t if t.startswith("f") else word(t)
    scan = _Scan(
        x.dtype,
        f"({t})(({w})(%s) {operation} ({w})(%s))",
        neutral,
        "(first + (length - 1 - (n)) * inner)"
        if call.attributes["reverse"]
        else "(first + (n) * inner)",
        call.attributes["exclusive"],
    )
    head = f"typedef {index_type(x.size + THREADS)} index; typedef {t} number;\n"
    parameters = (typed("x", x, "input"), typed("y", x, "output"))
    if value is None:
        axis = typed("axis", call.spec(1), "input", 1)
        body = head + _lines(shape) + scan.by_thread(x.size)
        most = x.size // min(shape)
        kernel = Kernel(title, (axis, *parameters, TRAP), body, groups_of(most))
        return Code((kernel,), trap=f"axis {{}} is outside a tensor of rank {len(shape)}")
    axis_number = normalize_axis(int(value.reshape(-1)[0]), len(shape))
    length, inner = shape[axis_number], prod(shape[axis_number + 1 :])
    head += f"const index length = {length}, inner = {inner};\n"
    lines = x.size // length
    if inner == 1:
        return Code((Kernel(title, parameters, head + scan.by_group(), lines),))
    return Code((Kernel(title, parameters, head + scan.by_thread(x.size), groups_of(lines)),))


def _lines(shape: tuple[int, ...]) -> str:
    """Return the statements that find the lines along an axis that is known at run time only.

    An axis that is not there is left in `TRAP`, and stands for the first one.
    """
    rank = len(shape)
    lengths = " : ".join([*(f"at == {i} ? {shape[i]}" for i in range(rank)), "1"])
    inner = " : ".join([*(f"at == {i} ? {prod(shape[i + 1 :])}" for i in range(rank)), "1"])
    return f"""\
i64 at = axis[0];
if (at < 0) at += {rank};
if (at < 0 || at >= {rank}) {{ trap[0] = axis[0]; at = 0; }}
const index length = {lengths}, inner = {inner};
"""


class _Scan(NamedTuple):
    """A scan in C.

    Attributes
    ----------
    dtype : dtype
    combine : str
        With two ``%s``, for what is combined.
    neutral : int
    where : str
        The place of the ``n``-th element of a line from ``first`` on.
    exclusive : bool
    """

    dtype: np.dtype[Any]
    combine: str
    neutral: int
    where: str
    exclusive: bool

    def by_thread(self, size: int) -> str:
        """Return the scan of a line by a thread."""
        update = f"total = {self.combine % ('total', load(self.dtype, 'x', self.where))};"
        write = store(self.dtype, "y", self.where, "total")
        return f"""\
const index line = (index)GROUP * {THREADS} + THREAD;
if (line >= {size} / length) return;
const index first = line / inner * length * inner + line % inner;
number total = {self.neutral};
for (index n = 0; n < length; n++) {{
    {f"{write} {update}" if self.exclusive else f"{update} {write}"}
}}"""

    def by_group(self) -> str:
        """Return the scan of a line by a group: of blocks, each of which starts with a carry.

        In a block, distances are doubled.

        References
        ----------
        .. [1] W. D. Hillis and G. L. Steele, "Data parallel algorithms", 1986.
        """
        result = "THREAD > 0 ? part[THREAD - 1] : carry" if self.exclusive else "part[THREAD]"
        return f"""\
SHARED number part[{THREADS}];
const index first = (index)GROUP * length;
number carry = {self.neutral};
for (index block = 0; block < length; block += {THREADS}) {{
    const index n = block + THREAD;
    number value = {self.neutral};
    if (n < length) value = {load(self.dtype, "x", self.where)};
    if (THREAD == 0) value = {self.combine % ("carry", "value")};
    part[THREAD] = value;
    for (i32 distance = 1; distance < {THREADS}; distance *= 2) {{
        BARRIER;
        const number before = THREAD >= distance ? part[THREAD - distance] : {self.neutral};
        BARRIER;
        if (THREAD >= distance) part[THREAD] = {self.combine % ("before", "part[THREAD]")};
    }}
    BARRIER;
    if (n < length) {store(self.dtype, "y", self.where, result)}
    carry = part[{THREADS - 1}];
    BARRIER;
}}"""
