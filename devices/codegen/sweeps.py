"""Kernels that fold lines and write the results.

A line consists of the elements along some axes of a tensor, at one place of the other axes:
reductions and normalizations work on lines. It is folded to a number; elements may be computed with
that, folded again, and so on; at the end the elements, or one number for the line, are written. If
lines are few and long, they are split into parts, with a kernel for each fold: it writes a number
for each part to scratch, and later kernels fold these. The order of additions depends on shapes
alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from ...graph.values.tensor import TensorSpec
from .indexing import choose_index_type, declare_coordinates, make_strides, merge_axes, write_offset
from .registry import GROUPS, THREADS, Code, Kernel, Parameter
from .types import to_dtype_name

EACH = 8
"""Elements of a line per thread, if there are enough of them."""
BUSY = GROUPS * THREADS
"""Threads that keep the largest devices busy."""
LEAST_PART = 32
"""Fewest elements of a part per thread for which a line is split."""
MOST_PARTS = 256
IN_ORDER = 64
"""Numbers that are added in sequence before their sum is added to others."""
MARGIN = 1 << 16
"""Most that loops add to an index beyond the end."""


@dataclass(frozen=True)
class Lines:
    """The lines along some axes of a C-ordered tensor."""

    shape: tuple[int, ...]
    axes: tuple[int, ...]

    @property
    def count(self) -> int:
        return math.prod(n for axis, n in enumerate(self.shape) if axis not in self.axes)

    @property
    def length(self) -> int:
        return math.prod(self.shape[axis] for axis in self.axes)

    @property
    def index(self) -> str:
        return choose_index_type(math.prod(self.shape) + MARGIN)

    @property
    def parts(self) -> int:
        wanted = BUSY // max(self.count * self.lanes, 1)
        return max(1, min(wanted, self.length // (self.lanes * LEAST_PART), MOST_PARTS))

    @property
    def is_adjacent(self) -> bool:
        """Whether neighbours in memory are on the same line."""
        wide = [axis for axis, n in enumerate(self.shape) if n > 1]
        return not wide or wide[-1] in self.axes

    @property
    def lanes(self) -> int:
        """The number of threads that share a line, or a part of it."""
        share = self.length // EACH
        if not self.is_adjacent:  # neighbouring threads take neighbouring lines
            share = min(share, BUSY // max(self.count, 1), THREADS // 32)
        return 1 << max(0, min(share, THREADS).bit_length() - 1)

    @property
    def in_group(self) -> int:
        return THREADS // self.lanes

    def along(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the lengths and strides of the axes of a line."""
        return self._merged(lambda axis: axis in self.axes)

    def across(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return self._merged(lambda axis: axis not in self.axes)

    def _merged(self, taken: Callable[[int], bool]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        kept = [axis for axis in range(len(self.shape)) if taken(axis)]
        strides = make_strides(self.shape)
        lengths, merged_strides = merge_axes(
            [self.shape[axis] for axis in kept], [strides[axis] for axis in kept]
        )
        return lengths, merged_strides


At: TypeAlias = Callable[[str], str]
"""From the name of an element's index in the tensor to an expression."""


class Fold(NamedTuple):
    """An operation that combines two numbers of a C type; `start` is neutral."""

    ctype: str
    start: str
    combine: Callable[[str, str], str]
    """Combines two expressions."""
    rounds: bool = False
    """Whether the result depends on the order."""


class LineFold(NamedTuple):
    """A fold over each line into a variable that later folds may read."""

    name: str
    fold: Fold
    element: At
    """Expression of an element that is folded."""
    then: tuple[str, ...] = ()
    """Statements after the fold."""


def fold_lines(
    title: str,
    lines: Lines,
    parameters: Sequence[Parameter],
    folds: Sequence[LineFold] = (),
    *,
    prepare: Sequence[str] = (),
    each: Callable[[str], list[str]] | None = None,
    once: Sequence[str] = (),
    functions: tuple[str, ...] = (),
) -> Code:
    """Return code `title` that folds `lines`, by one of `folds` after the other, and writes.

    `parameters` are the inputs and outputs. The statements of `prepare` run first, when the line is
    known. `each` returns the statements for an element, given the name of its index; they may read
    all folds. The statements of `once` run for each line. `functions` are C functions that they
    call.
    """
    writer = _Writer(lines)
    # One kernel suffices if lines are many or short; the rest is for few long ones, where a group
    # for each line would leave most of the device idle.
    if lines.parts == 1:
        body = [*writer.begin(1), *prepare, *(s for one in folds for s in writer.fold(one))]
        body += writer.end(each, once)
        kernel = writer.kernel(title, parameters, body, lines.count, functions)
        return Code((kernel,))
    partial = [
        Parameter(f"parts_{line_fold.name}", line_fold.fold.ctype, "scratch", index)
        for index, line_fold in enumerate(folds)
    ]
    kernels = []
    for index, line_fold in enumerate(folds):
        writer = _Writer(lines)
        body = [*writer.begin(lines.parts), *prepare]
        # Kernels share only memory: each one folds the parts of earlier results again, which is
        # cheaper than another kernel that does so once.
        body += [s for known in folds[:index] for s in writer.fold_parts(known)]
        body += writer.fold_part(line_fold)
        taken = (*parameters, *partial[: index + 1])
        units = lines.count * lines.parts
        kernels.append(writer.kernel(f"{title}_{line_fold.name}", taken, body, units, functions))
    writer = _Writer(lines)
    # With elements to write, all parts have work; else one unit for each line is enough.
    parts = lines.parts if each is not None else 1
    body = [*writer.begin(parts), *prepare]
    body += [s for known in folds for s in writer.fold_parts(known)]
    body += writer.end(each, once)
    taken = (*parameters, *partial)
    kernels.append(writer.kernel(title, taken, body, lines.count * parts, functions))
    scratch = tuple(
        TensorSpec(to_dtype_name(one.fold.ctype), (lines.parts, lines.count)) for one in folds
    )
    return Code(tuple(kernels), scratch)


class _Writer:
    """Writes the body of a kernel: the variables of a thread, the folds, and the stores."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self._shared: list[str] = []
        self._units = 0

    def kernel(
        self,
        title: str,
        parameters: Sequence[Parameter],
        body: Sequence[str],
        units: int,
        functions: tuple[str, ...],
    ) -> Kernel:
        groups = -(-units // self._lines.in_group)
        text = "\n".join((*self._shared, *body))
        return Kernel(title, tuple(parameters), text, groups, THREADS, functions)

    def begin(self, parts: int) -> list[str]:
        """Return declarations of a thread's line, and of its elements if it has several `parts`."""
        lines = self._lines
        c, lanes, held = lines.index, lines.lanes, lines.in_group
        self._units = lines.count * parts
        # Neighbouring threads should read neighbouring bytes: of one line if its elements are
        # adjacent, else of neighbouring lines.
        slot, lane = f"THREAD / {lanes}", f"THREAD % {lanes}"
        if not lines.is_adjacent:
            slot, lane = f"THREAD % {held}", f"THREAD / {held}"
        unit = f"({c})GROUP * {held} + {slot}"
        statements = [f"const i32 lane = {lane};"]
        # A thread that returned early would be missing at a barrier.
        if self._is_ragged:  # the threads that are left over repeat the last line
            statements += [
                f"const {c} wanted = {unit};",
                f"const {c} unit = wanted < {self._units} ? wanted : {self._units - 1};",
            ]
        else:
            statements.append(f"const {c} unit = {unit};")
        line = "unit" if parts == 1 else f"unit % {lines.count}"
        statements.append(f"const {c} line = {line};")
        lengths, strides = lines.across()
        statements += declare_coordinates("line", lengths, "k", c)
        statements.append(f"const {c} base = {write_offset(strides, 'k')};")
        if parts == 1:
            return [*statements, f"const {c} begin = 0, end = {lines.length};"]
        size = -(-lines.length // parts)
        return [
            *statements,
            f"const {c} part = unit / {lines.count}, begin = part * {size};",
            f"const {c} end = begin + {size} < {lines.length} ? begin + {size} : {lines.length};",
        ]

    def fold(self, line_fold: LineFold) -> list[str]:
        """Return the statements that apply `line_fold` to the elements from begin to end."""
        name, fold, lanes = line_fold.name, line_fold.fold, self._lines.lanes
        take = fold.combine
        # Most numbers that one lane adds up.
        longest = -(-self._lines.length // self._lines.parts) // lanes
        if not fold.rounds or longest <= 2 * IN_ORDER:
            inner = [f"{name} = {take(name, line_fold.element('at'))};"]
            statements = [
                f"{fold.ctype} {name} = {fold.start};",
                *self._sweep("begin", "end", inner),
            ]
        else:
            # Long sums are added in blocks, as in numpy: the error grows with the length of a block
            # and the number of blocks, not with their product.
            c, run = self._lines.index, lanes * IN_ORDER
            inner = [f"part_{name} = {take(f'part_{name}', line_fold.element('at'))};"]
            statements = [
                f"{fold.ctype} {name} = {fold.start};",
                f"for ({c} from = begin; from < end; from += {run}) {{",
                f"const {c} to = from + {run} < end ? from + {run} : end;",
                f"{fold.ctype} part_{name} = {fold.start};",
                *self._sweep("from", "to", inner),
                f"{name} = {take(name, f'part_{name}')};",
                "}",
            ]
        return [*statements, *self._across_lanes(name, fold), *line_fold.then]

    def fold_part(self, line_fold: LineFold) -> list[str]:
        # Statements after a fold need the whole line, and this is a part.
        folded = self.fold(line_fold._replace(then=()))
        return [*folded, *self._if_first([f"parts_{line_fold.name}[unit] = {line_fold.name};"])]

    def fold_parts(self, line_fold: LineFold) -> list[str]:
        name, fold, lines = line_fold.name, line_fold.fold, self._lines
        read = f"parts_{name}[p * {lines.count} + line]"
        return [
            f"{fold.ctype} {name} = {fold.start};",
            f"for (i32 p = lane; p < {lines.parts}; p += {lines.lanes})",
            f"{name} = {fold.combine(name, read)};",
            *self._across_lanes(name, fold),
            *line_fold.then,
        ]

    def end(self, each: Callable[[str], list[str]] | None, once: Sequence[str]) -> list[str]:
        """Return the statements that run `each`, unless None, per element, and `once` per line."""
        body = [] if each is None else self._if_real(self._sweep("begin", "end", each("at")))
        if not once:
            return body
        # Of all units with a part of the line, only the first writes these.
        first = "begin == 0" if each is not None and self._lines.parts > 1 else ""
        return [*body, *self._if_first(once, first)]

    @property
    def _is_ragged(self) -> bool:
        return self._units % self._lines.in_group != 0

    def _if_real(self, statements: list[str], *conditions: str) -> list[str]:
        real = [f"wanted < {self._units}"] if self._is_ragged else []
        tests = [*real, *filter(None, conditions)]
        return [f"if ({' && '.join(tests)}) {{", *statements, "}"] if tests else statements

    def _if_first(self, statements: Sequence[str], condition: str = "") -> list[str]:
        lane = "lane == 0" if self._lines.lanes > 1 else ""
        return self._if_real(list(statements), lane, condition)

    def _sweep(self, begin: str, end: str, inner: Sequence[str]) -> list[str]:
        lines = self._lines
        c, (lengths, strides) = lines.index, lines.along()
        return [
            f"for ({c} j = {begin} + lane; j < {end}; j += {lines.lanes}) {{",
            *declare_coordinates("j", lengths, "j", c),
            f"const {c} at = base + {write_offset(strides, 'j')};",
            *inner,
            "}",
        ]

    def _across_lanes(self, name: str, fold: Fold) -> list[str]:
        lanes = self._lines.lanes
        if lanes == 1:
            return []
        # The distance to the next lane of the same line: see `begin`.
        apart = 1 if self._lines.is_adjacent else self._lines.in_group
        tree = f"lanes_{name}"
        self._shared.append(f"SHARED {fold.ctype} {tree}[{THREADS}];")
        both = fold.combine(f"{tree}[THREAD]", f"{tree}[THREAD + width * {apart}]")
        return [
            f"{tree}[THREAD] = {name};",
            "BARRIER;",
            # A tree of fixed shape: sums are the same in every run, whichever thread is first.
            f"for (i32 width = {lanes // 2}; width > 0; width /= 2) {{",
            f"if (lane < width) {tree}[THREAD] = {both};",
            "BARRIER;",
            "}",
            f"{name} = {tree}[THREAD - lane * {apart}];",
        ]
