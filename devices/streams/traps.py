"""Errors of kernels on a device, which cannot raise: each writes a word that the host checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...graph.values.tensor import Array
from ..codegen.pieces import Trap
from ..errors import KernelError


@dataclass(slots=True, eq=False)
class Traps:
    """The traps of one program, checked after each of its runs.

    `words`, an int64 for each, are written by the kernels, and on the host when a run is complete;
    0 means no error. `clear` resets all words, on the device as well: a program runs again only
    after its last run is known to be complete.
    """

    _device: str
    _traps: Sequence[Trap]
    _words: Array
    _clear: Callable[[], object]

    def take(self) -> KernelError | None:
        """Return the error of the last run, if any, and clear the traps."""
        if not self._words.any():
            return None
        index = int(self._words.nonzero()[0][0])  # the first node: its error may cause others
        _, node, text = self._traps[index]
        error = KernelError(
            text.format(int(self._words[index])), at=f"{node}, on device {self._device!r}"
        )
        self._clear()
        return error
