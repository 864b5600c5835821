"""Registries: what there is of a kind, by name, each registered once; and a count of changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Self, TypeVar

from .errors import GraphError, OperatorError, PlaitError
from .installed import load_for, load_own, offered
from .names import did_you_mean

_count = 0


def note_registration() -> None:
    """Count one more that came or went: plans made before may not fit."""
    global _count
    _count += 1


def registrations() -> int:
    """Return how many there were in this process."""
    return _count


K = TypeVar("K")
V = TypeVar("V")


def _nothing() -> None: ...


class Registry(dict[K, V]):
    """Entries by name: as a dict those that are registered by now, more by `find` and `all`.

    Parameters
    ----------
    taken : str or callable, optional
        Says of a name what is wrong with a second entry, or returns the error.
    own : callable, optional
        Registers plait's own entries; called once, when one is missing or all are asked for.
    group : str, optional
        The entry points whose modules register the entries of a name, or of its parts before a dot.
    counts : bool, default False
        Whether plans made before may not fit any more.

    Examples
    --------
    >>> numbers = Registry("two numbers are called {!r}")
    >>> numbers.register("one", 1)
    >>> numbers.find("one"), numbers.find("two")
    (1, None)
    >>> print(numbers.unknown_error("number", "on").fix)
    did you mean 'one'?
    """

    def __init__(
        self,
        taken: str | Callable[[K], PlaitError] = "{!r} is registered twice",
        *,
        own: Callable[[], object] = _nothing,
        group: str = "",
        counts: bool = False,
    ) -> None:
        super().__init__()
        self._taken, self._own, self._group, self._counts = taken, own, group, counts

    def register(self, name: K, entry: V) -> None:
        """Add an entry; raise if there is one of that name."""
        if name in self:
            taken = self._taken
            if isinstance(taken, str):
                raise GraphError(taken.format(name), fix="remove one")
            raise taken(name)
        self[name] = entry
        if self._counts:
            note_registration()

    def find(self, name: K) -> V | None:
        """Return the entry of a name, None where there is none; what may register it is imported.

        Raises
        ------
        OperatorError
            If a package that offers it is broken.
        """
        if name not in self:
            self.import_own()
            if self._group and name not in self:
                load_for(self._group, str(name), OperatorError)
        return self.get(name)

    def all(self) -> Self:
        """Return it with all entries of plait and its dialects; those of packages as they are."""
        self.import_own()
        if self._group:
            load_own(self._group)
        return self

    def import_own(self) -> None:
        """Register plait's own entries, unless that was done."""
        _ = self._imported

    @cached_property
    def _imported(self) -> bool:
        self._own()
        return True

    def unknown_error(
        self,
        what: str,
        name: object,
        otherwise: str = "",
        kind: type[PlaitError] = GraphError,
        at: str | None = None,
        also: Iterable[str] = (),
    ) -> PlaitError:
        """Return the error for a name of nothing: it tells the closest of all, or all of them."""
        installed = offered(self._group) if self._group else ()
        known = [*map(str, self), *also, *installed]
        told = otherwise or f"there are: {', '.join(known)}"
        return kind(f"there is no {what} {name!r}", at=at, fix=did_you_mean(name, known, told))
