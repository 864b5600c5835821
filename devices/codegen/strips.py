"""Strips of a product's factors, which a group of threads loads into shared memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .types import write_literal

DEPTH = 16
"""The depth of a strip."""
VECTOR = 4
"""Neighbours that a thread reads from a strip at once."""


class Read(NamedTuple):
    """The read of an element: statements, the condition without which it is 0, and its value.

    An empty condition is always met.
    """

    statements: Sequence[str]
    condition: str
    value: str


@dataclass(frozen=True)
class Factor:
    along_depth: bool
    """Whether neighbours in memory are neighbours along the depth, or else along the other axis."""
    place: Callable[[str, str], list[str]]
    """From the name of a row's or column's index, and a suffix for names, to statements."""
    read: Callable[[str, str], Read]
    """From that suffix and the name of an index along the depth."""
    begin: Callable[[str], list[str]] = lambda tag: []
    """From the suffix of a thread's first row or column to the statements that precede all its
    reads from a strip, which starts at the index `first`."""


class Strip:
    """Writes the statements with which a group loads a strip: each thread loads some elements.

    Parameters
    ----------
    name : str
        The prefix of variables.
    width : int
        Rows or columns of the strip.
    count : int
        Rows or columns of the factor.
    ctype, index : str
        The C types of elements and of indices.
    """

    def __init__(
        self,
        name: str,
        factor: Factor,
        width: int,
        count: int,
        threads: int,
        ctype: str,
        index: str,
    ) -> None:
        self._name, self._factor, self._ctype, self._index = name, factor, ctype, index
        self._width, self._count, self._threads = width, count, threads
        self._slots = width * DEPTH // threads
        self.pitch = width + VECTOR  # neighbours along the depth are then in different banks

    def room(self) -> str:
        """Return the declaration of the strip in shared memory."""
        size = DEPTH * self.pitch
        return f"SHARED {self._ctype} {self._name}_strip[{size}] __attribute__((aligned(16)));"

    def declare(self) -> list[str]:
        """Return the declarations of the elements that a thread loads, and of their places."""
        name, c = self._name, self._index
        inner = DEPTH if self._factor.along_depth else self._width
        step = self._threads // inner
        first, second = ("deep", "wide") if self._factor.along_depth else ("wide", "deep")
        statements = [
            f"const i32 {name}_{first} = THREAD % {inner};",
            f"const i32 {name}_{second} = THREAD / {inner};",
            f"{self._ctype} {', '.join(f'{name}_{slot}' for slot in range(self._slots))};",
        ]
        for slot in range(self._slots if self._factor.along_depth else 1):
            shift = f" + {slot * step}" if slot else ""
            index = f"{name}_index{slot}"
            statements.append(f"const {c} {index} = {name}_first + {name}_wide{shift};")
            statements += self._factor.place(index, f"_{name}{slot}")
        return statements

    def fetch(self, start: str) -> list[str]:
        """Return the statements that load the strip, beginning at `start` along the depth."""
        index = self._index
        statements = ["{", f"const {index} first = {start};"]
        statements += self._factor.begin(f"_{self._name}0")
        for slot in range(self._slots):
            placed = slot if self._factor.along_depth else 0
            read = self._factor.read(f"_{self._name}{placed}", "depth")
            conditions = [f"{self._name}_index{placed} < {self._count}", "depth < stop"]
            conditions += [read.condition] if read.condition else []
            zero = write_literal(0, self._ctype)
            statements += [
                "{",
                f"const {index} depth = first + {self._deep(slot)};",
                *read.statements,
                f"{self._name}_{slot} = {' && '.join(conditions)} ? {read.value} : {zero};",
                "}",
            ]
        return [*statements, "}"]

    def put(self) -> list[str]:
        """Return the statements that store the loaded elements to shared memory."""
        name = self._name
        return [
            f"{name}_strip[({self._deep(slot)}) * {self.pitch} + {self._wide(slot)}]"
            f" = {name}_{slot};"
            for slot in range(self._slots)
        ]

    def _deep(self, slot: int) -> str:
        return self._shifted("deep", 0 if self._factor.along_depth else slot, self._width)

    def _wide(self, slot: int) -> str:
        return self._shifted("wide", slot if self._factor.along_depth else 0, DEPTH)

    def _shifted(self, coordinate: str, slot: int, inner: int) -> str:
        shift = slot * (self._threads // inner)
        return f"{self._name}_{coordinate} + {shift}" if shift else f"{self._name}_{coordinate}"
