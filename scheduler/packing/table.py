"""Packing problems as CSV, in the form of MiniMalloc: one block per line, with half-open lifetimes.

The columns are ``id,lower,upper,size``, or ``buffer,start,end,size`` in older files, in any order.
Other columns and lines that start with # are kept unchanged.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...graph.values.errors import ParseError
from .relation import Block, Intervals

ALIASES = {"buffer": "id", "start": "lower", "end": "upper"}
NEEDED = ("id", "lower", "upper", "size")
LARGEST = 2**62


@dataclass(frozen=True, slots=True)
class Table:
    """The blocks and lines of a file.

    `blocks` are in the order of the lines, `lives` their lifetimes. `lines` have the text, and
    whether it describes a block; the one of index `header` is the first that is not a comment.
    `column` is the index of an existing column of offsets or None, `newline` the ending of lines.
    """

    blocks: tuple[Block, ...]
    lives: Intervals
    lines: tuple[tuple[str, bool], ...]
    header: int
    column: int | None
    newline: str

    def with_offsets(self, offsets: Sequence[int]) -> str:
        """Return the file's text with `offsets` as a new or replaced column ``offset``."""
        numbers = iter(offsets)
        written: list[str] = []
        for place, (line, is_block) in enumerate(self.lines):
            if is_block or place == self.header:
                value = str(next(numbers)) if is_block else "offset"
                line = self._with(line, value)
            written.append(line)
        return "".join(line + self.newline for line in written)

    def _with(self, line: str, value: str) -> str:
        if self.column is None:
            return f"{line},{value}"
        cells = next(csv.reader([line]))
        cells[self.column] = value
        text = io.StringIO()
        csv.writer(text, lineterminator="").writerow(cells)
        return text.getvalue()


def read_table(text: str, name: str = "the table") -> Table:
    """Read a packing problem from CSV `text`; a ParseError names the table `name` and the line."""
    newline = "\r\n" if "\r\n" in text else "\n"
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").removesuffix("\n").split("\n")
    rows = list(_read_rows(lines, name))
    if not rows:
        raise ParseError("a packing problem has no header", at=name, fix=_FORM)
    header, titles = rows[0]
    columns = _find_columns(titles, f"{name}, line {header + 1}")
    seen: dict[str, int] = {}
    blocks, lower, upper = [], [], []
    for place, cells in rows[1:]:
        at = f"{name}, line {place + 1}"
        if len(cells) != len(titles):
            raise ParseError(
                f"a line has {len(cells)} cells, the header {len(titles)}", at=at, fix=_FORM
            )
        identity = cells[columns["id"]].strip()
        if identity in seen:
            raise ParseError(
                f"{identity!r} is in line {seen[identity]} already", at=at, fix="rename one"
            )
        seen[identity] = place + 1
        blocks.append(Block(_parse_number(cells[columns["size"]], "size", at)))
        lower.append(_parse_number(cells[columns["lower"]], "lower", at))
        upper.append(_parse_number(cells[columns["upper"]], "upper", at))
        if lower[-1] > upper[-1]:
            raise ParseError("a life ends before it begins", at=at, fix="lower <= upper")
    described = {place for place, _ in rows[1:]}
    marked = tuple((line, place in described) for place, line in enumerate(lines))
    lives = Intervals(lower, upper)
    return Table(tuple(blocks), lives, marked, header, columns.get("offset"), newline)


_FORM = "id,lower,upper,size in the first line, and one block per line after it"


def _read_rows(lines: Sequence[str], name: str) -> Iterator[tuple[int, list[str]]]:
    for place, line in enumerate(lines):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            yield place, next(csv.reader([line], strict=True))
        except csv.Error as error:
            raise ParseError(
                f"a line is not CSV: {error}", at=f"{name}, line {place + 1}", fix=_FORM
            ) from error


def _find_columns(titles: Sequence[str], at: str) -> dict[str, int]:
    names = [title.strip().lower() for title in titles]
    older = {name: title for name, title in ALIASES.items() if title not in names}
    names = [older.get(title, title) for title in names]
    missing = [title for title in NEEDED if title not in names]
    if missing:
        raise ParseError(f"there is no column {missing[0]!r}", at=at, fix=_FORM)
    double = [title for title in (*NEEDED, "offset") if names.count(title) > 1]
    if double:
        raise ParseError(f"there are two columns {double[0]!r}", at=at, fix="remove one")
    return {title: place for place, title in enumerate(names)}


def _parse_number(text: str, column: str, at: str) -> int:
    digits = text.strip()
    # int() also accepts 1_000 and digits of other alphabets; damaged files must not pass.
    if not (digits.removeprefix("-").isdecimal() and digits.isascii()):
        raise ParseError(f"{column} is {text!r}, not a whole number", at=at, fix=_FORM)
    number = int(digits) if len(digits) < 25 else LARGEST
    if abs(number) >= LARGEST or (column == "size" and number < 0):
        raise ParseError(f"{column} is {text}, which cannot be", at=at, fix="correct the number")
    return number
