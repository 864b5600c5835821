"""Errors of kernels on a device, which cannot raise: each leaves a word that the host looks at."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...graph.tensor import Array
from ..codegen.pieces import Trap
from ..errors import KernelError


class Traps:
    """The traps of one program, as they are after each of its runs.

    Parameters
    ----------
    device : str
    traps : sequence of Trap
    words : Array, (traps,), int64
        What the kernels left, on the host, when a run is complete; 0 where nothing was wrong.
    clear : callable
        Makes all of them 0 again, on the device as well. A program runs again only when its last
        run is known to be complete, so that a trap is cleared before.
    """

    def __init__(
        self, device: str, traps: Sequence[Trap], words: Array, clear: Callable[[], object]
    ) -> None:
        self._device = device
        self._traps = traps
        self._words = words
        self._clear = clear

    def take(self) -> KernelError | None:
        """Return the error of the run that is complete, None where there was none."""
        if not self._words.any():
            return None
        index = int(self._words.nonzero()[0][0])  # the first node: others may fail because of it
        _, node, text = self._traps[index]
        error = KernelError(
            text.format(int(self._words[index])), at=f"{node}, on device {self._device!r}"
        )
        self._clear()
        return error
