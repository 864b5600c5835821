"""Kernels that change a few elements of a tensor, such as the rows of one step in a cache.

Their result is a copy of the tensor but for these. Where both are values of a variable, which
alternates between two arenas, the arenas differ only in the elements that were written last, so
that the rest need not be copied: the cost of a step does not depend on the length of the cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from ...graph.values.tensor import Array
from ..memory import ArenaPair, UndoLog
from .registry import ArrayModule

Part: TypeAlias = tuple[Array, ...]
"""Indices of elements."""


@dataclass(slots=True, eq=False)
class PartialWrite:
    """A step that copies x to y, and then writes some elements of y.

    Parameters
    ----------
    find : callable
        Returns the indices of these elements, on every call.
    write : callable
        Writes them, given their indices.

    Attributes
    ----------
    pair : ArenaPair or None
        That of the arenas of x and y, where these alternate.
    undo : UndoLog or None
        Where x is y.
    """

    _xp: ArrayModule
    _x: Array
    _y: Array
    _find: Callable[[], Part]
    _write: Callable[[Part], object]
    pair: ArenaPair | None = None
    undo: UndoLog | None = None

    def __call__(self) -> None:
        part, pair = self._find(), self.pair
        if self.undo is not None:
            # Copies, as below.
            part = tuple(index.copy() for index in part)
            self.undo.append((self._y, part, self._y[part]))
            self._write(part)
            return
        before = pair.part if pair and pair.is_followed else None
        if pair:
            pair.part = None  # in case of an error
        if before is None:
            self._xp.copyto(self._y, self._x)
        else:
            self._y[before] = self._x[before]
        self._write(part)
        if pair:
            # Copies: the memory of indices serves others after this step.
            pair.part = tuple(index.copy() for index in part)
