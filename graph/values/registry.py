"""Registries: the entries of a kind, by name, each registered once; and a count of changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any, Self, TypeVar
from weakref import ref

from .errors import GraphError, OperatorError, PlaitError, suggest_names
from .installed import find_offers, load_for, load_own

_count = 0


def note_registration() -> None:
    """Count a registration or removal: plans made before may not fit any more."""
    global _count
    _count += 1


def count_registrations() -> int:
    return _count


K = TypeVar("K")
V = TypeVar("V")


def _skip() -> None: ...


def is_redefinition(new: object, old: object) -> bool:
    """Return whether `new` and `old` have one name in one module, such as a cell that runs again.

    Functions that another function makes are several: it may make them for different cases.
    """
    names = [(getattr(f, "__module__", ""), getattr(f, "__qualname__", "")) for f in (new, old)]
    return names[0] == names[1] and all(names[0]) and "<" not in names[0][1]


def unregister(function: Callable[..., object]) -> None:
    """Remove all that `function` was registered as.

    That is an operator, a kernel, a definition, a gradient, a decomposition or a generator of code,
    or several of them. A function of the same name in the same module replaces it without this.

    Raises
    ------
    GraphError
        If the function is not registered.

    Examples
    --------
    >>> import plait as pl
    >>> from plait.operators import kernel
    >>> @kernel("Relu", when=lambda call: call.spec(0).rank == 7)
    ... def relu_of_seven_axes(xp, inputs, outputs, attributes):
    ...     xp.maximum(inputs[0], 0, out=outputs[0])
    >>> pl.unregister(relu_of_seven_axes)
    """
    removed = [registry.remove_function(function) for ref in _registries if (registry := ref())]
    if not any(removed):
        name = getattr(function, "__qualname__", repr(function))
        raise GraphError(f"{name} is not registered", fix="pass the decorated function")
    note_registration()


_registries: list[ref[Registry[Any, Any]]] = []


class Registry(dict[K, V]):
    """Entries by name: as a dict those that are registered by now, more by `find` and `all`.

    Parameters
    ----------
    taken : str or callable, optional
        The text for a second entry of a name, or a function that returns the error.
    own : callable, optional
        Registers plait's own entries; called once, when one is missing or all are asked for.
    group : str, optional
        The entry points of modules that register the entries of a name, or of its parts before a
        dot.
    counts : bool, default False
        Whether plans made before may not fit any more.
    function_of : callable, optional
        Returns the function of an entry; a later one of its name and module replaces the entry.

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
        own: Callable[[], object] = _skip,
        group: str = "",
        counts: bool = False,
        function_of: Callable[[V], object] = lambda entry: entry,
    ) -> None:
        super().__init__()
        self._taken, self._own, self._group, self._counts = taken, own, group, counts
        self._function_of = function_of
        _registries.append(ref(self, _registries.remove))

    def register(self, name: K, entry: V) -> None:
        if name in self and not is_redefinition(
            self._function_of(entry), self._function_of(self[name])
        ):
            taken = self._taken
            if isinstance(taken, str):
                raise GraphError(taken.format(name), fix="remove one")
            raise taken(name)
        self[name] = entry
        if self._counts:
            note_registration()

    def remove_function(self, function: object) -> bool:
        names = [name for name, entry in self.items() if self._function_of(entry) is function]
        for name in names:
            del self[name]
        return bool(names)

    def find(self, name: K) -> V | None:
        """Return the entry of `name`, importing modules that may register it, or None.

        Raises OperatorError if a package that offers it is broken.
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
        installed = find_offers(self._group) if self._group else ()
        known = [*map(str, self), *also, *installed]
        told = otherwise or f"there are: {', '.join(known)}"
        return kind(f"there is no {what} {name!r}", at=at, fix=suggest_names(name, known, told))


class ListRegistry(Registry[K, list[V]]):
    """Several entries for each name."""

    def add(self, name: K, entry: V) -> None:
        listed = self.setdefault(name, [])
        for place, old in enumerate(listed):
            if is_redefinition(self._function(entry), self._function(old)):
                listed[place] = entry
                return
        listed.append(entry)

    def remove_function(self, function: object) -> bool:
        is_found = False
        for name, listed in list(self.items()):
            kept = [entry for entry in listed if self._function(entry) is not function]
            is_found = is_found or len(kept) < len(listed)
            if kept:
                listed[:] = kept
            else:
                del self[name]
        return is_found

    def _function(self, entry: V) -> object:
        return self._function_of([entry])
