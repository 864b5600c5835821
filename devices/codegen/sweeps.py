"""Kernels that go over lines: fold them, and write what comes of it.

A line is folded to a number, elements may be computed with that, folded again, and so on; at last
the elements, or one number for the line, are written. Long lines, where there are few, are split
into parts, a kernel for each fold: it writes a number for each part to scratch, which the kernels
behind it fold again. All is added in an order that shapes alone decide.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from ...graph.tensor import TensorSpec
from .indexing import coordinates, offset
from .kernel import THREADS, Code, Kernel, Parameter
from .lines import Lines
from .types import dtype_name

IN_ORDER = 64
"""Numbers that are added one after the other before their sum is added to others."""

At: TypeAlias = Callable[[str], str]
"""From the name of an element's index in the tensor to an expression."""


class Fold(NamedTuple):
    """How two numbers of a C type become one; `start` is neutral.

    Attributes
    ----------
    combine : callable
        Of two expressions.
    rounds : bool
        Whether the order makes a difference.
    """

    ctype: str
    start: str
    combine: Callable[[str, str], str]
    rounds: bool = False


class LineFold(NamedTuple):
    """A fold over each line into a variable that the folds behind it may read.

    Attributes
    ----------
    element : callable
        What of each element is folded.
    then : tuple of str
        Statements behind the fold.
    """

    name: str
    fold: Fold
    element: At
    then: tuple[str, ...] = ()


def line_code(
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
    """Return the code that folds lines, one fold after the other, and writes what comes of it.

    Parameters
    ----------
    parameters : sequence of Parameter
        The inputs and outputs.
    prepare : sequence of str
        Statements once `line` is known, before all else.
    each : callable, optional
        The statements for an element, given the name of its index; all folds are known to them.
    once : sequence of str
        The statements for a line, whose number is `line`.
    """
    writer = _Writer(lines)
    # One kernel does everything where lines are many or short; what follows is for few long ones,
    # where a group for each line would leave most of the device idle.
    if lines.parts == 1:
        body = [
            *writer.begin(1),
            *prepare,
            *(s for one in folds for s in writer.fold(one)),
        ]
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
        # Kernels share nothing but memory: each folds the parts of what came before for itself,
        # which is less than to wait for one more kernel that does so once.
        body += [s for known in folds[:index] for s in writer.fold_parts(known)]
        body += writer.fold_part(line_fold)
        taken = (*parameters, *partial[: index + 1])
        units = lines.count * lines.parts
        kernels.append(writer.kernel(f"{title}_{line_fold.name}", taken, body, units, functions))
    writer = _Writer(lines)
    # With elements to write, there is work for all parts; else one unit for each line is enough.
    parts = lines.parts if each is not None else 1
    body = [*writer.begin(parts), *prepare]
    body += [s for known in folds for s in writer.fold_parts(known)]
    body += writer.end(each, once)
    taken = (*parameters, *partial)
    kernels.append(writer.kernel(title, taken, body, lines.count * parts, functions))
    scratch = tuple(
        TensorSpec(dtype_name(one.fold.ctype), (lines.parts, lines.count)) for one in folds
    )
    return Code(tuple(kernels), scratch)


class _Writer:
    """Writes the body of a kernel: the variables of a thread, folds, and what is written."""

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
        """Return the declarations of line, lane, base, begin and end."""
        lines = self._lines
        c, lanes, held = lines.index, lines.lanes, lines.in_group
        self._units = lines.count * parts
        # Neighbouring threads are to read neighbouring bytes: those of a line where elements of a
        # line are adjacent, else those of as many lines.
        slot, lane = f"THREAD / {lanes}", f"THREAD % {lanes}"
        if not lines.is_adjacent:
            slot, lane = f"THREAD % {held}", f"THREAD / {held}"
        unit = f"({c})GROUP * {held} + {slot}"
        statements = [f"const i32 lane = {lane};"]
        # A thread that returned early would be missed at a barrier.
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
        statements += coordinates("line", lengths, "k", c)
        statements.append(f"const {c} base = {offset(strides, 'k')};")
        if parts == 1:
            return [*statements, f"const {c} begin = 0, end = {lines.length};"]
        size = -(-lines.length // parts)
        return [
            *statements,
            f"const {c} part = unit / {lines.count}, begin = part * {size};",
            f"const {c} end = begin + {size} < {lines.length} ? begin + {size} : {lines.length};",
        ]

    def fold(self, line_fold: LineFold) -> list[str]:
        """Return the statements that fold the elements from begin to end."""
        name, fold, lanes = line_fold.name, line_fold.fold, self._lines.lanes
        take = fold.combine
        # What one lane adds up, at most.
        longest = -(-self._lines.length // self._lines.parts) // lanes
        if not fold.rounds or longest <= 2 * IN_ORDER:
            inner = [f"{name} = {take(name, line_fold.element('at'))};"]
            statements = [
                f"{fold.ctype} {name} = {fold.start};",
                *self._sweep("begin", "end", inner),
            ]
        else:
            # Long sums are added in blocks, as numpy's are: the error grows with the length of a
            # block and the number of blocks, not with their product.
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
        """Return the statements that fold a part of a line and write what comes of it."""
        # What follows a fold needs all of the line, and here is a part.
        folded = self.fold(line_fold._replace(then=()))
        return [*folded, *self._if_first([f"parts_{line_fold.name}[unit] = {line_fold.name};"])]

    def fold_parts(self, line_fold: LineFold) -> list[str]:
        """Return the statements that fold what was made of the parts of a line."""
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
        """Return the statements that write the elements, and once for a line."""
        body = [] if each is None else self._if_real(self._sweep("begin", "end", each("at")))
        if not once:
            return body
        # Of all units that have a part of the line, one writes what is written once.
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
            *coordinates("j", lengths, "j", c),
            f"const {c} at = base + {offset(strides, 'j')};",
            *inner,
            "}",
        ]

    def _across_lanes(self, name: str, fold: Fold) -> list[str]:
        """Return the statements that fold what the lanes have, for all of them to know."""
        lanes = self._lines.lanes
        if lanes == 1:
            return []
        # How far the next lane of the same line is: see `begin`.
        apart = 1 if self._lines.is_adjacent else self._lines.in_group
        tree = f"lanes_{name}"
        self._shared.append(f"SHARED {fold.ctype} {tree}[{THREADS}];")
        both = fold.combine(f"{tree}[THREAD]", f"{tree}[THREAD + width * {apart}]")
        return [
            f"{tree}[THREAD] = {name};",
            "BARRIER;",
            # A tree of fixed shape: sums come out the same in every run, whichever thread is first.
            f"for (i32 width = {lanes // 2}; width > 0; width /= 2) {{",
            f"if (lane < width) {tree}[THREAD] = {both};",
            "BARRIER;",
            "}",
            f"{name} = {tree}[THREAD - lane * {apart}];",
        ]
