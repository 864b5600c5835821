"""The outcome of carrying values from one graph's variables to those of another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ....graph.core.printing import format_count


@dataclass(frozen=True, slots=True)
class Carried:
    """The values that fitted, and those that did not; `Session.carry_variables` returns it.

    Attributes
    ----------
    taken : tuple of str
        Variables that were set.
    unlike : Mapping of str to str
        Variables with a value of another dtype or shape, with a description of both.
    unknown : tuple of str
        Values without a variable here.
    left : tuple of str
        Variables without a value.

    Examples
    --------
    >>> import plait as pl
    >>> carried = pl.Carried(taken=("w",), unlike={}, unknown=("old",), left=())
    >>> carried.is_whole
    False
    """

    taken: tuple[str, ...]
    unlike: Mapping[str, str]
    unknown: tuple[str, ...]
    left: tuple[str, ...]

    @property
    def is_whole(self) -> bool:
        """True if every variable was set, and every value used."""
        return not (self.unlike or self.unknown or self.left)

    def __str__(self) -> str:
        lines = [f"{format_count(len(self.taken), 'variable')} taken"]
        lines += [f"{name}: {what}" for name, what in self.unlike.items()]
        lines += [f"{name}: no variable here" for name in self.unknown]
        lines += [f"{name}: no value, left as it is" for name in self.left]
        return "\n  ".join(lines)
