"""Packing problems as CSV, in the form of MiniMalloc: one block per line, its life half open.

``id,lower,upper,size``, or ``buffer,start,end,size`` in older files, in any order. Other columns
and lines that start with # are kept as they are, and mean nothing.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...graph.errors import ParseError
from .relation import Block, Intervals

ALIASES = {"buffer": "id", "start": "lower", "end": "upper"}
NEEDED = ("id", "lower", "upper", "size")
LARGEST = 2**62


@dataclass(frozen=True, slots=True)
class Table:
    """A file's blocks, and its lines.

    Parameters
    ----------
    blocks : tuple of Block
        What is to be packed, in the order of the lines.
    lives : Intervals
        When each block is alive.
    lines : tuple of (str, bool)
        The text, and whether it describes a block. The first that is no comment is the header.
    header : int
        Which line that is.
    column : int or None
        Where the offsets already are.
    newline : str
        How lines end.
    """

    blocks: tuple[Block, ...]
    lives: Intervals
    lines: tuple[tuple[str, bool], ...]
    header: int
    column: int | None
    newline: str

    def with_offsets(self, offsets: Sequence[int]) -> str:
        """Return the file's text with a column ``offset``, replaced if it was there."""
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
    """Read a packing problem.

    Raises
    ------
    ParseError
        If it is damaged; the message names the line.
    """
    newline = "\r\n" if "\r\n" in text else "\n"
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").removesuffix("\n").split("\n")
    rows = list(_rows(lines, name))
    if not rows:
        raise ParseError("a packing problem has no header", at=name, fix=_FORM)
    header, titles = rows[0]
    columns = _columns(titles, f"{name}, line {header + 1}")
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
        blocks.append(Block(_number(cells[columns["size"]], "size", at)))
        lower.append(_number(cells[columns["lower"]], "lower", at))
        upper.append(_number(cells[columns["upper"]], "upper", at))
        if lower[-1] > upper[-1]:
            raise ParseError("a life ends before it begins", at=at, fix="lower <= upper")
    described = {place for place, _ in rows[1:]}
    marked = tuple((line, place in described) for place, line in enumerate(lines))
    lives = Intervals(lower, upper)
    return Table(tuple(blocks), lives, marked, header, columns.get("offset"), newline)


_FORM = "id,lower,upper,size in the first line, and one block per line after it"


def _rows(lines: Sequence[str], name: str) -> Iterator[tuple[int, list[str]]]:
    for place, line in enumerate(lines):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            yield place, next(csv.reader([line], strict=True))
        except csv.Error as error:
            raise ParseError(
                f"a line is not CSV: {error}", at=f"{name}, line {place + 1}", fix=_FORM
            ) from error


def _columns(titles: Sequence[str], at: str) -> dict[str, int]:
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


def _number(text: str, column: str, at: str) -> int:
    digits = text.strip()
    # int() also takes 1_000 and other alphabets' digits; a damaged file should not pass as either.
    if not (digits.removeprefix("-").isdecimal() and digits.isascii()):
        raise ParseError(f"{column} is {text!r}, not a whole number", at=at, fix=_FORM)
    number = int(digits) if len(digits) < 25 else LARGEST
    if abs(number) >= LARGEST or (column == "size" and number < 0):
        raise ParseError(f"{column} is {text}, which cannot be", at=at, fix="correct the number")
    return number
